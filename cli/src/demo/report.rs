//! Owns the figures of the demo: what the proxies' metrics say per edge and endpoint, and whether that agrees with what the
//! programs counted themselves. It fetches and prints nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::apps::Count;
use super::scrape::{Histogram, Sample};

/// One pair of neighbours in the demo and how to find it in the metrics.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Start of the client workloads' names (`api` for `api-0`, `api-1`, …).
    pub client: &'static str,
    /// Service that is called.
    pub server: &'static str,
    /// What the programs speak.
    pub protocol: &'static str,
    /// True if the proxies see requests, false if they see connections only.
    pub http: bool,
}

/// The demo's edges.
pub const LINKS: [Link; 3] = [
    Link {
        client: "load",
        server: "web",
        protocol: "HTTP/1.1",
        http: true,
    },
    Link {
        client: "web",
        server: "api",
        protocol: "gRPC",
        http: true,
    },
    Link {
        client: "api",
        server: "store",
        protocol: "TCP",
        http: false,
    },
];

/// What is known of each workload, over all the times it was started.
#[derive(Debug, Default)]
pub struct Ledger {
    workloads: BTreeMap<String, Vec<Life>>,
}

/// One run of a workload: the last scrape of its proxy and the last line of its program.
#[derive(Debug, Default)]
struct Life {
    samples: Vec<Sample>,
    count: Count,
}

impl Ledger {
    /// Begins a new run: counters start at zero again and what was before stays in the sum.
    pub fn begin(&mut self, workload: &str) {
        self.workloads
            .entry(workload.to_owned())
            .or_default()
            .push(Life::default());
    }

    /// Replaces what the proxy of the current run said.
    pub fn scraped(&mut self, workload: &str, samples: Vec<Sample>) {
        if let Some(life) = self
            .workloads
            .get_mut(workload)
            .and_then(|lives| lives.last_mut())
        {
            life.samples = samples;
        }
    }

    /// Replaces what the program of the current run said.
    pub fn counted(&mut self, workload: &str, count: Count) {
        if let Some(life) = self
            .workloads
            .get_mut(workload)
            .and_then(|lives| lives.last_mut())
        {
            life.count = count;
        }
    }

    fn lives<'a>(&'a self, start: &'a str) -> impl Iterator<Item = &'a Life> + 'a {
        self.workloads
            .iter()
            .filter(move |(name, _)| is_of(name, start))
            .flat_map(|(_, lives)| lives)
    }

    fn samples<'a>(&'a self, start: &'a str) -> impl Iterator<Item = &'a Sample> + 'a {
        self.lives(start).flat_map(|life| &life.samples)
    }

    fn counts(&self, start: &str, what: fn(&Count) -> u64) -> u64 {
        self.lives(start).map(|life| what(&life.count)).sum()
    }
}

/// `api-1` and `api` are of `api`, `apis` is not.
fn is_of(workload: &str, start: &str) -> bool {
    workload
        .strip_prefix(start)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// The document of `weft demo --output json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Each pair of neighbours.
    pub edges: Vec<Edge>,
    /// Each endpoint the balancers chose from.
    pub endpoints: Vec<Endpoint>,
    /// How often each proxy renewed its certificate.
    pub certificates: Vec<Certificate>,
    /// Requests that failed, as the load counted and the proxies agree.
    pub failed_requests: u64,
    /// What is wrong: a disagreement between a program and its proxies, an edge without mutual TLS, a reason for a failure.
    pub problems: Vec<String>,
}

/// Figures of an edge. For TCP, requests are connections, and the latency is not known to the proxies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Edge {
    /// Who calls.
    pub client: String,
    /// The Service that is called.
    pub server: String,
    /// What they speak.
    pub protocol: String,
    /// True if both ends saw mutual TLS on everything.
    pub mtls: bool,
    /// Who the servers' proxies say the clients are.
    pub client_identities: BTreeSet<String>,
    /// Who the clients' proxies say the servers are.
    pub server_identities: BTreeSet<String>,
    /// Answered requests, or connections.
    pub requests: u64,
    /// Share of `requests` that succeeded; null without any.
    pub success_rate: Option<f64>,
    /// Half of the answers were at least this fast.
    pub p50_ms: Option<f64>,
    /// 95 of 100 answers were at least this fast.
    pub p95_ms: Option<f64>,
    /// 99 of 100 answers were at least this fast.
    pub p99_ms: Option<f64>,
}

/// Figures of an endpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Endpoint {
    /// The Service.
    pub service: String,
    /// The pod.
    pub endpoint: String,
    /// Answered requests, or connections.
    pub requests: u64,
    /// Its part of the Service's requests, 0 to 1.
    pub share: f64,
    /// Mean time to answer.
    pub latency_ms: Option<f64>,
}

/// Certificates of a workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Certificate {
    /// The workload.
    pub workload: String,
    /// Renewals after the first certificate of each run.
    pub rotations: u64,
}

impl Ledger {
    /// The figures so far. `settled` says that nothing is under way any more, so that all counts must agree.
    pub fn report(&self, settled: bool) -> Report {
        let edges: Vec<Edge> = LINKS.iter().map(|link| self.edge(link)).collect();
        let endpoints = LINKS.iter().flat_map(|link| self.endpoints(link)).collect();
        let mut problems: Vec<String> = Vec::new();
        if settled {
            problems.extend(edges.iter().filter(|edge| !edge.mtls).map(Edge::not_mutual));
            problems.extend(LINKS.iter().flat_map(|link| self.disagreements(link)));
        }
        problems.extend(self.workloads.iter().flat_map(|(workload, lives)| {
            lives.iter().flat_map(move |life| {
                life.count
                    .reasons
                    .iter()
                    .map(move |why| format!("{workload}: {why}"))
            })
        }));
        let failed_requests = self
            .counts("load", |count| count.failed)
            .max(self.failed_at_proxies(&LINKS[0]));
        Report {
            edges,
            endpoints,
            certificates: self.certificates(),
            failed_requests,
            problems,
        }
    }

    fn edge(&self, link: &Link) -> Edge {
        let (name, total) = link.totals();
        let sent: Vec<&Sample> = self.sent(link, name).collect();
        let arrived: Vec<&Sample> = self.arrived(link, name).collect();
        let requests = sum(self.sent(link, total));
        let failed = self.failed_at_proxies(link);
        let latency = Histogram::sum(self.sent(link, "response_latency_ms_bucket"));
        let seen = |samples: &[&Sample], label: &str| -> BTreeSet<String> {
            let names = samples.iter().map(|sample| sample.label(label).to_owned());
            names.filter(|name| !name.is_empty()).collect()
        };
        let secured = |samples: &[&Sample], label: &str| {
            let used: Vec<_> = samples.iter().filter(|sample| sample.value > 0.0).collect();
            !used.is_empty()
                && used
                    .iter()
                    .all(|s| s.label("tls") == "true" && !s.label(label).is_empty())
        };
        Edge {
            client: link.client.to_owned(),
            server: link.server.to_owned(),
            protocol: link.protocol.to_owned(),
            mtls: secured(&sent, "server_id") && secured(&arrived, "client_id"),
            client_identities: seen(&arrived, "client_id"),
            server_identities: seen(&sent, "server_id"),
            requests,
            success_rate: (requests > 0)
                .then(|| (requests - failed.min(requests)) as f64 / requests as f64),
            p50_ms: latency.quantile(0.50),
            p95_ms: latency.quantile(0.95),
            p99_ms: latency.quantile(0.99),
        }
    }

    /// What the clients' proxies sent to the Service of `link`.
    fn sent<'a>(&'a self, link: &'a Link, name: &'a str) -> impl Iterator<Item = &'a Sample> + 'a {
        let authority = format!("{}.demo.", link.server);
        self.samples(link.client).filter(move |sample| {
            sample.name == name
                && sample.label("direction") == "outbound"
                && matches!(sample.label("peer"), "" | "dst")
                && (sample.label("dst_service") == link.server
                    || sample.label("authority").starts_with(&authority))
        })
    }

    /// What arrived at the servers' proxies from workloads; health checks and scrapes of port 4191 are not among it.
    fn arrived<'a>(
        &'a self,
        link: &'a Link,
        name: &'a str,
    ) -> impl Iterator<Item = &'a Sample> + 'a {
        self.samples(link.server).filter(move |sample| {
            sample.name == name
                && sample.label("direction") == "inbound"
                && matches!(sample.label("peer"), "" | "src")
                && sample.label("target_port") != "4191"
        })
    }

    fn failed_at_proxies(&self, link: &Link) -> u64 {
        sum(self
            .sent(link, "response_total")
            .filter(|sample| sample.label("classification") == "failure"))
    }

    fn endpoints(&self, link: &Link) -> Vec<Endpoint> {
        let (_, total) = link.totals();
        let mut requests: BTreeMap<&str, f64> = BTreeMap::new();
        for sample in self.sent(link, total) {
            *requests.entry(endpoint(sample)).or_default() += sample.value;
        }
        let all: f64 = requests.values().sum();
        let latency = |name: &str| {
            let of = |metric| -> f64 {
                self.sent(link, metric)
                    .filter(|sample| endpoint(sample) == name)
                    .map(|sample| sample.value)
                    .sum()
            };
            let count = of("response_latency_ms_count");
            (count > 0.0).then(|| of("response_latency_ms_sum") / count)
        };
        let one = |(name, count): (&str, f64)| Endpoint {
            service: link.server.to_owned(),
            endpoint: name.to_owned(),
            requests: count as u64,
            share: if all > 0.0 { count / all } else { 0.0 },
            latency_ms: latency(name),
        };
        requests.into_iter().map(one).collect()
    }

    fn certificates(&self) -> Vec<Certificate> {
        let renewed = |life: &Life| {
            let ok = life.samples.iter().filter(|sample| {
                sample.name == "control_identity_cert_refreshes_total"
                    && sample.label("result") == "ok"
            });
            sum(ok).saturating_sub(1)
        };
        let one = |(workload, lives): (&String, &Vec<Life>)| Certificate {
            workload: workload.clone(),
            rotations: lives.iter().map(renewed).sum(),
        };
        self.workloads.iter().map(one).collect()
    }

    /// Says where the programs' own counts and the two proxies of the edge differ.
    fn disagreements(&self, link: &Link) -> Vec<String> {
        let (_, total) = link.totals();
        let own = self.counts(
            link.client,
            if link.http {
                |count| count.requests
            } else {
                |count| count.connections
            },
        );
        let (sent, arrived) = (sum(self.sent(link, total)), sum(self.arrived(link, total)));
        let Link { client, server, .. } = link;
        let what = if link.http { "requests" } else { "connections" };
        let mut found = Vec::new();
        if own != sent || sent != arrived {
            found.push(format!(
                "{client} counted {own} {what} to {server}, its proxy {sent}, the proxy of {server} {arrived}"
            ));
        }
        let (failed, at_proxies) = (
            self.counts(client, |count| count.failed),
            self.failed_at_proxies(link),
        );
        if link.http && failed != at_proxies {
            found.push(format!(
                "{client} counted {failed} failed requests to {server}, its proxy {at_proxies}"
            ));
        }
        found
    }
}

impl Link {
    /// The metric that tells who talks to whom, and the one that counts what was finished.
    fn totals(&self) -> (&'static str, &'static str) {
        if self.http {
            ("request_total", "response_total")
        } else {
            ("tcp_open_total", "tcp_open_total")
        }
    }
}

impl Edge {
    fn not_mutual(&self) -> String {
        format!(
            "{} to {} is not mutual TLS on everything",
            self.client, self.server
        )
    }
}

impl Report {
    /// True if nothing failed, every edge is mutual TLS and all counts agree.
    pub fn is_good(&self) -> bool {
        self.failed_requests == 0
            && self.problems.is_empty()
            && self.edges.iter().all(|edge| edge.mtls)
    }
}

fn endpoint(sample: &Sample) -> &str {
    match sample.label("dst_pod") {
        "" => sample.label("target_addr"),
        pod => pod,
    }
}

fn sum<'a>(samples: impl Iterator<Item = &'a Sample>) -> u64 {
    samples.map(|sample| sample.value).sum::<f64>() as u64
}

#[cfg(test)]
mod tests;
