//! Case I01: the newest valid pair is in use soon after, whichever way the files are replaced, and there is always one in use.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Instant;

use super::*;
use crate::testing::{Ca, ca_under, issuer_files, root, write_pair, write_roots};

/// Generous, for a busy machine; usual is 25 ms.
const SOON: Duration = Duration::from_secs(10);
/// So long that only the watch can have noticed.
const NO_POLL: Duration = Duration::from_secs(3600);

struct Mesh {
    dir: tempfile::TempDir,
    root: Ca,
    files: Arc<IssuerFiles>,
    registry: Arc<weft_runtime::metrics::Registry>,
    shutdown: CancellationToken,
}

impl Mesh {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("folder");
        let root = root("root");
        write_roots(dir.path(), &[&root]);
        fs::create_dir(dir.path().join("issuer")).expect("folder");
        let (files, registry) = issuer_files(dir.path());
        Self {
            dir,
            root,
            files,
            registry,
            shutdown: CancellationToken::new(),
        }
    }

    fn issuer(&self, name: &str) -> Ca {
        ca_under(&self.root, name)
    }

    fn issuer_dir(&self) -> PathBuf {
        self.dir.path().join("issuer")
    }

    fn watch(&self, poll: Duration) {
        tokio::spawn(self.files.clone().watch(poll, self.shutdown.clone()));
    }

    fn subject(&self) -> String {
        self.files
            .current()
            .expect("an issuer")
            .subject()
            .to_owned()
    }

    /// As kubelet does it: a new folder, the link swapped by a rename, the old folder removed.
    fn swap(&self, version: usize, issuer: &Ca) {
        let dir = self.issuer_dir();
        let name = format!("..v{version}");
        write_pair(&dir.join(&name), issuer);
        let before = fs::read_link(dir.join("..data")).ok();
        symlink(&name, dir.join("..data_tmp")).expect("link");
        fs::rename(dir.join("..data_tmp"), dir.join("..data")).expect("swap");
        for file in ["crt.pem", "key.pem"] {
            let _ = symlink(Path::new("..data").join(file), dir.join(file));
        }
        if let Some(before) = before {
            fs::remove_dir_all(dir.join(before)).expect("old folder");
        }
    }

    async fn wait_for(&self, name: &str) {
        let started = Instant::now();
        let wanted = format!("CN={name}");
        loop {
            if self
                .files
                .current()
                .is_ok_and(|issuer| issuer.subject() == wanted)
            {
                return;
            }
            assert!(
                started.elapsed() < SOON,
                "{name} is not in use: {:?}",
                self.files.current()
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

#[tokio::test]
async fn i01_fifty_swaps_of_the_link() {
    let mesh = Mesh::new();
    mesh.swap(0, &mesh.issuer("issuer 0"));
    mesh.watch(NO_POLL);
    mesh.wait_for("issuer 0").await;
    for version in 1..=50 {
        let name = format!("issuer {version}");
        mesh.swap(version, &mesh.issuer(&name));
        mesh.wait_for(&name).await;
    }
}

#[tokio::test]
async fn i01_many_swaps_at_once_end_with_the_last() {
    let mesh = Mesh::new();
    mesh.swap(0, &mesh.issuer("first"));
    mesh.watch(NO_POLL);
    mesh.wait_for("first").await;
    for round in 0..10 {
        let (middle, last) = (mesh.issuer("middle"), mesh.issuer(&format!("last {round}")));
        mesh.swap(2 * round + 1, &middle);
        tokio::time::sleep(Duration::from_millis(
            u64::try_from(round).expect("small") * 5,
        ))
        .await;
        mesh.swap(2 * round + 2, &last);
        mesh.wait_for(&format!("last {round}")).await;
    }
}

#[tokio::test]
async fn i01_certificate_before_key_and_key_before_certificate() {
    let mesh = Mesh::new();
    let dir = mesh.issuer_dir();
    write_pair(&dir, &mesh.issuer("old"));
    mesh.watch(NO_POLL);
    mesh.wait_for("old").await;
    for (name, pause) in [("quick", 1), ("slow", 200)] {
        let next = mesh.issuer(name);
        fs::write(dir.join("crt.pem"), next.pem()).expect("certificate");
        tokio::time::sleep(Duration::from_millis(pause)).await;
        assert!(mesh.files.current().is_ok(), "the old one stays");
        fs::write(dir.join("key.pem"), next.key().serialize_pem()).expect("key");
        mesh.wait_for(name).await;
    }
    let next = mesh.issuer("key first");
    fs::write(dir.join("key.pem"), next.key().serialize_pem()).expect("key");
    tokio::time::sleep(Duration::from_millis(100)).await;
    fs::write(dir.join("crt.pem"), next.pem()).expect("certificate");
    mesh.wait_for("key first").await;
}

#[test]
fn i01_a_bad_pair_is_refused_by_name_and_the_old_one_stays() {
    let mesh = Mesh::new();
    let now = SystemTime::now();
    assert_eq!(mesh.files.refresh(now), Outcome::Refused);
    let none = mesh.files.current().expect_err("nothing there");
    assert!(
        none.contains("crt.pem") && none.contains("cannot be read"),
        "{none}"
    );
    assert_eq!(mesh.files.ready(now), Err(none));

    mesh.swap(0, &mesh.issuer("good"));
    assert_eq!(mesh.files.refresh(now), Outcome::Updated);
    assert_eq!(mesh.files.refresh(now), Outcome::Unchanged);
    mesh.swap(1, &root("foreign"));
    for _ in 0..3 {
        assert_eq!(mesh.files.refresh(now), Outcome::Refused);
        assert_eq!(mesh.subject(), "CN=good");
        assert_eq!(mesh.files.ready(now), Ok(()));
    }
    mesh.swap(2, &mesh.issuer("better"));
    assert_eq!(mesh.files.refresh(now), Outcome::Updated);
    assert_eq!(mesh.subject(), "CN=better");

    let after_its_end = now + Duration::from_secs(366 * 24 * 3600);
    assert!(
        mesh.files
            .ready(after_its_end)
            .expect_err("over")
            .contains("expired")
    );
    let text = mesh.registry.encode();
    assert!(
        text.contains("issuer_reload_total{result=\"updated\"} 2"),
        "{text}"
    );
    // Nothing at the start, and the foreign one: once each, not at each look.
    assert!(
        text.contains("issuer_reload_total{result=\"refused\"} 2"),
        "{text}"
    );
    let left = text
        .lines()
        .find_map(|line| line.strip_prefix("issuer_cert_ttl_seconds "))
        .expect("metric");
    let left: i64 = left.parse().expect("number");
    assert!(
        (364 * 24 * 3600..=365 * 24 * 3600).contains(&left),
        "{left}"
    );
}

/// Case I05, our part: a new root in the bundle makes an issuer of it acceptable, and the bundle is read anew too.
#[test]
fn i05_a_root_rotation_without_a_restart() {
    let mesh = Mesh::new();
    let now = SystemTime::now();
    let new_root = root("new root");
    mesh.swap(0, &mesh.issuer("old"));
    assert_eq!(mesh.files.refresh(now), Outcome::Updated);
    mesh.swap(1, &ca_under(&new_root, "new"));
    assert_eq!(
        mesh.files.refresh(now),
        Outcome::Refused,
        "its root is not trusted yet"
    );
    write_roots(mesh.dir.path(), &[&mesh.root, &new_root]);
    assert_eq!(mesh.files.refresh(now), Outcome::Updated);
    write_roots(mesh.dir.path(), &[&new_root]);
    assert_eq!(mesh.files.refresh(now), Outcome::Updated);
    write_roots(mesh.dir.path(), &[&mesh.root]);
    assert_eq!(mesh.files.refresh(now), Outcome::Refused);
    assert_eq!(mesh.subject(), "CN=new", "the one in use stays");
    fs::write(mesh.dir.path().join("roots/ca-bundle.crt"), "nothing").expect("bundle");
    assert_eq!(mesh.files.refresh(now), Outcome::Refused);
}

#[tokio::test]
async fn a_change_of_the_roots_is_noticed() {
    let mesh = Mesh::new();
    let new_root = root("new root");
    write_pair(&mesh.issuer_dir(), &ca_under(&new_root, "new"));
    mesh.watch(NO_POLL);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(mesh.files.current().is_err());
    write_roots(mesh.dir.path(), &[&mesh.root, &new_root]);
    mesh.wait_for("new").await;
}

/// The files are links into a folder nobody watches, so only the poll can see the change. Time is paused: it passes by itself.
#[tokio::test(start_paused = true)]
async fn i01_the_poll_sees_what_the_watch_cannot() {
    let mesh = Mesh::new();
    let hidden = mesh.dir.path().join("hidden");
    write_pair(&hidden, &mesh.issuer("old"));
    for file in ["crt.pem", "key.pem"] {
        symlink(hidden.join(file), mesh.issuer_dir().join(file)).expect("link");
    }
    mesh.watch(POLL_INTERVAL);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(mesh.subject(), "CN=old");
    write_pair(&hidden, &mesh.issuer("new"));
    tokio::time::sleep(POLL_INTERVAL - Duration::from_millis(10)).await;
    assert_eq!(mesh.subject(), "CN=old");
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(mesh.subject(), "CN=new");
}

#[tokio::test]
async fn a_folder_that_is_replaced_is_watched_again() {
    let mesh = Mesh::new();
    write_pair(&mesh.issuer_dir(), &mesh.issuer("old"));
    mesh.watch(Duration::from_millis(50));
    mesh.wait_for("old").await;
    fs::rename(mesh.issuer_dir(), mesh.dir.path().join("away")).expect("renamed");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(mesh.subject(), "CN=old", "no folder, no change");
    write_pair(&mesh.issuer_dir(), &mesh.issuer("new"));
    mesh.wait_for("new").await;
}

#[test]
fn our_own_reading_is_no_change() {
    use notify::event::{CreateKind, ModifyKind, RemoveKind};
    let write = EventKind::Access(AccessKind::Close(AccessMode::Write));
    for kind in [
        write,
        EventKind::Create(CreateKind::Any),
        EventKind::Modify(ModifyKind::Any),
        EventKind::Remove(RemoveKind::Any),
        EventKind::Other,
    ] {
        assert!(is_change(kind), "{kind:?}");
    }
    for kind in [
        AccessKind::Read,
        AccessKind::Open(AccessMode::Any),
        AccessKind::Close(AccessMode::Read),
    ] {
        assert!(!is_change(EventKind::Access(kind)), "{kind:?}");
    }
}
