//! Owns reading what the kernel counts for a process: processor time, memory, context switches (proc(5)). It starts and
//! ends nothing.

use std::fs;
use std::io;
use std::ops::Sub;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Microseconds of a tick of `/proc/PID/stat`: on Linux USER_HZ is 100 on every architecture Weft runs on.
const TICK_US: u64 = 10_000;

/// Counters of a process, all of them rising.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Processor time in user mode, µs.
    pub user_us: u64,
    /// Processor time in the kernel, µs.
    pub system_us: u64,
    /// Context switches of all threads, because they waited.
    pub voluntary: u64,
    /// Context switches of all threads, because others were to run.
    pub involuntary: u64,
}

impl Counters {
    /// Processor time, µs.
    pub fn cpu_us(&self) -> u64 {
        self.user_us.saturating_add(self.system_us)
    }
}

impl Sub for Counters {
    type Output = Counters;

    fn sub(self, earlier: Counters) -> Counters {
        Counters {
            user_us: self.user_us.saturating_sub(earlier.user_us),
            system_us: self.system_us.saturating_sub(earlier.system_us),
            voluntary: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary: self.involuntary.saturating_sub(earlier.involuntary),
        }
    }
}

/// Reads the counters of a process.
///
/// # Errors
/// It has gone, or the kernel writes something else than proc(5) says.
pub fn counters(pid: u32) -> io::Result<Counters> {
    let path = PathBuf::from(format!("/proc/{pid}/stat"));
    let (user_us, system_us) =
        cpu(&fs::read_to_string(&path)?).ok_or_else(|| io::Error::other("no times in /proc/PID/stat"))?;
    let mut counters = Counters {
        user_us,
        system_us,
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

/// Fields 14 and 15 of `/proc/PID/stat` in µs. The name in field 2 may hold blanks and brackets.
fn cpu(stat: &str) -> Option<(u64, u64)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok()?.checked_mul(TICK_US);
    Some((ticks()?, ticks()?))
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
    fn times_are_found_behind_a_strange_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 250 31 0 0 20 0 1 0 9 1 2";
        assert_eq!(cpu(stat), Some((2_500_000, 310_000)));
        assert_eq!(cpu("7 (x) S 1 2"), None);
    }

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
        let now = counters(own).expect("we run");
        assert_eq!((now - now).cpu_us(), 0);
    }
}
