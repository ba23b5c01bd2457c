//! The running source: what reaches the index, and when.

use std::fs;

use super::*;
use crate::Reader;

struct Fixture {
    directory: tempfile::TempDir,
    shared: Arc<Shared>,
    source: Arc<ManifestSource>,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let shared = Shared::new();
        let source = ManifestSource::new(
            directory.path().to_owned(),
            LocalMesh::new("linkerd"),
            Arc::clone(&shared),
        );
        Self {
            directory,
            shared,
            source,
        }
    }

    /// As editors do it: a temporary file that is moved over the old one.
    fn write(&self, name: &str, text: &str) {
        let temporary = self.directory.path().join(".new");
        fs::write(&temporary, text).expect("written");
        fs::rename(temporary, self.directory.path().join(name)).expect("moved");
    }

    fn has_service(&self, name: &str) -> bool {
        self.shared.read(|index| {
            Reader::new(index)
                .service(&Name::new("default", name))
                .is_some()
        })
    }

    fn pod_ips(&self, name: &str) -> Vec<IpAddr> {
        self.shared
            .read(|index| {
                Reader::new(index)
                    .pod(&Name::new("default", name))
                    .map(|p| p.ips.clone())
            })
            .unwrap_or_default()
    }
}

fn service(name: &str) -> String {
    format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n")
}

#[test]
fn files_and_addresses_reach_the_index() {
    let f = Fixture::new();
    assert!(!f.shared.is_filled());
    f.write(
        "a.yaml",
        &format!(
            "{}---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\n",
            service("web")
        ),
    );
    assert_eq!(f.source.reload(), []);
    assert!(f.shared.is_filled() && f.has_service("web"));
    assert!(f.pod_ips("p").is_empty());
    let ip = IpAddr::from([10, 1, 2, 3]);
    f.source.set_pod_ip("default", "p", Some(ip));
    assert_eq!(f.pod_ips("p"), [ip]);
    f.source.set_pod_ip("default", "p", None);
    assert!(f.pod_ips("p").is_empty());

    f.write("a.yaml", "kind: {");
    let errors = f.source.reload();
    assert_eq!(errors.len(), 1);
    assert_eq!(f.source.errors(), errors);
    assert!(f.has_service("web"), "the last good version stays");
    fs::remove_file(f.directory.path().join("a.yaml")).expect("removed");
    f.source.reload();
    assert!(!f.has_service("web"));
}

#[test]
fn an_object_the_index_refuses_keeps_its_last_good_version() {
    let f = Fixture::new();
    let with_port = |port: i32| format!("{}spec: {{ports: [{{port: {port}}}]}}\n", service("web"));
    f.write("a.yaml", &with_port(80));
    f.source.reload();
    f.write("a.yaml", &with_port(700_000));
    f.source.reload();
    let port = f.shared.read(|index| {
        Reader::new(index)
            .service(&Name::new("default", "web"))
            .map(|s| s.ports[0].number)
    });
    assert_eq!(port, Some(80));
}

#[tokio::test(start_paused = true)]
async fn without_notifications_the_directory_is_read_at_the_interval() {
    let f = Fixture::new();
    let (_wake, woken) = mpsc::channel(1);
    let task = tokio::spawn(Arc::clone(&f.source).follow(woken, CancellationToken::new()));
    f.write("a.yaml", &service("web"));
    time::sleep(POLL - Duration::from_millis(1)).await;
    assert!(!f.has_service("web"));
    time::sleep(Duration::from_millis(2)).await;
    while !f.has_service("web") {
        time::sleep(Duration::from_millis(1)).await;
    }
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn several_notifications_are_one_reading_after_the_debounce() {
    let f = Fixture::new();
    let (wake, woken) = mpsc::channel(1);
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(Arc::clone(&f.source).follow(woken, shutdown.clone()));
    f.write("a.yaml", &service("web"));
    wake.send(()).await.expect("followed");
    // Each notification starts the wait anew, up to a limit.
    let started = time::Instant::now();
    for _ in 0..3 {
        time::sleep(DEBOUNCE - Duration::from_millis(1)).await;
        assert!(!f.has_service("web"));
        wake.send(()).await.expect("followed");
    }
    while !f.has_service("web") {
        time::sleep(Duration::from_millis(1)).await;
    }
    assert!(
        (3 * DEBOUNCE..POLL).contains(&started.elapsed()),
        "{:?}",
        started.elapsed()
    );
    shutdown.cancel();
    task.await.expect("ends with the shutdown");
}

#[tokio::test]
async fn a_change_of_a_file_is_noticed() {
    let f = Fixture::new();
    f.source.reload();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(Arc::clone(&f.source).watch(shutdown.clone()));
    // The watcher must be there first, otherwise the interval notices the change, which takes longer.
    time::sleep(Duration::from_millis(200)).await;
    f.write("a.yaml", &service("web"));
    let noticed = async {
        while !f.has_service("web") {
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    time::timeout(Duration::from_secs(10), noticed)
        .await
        .expect("noticed");
    shutdown.cancel();
    task.await.expect("ends with the shutdown");
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_never_rests_is_read_all_the_same() {
    let (wake, mut woken) = mpsc::channel(1);
    let busy = tokio::spawn(async move { while wake.send(()).await.is_ok() {} });
    settle(&mut woken).await;
    drop(woken);
    busy.await.expect("ends with the receiver");
}
