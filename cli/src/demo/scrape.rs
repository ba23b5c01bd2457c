//! Owns reading the Prometheus text of a proxy's `/metrics` and summing its samples. It fetches nothing.

use std::collections::BTreeMap;

/// One line of the text: a name, its labels and a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Metric name, with `_bucket`, `_sum`, `_count` or `_total` where the type has it.
    pub name: String,
    labels: BTreeMap<String, String>,
    /// The value; counters are exact up to 2^53.
    pub value: f64,
}

impl Sample {
    /// A label's value; a missing label reads as empty, as in PromQL.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

/// All samples of a text; lines that are no samples (comments, blanks, broken ones) are passed over.
pub fn parse(text: &str) -> Vec<Sample> {
    text.lines()
        .filter_map(|line| sample(line.trim()))
        .collect()
}

fn sample(line: &str) -> Option<Sample> {
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// Reads `a="b",c="d"}` and gives back what follows the brace.
fn labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, after) = rest.split_once("=\"")?;
        let (value, after) = quoted(after)?;
        labels.insert(name.trim().to_owned(), value);
        rest = after;
    }
}

/// Reads up to the closing quote, undoing `\\`, `\"` and `\n`.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => match letters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

/// The counts of a histogram: upper bound and how many were at or below it, ascending.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram(Vec<(f64, f64)>);

impl Histogram {
    /// Adds up the `_bucket` samples given, over all their other labels.
    pub fn sum<'a>(buckets: impl Iterator<Item = &'a Sample>) -> Self {
        let mut sums: Vec<(f64, f64)> = Vec::new();
        for bucket in buckets {
            let bound = match bucket.label("le") {
                "+Inf" => f64::INFINITY,
                number => number.parse().unwrap_or(f64::INFINITY),
            };
            match sums.iter_mut().find(|(other, _)| *other == bound) {
                Some((_, count)) => *count += bucket.value,
                None => sums.push((bound, bucket.value)),
            }
        }
        sums.sort_by(|a, b| a.0.total_cmp(&b.0));
        Histogram(sums)
    }

    /// The value below which the share `q` (0 to 1) lies, linear within its bucket as in PromQL's `histogram_quantile`.
    /// In the last, open bucket it is that bucket's lower bound. `None` without observations.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let total = self.0.last()?.1;
        if total <= 0.0 {
            return None;
        }
        let rank = q.clamp(0.0, 1.0) * total;
        let (mut low, mut below) = (0.0, 0.0);
        for &(bound, count) in &self.0 {
            if count >= rank && count > below {
                return Some(if bound.is_finite() {
                    low + (bound - low) * (rank - below) / (count - below)
                } else {
                    low
                });
            }
            (low, below) = (bound, count);
        }
        Some(low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_names_labels_and_values() {
        let text = "# TYPE request_total counter\n\
            request_total{direction=\"outbound\",authority=\"a\\\"b\\\\c\",tls=\"true\"} 42\n\
            process_open_fds 7\n\
            \n\
            broken{x=\"1\n\
            bucket{le=\"+Inf\"} 1e3 1700000000\n";
        let samples = parse(text);
        assert_eq!(samples.len(), 3);
        assert_eq!(
            (samples[0].label("authority"), samples[0].value),
            ("a\"b\\c", 42.0)
        );
        assert_eq!(
            (samples[1].name.as_str(), samples[1].label("tls")),
            ("process_open_fds", "")
        );
        assert_eq!(samples[2].value, 1000.0);
    }

    fn histogram(counts: &[(&str, f64)]) -> Histogram {
        let text: String = counts
            .iter()
            .map(|(le, count)| format!("h_bucket{{le=\"{le}\"}} {count}\n"))
            .collect();
        Histogram::sum(parse(&text).iter())
    }

    #[test]
    fn quantiles_are_interpolated() {
        let h = histogram(&[("1", 0.0), ("2", 50.0), ("4", 100.0), ("+Inf", 100.0)]);
        assert_eq!(h.quantile(0.5), Some(2.0));
        assert_eq!(h.quantile(0.75), Some(3.0));
        assert_eq!(
            histogram(&[("1", 0.0), ("+Inf", 3.0)]).quantile(0.5),
            Some(1.0)
        );
        assert_eq!(histogram(&[("1", 0.0), ("+Inf", 0.0)]).quantile(0.5), None);
    }

    proptest! {
        #[test]
        fn quantiles_never_fall(steps in proptest::collection::vec(0u32..50, 5), a in 0.0..1.0f64, b in 0.0..1.0f64) {
            let mut sum = 0.0;
            let bounds = ["1", "5", "10", "100", "+Inf"];
            let counts: Vec<(&str, f64)> =
                bounds.iter().zip(&steps).map(|(le, n)| { sum += f64::from(*n); (*le, sum) }).collect();
            let h = histogram(&counts);
            prop_assert!(h.quantile(a.min(b)) <= h.quantile(a.max(b)));
        }

        #[test]
        fn any_text_is_survived(text in "\\PC{0,200}") {
            parse(&text);
        }
    }
}
