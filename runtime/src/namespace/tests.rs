//! Tests with real processes; those that need root say so and pass without it.

use super::*;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

const NET: NewNamespaces = NewNamespaces {
    net: true,
    mount: false,
    user: false,
};
const NOTHING: NewNamespaces = NewNamespaces {
    net: false,
    mount: false,
    user: false,
};

/// What a program says that is started this way; none, and a note, if this host does not let us.
fn output(
    program: &[&str],
    join: &Namespaces,
    identity: Option<(u32, u32)>,
    new: NewNamespaces,
) -> Option<String> {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]);
    prepare(&mut command, join, identity, new, false).unwrap();
    match command.output() {
        Ok(output) => Some(String::from_utf8(output.stdout).unwrap().trim().to_owned()),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            eprintln!("skipped: needs root, or a kernel that lets users make namespaces ({e})");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn own(kind: &str) -> String {
    std::fs::read_link(format!("/proc/self/ns/{kind}"))
        .unwrap()
        .display()
        .to_string()
}

#[test]
fn a_new_network_is_another_one_and_can_be_joined() {
    let mut command = Command::new("sleep");
    command.arg("60").stdin(Stdio::null());
    prepare(&mut command, &Namespaces::default(), None, NET, true).unwrap();
    let Ok(mut first) = command.spawn() else {
        eprintln!("skipped: needs root");
        return;
    };
    let join = Namespaces {
        net: Some(open(first.id(), Kind::Net).unwrap()),
        ..Namespaces::default()
    };
    let theirs = std::fs::read_link(format!("/proc/{}/ns/net", first.id())).unwrap();
    first.kill().unwrap();
    first.wait().unwrap();
    let seen = output(&["readlink", "/proc/self/ns/net"], &join, None, NOTHING).unwrap();
    assert_ne!(seen, own("net"));
    assert_eq!(
        seen,
        theirs.display().to_string(),
        "it outlives its first process"
    );
}

#[test]
fn an_identity_has_no_groups_and_no_way_back() {
    let program = [
        "sh",
        "-c",
        "id -u; id -g; grep -E '^(Groups|NoNewPrivs)' /proc/self/status",
    ];
    let Some(text) = output(
        &program,
        &Namespaces::default(),
        Some((2102, 2103)),
        NOTHING,
    ) else {
        return;
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(words, ["2102", "2103", "Groups:", "NoNewPrivs:", "1"]);
}

#[test]
fn mounts_stay_inside() {
    let new = NewNamespaces {
        mount: true,
        ..NOTHING
    };
    let program = [
        "sh",
        "-c",
        "mount -t tmpfs weft-test /mnt && grep -c weft-test /proc/self/mounts",
    ];
    let Some(text) = output(&program, &Namespaces::default(), None, new) else {
        return;
    };
    let outside = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!outside.contains("weft-test"));
    if text.is_empty() {
        eprintln!("skipped in part: mounting is not allowed here");
    } else {
        assert_eq!(text, "1");
    }
}

#[test]
fn a_user_namespace_makes_its_maker_root() {
    let new = NewNamespaces {
        user: true,
        net: true,
        mount: true,
    };
    let program = ["sh", "-c", "id -u; readlink /proc/self/ns/user"];
    let Some(text) = output(&program, &Namespaces::default(), Some((0, 0)), new) else {
        return;
    };
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("0"));
    assert_ne!(lines.next(), Some(own("user").as_str()));
}

#[test]
fn a_child_dies_with_the_thread_that_started_it() {
    let start = || {
        let mut command = Command::new("sleep");
        command.arg("60");
        prepare(&mut command, &Namespaces::default(), None, NOTHING, true).unwrap();
        command.spawn().unwrap()
    };
    let mut child = std::thread::spawn(start).join().unwrap();
    for _ in 0..100 {
        if let Some(status) = child.try_wait().unwrap() {
            assert_eq!(status.signal(), Some(9));
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("the child survived");
}

#[tokio::test]
async fn a_program_that_cannot_start_is_named() {
    let mut command = tokio::process::Command::new("/nonexistent/program");
    let error = spawn(&mut command, &Namespaces::default(), None, NOTHING, false).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(
        error.to_string().contains("/nonexistent/program"),
        "{error}"
    );
    let error = open(0, Kind::Net).unwrap_err().to_string();
    assert!(error.contains("/proc/0/ns/net"), "{error}");
}

#[test]
fn a_program_that_joins_mounts_keeps_its_directory() {
    let mut holder = Command::new("sleep");
    holder.arg("60").stdin(Stdio::null());
    let mounts = NewNamespaces {
        mount: true,
        ..NOTHING
    };
    prepare(&mut holder, &Namespaces::default(), None, mounts, true).unwrap();
    let Ok(mut holder) = holder.spawn() else {
        eprintln!("skipped: needs root");
        return;
    };
    let join = Namespaces {
        mount: Some(open(holder.id(), Kind::Mount).unwrap()),
        ..Namespaces::default()
    };
    let here = std::env::current_dir().unwrap().display().to_string();
    let seen = output(&["pwd"], &join, None, NOTHING);
    holder.kill().unwrap();
    holder.wait().unwrap();
    if let Some(seen) = seen {
        assert_eq!(seen, here);
    }
}
