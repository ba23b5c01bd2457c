//! Owns the facts about the machine and the programs that belong to every result. No names of machines, users or folders.

use std::fs;
use std::path::Path;

use crate::peer::{Peer, Programs, on_path, version};

/// The facts, in the order they are shown.
pub fn facts(peers: &[Peer], programs: &Programs) -> Vec<(String, String)> {
    let mut facts = machine();
    for peer in peers {
        facts.extend(
            peer.version(programs)
                .map(|version| (peer.name.clone(), version)),
        );
    }
    for (tool, flag) in [("h2load", "--version"), ("iperf3", "--version")] {
        let known = on_path(tool).and_then(|path| version(&path, flag));
        facts.extend(known.map(|version| (format!("{tool} (tool)"), version)));
    }
    facts
}

/// The facts about the machine alone.
pub fn machine() -> Vec<(String, String)> {
    let load = read("/proc/loadavg");
    let facts = [
        ("processor", processor()),
        ("kernel", read("/proc/sys/kernel/osrelease")),
        ("memory", memory()),
        (
            "congestion control",
            read("/proc/sys/net/ipv4/tcp_congestion_control"),
        ),
        (
            "load average at the start",
            load.split(' ').next().unwrap_or_default().to_owned(),
        ),
    ];
    facts.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

/// Number and model of the processors.
fn processor() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown", |(_, name)| name.trim());
    format!("{cores} × {model}")
}

fn memory() -> String {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kb = total.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    kb.map_or("unknown".to_owned(), |kb| format!("{} MiB", kb / 1024))
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(path))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_hold_no_folder() {
        let programs = Programs::find(Path::new("/nowhere"), None);
        let peers = vec![programs.peer("none").expect("always there")];
        for (name, value) in facts(&peers, &programs) {
            assert!(
                !value.starts_with('/') && !value.is_empty(),
                "{name}: {value}"
            );
        }
    }
}
