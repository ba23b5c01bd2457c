//! Owns reading a proxy's metrics page into samples, and finding and adding them up. Does not fetch it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail};

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Name of the series.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

/// A page of metrics.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    samples: Vec<Sample>,
    /// Family and type, in the order of the page.
    pub types: Vec<(String, String)>,
    /// Families that have a HELP line, in the order of the page.
    pub helps: Vec<String>,
}

impl Samples {
    /// Reads the text format.
    ///
    /// # Errors
    /// A line that is not of that format.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let mut page = Samples::default();
        for line in text.lines() {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            match words.as_slice() {
                ["#", "TYPE", family, kind] => {
                    page.types.push(((*family).to_owned(), (*kind).to_owned()))
                }
                ["#", "HELP", family, ..] => page.helps.push((*family).to_owned()),
                ["#", ..] | [""] => {}
                _ => page
                    .samples
                    .push(sample(line).with_context(|| format!("line {line:?}"))?),
            }
        }
        Ok(page)
    }

    /// All of them.
    pub fn all(&self) -> &[Sample] {
        &self.samples
    }

    /// Those of a name that have all these labels.
    pub fn find<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = &'a Sample> {
        self.samples
            .iter()
            .filter(move |sample| sample.name == name && sample.has(labels))
    }

    /// Their sum; 0 without any.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.find(name, labels).map(|sample| sample.value).sum()
    }

    /// The names of the labels of the first of them.
    ///
    /// # Errors
    /// There is none.
    pub fn label_names(
        &self,
        name: &str,
        labels: &[(&str, &str)],
    ) -> anyhow::Result<BTreeSet<&str>> {
        let Some(first) = self.find(name, labels).next() else {
            bail!("no series {name} with {labels:?}");
        };
        // Borrowed again, because `first` borrows from the arguments too.
        let at = self
            .samples
            .iter()
            .find(|sample| *sample == first)
            .context("it was just there")?;
        Ok(at.labels.keys().map(String::as_str).collect())
    }
}

impl Sample {
    /// Whether it has all these labels.
    pub fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels
            .iter()
            .all(|(name, value)| self.labels.get(*name).is_some_and(|v| v == value))
    }
}

fn sample(line: &str) -> anyhow::Result<Sample> {
    let (name, labels, value) = match line.find('{') {
        None => {
            let (name, value) = line.split_once(' ').context("no value")?;
            (name, BTreeMap::new(), value)
        }
        Some(open) => {
            let (labels, value) = labels(&line[open + 1..])?;
            (&line[..open], labels, value)
        }
    };
    let value = value.split_whitespace().next().context("no value")?;
    Ok(Sample {
        name: name.to_owned(),
        labels,
        value: value.parse()?,
    })
}

fn labels(mut text: &str) -> anyhow::Result<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        if let Some(rest) = text.strip_prefix('}') {
            return Ok((labels, rest));
        }
        let (name, rest) = text.split_once("=\"").context("a label without value")?;
        let (value, rest) = quoted(rest).context("a label's value does not end")?;
        if labels.insert(name.to_owned(), value).is_some() {
            bail!("label {name} twice");
        }
        text = rest.strip_prefix(',').unwrap_or(rest);
    }
}

fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read() {
        let text = "# HELP a Help.\n# TYPE a counter\na_total{x=\"1\",y=\"q\\\"}\\n\"} 3\na_total{x=\"2\"} 4\nb 1.5\n# EOF\n";
        let page = Samples::parse(text).expect("a good page");
        assert_eq!(page.sum("a_total", &[]), 7.0);
        assert_eq!(page.sum("a_total", &[("y", "q\"}\n")]), 3.0);
        assert_eq!(page.sum("b", &[]), 1.5);
        assert_eq!(page.types, [("a".to_owned(), "counter".to_owned())]);
        assert!(Samples::parse("a{x=\"1\"").is_err());
    }
}
