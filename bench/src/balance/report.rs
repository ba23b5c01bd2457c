//! Owns tables and plots of the simulation and of real pods. Text only.

use serde::Serialize;

use super::scenario::{CHANGE, SCENARIOS, Scenario};
use super::{Case, Setting};
use crate::report::svg::{self, Lines, escape};
use crate::report::view::Table;
use crate::report::{html, markdown, number};

/// Cases with one setting.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    /// Its heading.
    pub title: String,
    /// What the cases have in common.
    pub setting: Setting,
    /// All of them.
    pub cases: Vec<Case>,
}

impl Part {
    fn scenarios(&self) -> impl Iterator<Item = Scenario> {
        let there = |scenario: &Scenario| self.cases.iter().any(|case| case.scenario == *scenario);
        SCENARIOS.into_iter().filter(there)
    }
}

/// The summary.
pub fn markdown(parts: &[Part]) -> String {
    let mut text = String::new();
    for part in parts {
        let legend = legend(&part.setting);
        text.push_str(&format!("# {}\n\n{legend}\n\n", part.title));
        for scenario in part.scenarios() {
            text.push_str(&format!("## {}\n\n", scenario.description()));
            text.push_str(&markdown::table(&table(&part.cases, scenario)));
        }
    }
    text
}

/// The page with plots.
pub fn html(parts: &[Part]) -> String {
    let mut elements = Vec::new();
    for part in parts {
        elements.push(format!(
            "<h1>{}</h1><p>{}</p>",
            escape(&part.title),
            escape(&legend(&part.setting))
        ));
        for scenario in part.scenarios() {
            elements.push(format!(
                "<h2>{}</h2>{}",
                scenario.description(),
                html::table(&table(&part.cases, scenario))
            ));
            if scenario != Scenario::Equal {
                elements.push(svg::lines(&shares(&part.cases, scenario)));
            }
        }
    }
    html::document("Balancing", &elements.concat())
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
            vec![case.name()],
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
        (case.name(), points.collect())
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
