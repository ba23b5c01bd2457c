//! Owns the summary as Markdown: a table for each workload, ratios, facts. Text only.

use std::fmt::Write;

use super::number;
use crate::figures::{Metric, Results};
use crate::stats::Spread;
use crate::workload::Workload;

/// Columns of a table, with their headings.
const COLUMNS: [(Metric, &str); 14] = [
    (Metric::Rate, "/s"),
    (Metric::Cpu, "CPU µs, pair"),
    (Metric::CpuClient, "client side"),
    (Metric::CpuServer, "server side"),
    (Metric::P50, "p50 ms"),
    (Metric::P99, "p99 ms"),
    (Metric::P999, "p99.9 ms"),
    (Metric::Idle, "MB idle"),
    (Metric::Loaded, "MB loaded"),
    (Metric::After, "MB after"),
    (Metric::PerConnection, "KB a connection"),
    (Metric::Switches, "switches"),
    (Metric::Reads, "reads"),
    (Metric::Writes, "writes"),
];

/// The summary.
pub fn summary(results: &Results) -> String {
    let mut text = String::from("# Measurements\n\nMedians of all repetitions, the range in brackets. ");
    text.push_str("CPU, switches, reads and writes are for one unit and both proxies together.\n\n");
    for workload in results.workloads() {
        text.push_str(&table(results, workload));
        text.push_str(&ratios(results, workload));
    }
    text.push_str("## The machine and the programs\n\n| | |\n|---|---|\n");
    for (name, value) in &results.facts {
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {name} | {value} |");
    }
    for note in &results.left_out {
        let _ = write!(text, "\nLeft out: {note}.\n");
    }
    text
}

fn table(results: &Results, workload: Workload) -> String {
    let peers = results.peers();
    let value = |peer: &str, metric| results.spread(peer, workload, metric);
    let columns: Vec<_> = COLUMNS
        .iter()
        .filter(|(metric, _)| peers.iter().any(|peer| value(peer, *metric).is_some()))
        .collect();
    let unit = workload.unit().name();
    let headings: Vec<&str> = columns.iter().map(|(_, heading)| *heading).collect();
    let mut text = format!("## {workload}: {}\n\n", workload.description());
    let _ = writeln!(text, "| unit: {unit} | {} | failed |", headings.join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(columns.len() + 1));
    for peer in peers {
        let cells = columns.iter().map(|(metric, _)| value(peer, *metric).map_or("–".to_owned(), cell));
        let cells: Vec<String> = cells.collect();
        let runs = results.runs.iter().filter(|run| run.peer == peer && run.workload == workload);
        let failed: u64 = runs.map(|run| run.load.failed).sum();
        let _ = writeln!(text, "| {peer} | {} | {failed} |", cells.join(" | "));
    }
    text.push('\n');
    text
}

fn cell(spread: Spread) -> String {
    let (low, high) = (number(spread.min), number(spread.max));
    if low == high {
        return number(spread.median);
    }
    format!("{} ({low}–{high})", number(spread.median))
}

/// Weft's cost divided by that of each other one.
fn ratios(results: &Results, workload: Workload) -> String {
    let peers = results.peers();
    let Some(own) = peers.iter().find(|peer| **peer == "weft") else { return String::new() };
    let mut parts = Vec::new();
    for other in peers.iter().filter(|peer| *peer != own) {
        for (metric, name) in [(Metric::Cpu, "CPU"), (Metric::Rate, "rate"), (Metric::Loaded, "memory")] {
            let ratio = results.ratio(own, other, workload, metric);
            parts.extend(ratio.map(|ratio| format!("{name} {} × {other}", cell(ratio))));
        }
    }
    if parts.is_empty() {
        return String::new();
    }
    format!("weft: {}.\n\n", parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Load, Run};

    #[test]
    fn a_summary_has_what_there_is_and_no_empty_columns() {
        let run = |peer: &str, units| Run {
            peer: peer.to_owned(),
            workload: Workload::Http2,
            repetition: 0,
            load: Load { seconds: 1.0, units, ..Load::default() },
            proxies: None,
        };
        let results = Results {
            facts: vec![("kernel".to_owned(), "6".to_owned())],
            left_out: vec!["envoy is missing".to_owned()],
            runs: vec![run("weft", 2000.0), run("haproxy", 1000.0)],
        };
        let text = summary(&results);
        assert!(text.contains("| weft | 2,000 | 0 |"), "{text}");
        assert!(text.contains("rate 2.00 × haproxy"), "{text}");
        assert!(!text.contains("p50"), "{text}");
        assert!(text.contains("| kernel | 6 |") && text.contains("Left out: envoy is missing."), "{text}");
    }
}
