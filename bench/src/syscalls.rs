//! Owns counting the system calls of a process with `strace -c`, which slows the process: a run of its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

/// How long strace needs to attach to all threads.
const ATTACH: Duration = Duration::from_millis(300);
/// Longest wait for its table.
const END: Duration = Duration::from_secs(5);

/// Calls by name.
pub type Calls = BTreeMap<String, u64>;

/// A running strace.
pub struct Tracer(Child);

impl Tracer {
    /// Attaches to a process and all its threads, those to come too.
    ///
    /// # Errors
    /// strace is missing.
    pub async fn attach(strace: &Path, pid: u32) -> std::io::Result<Self> {
        let mut command = Command::new(strace);
        command.args(["-c", "-f", "-U", "calls,name", "-p", &pid.to_string()]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let child = command.spawn()?;
        sleep(ATTACH).await;
        Ok(Tracer(child))
    }

    /// Detaches; what was counted, or nothing if strace could not attach.
    ///
    /// # Errors
    /// It does not end.
    pub async fn detach(self) -> std::io::Result<Calls> {
        if let Some(pid) = self.0.id().and_then(|pid| i32::try_from(pid).ok()) {
            // It may have ended, not being allowed to trace.
            let _ = kill(Pid::from_raw(pid), Signal::SIGINT);
        }
        let output = timeout(END, self.0.wait_with_output()).await??;
        Ok(parse(&String::from_utf8_lossy(&output.stderr)))
    }
}

/// Reads the table of `strace -c -U calls,name`.
fn parse(table: &str) -> Calls {
    let line = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (calls, name) = (fields.next()?.parse().ok()?, fields.next()?);
        (name != "total" && fields.next().is_none()).then(|| (name.to_owned(), calls))
    };
    table.lines().filter_map(line).collect()
}

/// Calls that bring bytes in, and calls that send bytes out.
pub fn reads_and_writes(calls: &Calls) -> (u64, u64) {
    let sum = |names: &[&str]| names.iter().filter_map(|name| calls.get(*name)).sum();
    (
        sum(&["read", "readv", "recvfrom", "recvmsg", "recvmmsg", "splice"]),
        sum(&["write", "writev", "sendto", "sendmsg", "sendmmsg"]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        let table = "strace: Process 7 attached\n    calls syscall\n--------- ----------------\n      120 read\n       30 writev\n\
                     --------- ----------------\n      150 total\n";
        let calls = parse(table);
        assert_eq!(calls.len(), 2);
        assert_eq!(reads_and_writes(&calls), (120, 30));
        assert!(parse("strace: attach: Operation not permitted\n").is_empty());
    }
}
