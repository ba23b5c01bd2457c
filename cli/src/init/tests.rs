//! What `weft init` does with the real iptables, each time in a network namespace of a thread's own (case J14). Those need root and the
//! Debian package `iptables`, and are skipped without.

use std::os::unix::fs::symlink;
use std::path::Path;

use clap::Parser;
use nix::sched::{CloneFlags, unshare};

use super::*;

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    init: InitArgs,
}

fn args(flags: &[&str]) -> InitArgs {
    Program::try_parse_from([&["init"], flags].concat())
        .expect("flags")
        .init
}

/// Runs `test` in an empty network, whose loopback interface is down.
fn in_a_new_network(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| match unshare(CloneFlags::CLONE_NEWNET) {
        Ok(()) => test(),
        Err(error) => eprintln!("skipped: needs root to make a network namespace ({error})"),
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Where the real programs are.
fn installed(program: &str) -> Option<PathBuf> {
    let found = ["/usr/sbin", "/sbin"]
        .map(|folder| Path::new(folder).join(program))
        .into_iter()
        .find(|path| path.exists());
    if found.is_none() {
        eprintln!("skipped: {program} is not installed (Debian package iptables)");
    }
    found
}

/// A folder of programs, each a link.
fn programs(links: &[(&str, &Path)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, target) in links {
        symlink(target, folder.path().join(name)).expect("link");
    }
    folder
}

fn sh(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().expect("sh");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

/// The nat table without counters and comments.
fn table(save: &str) -> Vec<String> {
    sh(&format!("{save} -t nat"))
        .lines()
        .filter(|line| line.starts_with("-A") || line.starts_with(":PROXY"))
        .map(|line| line.split(" [").next().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn the_variant_names_its_programs() {
    let nft = Firewall::of("iptables-nft", Some("iptables-nft-save"), false);
    assert_eq!(
        (nft.save.as_str(), nft.restore.as_str()),
        ("iptables-nft-save", "iptables-nft-restore")
    );
    let legacy = Firewall::of("/usr/sbin/iptables-legacy", None, true).v6();
    assert_eq!(legacy.save, "/usr/sbin/ip6tables-legacy-save");
    assert_eq!(legacy.restore, "/usr/sbin/ip6tables-legacy-restore");
}

#[test]
fn j14_what_stands_in_for_a_variant() {
    let others = |binary: &str| -> Vec<String> {
        let all = Firewall::of(binary, None, false).others();
        all.into_iter().map(|other| other.save).collect()
    };
    assert_eq!(others("iptables-nft"), ["iptables-legacy-save"]);
    assert_eq!(others("/sbin/iptables-legacy"), ["/sbin/iptables-nft-save"]);
    assert_eq!(
        others("ip6tables"),
        ["ip6tables-nft-save", "ip6tables-legacy-save"]
    );
    assert!(others("my-firewall").is_empty() && others("iptables-of-mine").is_empty());
}

#[test]
fn a_missing_program_names_the_package() {
    let error = Firewall::of("no-such-iptables", None, false)
        .apply_any(&Rules::default(), Family::V4)
        .expect_err("the program does not exist");
    assert!(
        error.to_string().contains("Debian package `iptables`"),
        "{error}"
    );
}

#[test]
fn j14_a_held_lock_is_no_reason_for_another_variant() {
    let held = InitError::Refused {
        program: "iptables-legacy-restore".to_owned(),
        message: "Another app is currently holding the xtables lock".to_owned(),
    };
    assert!(is_locked(&held));
    let other = InitError::Refused {
        program: "iptables-legacy-restore".to_owned(),
        message: "Table does not exist".to_owned(),
    };
    assert!(!is_locked(&other));
}

#[test]
fn j14_a_second_run_changes_nothing_and_other_flags_replace_the_first() {
    for variant in ["nft", "legacy"] {
        let (four, six) = (
            format!("iptables-{variant}"),
            format!("ip6tables-{variant}"),
        );
        if installed(&four).is_none() || installed(&six).is_none() {
            continue;
        }
        let bin = format!("--firewall-bin-path={four}");
        let saves = [format!("{four}-save"), format!("{six}-save")];
        let seen = saves.clone();
        in_a_new_network(move || {
            let tables = || saves.each_ref().map(|save| table(save));
            // A rule of somebody else.
            sh(&format!(
                "{four} -t nat -A OUTPUT -p tcp --dport 9 -j REDIRECT --to-ports 10"
            ));
            let first = args(&[
                &bin,
                "--proxy-uid=2102",
                "--inbound-ports-to-ignore=4190,4191",
            ]);
            run_init(&first).expect("applied");
            let once = tables();
            assert!(
                once.iter()
                    .all(|rules| rules.iter().any(|rule| rule.contains("4143"))),
                "{once:?}"
            );
            for _ in 0..2 {
                run_init(&first).expect("applied again");
                assert_eq!(tables(), once, "{variant}");
            }
            let second = args(&[&bin, "--proxy-uid=7", "--outgoing-proxy-port=5140"]);
            run_init(&second).expect("other flags");
            let replaced = tables();
            let text = format!("{replaced:?}");
            assert!(
                text.contains("--uid-owner 7 ") && text.contains("5140"),
                "{text}"
            );
            assert!(!text.contains("2102") && !text.contains("4140"), "{text}");
            assert!(
                text.contains("--to-ports 10\""),
                "the other rule stays: {text}"
            );
        });
        // Nothing of it is left here.
        for save in seen {
            assert!(!format!("{:?}", table(&save)).contains("--uid-owner 7 "));
        }
    }
}

#[test]
fn j14_another_variant_is_used_where_one_does_not_work() {
    let (Some(save), Some(restore)) = (
        installed("iptables-legacy-save"),
        installed("iptables-legacy-restore"),
    ) else {
        return;
    };
    let refuses = Path::new("/bin/false");
    let real = [
        ("iptables-legacy-save", save.as_path()),
        ("iptables-legacy-restore", restore.as_path()),
    ];
    let broken = [
        ("iptables-nft-save", refuses),
        ("iptables-nft-restore", refuses),
    ];
    for links in [&real[..], &[real, broken].concat()] {
        let folder = programs(links);
        in_a_new_network(move || {
            let bin = folder.path().join("iptables-nft").display().to_string();
            let args = args(&["--ipv6=false", &format!("--firewall-bin-path={bin}")]);
            run_init(&args).expect("the legacy variant works");
            let rules = table("iptables-legacy-save");
            assert!(
                rules.iter().any(|rule| rule.contains("--to-ports 4143")),
                "{rules:?}"
            );
        });
    }
}

#[test]
fn j14_no_variant_that_works_is_said_with_all_of_them() {
    let refuses = Path::new("/bin/false");
    let folder = programs(&[
        ("iptables-nft-save", refuses),
        ("iptables-legacy-save", refuses),
    ]);
    let bin = folder.path().join("iptables-nft").display().to_string();
    let args = args(&["--ipv6=false", &format!("--firewall-bin-path={bin}")]);
    let said = run_init(&args).expect_err("none works").to_string();
    for part in [
        "iptables-nft-save` failed",
        "iptables-legacy-save`: no message",
        "CAP_NET_ADMIN",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn j14_ip6tables_is_needed_only_where_there_is_ipv6() {
    let (Some(save), Some(restore)) = (
        installed("iptables-nft-save"),
        installed("iptables-nft-restore"),
    ) else {
        return;
    };
    let folder = programs(&[
        ("iptables-nft-save", &save),
        ("iptables-nft-restore", &restore),
    ]);
    in_a_new_network(move || {
        let bin = folder.path().join("iptables-nft").display().to_string();
        let args = args(&["--ipv6=true", &format!("--firewall-bin-path={bin}")]);
        assert!(!has_ipv6(), "nothing is up");
        run_init(&args).expect("no IPv6, no ip6tables");
        sh("ip link set lo up");
        if !has_ipv6() {
            eprintln!("skipped: this kernel has no IPv6");
            return;
        }
        let said = run_init(&args)
            .expect_err("would go past the proxy")
            .to_string();
        assert!(
            said.contains("ip6tables-nft-save") && said.contains("Debian package"),
            "{said}"
        );
        // Switched off for good, as some hosts do it.
        sh("echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6");
        run_init(&args).expect("IPv6 is off");
    });
}
