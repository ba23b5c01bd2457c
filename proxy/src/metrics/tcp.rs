//! Owns the `tcp_*` families of contract 6.1: connections, their bytes and how they end.
//! Does not open or close anything.

use super::labels::{Labels, With};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use weft_runtime::metrics::{Counter, Family, Gauge, Registry};

/// The families of transports.
#[derive(Clone)]
pub struct TcpMetrics {
    open_total: Family<Labels, Counter>,
    open_connections: Family<Labels, Gauge>,
    read_bytes: Family<Labels, Counter>,
    write_bytes: Family<Labels, Counter>,
    close_total: Family<With<1>, Counter>,
    /// Series in use, so that equal connections share one: the labels are larger than an idle connection.
    shared: Arc<Mutex<HashMap<Labels, Weak<TcpSeries>>>>,
}

impl TcpMetrics {
    /// Makes and registers the families.
    pub fn new(registry: &Registry) -> Self {
        let this = Self {
            open_total: Family::new(Counter::default),
            open_connections: Family::new(Gauge::default),
            read_bytes: Family::new(Counter::default),
            write_bytes: Family::new(Counter::default),
            close_total: Family::new(Counter::default),
            shared: Arc::default(),
        };
        registry.register_legacy(
            "tcp_open_total",
            "Connections opened",
            this.open_total.clone(),
        );
        registry.register_legacy(
            "tcp_open_connections",
            "Connections open now",
            this.open_connections.clone(),
        );
        registry.register_legacy(
            "tcp_read_bytes_total",
            "Payload bytes read from peers",
            this.read_bytes.clone(),
        );
        registry.register_legacy(
            "tcp_write_bytes_total",
            "Payload bytes written to peers",
            this.write_bytes.clone(),
        );
        registry.register_legacy(
            "tcp_close_total",
            "Connections closed",
            this.close_total.clone(),
        );
        this
    }

    /// Resolves the series for connections with these labels.
    pub fn series(&self, labels: Labels) -> Arc<TcpSeries> {
        let mut shared = self.shared.lock();
        if let Some(series) = shared.get(&labels).and_then(Weak::upgrade) {
            return series;
        }
        // Each use pays for at most a few that are gone, so the map stays as small as what is in use.
        if shared.len() >= 2 * self.open_total.len() + 16 {
            shared.retain(|_, series| series.strong_count() > 0);
        }
        let series = Arc::new(self.resolve(labels.clone()));
        shared.insert(labels, Arc::downgrade(&series));
        series
    }

    fn resolve(&self, labels: Labels) -> TcpSeries {
        TcpSeries {
            open_total: self.open_total.resolve(&labels),
            open_connections: self.open_connections.resolve(&labels),
            read_bytes: self.read_bytes.resolve(&labels),
            write_bytes: self.write_bytes.resolve(&labels),
            closed: self.close_total.resolve(&With {
                base: labels.clone(),
                more: [("errno", Cow::Borrowed(""))],
            }),
            close_total: self.close_total.clone(),
            labels,
        }
    }
}

/// The series of one kind of connection.
pub struct TcpSeries {
    labels: Labels,
    open_total: Arc<Counter>,
    open_connections: Arc<Gauge>,
    read_bytes: Arc<Counter>,
    write_bytes: Arc<Counter>,
    closed: Arc<Counter>,
    close_total: Family<With<1>, Counter>,
}

impl TcpSeries {
    /// Counts a connection as open until the value returned is dropped.
    pub fn open(self: &Arc<Self>) -> OpenConnection {
        self.open_total.inc();
        self.open_connections.inc();
        OpenConnection {
            series: self.clone(),
            errno: None,
        }
    }
}

/// A connection that is counted as open.
pub struct OpenConnection {
    series: Arc<TcpSeries>,
    errno: Option<i32>,
}

impl OpenConnection {
    /// Counts bytes read.
    pub fn read(&self, n: usize) {
        self.series.read_bytes.inc_by(n as u64);
    }

    /// Counts bytes written.
    pub fn wrote(&self, n: usize) {
        self.series.write_bytes.inc_by(n as u64);
    }

    /// Remembers the error that ends the connection.
    pub fn failed(&mut self, error: &io::Error) {
        if let Some(errno) = error.raw_os_error() {
            self.errno = Some(errno);
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.series.open_connections.dec();
        match self.errno {
            None => {
                self.series.closed.inc();
            }
            Some(errno) => {
                let labels = With {
                    base: self.series.labels.clone(),
                    more: [("errno", errno_name(errno))],
                };
                self.series.close_total.resolve(&labels).inc();
            }
        }
    }
}

fn errno_name(errno: i32) -> Cow<'static, str> {
    match errno {
        32 => Cow::Borrowed("EPIPE"),
        103 => Cow::Borrowed("ECONNABORTED"),
        104 => Cow::Borrowed("ECONNRESET"),
        110 => Cow::Borrowed("ETIMEDOUT"),
        113 => Cow::Borrowed("EHOSTUNREACH"),
        other => Cow::Owned(other.to_string()),
    }
}
