//! The `process_*` families (contract 6.2), read from /proc when somebody asks.
//! It keeps no history and starts no task.

use nix::time::{ClockId, clock_gettime};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt::Error;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Computes the `process_*` metrics; make one at start, since uptime counts from there.
#[derive(Debug)]
pub struct ProcessCollector {
    started: Instant,
    started_at: f64,
    page: u64,
}

/// What /proc/self/stat says, in its own units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stat {
    threads: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl ProcessCollector {
    /// The names of its samples, for [`super::Registry::collector`].
    pub const NAMES: [&'static str; 11] = [
        "process_start_time_seconds",
        "process_clock_time_seconds",
        "process_uptime_seconds_total",
        "process_cpu_seconds_total",
        "process_virtual_memory_bytes",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_max_fds",
        "process_threads",
        "process_network_receive_bytes_total",
        "process_network_transmit_bytes_total",
    ];

    /// A collector for this process, which counts as started now.
    pub fn new() -> Self {
        let system = |name, usual| {
            nix::unistd::sysconf(name)
                .ok()
                .flatten()
                .and_then(|n| u64::try_from(n).ok())
                .unwrap_or(usual)
        };
        Self {
            started: Instant::now(),
            started_at: unix_seconds(),
            page: system(nix::unistd::SysconfVar::PAGE_SIZE, 4096),
        }
    }
}

impl Default for ProcessCollector {
    fn default() -> Self {
        Self::new()
    }
}

impl Collector for ProcessCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut out = Output(encoder);
        out.seconds(
            "process_start_time",
            "Time the process started, since the epoch",
            ConstGauge::new(self.started_at),
        )?;
        out.seconds(
            "process_clock_time",
            "Time of the process's clock, since the epoch",
            ConstGauge::new(unix_seconds()),
        )?;
        let uptime = self.started.elapsed().as_secs_f64();
        out.seconds(
            "process_uptime",
            "Time since the process started",
            ConstCounter::new(uptime),
        )?;
        // The ticks of /proc/self/stat are of 10 ms: a proxy that just started has used less.
        if let Ok(cpu) = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID) {
            out.seconds(
                "process_cpu",
                "User and system CPU time",
                ConstCounter::new(Duration::from(cpu).as_secs_f64()),
            )?;
        }
        if let Some(stat) = read("/proc/self/stat").as_deref().and_then(Stat::parse) {
            out.bytes(
                "process_virtual_memory",
                "Virtual memory",
                ConstGauge::new(stat.virtual_bytes),
            )?;
            let resident = stat.resident_pages.saturating_mul(self.page);
            out.bytes(
                "process_resident_memory",
                "Resident memory",
                ConstGauge::new(resident),
            )?;
            out.plain("process_threads", "Threads", ConstGauge::new(stat.threads))?;
        }
        if let Ok(fds) = std::fs::read_dir("/proc/self/fd") {
            // One of them is the directory itself.
            let open = (fds.count() as u64).saturating_sub(1);
            out.plain(
                "process_open_fds",
                "Open file descriptors",
                ConstGauge::new(open),
            )?;
        }
        if let Ok((soft, _)) =
            nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)
        {
            out.plain(
                "process_max_fds",
                "Limit of open file descriptors",
                ConstGauge::new(soft),
            )?;
        }
        if let Some((received, sent)) = read("/proc/self/net/dev").as_deref().map(traffic) {
            let (received, sent) = (
                ConstCounter::new(received as f64),
                ConstCounter::new(sent as f64),
            );
            out.bytes(
                "process_network_receive",
                "Bytes received on all interfaces of the process's network namespace",
                received,
            )?;
            out.bytes(
                "process_network_transmit",
                "Bytes sent on all interfaces of the process's network namespace",
                sent,
            )?;
        }
        Ok(())
    }
}

struct Output<'a>(DescriptorEncoder<'a>);

impl Output<'_> {
    fn seconds<M: EncodeMetric + TypedMetric>(
        &mut self,
        name: &str,
        help: &str,
        metric: M,
    ) -> Result<(), Error> {
        self.metric(name, help, Some(&Unit::Seconds), metric)
    }

    fn bytes<M: EncodeMetric + TypedMetric>(
        &mut self,
        name: &str,
        help: &str,
        metric: M,
    ) -> Result<(), Error> {
        self.metric(name, help, Some(&Unit::Bytes), metric)
    }

    fn plain<M: EncodeMetric + TypedMetric>(
        &mut self,
        name: &str,
        help: &str,
        metric: M,
    ) -> Result<(), Error> {
        self.metric(name, help, None, metric)
    }

    fn metric<M: EncodeMetric + TypedMetric>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        metric: M,
    ) -> Result<(), Error> {
        metric.encode(
            self.0
                .encode_descriptor(name, &format!("{help}."), unit, M::TYPE)?,
        )
    }
}

impl Stat {
    /// proc(5): the command in parentheses may hold anything, so fields count from the last one.
    fn parse(text: &str) -> Option<Self> {
        let (_, fields) = text.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        // The first of these is field 3 of proc(5).
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            threads: field(20)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// Bytes received and sent, of /proc/net/dev, over all interfaces.
fn traffic(text: &str) -> (u64, u64) {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.fold((0, 0), |(received, sent), (_, fields)| {
        let mut fields = fields
            .split_ascii_whitespace()
            .map(|n| n.parse::<u64>().unwrap_or(0));
        let rx = fields.next().unwrap_or(0);
        let tx = fields.nth(7).unwrap_or(0);
        (received.saturating_add(rx), sent.saturating_add(tx))
    })
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn unix_seconds() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |d| d.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_blanks_and_parentheses_does_not_shift_the_fields() {
        let text = "7 (a) b) S 1 7 7 0 -1 4194560 9 0 0 0 11 5 0 0 20 0 3 0 99 4096 25 184467";
        let expected = Stat {
            threads: 3,
            virtual_bytes: 4096,
            resident_pages: 25,
        };
        assert_eq!(Stat::parse(text), Some(expected));
        assert_eq!(Stat::parse("7 (a) S 1"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn all_interfaces_count() {
        let text = "Inter-| Receive | Transmit\n face |bytes packets|bytes\n\
            \x20   lo: 10 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\n  eth0:5 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n bad: x\n";
        assert_eq!(traffic(text), (15, 27));
    }
}
