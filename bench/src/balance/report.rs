//! Owns tables and plots of the simulation. Text only.

use super::scenario::{CHANGE, SCENARIOS, Scenario};
use super::{Case, Setting};
use crate::report::svg::{self, Lines, escape};
use crate::report::view::Table;
use crate::report::{html, markdown, number};

/// The summary.
pub fn markdown(setting: &Setting, cases: &[Case]) -> String {
    let mut text = format!("# Balancing, simulated\n\n{}\n\n", legend(setting));
    for scenario in SCENARIOS {
        text.push_str(&format!("## {}\n\n", scenario.description()));
        text.push_str(&markdown::table(&table(cases, scenario)));
    }
    text
}

/// The page with plots.
pub fn html(setting: &Setting, cases: &[Case]) -> String {
    let mut parts = vec![format!(
        "<h1>Balancing, simulated</h1><p>{}</p>",
        escape(&legend(setting))
    )];
    for scenario in SCENARIOS {
        parts.push(format!(
            "<h2>{}</h2>{}",
            scenario.description(),
            html::table(&table(cases, scenario))
        ));
        if scenario != Scenario::Equal {
            parts.push(svg::lines(&shares(cases, scenario)));
        }
    }
    html::document("Balancing, simulated", &parts.concat())
}

fn legend(setting: &Setting) -> String {
    format!(
        "{} replicas with 4 workers of 10 ms mean each, {} requests a second, {} s, seed {}. What a scenario is about begins at {CHANGE} s; \
         figures are of what arrives from then on. Share: of the requests, to the replicas it happens to; divert: seconds until they get \
         less than half of their fair share for a second.",
        setting.replicas,
        number(setting.rate),
        setting.seconds,
        setting.seed
    )
}

fn table(cases: &[Case], scenario: Scenario) -> Table {
    let headings = [
        "policy",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "failed %",
        "share %",
        "fair %",
        "divert s",
        "busiest ÷ mean",
    ];
    let row = |case: &Case| {
        let outcome = &case.outcome;
        let ms = |us: u64| number(us as f64 / 1000.0);
        let divert = outcome
            .divert
            .map_or("–".to_owned(), |seconds| format!("{seconds:.1}"));
        let times = [
            outcome.latency.p50_us,
            outcome.latency.p99_us,
            outcome.latency.p999_us,
        ]
        .map(ms);
        let shares =
            [outcome.failed, outcome.share, outcome.fair_share].map(|share| number(share * 100.0));
        let last = [divert, number(outcome.imbalance)];
        [
            vec![case.policy.name().to_owned()],
            times.to_vec(),
            shares.to_vec(),
            last.to_vec(),
        ]
        .concat()
    };
    Table {
        headings: headings.map(str::to_owned).to_vec(),
        rows: cases
            .iter()
            .filter(|case| case.scenario == scenario)
            .map(row)
            .collect(),
    }
}

fn shares(cases: &[Case], scenario: Scenario) -> Lines {
    let line = |case: &Case| {
        let points = case
            .outcome
            .shares
            .iter()
            .enumerate()
            .map(|(second, share)| (second as f64, share * 100.0));
        (case.policy.name().to_owned(), points.collect())
    };
    Lines {
        title: "share of the affected replicas, %, over seconds".to_owned(),
        lines: cases
            .iter()
            .filter(|case| case.scenario == scenario)
            .map(line)
            .collect(),
    }
}
