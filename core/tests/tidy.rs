//! House rules that a program can check, over the whole tree (docs/decisions.md, "Tidy").

use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a file that is not a test.
const MAX_LINES: usize = 600;
/// The one crate that may hold `unsafe`.
const UNSAFE_CRATE: &str = "runtime";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate is in the workspace's folder")
        .to_path_buf()
}

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("readable").flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                rust_files(&path, found);
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

fn sources() -> Vec<(String, String)> {
    let root = root();
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    assert!(files.len() > 50, "the tree was not found");
    files
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(&root).expect("below the root");
            let name = name.to_string_lossy().into_owned();
            (name, fs::read_to_string(&path).expect("UTF-8"))
        })
        .collect()
}

fn is_test(name: &str) -> bool {
    name.contains("/tests") || name.ends_with("tests.rs") || name.ends_with("testing.rs")
}

fn report(rule: &str, broken: Vec<String>) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

#[test]
fn the_first_line_says_what_a_file_owns() {
    let broken = sources()
        .into_iter()
        .filter(|(_, text)| {
            let first = text.lines().next().unwrap_or_default();
            !first.starts_with("//! ") || first.len() < 15
        })
        .map(|(name, _)| name)
        .collect();
    report("a file begins with `//! ` and what it owns", broken);
}

#[test]
fn files_are_short() {
    let broken = sources()
        .into_iter()
        .filter(|(name, text)| !is_test(name) && text.lines().count() > MAX_LINES)
        .map(|(name, text)| format!("{name}: {} lines", text.lines().count()))
        .collect();
    report("at most 600 lines", broken);
}

#[test]
fn modules_are_named_after_their_files() {
    let broken = sources()
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| name.ends_with("/mod.rs") || name.ends_with("/util.rs"))
        .collect();
    report("no mod.rs, no util.rs", broken);
}

#[test]
fn unsafe_code_is_in_one_crate() {
    let word = concat!("unsafe", " ");
    let broken = sources()
        .into_iter()
        .filter(|(name, _)| !name.starts_with(UNSAFE_CRATE))
        .flat_map(|(name, text)| {
            text.lines()
                .enumerate()
                .filter(|(_, line)| {
                    let code = line.split("//").next().unwrap_or_default();
                    code.contains(&format!("{word}{{")) || code.contains(&format!("{word}fn"))
                })
                .map(|(n, _)| format!("{name}:{}", n + 1))
                .collect::<Vec<_>>()
        })
        .collect();
    report("only `runtime` may hold unsafe code", broken);
}

#[test]
fn core_has_no_io() {
    let banned = [
        "tokio",
        "kube",
        "tonic",
        "std::env",
        "Instant::now",
        "SystemTime::now",
    ];
    let broken = sources()
        .into_iter()
        .filter(|(name, _)| name.starts_with("core/src") && !is_test(name))
        .flat_map(|(name, text)| {
            banned
                .iter()
                .filter(|word| {
                    text.lines()
                        .map(|line| line.split("//").next().unwrap_or_default())
                        .any(|code| code.contains(**word))
                })
                .map(|word| format!("{name}: {word}"))
                .collect::<Vec<_>>()
        })
        .collect();
    report("core reads no clock, socket or environment", broken);
}

#[test]
fn architecture_names_every_folder() {
    let root = root();
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let missing = fs::read_dir(&root)
        .expect("readable")
        .flatten()
        .filter(|entry| entry.path().join("Cargo.toml").exists())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !text.contains(&format!("`{name}/`")))
        .collect();
    report("ARCHITECTURE.md names every crate", missing);
}
