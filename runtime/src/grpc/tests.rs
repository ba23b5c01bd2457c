//! The shared server: how long its end takes, and what it counts.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::{io::AsyncReadExt, net::TcpStream};

use super::*;
use crate::metrics::Registry;

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_answer_holds_up_the_end_for_the_grace_period_only() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    let shutdown = CancellationToken::new();
    let server = tokio::spawn(serve(
        listener,
        Routes::default(),
        Limits::default(),
        shutdown.clone(),
    ));
    let mut peer = TcpStream::connect(address).await.expect("connected");
    // The server's SETTINGS have come, so the connection is being served; the peer never says anything.
    let mut settings = [0; 9];
    peer.read_exact(&mut settings).await.expect("settings");
    let started = time::Instant::now();
    shutdown.cancel();
    server.await.expect("no panic").expect("ended");
    assert!(
        started.elapsed() <= GRACE + Duration::from_millis(10),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn a_connection_too_many_waits_for_the_place_of_another() {
    use futures_util::{FutureExt, StreamExt};
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    let mut incoming = Box::pin(incoming::limited(listener, 1));
    let _peers = [
        TcpStream::connect(address).await.expect("connected"),
        TcpStream::connect(address).await.expect("queued"),
    ];
    let first = incoming.next().await.expect("endless").expect("accepted");
    assert!(incoming.next().now_or_never().is_none());
    drop(first);
    incoming.next().await.expect("endless").expect("accepted");
}

/// Counts to three, then fails.
struct Three(u32);

impl Source for Three {
    type Message = u32;

    async fn next(&mut self) -> Result<u32, Status> {
        self.0 += 1;
        if self.0 > 3 {
            Err(Status::not_found("no more"))
        } else {
            Ok(self.0)
        }
    }
}

#[tokio::test]
async fn calls_are_counted_by_how_they_end() {
    use futures_util::StreamExt;
    let registry = Registry::new(Duration::from_secs(60));
    let calls = Calls::new(Metrics::register(&registry), 2, CancellationToken::new());
    let open = || calls.open(calls.streaming("s", "m"), async { Ok(Three(0)) });
    let failed = open().await.expect("a place").into_inner();
    assert_eq!(failed.count().await, 4);
    let cancelled = open().await.expect("a place");
    let open_now = registry.encode();
    assert!(open_now.contains("grpc_server_open_streams{grpc_service=\"s\",grpc_method=\"m\",grpc_type=\"server_stream\"} 1"));
    let second = open().await.expect("a place");
    assert_eq!(
        open().await.err().map(|status| status.code()),
        Some(Code::ResourceExhausted)
    );
    drop((cancelled, second));
    let text = registry.encode();
    for (code, count) in [("NotFound", 1), ("Canceled", 2), ("ResourceExhausted", 1)] {
        assert!(
            text.contains(&format!("grpc_code=\"{code}\"}} {count}")),
            "{code}: {text}"
        );
    }
    assert!(text.contains("grpc_server_msg_sent_total{grpc_service=\"s\",grpc_method=\"m\",grpc_type=\"server_stream\"} 3"));
    assert!(text.contains("grpc_server_open_streams{grpc_service=\"s\",grpc_method=\"m\",grpc_type=\"server_stream\"} 0"));
}

/// Those who wait for what is to be sent count as open: a herd that waits has a limit too.
#[tokio::test]
async fn a_call_that_waits_for_its_source_has_a_place() {
    use futures_util::FutureExt;
    let calls = Calls::new(Metrics::default(), 1, CancellationToken::new());
    let never = std::future::pending::<Result<Three, Status>>();
    let mut waiting = Box::pin(calls.open(calls.streaming("s", "m"), never));
    assert!((&mut waiting).now_or_never().is_none());
    let other = calls.open(calls.streaming("s", "m"), async { Ok(Three(0)) });
    let refused = other.await.err().map(|status| status.code());
    assert_eq!(refused, Some(Code::ResourceExhausted));
    drop(waiting);
    let other = calls.open(calls.streaming("s", "m"), async { Ok(Three(0)) });
    assert!(other.await.is_ok());
}

/// A thousand refusals at once are one line.
#[test]
fn a_herd_that_is_refused_does_not_fill_the_log() {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        for _ in 0..1_000 {
            let status = exhausted("one too many");
            assert_eq!(
                (status.code(), status.message()),
                (Code::ResourceExhausted, "one too many")
            );
        }
    });
    // Another test of this process may have had the line.
    assert!(lines.0.load(Ordering::Relaxed) <= 1);
}

/// Counts lines.
#[derive(Clone, Default)]
struct Lines(Arc<AtomicUsize>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
