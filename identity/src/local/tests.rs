//! Making, loading, rotating and protecting the files of a local authority.

use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("file").permissions().mode() & 0o777
}

#[test]
fn opens_twice_and_stays_the_same() {
    let dir = tempfile::tempdir().expect("folder");
    let dir = dir.path().join("authority");
    let first = LocalAuthority::open(&dir).expect("made");
    let token = first.issue_token("ns", "sa", "pod", Duration::from_secs(60));
    let (certificate, _) = first.issuer_paths();
    let issuer = fs::read(&certificate).expect("issuer");

    let second = LocalAuthority::open(&dir).expect("loaded");
    assert_eq!(first.trust_anchors_pem(), second.trust_anchors_pem());
    assert_eq!(
        fs::read(&certificate).expect("issuer"),
        issuer,
        "a good issuer is kept"
    );
    assert!(
        second
            .tokens()
            .check(token.as_bytes(), SystemTime::now())
            .is_ok()
    );
    assert_eq!(
        fs::read_to_string(second.trust_roots()).expect("bundle"),
        second.trust_anchors_pem()
    );

    assert_eq!(mode(&dir), 0o700);
    for file in [
        "ca.key",
        "token.key",
        "token.pub",
        "ca-bundle.crt",
        "issuer/key.pem",
        "issuer/crt.pem",
    ] {
        assert_eq!(mode(&dir.join(file)), 0o600, "{file}");
    }
}

#[test]
fn rotation_replaces_the_pair_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().expect("folder");
    let authority = LocalAuthority::open(&dir.path().join("a")).expect("made");
    let (certificate, key) = authority.issuer_paths();
    let before = (
        fs::read(&certificate).expect("file"),
        fs::read(&key).expect("file"),
    );
    for _ in 0..3 {
        authority.rotate_issuer().expect("rotated");
        authority.check_issuer().expect("valid");
    }
    assert_ne!(fs::read(&certificate).expect("file"), before.0);
    assert_ne!(fs::read(&key).expect("file"), before.1);
    let mut names: Vec<_> = fs::read_dir(authority.issuer_dir())
        .expect("folder")
        .map(|entry| {
            entry
                .expect("entry")
                .file_name()
                .into_string()
                .expect("text")
        })
        .collect();
    names.sort();
    assert_eq!(
        names.len(),
        4,
        "one version, ..data and two links: {names:?}"
    );
}

#[test]
fn a_useless_issuer_is_replaced() {
    let dir = tempfile::tempdir().expect("folder");
    let dir = dir.path().join("a");
    let authority = LocalAuthority::open(&dir).expect("made");
    let (certificate, _) = authority.issuer_paths();
    fs::remove_file(&certificate).expect("link");
    fs::write(&certificate, "garbage").expect("file");
    let again = LocalAuthority::open(&dir).expect("repaired");
    again.check_issuer().expect("valid");
}

#[test]
fn damage_and_exposure_are_refused() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("a");
    LocalAuthority::open(&path).expect("made");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("mode");
    let exposed = LocalAuthority::open(&path)
        .expect_err("exposed")
        .to_string();
    assert!(exposed.contains("chmod 700"), "{exposed}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("mode");

    let key = fs::read(path.join("ca.key")).expect("key");
    fs::remove_file(path.join("ca.key")).expect("removed");
    let half = LocalAuthority::open(&path).expect_err("half").to_string();
    assert!(
        half.contains("ca.key") && half.contains("missing"),
        "{half}"
    );
    fs::write(path.join("ca.key"), key).expect("key");
    fs::write(path.join("token.key"), "x").expect("key");
    assert!(
        matches!(LocalAuthority::open(&path), Err(LocalError::Damaged { path, .. }) if path.ends_with("token.key"))
    );
}

#[test]
fn two_at_the_same_time_make_one_anchor() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("a");
    let bundles: Vec<String> = std::thread::scope(|scope| {
        let open = || {
            LocalAuthority::open(&path)
                .expect("opened")
                .trust_anchors_pem()
                .to_owned()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("joined"))
            .collect()
    });
    assert!(bundles.iter().all(|bundle| *bundle == bundles[0]));
}
