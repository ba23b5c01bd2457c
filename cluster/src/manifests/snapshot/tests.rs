//! Reading directories: the last good version of each file stays.

use std::fs;

use super::*;

fn service(name: &str) -> String {
    format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n")
}

fn names(snapshot: &Snapshot) -> Vec<String> {
    snapshot
        .objects()
        .0
        .iter()
        .map(|o| o.name().name.to_string())
        .collect()
}

#[test]
fn a_broken_file_keeps_its_last_good_version_and_no_other_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    fs::write(
        path("a.yaml"),
        format!("{}---\n{}", service("a1"), service("a2")),
    )
    .expect("written");
    fs::write(path("b.yml"), service("b")).expect("written");
    fs::write(path("notes.txt"), "not read").expect("written");
    fs::write(path(".hidden.yaml"), "not: read").expect("written");
    let mut snapshot = Snapshot::default();
    snapshot.refresh(directory.path());
    assert_eq!(names(&snapshot), ["a1", "a2", "b"]);

    fs::write(path("a.yaml"), format!("{}---\nkind: 7\n", service("a3"))).expect("written");
    fs::write(path("b.yml"), service("b2")).expect("written");
    snapshot.refresh(directory.path());
    assert_eq!(
        names(&snapshot),
        ["a1", "a2", "b2"],
        "a3 is in a file with a fault"
    );
    let (_, errors) = snapshot.objects();
    assert_eq!(errors.len(), 1);
    assert_eq!(
        (&errors[0].file, errors[0].document),
        (&path("a.yaml"), Some(2))
    );

    fs::remove_file(path("b.yml")).expect("removed");
    fs::write(path("a.yaml"), service("a3")).expect("written");
    snapshot.refresh(directory.path());
    assert_eq!(names(&snapshot), ["a3"]);
    assert_eq!(snapshot.objects().1, []);
}

#[test]
fn a_directory_that_is_gone_keeps_everything() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("a.yaml"), service("a")).expect("written");
    let mut snapshot = Snapshot::default();
    snapshot.refresh(directory.path());
    let path = directory.path().to_owned();
    drop(directory);
    snapshot.refresh(&path);
    assert_eq!(names(&snapshot), ["a"]);
    assert!(
        snapshot.objects().1[0]
            .reason
            .contains("cannot read the directory")
    );
}

#[test]
fn of_two_objects_of_one_name_the_first_file_counts() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("a.yaml"), service("web")).expect("written");
    fs::write(directory.path().join("b.yaml"), service("web")).expect("written");
    let (objects, errors) = Snapshot::load(directory.path());
    assert_eq!(objects.len(), 1);
    assert_eq!(errors[0].file, directory.path().join("b.yaml"));
    assert!(
        errors[0]
            .reason
            .contains("Service default/web is already in"),
        "{}",
        errors[0]
    );
}

#[test]
fn a_file_that_is_too_large_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(
        directory.path().join("a.yaml"),
        vec![b'#'; MAX_FILE as usize + 1],
    )
    .expect("written");
    let (objects, errors) = Snapshot::load(directory.path());
    assert!(
        objects.is_empty() && errors[0].reason.contains("larger than"),
        "{errors:?}"
    );
}

#[test]
fn differences() {
    let set = |names: &[(&str, i32)]| -> BTreeMap<ObjectRef, Object> {
        let text = |(name, port): &(&str, i32)| {
            format!("{}spec: {{ports: [{{port: {port}}}]}}\n", service(name))
        };
        let all: Vec<String> = names.iter().map(text).collect();
        let objects = parse::file(Path::new("a.yaml"), &all.join("---\n")).expect("valid");
        objects.into_iter().map(|o| (o.reference(), o)).collect()
    };
    let difference = diff(
        &set(&[("same", 1), ("changed", 1), ("gone", 1)]),
        &set(&[("same", 1), ("changed", 2), ("new", 1)]),
    );
    let applied: Vec<_> = difference
        .applied
        .iter()
        .map(|o| o.name().name.to_string())
        .collect();
    assert_eq!(applied, ["changed", "new"]);
    assert_eq!(difference.deleted.len(), 1);
    assert_eq!(&*difference.deleted[0].name.name, "gone");
}
