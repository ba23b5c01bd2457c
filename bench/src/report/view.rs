//! Owns which figures a table has, under which headings and in which units. It does not know the format of the page.

use super::number;
use crate::figures::{Metric, Results};
use crate::stats::Spread;
use crate::workload::{Unit, Workload};

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Headings of the columns, the first of which names the unit.
    pub headings: Vec<String>,
    /// One row a peer.
    pub rows: Vec<Vec<String>>,
}

/// A figure of a table or a plot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Column {
    /// What.
    pub metric: Metric,
    /// Above the figure without a proxy rather than the figure itself.
    pub added: bool,
    /// Its heading.
    pub heading: &'static str,
    /// From the metric's unit to that of the heading.
    pub factor: f64,
}

impl Column {
    fn new(metric: Metric, heading: &'static str) -> Self {
        Column {
            metric,
            added: false,
            heading,
            factor: 1.0,
        }
    }

    /// Its value over all repetitions.
    pub fn spread(&self, results: &Results, peer: &str, workload: Workload) -> Option<Spread> {
        let spread = if self.added {
            results.added(peer, workload, self.metric)
        } else {
            results.spread(peer, workload, self.metric)
        };
        spread.map(|Spread { median, min, max }| Spread {
            median: median * self.factor,
            min: min * self.factor,
            max: max * self.factor,
        })
    }
}

/// The columns a workload may have.
pub fn columns(workload: Workload) -> Vec<Column> {
    let bulk = workload.unit() == Unit::Gigabyte;
    let cpu = |metric, time, bulk_time| Column {
        factor: if bulk { 1e-6 } else { 1.0 },
        ..Column::new(metric, if bulk { bulk_time } else { time })
    };
    let added = |metric, heading| Column {
        added: true,
        ..Column::new(metric, heading)
    };
    vec![
        Column {
            factor: if bulk { 8.0 } else { 1.0 },
            ..Column::new(Metric::Rate, if bulk { "Gb/s" } else { "per s" })
        },
        cpu(Metric::Cpu, "CPU µs", "CPU s"),
        cpu(Metric::CpuClient, "µs client side", "s client side"),
        cpu(Metric::CpuServer, "µs server side", "s server side"),
        Column::new(Metric::P50, "p50 ms"),
        Column::new(Metric::P99, "p99 ms"),
        Column::new(Metric::P999, "p99.9 ms"),
        added(Metric::P50, "p50 added"),
        added(Metric::P99, "p99 added"),
        added(Metric::P999, "p99.9 added"),
        Column::new(Metric::Idle, "MB idle"),
        Column::new(Metric::Loaded, "MB loaded"),
        Column::new(Metric::After, "MB after"),
        Column::new(Metric::PerConnection, "KB each"),
        Column::new(Metric::Switches, "switches"),
        Column::new(Metric::Calls, "calls"),
        Column::new(Metric::Reads, "reads"),
        Column::new(Metric::Writes, "writes"),
    ]
}

/// The table of a workload: only peers that took part, only columns that somebody has.
pub fn table(results: &Results, workload: Workload) -> Table {
    let ran = |peer: &&str| {
        results
            .runs
            .iter()
            .any(|run| run.peer == **peer && run.workload == workload)
    };
    let peers: Vec<&str> = results.peers().into_iter().filter(ran).collect();
    let value = |peer: &str, column: &Column| column.spread(results, peer, workload);
    let mut columns = columns(workload);
    columns.retain(|column| peers.iter().any(|peer| value(peer, column).is_some()));
    let mut headings = vec![format!("for each {}", workload.unit().name())];
    headings.extend(columns.iter().map(|column| column.heading.to_owned()));
    headings.push("failed".to_owned());
    let row = |peer: &str| {
        let runs = results
            .runs
            .iter()
            .filter(|run| run.peer == peer && run.workload == workload);
        let failed: u64 = runs.map(|run| run.load.failed).sum();
        let mut row = vec![peer.to_owned()];
        row.extend(
            columns
                .iter()
                .map(|column| value(peer, column).map_or("–".to_owned(), cell)),
        );
        row.push(failed.to_string());
        row
    };
    Table {
        headings,
        rows: peers.into_iter().map(row).collect(),
    }
}

/// A median and its range.
pub fn cell(spread: Spread) -> String {
    let (low, high) = (number(spread.min), number(spread.max));
    if low == high {
        return number(spread.median);
    }
    format!("{} ({low}–{high})", number(spread.median))
}

/// Weft's figures divided by those of each other one, as a sentence; empty if there is nothing to compare.
pub fn ratios(results: &Results, workload: Workload) -> String {
    let peers = results.peers();
    let Some(own) = peers.iter().find(|peer| **peer == "weft") else {
        return String::new();
    };
    let mut sentences = Vec::new();
    for other in peers.iter().filter(|peer| *peer != own) {
        let ratio = |(metric, name): (Metric, &str)| {
            if metric == Metric::Rate && workload.is_rated() {
                return None;
            }
            let ratio = results.ratio(own, other, workload, metric)?;
            Some(format!("{name} {}", cell(ratio)))
        };
        let compared = [
            (Metric::Cpu, "CPU"),
            (Metric::Rate, "rate"),
            (Metric::P50, "p50"),
            (Metric::P99, "p99"),
            (Metric::Loaded, "memory"),
        ];
        let parts: Vec<String> = compared.into_iter().filter_map(ratio).collect();
        if !parts.is_empty() {
            sentences.push(format!("weft ÷ {other}: {}", parts.join(", ")));
        }
    }
    sentences.join("; ")
}
