//! Owns how the figures look to a person: a table for terminals and a line for logs. It decides nothing.

use std::fmt::Write;

use super::report::{Edge, Endpoint, Report};

/// Where in its story the demo is.
#[derive(Clone, Debug, Default)]
pub struct Scene {
    /// Seconds since the traffic began.
    pub elapsed_s: f64,
    /// Seconds the traffic will last; `None` without an end.
    pub duration_s: Option<f64>,
    /// What is being shown now.
    pub story: String,
    /// Requests of each edge in the last second, in the order of the report.
    pub rates: Vec<f64>,
}

/// The table, a line each, without control codes.
pub fn table(report: &Report, scene: &Scene) -> String {
    let mut text = String::new();
    let until = scene
        .duration_s
        .map_or(String::new(), |all| format!(" of {all:.0}"));
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "weft demo · {:.0}{until} s · {}\n",
        scene.elapsed_s, scene.story
    );
    let _ = writeln!(
        text,
        "{:<14} {:<9} {:<5} {:>7} {:>9} {:>8} {:>8} {:>8} {:>8}",
        "EDGE", "PROTOCOL", "mTLS", "PER S", "TOTAL", "SUCCESS", "P50 ms", "P95 ms", "P99 ms"
    );
    for (index, edge) in report.edges.iter().enumerate() {
        let _ = writeln!(text, "{}", edge_row(edge, scene.rates.get(index).copied()));
        let _ = writeln!(
            text,
            "  {} → {}",
            names(&edge.client_identities),
            names(&edge.server_identities)
        );
    }
    let _ = writeln!(
        text,
        "\n{:<14} {:<9} {:>9} {:>7} {:>10}",
        "ENDPOINT", "SERVICE", "REQUESTS", "SHARE", "LATENCY ms"
    );
    for endpoint in &report.endpoints {
        let _ = writeln!(text, "{}", endpoint_row(endpoint));
    }
    let rotations: Vec<String> = report
        .certificates
        .iter()
        .map(|one| format!("{} {}", one.workload, one.rotations))
        .collect();
    let _ = writeln!(text, "\ncertificates renewed: {}", rotations.join(", "));
    let _ = writeln!(text, "failed requests: {}", report.failed_requests);
    for problem in &report.problems {
        let _ = writeln!(text, "problem: {problem}");
    }
    text
}

fn edge_row(edge: &Edge, rate: Option<f64>) -> String {
    format!(
        "{:<14} {:<9} {:<5} {:>7} {:>9} {:>8} {:>8} {:>8} {:>8}",
        format!("{} → {}", edge.client, edge.server),
        edge.protocol,
        if edge.mtls { "yes" } else { "no" },
        rate.map_or("-".to_owned(), |rate| format!("{rate:.0}")),
        edge.requests,
        edge.success_rate
            .map_or("-".to_owned(), |rate| format!("{:.2} %", rate * 100.0)),
        number(edge.p50_ms),
        number(edge.p95_ms),
        number(edge.p99_ms),
    )
}

fn endpoint_row(endpoint: &Endpoint) -> String {
    format!(
        "{:<14} {:<9} {:>9} {:>6.1}% {:>10}",
        endpoint.endpoint,
        endpoint.service,
        endpoint.requests,
        endpoint.share * 100.0,
        number(endpoint.latency_ms),
    )
}

fn number(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.1}"))
}

fn names(identities: &std::collections::BTreeSet<String>) -> String {
    if identities.is_empty() {
        return "nobody yet".to_owned();
    }
    identities
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

/// One line for logs.
pub fn line(report: &Report, scene: &Scene) -> String {
    let edges: Vec<String> = report
        .edges
        .iter()
        .enumerate()
        .map(|(index, edge)| {
            let mtls = if edge.mtls { "mTLS" } else { "no mTLS" };
            let rate = scene.rates.get(index).copied().unwrap_or_default();
            format!(
                "{}→{} {mtls} {rate:.0}/s p50 {} p99 {}",
                edge.client,
                edge.server,
                number(edge.p50_ms),
                number(edge.p99_ms)
            )
        })
        .collect();
    let shares: Vec<String> = report
        .endpoints
        .iter()
        .filter(|endpoint| endpoint.service == "api")
        .map(|endpoint| format!("{} {:.0}%", endpoint.endpoint, endpoint.share * 100.0))
        .collect();
    format!(
        "{:>4.0}s  {}  |  {}  |  failed {}  |  {}",
        scene.elapsed_s,
        edges.join("  "),
        shares.join(" "),
        report.failed_requests,
        scene.story
    )
}

/// Control codes that put the cursor `lines` up and clear what is below it, to draw over an earlier table.
pub fn redraw(lines: usize) -> String {
    if lines == 0 {
        String::new()
    } else {
        format!("\u{1b}[{lines}A\u{1b}[J")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_report_is_drawn() {
        let text = table(
            &Report::default(),
            &Scene {
                story: "starting".to_owned(),
                ..Scene::default()
            },
        );
        assert!(text.starts_with("weft demo · 0 s · starting\n"));
        assert!(text.ends_with("failed requests: 0\n"));
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn redrawing_clears_exactly_what_was_drawn() {
        assert_eq!(redraw(0), "");
        assert_eq!(redraw(3), "\u{1b}[3A\u{1b}[J");
    }
}
