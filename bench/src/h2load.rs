//! Owns the closed loop over HTTP: the arguments of h2load and what is read from its report. It starts nothing.

use std::path::Path;

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
    /// Send a gRPC message rather than a GET.
    pub post: bool,
}

impl ClosedLoop {
    /// Arguments for a run of so many seconds; `message` is the file of a gRPC message.
    pub fn arguments(&self, url: &str, seconds: f64, message: &Path) -> Vec<String> {
        let mut list = self.common();
        if self.post {
            let headers = ["content-type: application/grpc", "te: trailers"];
            list.extend(
                headers
                    .iter()
                    .flat_map(|header| ["-H".to_owned(), (*header).to_owned()]),
            );
            list.extend(["-d".to_owned(), message.display().to_string()]);
        }
        // In milliseconds, since h2load takes no fractions.
        list.extend([
            "-D".to_owned(),
            format!("{:.0}ms", seconds * 1000.0),
            url.to_owned(),
        ]);
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

/// Reads the report of a load whose answers have `body` bytes each; `None` if it is not one.
///
/// h2load 1.52 counts an HTTP/1.1 answer without a reason phrase as failed and in no class of statuses, and HAProxy sends
/// such answers for those that were HTTP/2 on the way. So an answer counts that is in no bad class, if its bytes came.
pub fn parse(report: &str, body: u64) -> Option<Summary> {
    let line = |start: &str| report.lines().find_map(|line| line.strip_prefix(start));
    let finished = line("finished in ")?;
    let (requests, statuses) = (line("requests: ")?, line("status codes: ")?);
    let done = item(requests, "done")?;
    let broken = item(requests, "errored")?.saturating_add(item(requests, "timeout")?);
    let refused = ["3xx", "4xx", "5xx"]
        .iter()
        .filter_map(|class| item(statuses, class))
        .sum::<u64>();
    let data = line("traffic: ")?
        .rsplit_once('(')?
        .1
        .strip_suffix(") data")?;
    let whole = data.parse::<u64>().ok()?.checked_div(body)?;
    let succeeded = done
        .saturating_sub(broken)
        .saturating_sub(refused)
        .min(whole);
    Some(Summary {
        seconds: seconds(finished.split(',').next()?)?,
        succeeded,
        failed: done.saturating_sub(succeeded),
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
        traffic: 135.25MB (141819000) total, 2.01MB (2107000) headers (space savings 90.00%), 127.80MB (134000640) data\n";

    #[test]
    fn a_report_is_read() {
        let summary = parse(REPORT, 1024).expect("a report");
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
        assert_eq!(parse("[ERROR] could not connect\n", 1024), None);
        assert_eq!(parse("", 1024), None);
        assert_eq!(parse(REPORT, 0), None);
    }

    #[test]
    fn answers_without_a_reason_count_if_their_bytes_came() {
        let report = "finished in 941us, 1062.70 req/s, 1.16MB/s\n\
            requests: 3 total, 3 started, 3 done, 0 succeeded, 3 failed, 0 errored, 0 timeout\n\
            status codes: 0 2xx, 0 3xx, 0 4xx, 0 5xx\n\
            traffic: 1.12KB (1148) total, 91B (91) headers (space savings 0.00%), 2.00KB (2100) data\n";
        let summary = parse(report, 1024).expect("a report");
        assert_eq!((summary.succeeded, summary.failed), (2, 1));
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
            post: false,
        };
        let arguments =
            |load: ClosedLoop| load.arguments("http://a/", 2.0, Path::new("m")).join(" ");
        assert_eq!(arguments(load), "-c32 -m1 -t1 --h1 -D 2000ms http://a/");
        let grpc = ClosedLoop {
            http1: false,
            post: true,
            ..load
        };
        assert!(arguments(grpc).contains("-H te: trailers -d m -D"));
    }
}
