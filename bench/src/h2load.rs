//! Owns the closed loop over HTTP: the arguments of h2load and what is read from its report. It starts nothing.

use serde::{Deserialize, Serialize};

/// A closed loop: each connection keeps its streams busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedLoop {
    /// Speak HTTP/1.1 rather than HTTP/2 with prior knowledge.
    pub http1: bool,
    /// Connections.
    pub connections: u32,
    /// Requests in flight on each.
    pub streams: u32,
}

impl ClosedLoop {
    /// Arguments for a run of so many seconds.
    pub fn arguments(&self, url: &str, seconds: f64) -> Vec<String> {
        let mut list = self.common();
        // In milliseconds, since h2load takes no fractions.
        list.extend(["-D".to_owned(), format!("{:.0}ms", seconds * 1000.0), url.to_owned()]);
        list
    }

    /// Arguments for so many requests.
    pub fn count_arguments(&self, url: &str, requests: u32) -> Vec<String> {
        let mut list = self.common();
        list.extend(["-n".to_owned(), requests.to_string(), url.to_owned()]);
        list
    }

    fn common(&self) -> Vec<String> {
        let mut list = vec![
            format!("-c{}", self.connections),
            format!("-m{}", self.streams),
            "-t1".to_owned(),
        ];
        list.extend(self.http1.then(|| "--h1".to_owned()));
        list
    }
}

/// What h2load reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How long it ran, s.
    pub seconds: f64,
    /// Requests answered by 2xx.
    pub succeeded: u64,
    /// All others that ended: another status, a reset, a broken connection.
    pub failed: u64,
}

/// Reads the report; `None` if it is not one.
pub fn parse(report: &str) -> Option<Summary> {
    let finished = report.lines().find_map(|line| line.strip_prefix("finished in "))?;
    let requests = report.lines().find_map(|line| line.strip_prefix("requests: "))?;
    let statuses = report.lines().find_map(|line| line.strip_prefix("status codes: "))?;
    let done = item(requests, "done")?;
    let succeeded = item(statuses, "2xx")?;
    Some(Summary {
        seconds: seconds(finished.split(',').next()?)?,
        succeeded,
        failed: done.saturating_sub(succeeded).max(item(requests, "failed")?),
    })
}

/// The number before a word in `12 total, 3 started`.
fn item(list: &str, word: &str) -> Option<u64> {
    list.split(',').find_map(|item| {
        let mut words = item.split_ascii_whitespace();
        let (number, name) = (words.next()?, words.next()?);
        (name == word).then(|| number.parse().ok()).flatten()
    })
}

/// `2.50s`, `310.2ms` or `15us`.
fn seconds(text: &str) -> Option<f64> {
    let split = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(split);
    let factor = match unit.trim() {
        "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        _ => return None,
    };
    number.parse::<f64>().ok().map(|number| number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "starting benchmark...\nspawning thread #0: 8 total client(s). Timing-based test\n\
        Application protocol: h2c\n\n\
        finished in 2.51s, 52345.20 req/s, 54.10MB/s\n\
        requests: 130863 total, 130991 started, 130863 done, 130860 succeeded, 3 failed, 0 errored, 0 timeout\n\
        status codes: 130860 2xx, 0 3xx, 1 4xx, 2 5xx\n\
        traffic: 135.25MB (141819000) total, 2.01MB (2107000) headers (space savings 90.00%), 127.80MB (134003712) data\n";

    #[test]
    fn a_report_is_read() {
        let summary = parse(REPORT).expect("a report");
        assert_eq!(
            summary,
            Summary {
                seconds: 2.51,
                succeeded: 130_860,
                failed: 3
            }
        );
    }

    #[test]
    fn what_is_no_report_is_none() {
        assert_eq!(parse("[ERROR] could not connect\n"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn units_of_time() {
        assert_eq!(seconds("2.5s"), Some(2.5));
        assert_eq!(seconds("500.0ms"), Some(0.5));
        assert_eq!(seconds("7h"), None);
    }

    #[test]
    fn arguments_name_the_protocol() {
        let load = ClosedLoop {
            http1: true,
            connections: 32,
            streams: 1,
        };
        let arguments = load.arguments("http://a/", 2.0).join(" ");
        assert_eq!(arguments, "-c32 -m1 -t1 --h1 -D 2000ms http://a/");
    }
}
