//! Owns measuring one gate: this program is run twice, going the path a different number of times, and the difference is
//! divided. So neither starting up nor ending counts, and nothing has to be marked in what is measured.

use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::Gate;
use crate::baseline::Cost;

/// How many times as often the path is gone in the longer run.
const MORE: u32 = 6;

/// Whether callgrind runs on this machine; else why not.
pub fn usable() -> anyhow::Result<()> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "true"]);
    let output = command
        .output()
        .context("valgrind is not installed: run scripts/setup")?;
    ensure!(
        output.status.success() && collected(&output.stderr).is_some(),
        "valgrind does not run here: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// What going the path once costs; without callgrind only its allocations.
pub fn cost(gate: &Gate, callgrind: bool) -> anyhow::Result<Cost> {
    // Side by side: neither count depends on what else runs.
    let runs = [gate.times, gate.times * MORE].map(|times| start(gate.name, times, callgrind));
    let [short, long] = runs;
    let (short, long) = (finish(short?, gate.name)?, finish(long?, gate.name)?);
    let once =
        |short: u64, long: u64| (long as f64 - short as f64) / f64::from(gate.times * (MORE - 1));
    Ok(Cost {
        instructions: short
            .instructions
            .zip(long.instructions)
            .map(|(short, long)| once(short, long).round()),
        // To hundredths, and no negative zero.
        allocations: (once(short.allocations, long.allocations) * 100.0).round() / 100.0 + 0.0,
    })
}

/// What a whole run took.
struct Total {
    instructions: Option<u64>,
    allocations: u64,
}

fn start(name: &str, times: u32, callgrind: bool) -> anyhow::Result<std::process::Child> {
    let own = std::env::current_exe()?;
    let mut command = if callgrind {
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
        command.arg(own);
        command
    } else {
        Command::new(own)
    };
    command
        .args(["go", name, &times.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ok(command.spawn()?)
}

fn finish(child: std::process::Child, name: &str) -> anyhow::Result<Total> {
    let output = child.wait_with_output()?;
    ensure!(
        output.status.success(),
        "{name} cannot be measured: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(Total {
        instructions: collected(&output.stderr),
        allocations: text.trim().parse().context("no count of allocations")?,
    })
}

/// `==123== Collected : 456` of callgrind.
fn collected(stderr: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(stderr);
    let line = text.lines().find_map(|line| line.split_once("Collected :"));
    line?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read() {
        let text = b"==7== Events    : Ir\n==7== Collected : 120345\n==7== \n==7== I   refs:      120,345\n";
        assert_eq!(collected(text), Some(120_345));
        assert_eq!(collected(b"valgrind: failed to start tool"), None);
    }
}
