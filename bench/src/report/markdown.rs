//! Owns the summary as Markdown. Text only; what the tables hold is in `view`.

use std::fmt::Write;

use super::view::{self, Table};
use crate::figures::Results;

/// What the figures mean, for any format.
pub const LEGEND: &str = "Medians of all repetitions, the range in brackets. CPU, switches, calls, reads and writes are of both \
    proxies of a pair together; memory is that of the larger one. Only ratios within one run mean something: absolute figures move \
    with the machine.";

/// The summary.
pub fn summary(results: &Results) -> String {
    let mut text = format!("# Measurements\n\n{LEGEND}\n\n");
    for workload in results.workloads() {
        // Writing to a string does not fail.
        let _ = write!(text, "## {workload}: {}\n\n", workload.description());
        text.push_str(&table(&view::table(results, workload)));
        let ratios = view::ratios(results, workload);
        if !ratios.is_empty() {
            let _ = write!(text, "{ratios}.\n\n");
        }
    }
    text.push_str("## The machine and the programs\n\n| | |\n|---|---|\n");
    for (name, value) in &results.facts {
        let _ = writeln!(text, "| {name} | {value} |");
    }
    for note in &results.left_out {
        let _ = write!(text, "\nLeft out: {note}.\n");
    }
    text
}

/// A table, with an empty line behind it.
pub fn table(table: &Table) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&table.headings);
    let numbers = "---:|".repeat(table.headings.len().saturating_sub(1));
    let _ = writeln!(text, "|---|{numbers}");
    text.extend(table.rows.iter().map(|row| line(row)));
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Load, Run};
    use crate::stats::Percentiles;
    use crate::workload::Workload;

    fn run(peer: &str, workload: Workload, units: f64) -> Run {
        let latency = workload.is_rated().then_some(Percentiles {
            p50_us: units as u64,
            ..Percentiles::default()
        });
        Run {
            peer: peer.to_owned(),
            workload,
            repetition: 0,
            load: Load {
                seconds: 1.0,
                units,
                latency,
                ..Load::default()
            },
            proxies: None,
        }
    }

    #[test]
    fn a_summary_has_what_there_is_and_no_empty_columns() {
        let results = Results {
            facts: vec![("kernel".to_owned(), "6".to_owned())],
            left_out: vec!["envoy is missing".to_owned()],
            runs: vec![
                run("weft", Workload::Http2, 2000.0),
                run("haproxy", Workload::Http2, 1000.0),
            ],
        };
        let text = summary(&results);
        assert!(text.contains("| weft | 2,000 | 0 |"), "{text}");
        assert!(text.contains("weft ÷ haproxy: rate 2.00."), "{text}");
        assert!(!text.contains("p50"), "{text}");
        assert!(
            text.contains("| kernel | 6 |") && text.contains("Left out: envoy is missing."),
            "{text}"
        );
    }

    #[test]
    fn added_times_are_above_those_without_a_proxy() {
        let workload = Workload::Http2Rate;
        let runs = vec![run("none", workload, 500.0), run("weft", workload, 1750.0)];
        let text = summary(&Results {
            runs,
            ..Results::default()
        });
        assert!(text.contains("p50 added"), "{text}");
        assert!(text.contains("| 1.75 | 0.00 | 0.00 | 1.25 |"), "{text}");
    }
}
