//! Owns how the figures look to a person: a table for terminals and a line for logs. It decides nothing.

use std::collections::BTreeSet;

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

/// Longest line of the table: a line that wraps would not be drawn over.
const WIDTH: usize = 79;
/// What all identities of the demo end in; left out in the table and told once.
const SUFFIX: &str = ".serviceaccount.identity.linkerd.cluster.local";

/// The table, without control codes.
pub fn table(report: &Report, scene: &Scene) -> String {
    let until = scene
        .duration_s
        .map_or(String::new(), |all| format!(" of {all:.0}"));
    let mut lines = vec![
        format!("weft demo · {:.0}{until} s", scene.elapsed_s),
        scene.story.clone(),
        String::new(),
    ];
    lines.push(columns([
        "EDGE", "PROTOCOL", "mTLS", "PER S", "TOTAL", "SUCCESS", "P50 ms", "P95 ms", "P99 ms",
    ]));
    for (index, edge) in report.edges.iter().enumerate() {
        lines.push(edge_row(edge, scene.rates.get(index).copied()));
        lines.push(format!(
            "  {} → {}",
            names(&edge.client_identities),
            names(&edge.server_identities)
        ));
    }
    lines.push(format!("  (identities end in {SUFFIX})"));
    lines.push(String::new());
    lines.push(format!(
        "{:<12} {:<8} {:>9} {:>7} {:>11}",
        "ENDPOINT", "SERVICE", "REQUESTS", "SHARE", "LATENCY ms"
    ));
    lines.extend(report.endpoints.iter().map(endpoint_row));
    lines.push(String::new());
    let renewals = report
        .certificates
        .iter()
        .map(|one| format!("{} {}", one.workload, one.rotations));
    lines.push(format!(
        "renewals of certificates: {}",
        renewals.collect::<Vec<_>>().join(", ")
    ));
    lines.push(format!("failed requests: {}", report.failed_requests));
    lines.extend(
        report
            .problems
            .iter()
            .map(|problem| format!("problem: {problem}")),
    );
    lines
        .iter()
        .map(|line| line.chars().take(WIDTH).collect::<String>() + "\n")
        .collect()
}

fn columns(cells: [&str; 9]) -> String {
    let [edge, protocol, mtls, rate, total, success, p50, p95, p99] = cells;
    format!(
        "{edge:<12} {protocol:<8} {mtls:<4} {rate:>6} {total:>8} {success:>9} {p50:>8} {p95:>8} {p99:>8}"
    )
}

fn edge_row(edge: &Edge, rate: Option<f64>) -> String {
    columns([
        &format!("{} → {}", edge.client, edge.server),
        &edge.protocol,
        if edge.mtls { "yes" } else { "NO" },
        &rate.map_or("-".to_owned(), |rate| format!("{rate:.0}")),
        &edge.requests.to_string(),
        &edge
            .success_rate
            .map_or("-".to_owned(), |rate| format!("{:.2} %", rate * 100.0)),
        &number(edge.p50_ms),
        &number(edge.p95_ms),
        &number(edge.p99_ms),
    ])
}

fn endpoint_row(endpoint: &Endpoint) -> String {
    let Endpoint {
        service,
        endpoint: name,
        requests,
        share,
        latency_ms,
    } = endpoint;
    format!(
        "{name:<12} {service:<8} {requests:>9} {:>6.1}% {:>11}",
        share * 100.0,
        number(*latency_ms)
    )
}

fn number(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.1}"))
}

fn names(identities: &BTreeSet<String>) -> String {
    if identities.is_empty() {
        return "nobody yet".to_owned();
    }
    let short = identities
        .iter()
        .map(|name| name.strip_suffix(SUFFIX).unwrap_or(name));
    short.collect::<Vec<_>>().join(", ")
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

    fn report() -> Report {
        let id = |name: &str| BTreeSet::from([format!("{name}.demo{SUFFIX}")]);
        let edge = Edge {
            client: "load".to_owned(),
            server: "web".to_owned(),
            protocol: "HTTP/1.1".to_owned(),
            mtls: true,
            client_identities: id("load"),
            server_identities: id("web"),
            requests: 1_234_567,
            success_rate: Some(1.0),
            p50_ms: Some(4.25),
            p95_ms: Some(80.0),
            p99_ms: None,
        };
        let problems = vec!["x".repeat(200)];
        Report {
            edges: vec![edge],
            problems,
            ..Report::default()
        }
    }

    #[test]
    fn the_table_fits_on_a_terminal() {
        let scene = Scene {
            elapsed_s: 7.0,
            duration_s: Some(20.0),
            rates: vec![199.6],
            ..Scene::default()
        };
        let text = table(&report(), &scene);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH));
        assert!(
            text.contains(
                "EDGE         PROTOCOL mTLS  PER S    TOTAL   SUCCESS   P50 ms   P95 ms   P99 ms\n\
             load → web   HTTP/1.1 yes     200  1234567  100.00 %      4.2     80.0        -\n\
             \x20 load.demo → web.demo\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn an_empty_report_is_drawn() {
        let text = table(
            &Report::default(),
            &Scene {
                story: "starting".to_owned(),
                ..Scene::default()
            },
        );
        assert!(text.starts_with("weft demo · 0 s\nstarting\n"));
        assert!(text.ends_with("failed requests: 0\n"));
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn redrawing_clears_exactly_what_was_drawn() {
        assert_eq!(redraw(0), "");
        assert_eq!(redraw(3), "\u{1b}[3A\u{1b}[J");
    }
}
