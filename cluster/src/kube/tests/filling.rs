//! When the index counts as filled: all kinds are followed at once, as `weft destination` does it.

use std::collections::BTreeSet;

use super::*;

const OURS: [&str; 3] = ["policy.linkerd.io", "linkerd.io", "workload.linkerd.io"];
/// All but the four of the Gateway API, and Links, which nobody reads.
const KINDS: usize = 14;

/// All kinds, followed from a server that has everything but the Gateway API.
struct Filling {
    server: ApiServer,
    shared: Arc<Shared>,
    source: Arc<KubeSource>,
    shutdown: CancellationToken,
    running: JoinHandle<()>,
    /// Paths that are watched, and their streams.
    watched: BTreeSet<String>,
    watches: Vec<Events>,
}

impl Filling {
    async fn start() -> Self {
        let server = ApiServer::start().await;
        let shared = Shared::new();
        let pace = Pace {
            absent_poll: Duration::from_secs(60),
            ..QUICK
        };
        let metrics = Metrics::default();
        let source = KubeSource::with_pace(server.client(), Arc::clone(&shared), metrics, pace);
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(Arc::clone(&source).run(shutdown.clone()));
        Self {
            server,
            shared,
            source,
            shutdown,
            running,
            watched: BTreeSet::new(),
            watches: Vec::new(),
        }
    }

    /// The next request that is not answered as usual.
    async fn next_but(&mut self, held: impl Fn(&str) -> bool) -> Ask {
        loop {
            let ask = self.server.next().await;
            if held(&ask.path) {
                return ask;
            }
            self.answer(ask);
        }
    }

    /// Answers until so many paths are watched.
    async fn until_watched(&mut self, count: usize) {
        while self.watched.len() < count {
            let ask = self.server.next().await;
            self.answer(ask);
        }
    }

    fn answer(&mut self, ask: Ask) {
        let path = ask.path.clone();
        if path.contains("?watch=true") {
            self.watched.insert(path);
            self.watches.push(ask.stream());
        } else if path.contains("?limit=500") {
            ask.json(200, &page("100", "", &[]));
        } else if let Some(ours) = ours(&path) {
            let text = match path.matches('/').count() {
                2 => group(ours, &["v1alpha1"]),
                _ => {
                    let kinds = Kind::ALL.map(Kind::api).into_iter();
                    let all: Vec<_> = kinds
                        .filter(|api| api.group == ours)
                        .map(|api| api.plural)
                        .collect();
                    resources(&format!("{ours}/v1alpha1"), &all)
                }
            };
            ask.json(200, &text);
        } else {
            ask.json(404, &status(404, "NotFound").to_string());
        }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        let ended = timeout(Duration::from_secs(5), self.running).await;
        ended.expect("in time").expect("no panic");
    }
}

/// The group of ours that is asked about.
fn ours(path: &str) -> Option<&'static str> {
    let group = path.strip_prefix("/apis/")?.split('/').next()?;
    OURS.into_iter().find(|ours| *ours == group)
}

#[tokio::test]
async fn ready_once_every_kind_was_read_or_is_one_of_the_gateway_api() {
    let mut filling = Filling::start().await;
    let pods = filling.next_but(|path| path == list_path(PODS)).await;
    filling.until_watched(KINDS - 1).await;
    assert!(!filling.shared.is_filled());
    let reason = filling.source.ready().expect_err("pods are missing");
    assert_eq!(reason, "waiting for the API server: Pod (not asked yet)");

    pods.json(200, &page("100", "", &[]));
    let watch = filling.server.expect(&watch_path(PODS, "100")).await;
    watch.json(500, "{}");
    assert_eq!(filling.source.ready(), Ok(()));
    assert!(filling.shared.is_filled());
    let _watch = filling
        .server
        .expect(&watch_path(PODS, "100"))
        .await
        .stream();
    filling.server.quiet(Duration::from_millis(300)).await;
    filling.stop().await;
}

/// Control plane and definitions are installed together: a definition that is not there yet is not one without objects.
#[tokio::test]
async fn not_filled_before_our_definitions_are_installed() {
    let mut filling = Filling::start().await;
    let servers = |path: &str| path == list_path("/apis/policy.linkerd.io/v1alpha1/servers");
    // The group is not known at first, then the kind.
    let mut refused = 0;
    while refused < 12 {
        let ask = filling.next_but(|path| path.starts_with(POLICY)).await;
        match ask.path.as_str() {
            POLICY if refused >= 8 => ask.json(200, &group("policy.linkerd.io", &["v1alpha1"])),
            POLICY => {
                refused += 1;
                ask.json(404, &status(404, "NotFound").to_string());
            }
            _ => {
                refused += 1;
                ask.json(200, &resources("policy.linkerd.io/v1alpha1", &["links"]));
            }
        }
    }
    assert!(!filling.shared.is_filled());
    let reason = filling.source.ready().expect_err("no definitions");
    let expected = "Server (servers.policy.linkerd.io is not installed in this cluster; install or upgrade the chart linkerd-crds";
    assert!(reason.contains(expected), "{reason}");
    assert!(!reason.contains("GRPCRoute"), "{reason}");

    // Once they are installed it takes seconds, and Servers may be the last.
    let servers = filling.next_but(servers).await;
    filling.until_watched(KINDS - 1).await;
    assert!(!filling.shared.is_filled());
    servers.json(200, &page("100", "", &[server_object("web")]));
    filling.until_watched(KINDS).await;
    assert!(filling.shared.is_filled());
    let server = Name::new("shop", "web");
    let known = |index: &crate::Index| Reader::new(index).server(&server).is_some();
    assert!(filling.shared.read(known));
    filling.stop().await;
}
