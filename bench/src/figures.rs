//! Owns what is written down of a run, and the figures derived from it. It neither measures nor draws.

use serde::{Deserialize, Serialize};

use crate::process::Counters;
use crate::stats::{Percentiles, Spread};
use crate::syscalls::{self, Calls};
use crate::workload::{Unit, Workload};

/// One measurement of one peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Who.
    pub peer: String,
    /// What.
    pub workload: Workload,
    /// Which repetition, from 0.
    pub repetition: u32,
    /// What the load generator says.
    pub load: Load,
    /// The proxies, unless there are none.
    pub proxies: Option<Proxies>,
}

/// What the load generator says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// How long it ran.
    pub seconds: f64,
    /// Requests, gigabytes or connections, by workload.
    pub units: f64,
    /// Requests that failed.
    pub failed: u64,
    /// Times from the intended start to the end of the answer.
    pub latency: Option<Percentiles>,
}

/// The two proxies of a pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proxies {
    /// Beside the load.
    pub client: Proxy,
    /// Beside the application.
    pub server: Proxy,
}

/// What a proxy has cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Proxy {
    /// Spent during the load.
    pub spent: Counters,
    /// Resident before any load, KiB.
    pub idle_kb: u64,
    /// Most that was resident during the load, KiB, looked at 20 times a second.
    pub loaded_kb: u64,
    /// Resident some time after the load, KiB.
    pub after_kb: u64,
    /// System calls, counted in a run apart.
    pub calls: Option<Counted>,
}

impl Proxy {
    /// Several that share the load, as one: what they spent together, and the memory of the largest.
    pub fn joined(all: impl IntoIterator<Item = Proxy>) -> Proxy {
        let mut all = all.into_iter();
        let mut joined = all.next().unwrap_or_default();
        for one in all {
            joined.spent = joined.spent + one.spent;
            joined.idle_kb = joined.idle_kb.max(one.idle_kb);
            joined.loaded_kb = joined.loaded_kb.max(one.loaded_kb);
            joined.after_kb = joined.after_kb.max(one.after_kb);
            for (name, calls) in one.calls.into_iter().flat_map(|counted| counted.calls) {
                if let Some(counted) = &mut joined.calls {
                    *counted.calls.entry(name).or_default() += calls;
                }
            }
        }
        joined
    }
}

/// System calls of a run apart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// Units of load in that run.
    pub units: f64,
    /// Calls by name.
    pub calls: Calls,
}

/// A derived figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// Units a second.
    Rate,
    /// Processor time a unit, both proxies, µs.
    Cpu,
    /// The same of the client-side proxy.
    CpuClient,
    /// The same of the server-side proxy.
    CpuServer,
    /// Median time, ms.
    P50,
    /// Time that 99 % do not exceed, ms.
    P99,
    /// Time that 99.9 % do not exceed, ms.
    P999,
    /// Resident before load, MB, the larger of the two.
    Idle,
    /// Resident under load, MB, the larger of the two.
    Loaded,
    /// Resident after load, MB, the larger of the two.
    After,
    /// Memory of a connection that is held, KB, of the larger proxy.
    PerConnection,
    /// Context switches a unit, both proxies.
    Switches,
    /// System calls a unit, both proxies.
    Calls,
    /// Reading calls a unit, both proxies.
    Reads,
    /// Writing calls a unit, both proxies.
    Writes,
}

impl Metric {
    /// Its value in a run; `None` if the run does not have it.
    pub fn of(self, run: &Run) -> Option<f64> {
        let (load, proxies) = (&run.load, run.proxies.as_ref());
        let per_unit = |total: u64| (load.units > 0.0).then(|| total as f64 / load.units);
        let both =
            |f: fn(&Proxy) -> u64| proxies.map(|p| f(&p.client).saturating_add(f(&p.server)));
        let larger = |f: fn(&Proxy) -> u64| {
            proxies.map(|p| f(&p.client).max(f(&p.server)) as f64 * 1.024 / 1000.0)
        };
        let time = |f: fn(&Percentiles) -> u64| {
            load.latency.as_ref().map(|times| f(times) as f64 / 1000.0)
        };
        match self {
            Metric::Rate if run.workload.unit() == Unit::Connection => None,
            Metric::Rate => (load.seconds > 0.0).then(|| load.units / load.seconds),
            Metric::Cpu => both(|p| p.spent.cpu_us).and_then(per_unit),
            Metric::CpuClient => proxies.and_then(|p| per_unit(p.client.spent.cpu_us)),
            Metric::CpuServer => proxies.and_then(|p| per_unit(p.server.spent.cpu_us)),
            Metric::P50 => time(|times| times.p50_us),
            Metric::P99 => time(|times| times.p99_us),
            Metric::P999 => time(|times| times.p999_us),
            Metric::Idle => larger(|p| p.idle_kb),
            Metric::Loaded => larger(|p| p.loaded_kb),
            Metric::After => larger(|p| p.after_kb),
            Metric::PerConnection if run.workload.unit() == Unit::Connection => {
                let grown = larger(|p| p.loaded_kb.saturating_sub(p.idle_kb))?;
                (load.units > 0.0).then(|| grown * 1000.0 / load.units)
            }
            Metric::PerConnection => None,
            Metric::Switches => {
                both(|p| p.spent.voluntary.saturating_add(p.spent.involuntary)).and_then(per_unit)
            }
            Metric::Calls => calls(proxies?, |calls| calls.values().sum()),
            Metric::Reads => calls(proxies?, |calls| syscalls::reads_and_writes(calls).0),
            Metric::Writes => calls(proxies?, |calls| syscalls::reads_and_writes(calls).1),
        }
    }
}

/// Calls a unit of both proxies.
fn calls(proxies: &Proxies, count: impl Fn(&Calls) -> u64) -> Option<f64> {
    let (client, server) = (
        proxies.client.calls.as_ref()?,
        proxies.server.calls.as_ref()?,
    );
    let total = count(&client.calls).saturating_add(count(&server.calls));
    (client.units > 0.0).then(|| total as f64 / client.units)
}

/// All runs of a bench.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Facts about the machine and the programs, in the order they are shown.
    pub facts: Vec<(String, String)>,
    /// What was left out, and why.
    pub left_out: Vec<String>,
    /// All runs, in the order they happened.
    pub runs: Vec<Run>,
}

impl Results {
    /// Peers in the order they ran first.
    pub fn peers(&self) -> Vec<&str> {
        distinct(self.runs.iter().map(|run| run.peer.as_str()))
    }

    /// Workloads in the order they ran first.
    pub fn workloads(&self) -> Vec<Workload> {
        distinct(self.runs.iter().map(|run| run.workload))
    }

    /// A figure over all repetitions.
    pub fn spread(&self, peer: &str, workload: Workload, metric: Metric) -> Option<Spread> {
        Spread::of(
            self.values(peer, workload, metric)
                .into_iter()
                .map(|(_, value)| value),
        )
    }

    /// One peer's figure divided by another's, repetition by repetition.
    pub fn ratio(
        &self,
        peer: &str,
        other: &str,
        workload: Workload,
        metric: Metric,
    ) -> Option<Spread> {
        let others = self.values(other, workload, metric);
        let own = self.values(peer, workload, metric).into_iter();
        let ratio = |(repetition, value): (u32, f64)| {
            let (_, other) = others.iter().find(|(at, _)| *at == repetition)?;
            Some(value / other)
        };
        Spread::of(own.filter_map(ratio))
    }

    /// What one peer's figure is above that of no proxy, repetition by repetition.
    pub fn added(&self, peer: &str, workload: Workload, metric: Metric) -> Option<Spread> {
        let without = self.values("none", workload, metric);
        let own = self
            .values(peer, workload, metric)
            .into_iter()
            .filter(|_| peer != "none");
        let difference = |(repetition, value): (u32, f64)| {
            let (_, other) = without.iter().find(|(at, _)| *at == repetition)?;
            Some(value - other)
        };
        Spread::of(own.filter_map(difference))
    }

    /// A figure in each repetition that has it.
    pub fn values(&self, peer: &str, workload: Workload, metric: Metric) -> Vec<(u32, f64)> {
        let runs = self
            .runs
            .iter()
            .filter(|run| run.peer == peer && run.workload == workload);
        runs.filter_map(|run| Some((run.repetition, metric.of(run)?)))
            .collect()
    }
}

fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut list = Vec::new();
    for item in items {
        if !list.contains(&item) {
            list.push(item);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(peer: &str, repetition: u32, cpu_us: u64) -> Run {
        let proxy = Proxy {
            spent: Counters {
                cpu_us,
                ..Counters::default()
            },
            ..Proxy::default()
        };
        Run {
            peer: peer.to_owned(),
            workload: Workload::Http2,
            repetition,
            load: Load {
                seconds: 2.0,
                units: 100.0,
                ..Load::default()
            },
            proxies: Some(Proxies {
                client: proxy.clone(),
                server: proxy,
            }),
        }
    }

    #[test]
    fn figures_are_of_a_unit_and_of_both_proxies() {
        let run = run("a", 0, 1000);
        assert_eq!(Metric::Rate.of(&run), Some(50.0));
        assert_eq!(Metric::Cpu.of(&run), Some(20.0));
        assert_eq!(Metric::CpuClient.of(&run), Some(10.0));
        assert_eq!(Metric::P50.of(&run), None);
        assert_eq!(Metric::Calls.of(&run), None);
    }

    #[test]
    fn ratios_are_of_the_same_repetition() {
        let runs = vec![
            run("a", 0, 1000),
            run("b", 0, 500),
            run("a", 1, 3000),
            run("b", 1, 1000),
            run("a", 2, 1),
        ];
        let results = Results {
            runs,
            ..Results::default()
        };
        let ratio = results
            .ratio("a", "b", Workload::Http2, Metric::Cpu)
            .expect("two pairs");
        assert_eq!((ratio.min, ratio.median, ratio.max), (2.0, 2.5, 3.0));
        assert_eq!(results.peers(), ["a", "b"]);
        assert_eq!(results.ratio("a", "c", Workload::Http2, Metric::Cpu), None);
    }
}
