//! Owns what was accepted before, in `bench/gates/baseline.json`, and the comparison with it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// How much a figure may differ from what was accepted, in either direction: what became cheaper must be accepted too, or
/// it could become as dear again unnoticed.
const TOLERANCE: f64 = 0.05;
/// Allocations that a path may differ by in any case: buffers that grow now and then.
const ALLOCATIONS: f64 = 0.25;

/// What was accepted.
#[derive(Default, Serialize, Deserialize)]
pub struct Baseline {
    /// The compiler that made it: another one makes other code.
    rustc: String,
    gates: BTreeMap<String, Cost>,
}

/// What going a path once costs.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Cost {
    /// Instructions; `None` if they could not be counted.
    pub instructions: Option<f64>,
    /// Allocations.
    pub allocations: f64,
}

/// What became of a figure.
pub enum Verdict {
    Within,
    NotMeasured,
    Beyond(String),
}

/// Those of both figures, with the figures.
pub struct Verdicts(pub [Verdict; 2], Cost);

pub fn path() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/baseline.json"))
}

impl Baseline {
    pub fn read() -> anyhow::Result<Self> {
        let path = path();
        match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .with_context(|| format!("{} is not a baseline", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    pub fn write(&mut self) -> anyhow::Result<()> {
        self.rustc = rustc();
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(path(), text).with_context(|| format!("cannot write {}", path().display()))
    }

    pub fn cost(&self, gate: &str) -> Option<Cost> {
        self.gates.get(gate).copied()
    }

    /// Takes what was measured; of instructions only if they were.
    pub fn accept(&mut self, gate: &str, measured: Cost) {
        let before = self.cost(gate).and_then(|cost| cost.instructions);
        let instructions = measured.instructions.or(before);
        let cost = Cost {
            instructions,
            ..measured
        };
        self.gates.insert(gate.to_owned(), cost);
    }

    /// What to do about a failure.
    pub fn advice(&self) -> String {
        let (own, now) = (&self.rustc, rustc());
        let compiler = if own.is_empty() || *own == now {
            String::new()
        } else {
            format!("\nThe baseline was made with {own}, this with {now}: that alone may be it.")
        };
        format!(
            "What is meant is accepted by `make gates-accept`, which changes bench/gates/baseline.json. Where it is spent, callgrind \
             tells (docs/bench.md, \"Gates\").{compiler}"
        )
    }
}

impl Cost {
    pub fn compare(known: Option<Self>, measured: Self) -> Verdicts {
        let instructions = known.and_then(|known| known.instructions);
        let instructions = match measured.instructions {
            None => Verdict::NotMeasured,
            Some(now) => verdict("instructions", instructions, now, 0.0),
        };
        let allocations = known.map(|known| known.allocations);
        let allocations = verdict(
            "allocations",
            allocations,
            measured.allocations,
            ALLOCATIONS,
        );
        Verdicts([instructions, allocations], measured)
    }
}

fn verdict(what: &str, known: Option<f64>, now: f64, least: f64) -> Verdict {
    let Some(known) = known else {
        return Verdict::Beyond(format!(
            "{now:.1} {what}, and nothing accepted to compare with"
        ));
    };
    let more = now - known;
    if more.abs() <= (known * TOLERANCE).max(least) {
        return Verdict::Within;
    }
    let word = if more > 0.0 { "more" } else { "less" };
    let percent = more.abs() / known.max(f64::MIN_POSITIVE) * 100.0;
    Verdict::Beyond(format!(
        "{now:.1} {what}, {percent:.1} % {word} than the {known:.1} accepted ({:.0} % are tolerated)",
        TOLERANCE * 100.0
    ))
}

impl fmt::Display for Verdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |verdict: &Verdict| match verdict {
            Verdict::Within => "ok",
            Verdict::NotMeasured => "ignored",
            Verdict::Beyond(_) => "FAILED",
        };
        let Self([instructions, allocations], cost) = self;
        let count = cost
            .instructions
            .map_or("–".to_owned(), |n| format!("{n:.0}"));
        write!(
            f,
            "{count:>7} instructions … {}, {:>6.2} allocations … {}",
            word(instructions),
            cost.allocations,
            word(allocations)
        )
    }
}

/// The compiler, as it names itself.
fn rustc() -> String {
    let output = Command::new("rustc").arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_else(|_| "an unknown rustc".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(instructions: Option<f64>, allocations: f64) -> Cost {
        Cost {
            instructions,
            allocations,
        }
    }

    fn words(known: Option<Cost>, measured: Cost) -> [String; 2] {
        let Verdicts(verdicts, _) = Cost::compare(known, measured);
        verdicts.map(|verdict| match verdict {
            Verdict::Within => "within".to_owned(),
            Verdict::NotMeasured => "not measured".to_owned(),
            Verdict::Beyond(text) => text,
        })
    }

    #[test]
    fn both_more_and_less_than_the_tolerance_fail() {
        let known = Some(cost(Some(1000.0), 20.0));
        for (instructions, allocations) in [(1050.0, 21.0), (950.0, 19.0)] {
            let words = words(known, cost(Some(instructions), allocations));
            assert_eq!(words, ["within", "within"]);
        }
        let [more, less] = words(known, cost(Some(1060.0), 18.0));
        assert!(
            more.starts_with("1060.0 instructions, 6.0 % more than the 1000.0"),
            "{more}"
        );
        assert!(
            less.starts_with("18.0 allocations, 10.0 % less than the 20.0"),
            "{less}"
        );
    }

    #[test]
    fn a_path_without_allocations_may_not_get_one() {
        let known = Some(cost(None, 0.0));
        assert_eq!(words(known, cost(None, 0.2)), ["not measured", "within"]);
        assert!(words(known, cost(None, 1.0))[1].contains("more"));
    }

    #[test]
    fn what_was_never_accepted_fails() {
        let [instructions, _] = words(None, cost(Some(1.0), 0.0));
        assert!(instructions.contains("nothing accepted"), "{instructions}");
    }

    #[test]
    fn accepting_without_valgrind_keeps_the_instructions() {
        let mut baseline = Baseline::default();
        baseline.accept("a", cost(Some(7.0), 1.0));
        baseline.accept("a", cost(None, 2.0));
        let now = baseline.cost("a").expect("accepted");
        assert_eq!((now.instructions, now.allocations), (Some(7.0), 2.0));
    }
}
