//! Owns the tables and plots of the control plane's figures. Text only.

use super::{FanOut, Measured};
use crate::report::svg::{self, Lines};
use crate::report::view::Table;
use crate::report::{html as page, markdown as text, number};

const LEGEND: &str = "Discovery: times from an endpoint's change to the first and to the last subscriber, which are tasks of another \
    process on the same machine and so include reading all updates. Memory and CPU are those of the service.";

/// The summary.
pub fn markdown(measured: &Measured) -> String {
    let tables: Vec<String> = tables(measured).iter().map(text::table).collect();
    format!("# Control plane\n\n{LEGEND}\n\n{}", tables.concat())
}

/// The page with plots.
pub fn html(measured: &Measured) -> String {
    let tables: Vec<String> = tables(measured).iter().map(page::table).collect();
    let line = |run: &FanOut| {
        let points = run
            .last_us
            .iter()
            .enumerate()
            .map(|(at, us)| (at as f64, *us as f64 / 1000.0));
        (format!("{} services", run.services), points.collect())
    };
    let plot = Lines {
        title: "ms to the last subscriber, change by change".to_owned(),
        lines: measured.fan_outs.iter().map(line).collect(),
    };
    let body = format!(
        "<h1>Control plane</h1><p>{LEGEND}</p>{}{}",
        tables.concat(),
        svg::lines(&plot)
    );
    page::document("Control plane", &body)
}

fn tables(measured: &Measured) -> [Table; 3] {
    let headings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let ms = |us: u64| number(us as f64 / 1000.0);
    let fan_out = |run: &FanOut| {
        let [before, opened, after] = run.memory_kb.map(|kb| kb as f64 * 1.024);
        vec![
            format!("{} to {}", run.subscriptions, run.services),
            number(run.open_seconds),
            ms(run.first.p50_us),
            ms(run.last.p50_us),
            ms(run.last.p99_us),
            number(run.cpu_us),
            number(before / 1000.0),
            number(opened / 1000.0),
            number(after / 1000.0),
            number((opened - before) / run.subscriptions.max(1) as f64),
        ]
    };
    let certificates = &measured.certificates;
    [
        Table {
            headings: headings(&[
                "subscriptions to services",
                "s to open",
                "p50 ms to first",
                "p50 ms to last",
                "p99 ms to last",
                "CPU µs an update",
                "MB before",
                "MB open",
                "MB after",
                "KB a stream",
            ]),
            rows: measured.fan_outs.iter().map(fan_out).collect(),
        },
        Table {
            headings: headings(&["certificates", "per s", "p50 ms", "p99 ms", "CPU µs each"]),
            rows: vec![vec![
                certificates.issued.to_string(),
                number(certificates.issued as f64 / certificates.seconds),
                ms(certificates.latency.p50_us),
                ms(certificates.latency.p99_us),
                number(certificates.cpu_us),
            ]],
        },
        Table {
            headings: headings(&["machine", ""]),
            rows: measured
                .facts
                .iter()
                .map(|(name, value)| vec![name.clone(), value.clone()])
                .collect(),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_plane::certify::Certificates;
    use crate::stats::Percentiles;

    #[test]
    fn memory_a_stream_is_what_the_streams_added() {
        let run = FanOut {
            services: 1,
            subscriptions: 1000,
            open_seconds: 0.5,
            memory_kb: [1000, 11_000, 12_000],
            first: Percentiles::default(),
            last: Percentiles {
                p50_us: 2500,
                ..Percentiles::default()
            },
            cpu_us: 3.0,
            last_us: vec![2500],
        };
        let certificates = Certificates {
            seconds: 2.0,
            issued: 100,
            latency: Percentiles::default(),
            cpu_us: 1.0,
        };
        let measured = Measured {
            facts: Vec::new(),
            fan_outs: vec![run],
            certificates,
        };
        let summary = markdown(&measured);
        assert!(
            summary.contains("| 1000 to 1 | 0.50 | 0.00 | 2.50 |") && summary.contains("| 10.2 |"),
            "{summary}"
        );
        assert!(html(&measured).contains("<polyline"));
    }
}
