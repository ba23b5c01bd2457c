//! Owns bulk transfers of bytes: the arguments of iperf3 and what is read from its report. It starts nothing.

use serde::Deserialize;

/// Arguments of the server.
pub fn server_arguments(port: u16) -> Vec<String> {
    ["-s", "-p"]
        .map(str::to_owned)
        .into_iter()
        .chain([port.to_string()])
        .collect()
}

/// Arguments of the client for so many seconds.
pub fn client_arguments(host: &str, port: u16, seconds: f64) -> Vec<String> {
    let (port, seconds) = (port.to_string(), format!("{:.0}", seconds.max(1.0)));
    ["-J", "-c", host, "-p", &port, "-t", &seconds]
        .map(str::to_owned)
        .to_vec()
}

#[derive(Deserialize)]
struct Report {
    error: Option<String>,
    end: End,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct End {
    sum_received: Sum,
}

#[derive(Deserialize, Default)]
struct Sum {
    seconds: f64,
    bytes: f64,
}

/// Bytes that arrived and seconds it took.
///
/// # Errors
/// What iperf3 says, or that it says something else.
pub fn parse(report: &str) -> anyhow::Result<(f64, f64)> {
    let report: Report = serde_json::from_str(report)?;
    if let Some(error) = report.error {
        anyhow::bail!("iperf3: {error}");
    }
    let Sum { seconds, bytes } = report.end.sum_received;
    Ok((bytes, seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrived_counts() {
        let report = r#"{"start":{},"end":{"sum_sent":{"seconds":2,"bytes":9},"sum_received":{"start":0,"seconds":2.5,"bytes":8000,"sender":true}}}"#;
        assert_eq!(parse(report).expect("a report"), (8000.0, 2.5));
    }

    #[test]
    fn errors_are_passed_on() {
        let error =
            parse(r#"{"start":{},"end":{},"error":"unable to connect"}"#).expect_err("an error");
        assert!(error.to_string().contains("unable to connect"));
        assert!(parse("").is_err());
    }
}
