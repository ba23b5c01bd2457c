//! All families of a process under their names, written in the text format on request (contract 6).
//! It does not serve them, and it does not know who counts.

use super::{Counter, Family, FloatGauge, Gauge, Instrument, Labels};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Metric, Registry as Encoder, Unit};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::{Duration, Instant};

mod legacy;

/// Name of the counter of series that did not fit ([`Family::resolve`]).
const DROPPED: &str = "weft_metrics_series_dropped_total";

/// Names, help texts and families. Shared by reference: register at start, encode at each scrape, sweep now and then.
#[derive(Debug)]
pub struct Registry {
    inner: Mutex<Inner>,
    retain: Duration,
}

#[derive(Debug, Default)]
struct Inner {
    exported: Vec<Exported>,
    /// Every sample name that is taken, so that no family appears twice (case T13).
    names: BTreeSet<String>,
}

#[derive(Debug)]
struct Exported {
    name: String,
    style: Style,
    encoder: Encoder,
    family: Option<Box<dyn Sweep>>,
}

/// How a family is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// OpenMetrics: `TYPE` lines name a counter without `_total` (contract 6.2).
    Open,
    /// `TYPE` lines name a counter as its samples, bucket bounds have no fraction (contract 6.1).
    Legacy,
}

trait Sweep: std::fmt::Debug + Send + Sync {
    fn sweep(&self, now: Instant, retain: Duration);
    fn dropped(&self) -> u64;
}

impl<L: Labels, M: Instrument> Sweep for Family<L, M> {
    fn sweep(&self, now: Instant, retain: Duration) {
        Family::sweep(self, now, retain);
    }
    fn dropped(&self) -> u64 {
        Family::dropped(self)
    }
}

impl Registry {
    /// An empty registry whose idle series live for `retain` (`METRICS_RETAIN_IDLE`, contract 1.2).
    pub fn new(retain: Duration) -> Self {
        let names = BTreeSet::from([DROPPED.to_owned()]);
        Self {
            inner: Mutex::new(Inner {
                names,
                ..Inner::default()
            }),
            retain,
        }
    }

    /// Adds a family, written in the OpenMetrics way of contract 6.2. The samples of a counter end in `_total`, whether
    /// `name` does or not; a name that ends in `_seconds` or `_bytes` is announced with that unit.
    ///
    /// # Panics
    /// When a sample of that name is registered already (case T13): an error of the program.
    pub fn register<L: Labels, M: Instrument>(&self, name: &str, help: &str, family: Family<L, M>) {
        let sweep = Box::new(family.clone());
        self.add(name, help, family, Style::Open, Some(sweep));
    }

    /// The same for the families of contract 6.1, written as their consumers know them.
    ///
    /// # Panics
    /// As [`Registry::register`].
    pub fn register_legacy<L: Labels, M: Instrument>(
        &self,
        name: &str,
        help: &str,
        family: Family<L, M>,
    ) {
        let sweep = Box::new(family.clone());
        self.add(name, help, family, Style::Legacy, Some(sweep));
    }

    /// A new counter without labels, exported for ever.
    ///
    /// # Panics
    /// As [`Registry::register`].
    pub fn counter(&self, name: &str, help: &str) -> Counter {
        let counter = Counter::default();
        self.add(name, help, counter.clone(), Style::Open, None);
        counter
    }

    /// A new gauge without labels, exported for ever.
    ///
    /// # Panics
    /// As [`Registry::register`].
    pub fn gauge(&self, name: &str, help: &str) -> Gauge {
        let gauge = Gauge::default();
        self.add(name, help, gauge.clone(), Style::Open, None);
        gauge
    }

    /// A new gauge of fractions without labels, exported for ever.
    ///
    /// # Panics
    /// As [`Registry::register`].
    pub fn float_gauge(&self, name: &str, help: &str) -> FloatGauge {
        let gauge = FloatGauge::default();
        self.add(name, help, gauge.clone(), Style::Open, None);
        gauge
    }

    /// `name{labels} 1`, exported for ever: what a build or a library is (`proxy_build_info`, `rustls_info`).
    ///
    /// # Panics
    /// As [`Registry::register`].
    pub fn info<L: Labels>(&self, name: &str, help: &str, labels: &L) {
        let family = Family::<L, Gauge>::new(Gauge::default);
        family.resolve(labels).set(1);
        self.add(name, help, family, Style::Open, None);
    }

    /// Adds metrics that are computed at each scrape. `names` are the sample names it writes.
    ///
    /// # Panics
    /// When one of `names` is registered already.
    pub fn collector(&self, names: &[&str], collector: impl Collector) {
        let mut encoder = Encoder::default();
        encoder.register_collector(Box::new(collector));
        let mut inner = self.inner.lock();
        for name in names {
            inner.claim(name);
        }
        inner.exported.push(Exported {
            name: names.first().copied().unwrap_or_default().to_owned(),
            style: Style::Open,
            encoder,
            family: None,
        });
    }

    fn add<M: Metric + TypedMetric>(
        &self,
        name: &str,
        help: &str,
        metric: M,
        style: Style,
        family: Option<Box<dyn Sweep>>,
    ) {
        let base = match M::TYPE {
            MetricType::Counter => name.strip_suffix("_total").unwrap_or(name),
            _ => name,
        };
        let mut inner = self.inner.lock();
        for suffix in suffixes(M::TYPE) {
            inner.claim(&format!("{base}{suffix}"));
        }
        let help = help.trim_end_matches('.');
        let mut encoder = Encoder::default();
        match (style, base.rsplit_once('_')) {
            (Style::Open, Some((stem, "seconds"))) => {
                encoder.register_with_unit(stem, help, Unit::Seconds, metric);
            }
            (Style::Open, Some((stem, "bytes"))) => {
                encoder.register_with_unit(stem, help, Unit::Bytes, metric);
            }
            _ => encoder.register(base, help, metric),
        }
        inner.exported.push(Exported {
            name: base.to_owned(),
            style,
            encoder,
            family,
        });
    }

    /// All metrics as text, ending in `# EOF`.
    pub fn encode(&self) -> String {
        let inner = self.inner.lock();
        let mut out = String::with_capacity(16 * 1024);
        for exported in &inner.exported {
            let start = out.len();
            let written = match exported.style {
                Style::Open => encode_registry(&mut out, &exported.encoder),
                Style::Legacy => legacy::encode(&mut out, &exported.encoder),
            };
            // Writing to a String cannot fail, so this is a metric's own error: leave out that family, keep the scrape.
            if written.is_err() {
                out.truncate(start);
                tracing::warn!(family = exported.name, "cannot write a metric family");
            }
        }
        inner.encode_dropped(&mut out);
        encode_eof(&mut out).expect("writing to a String does not fail");
        out
    }

    /// Forgets series that have been idle for the time given at [`Registry::new`]. Call it at an interval that
    /// divides that time.
    pub fn sweep(&self, now: Instant) {
        let inner = self.inner.lock();
        for family in inner.exported.iter().filter_map(|e| e.family.as_ref()) {
            family.sweep(now, self.retain);
        }
    }
}

impl Inner {
    fn claim(&mut self, sample: &str) {
        assert!(
            self.names.insert(sample.to_owned()),
            "the metric {sample} is registered twice"
        );
    }

    fn encode_dropped(&self, out: &mut String) {
        let full = self.exported.iter().filter_map(|e| {
            let dropped = e.family.as_ref()?.dropped();
            (dropped > 0).then_some((&e.name, dropped))
        });
        let stem = DROPPED.trim_end_matches("_total");
        for (i, (name, dropped)) in full.enumerate() {
            if i == 0 {
                let help = "Label sets that are not exported because their family is full.";
                let _ = write!(out, "# HELP {stem} {help}\n# TYPE {stem} counter\n");
            }
            let _ = writeln!(out, "{DROPPED}{{family=\"{name}\"}} {dropped}");
        }
    }
}

fn suffixes(kind: MetricType) -> &'static [&'static str] {
    match kind {
        MetricType::Histogram => &["_bucket", "_sum", "_count"],
        MetricType::Counter => &["_total"],
        MetricType::Info => &["_info"],
        MetricType::Gauge | MetricType::Unknown => &[""],
    }
}

#[cfg(test)]
mod tests;
