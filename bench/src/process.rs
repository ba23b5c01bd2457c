//! Owns reading what the kernel counts for a process: processor time, memory, context switches (proc(5)). It starts and
//! ends nothing.

use std::fs;
use std::io;
use std::ops::{Add, Sub};
use std::time::Duration;

use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// Counters of a process, all of them rising.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Processor time of all threads, in user mode and in the kernel, µs.
    pub cpu_us: u64,
    /// Context switches of all threads, because they waited.
    pub voluntary: u64,
    /// Context switches of all threads, because others were to run.
    pub involuntary: u64,
}

impl Add for Counters {
    type Output = Counters;

    fn add(self, other: Counters) -> Counters {
        Counters {
            cpu_us: self.cpu_us.saturating_add(other.cpu_us),
            voluntary: self.voluntary.saturating_add(other.voluntary),
            involuntary: self.involuntary.saturating_add(other.involuntary),
        }
    }
}

impl Sub for Counters {
    type Output = Counters;

    fn sub(self, earlier: Counters) -> Counters {
        Counters {
            cpu_us: self.cpu_us.saturating_sub(earlier.cpu_us),
            voluntary: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary: self.involuntary.saturating_sub(earlier.involuntary),
        }
    }
}

/// Reads the counters of a process. Processor time is that of its clock (clock_getcpuclockid(3)), because
/// `/proc/PID/stat` has steps of 10 ms.
///
/// # Errors
/// It has gone.
pub fn counters(pid: u32) -> io::Result<Counters> {
    let number = i32::try_from(pid).map_err(io::Error::other)?;
    let clock = clock_getcpuclockid(Pid::from_raw(number))?;
    let cpu = Duration::from(clock.now()?);
    let mut counters = Counters {
        cpu_us: u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX),
        ..Counters::default()
    };
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end meanwhile.
        let status = fs::read_to_string(thread?.path().join("status")).unwrap_or_default();
        counters.voluntary += status_field(&status, "voluntary_ctxt_switches").unwrap_or(0);
        counters.involuntary += status_field(&status, "nonvoluntary_ctxt_switches").unwrap_or(0);
    }
    Ok(counters)
}

/// Resident memory of a process, KiB.
///
/// # Errors
/// It has gone.
pub fn resident_kb(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    status_field(&status, "VmRSS").ok_or_else(|| io::Error::other("no VmRSS in /proc/PID/status"))
}

/// A number of `/proc/PID/status`.
fn status_field(status: &str, name: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_matched_whole() {
        let status = "VmRSSx:\t1 kB\nVmRSS:\t  2048 kB\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t6\n";
        assert_eq!(status_field(status, "VmRSS"), Some(2048));
        assert_eq!(status_field(status, "voluntary_ctxt_switches"), Some(5));
        assert_eq!(status_field(status, "nonvoluntary_ctxt_switches"), Some(6));
        assert_eq!(status_field(status, "VmHWM"), None);
    }

    #[test]
    fn our_own_process_can_be_read() {
        let own = std::process::id();
        assert!(resident_kb(own).expect("we run") > 100);
        let before = counters(own).expect("we run");
        let begin = std::time::Instant::now();
        while begin.elapsed() < Duration::from_millis(5) {}
        let spent = (counters(own).expect("we run") - before).cpu_us;
        assert!(spent > 100, "{spent}");
        assert!(counters(u32::MAX).is_err());
    }
}
