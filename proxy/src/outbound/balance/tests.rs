//! The balancer against real loopback servers, with a paused clock where time matters.

use super::*;
use crate::convert::Meta;
use crate::metrics::balancer::resource_labels;
use crate::testing;
use http::StatusCode;
use http_body_util::BodyExt;
use std::net::Ipv4Addr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use weft_runtime::metrics::Registry;

const FAMILY: &str = "outbound_http_balancer";

fn balancer(changes: &[(&str, &str)]) -> (Arc<Balancer>, Arc<Registry>) {
    let (context, registry) = testing::outbound(changes);
    let meta = Meta::default_named("test");
    let labels = resource_labels(&meta, &meta).done();
    let failfast = context.settings.side.http.failfast_timeout;
    let metrics = context.metrics.http_balancer.series(&labels, failfast);
    let load = LoadSettings::default();
    let balancer = Balancer::new(context, "web.test:80".into(), Traffic::Http, load, metrics);
    (balancer, registry)
}

fn unknown(addrs: &[SocketAddr]) -> Vec<(SocketAddr, Metadata)> {
    addrs.iter().map(|a| (*a, Metadata::unknown())).collect()
}

/// An HTTP/1 server that answers with its own address.
async fn server() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut io, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut seen = [0; 4096];
                while io.read(&mut seen).await.is_ok_and(|n| n > 0) {
                    let body = addr.to_string();
                    let length = body.len();
                    let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}");
                    io.write_all(text.as_bytes()).await.unwrap();
                }
            });
        }
    });
    addr
}

/// An address where nobody listens.
async fn nobody() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    listener.local_addr().unwrap()
}

async fn ask(balancer: &Arc<Balancer>) -> Result<String, Error> {
    let request = Request::builder()
        .uri("/")
        .header("host", "web.test")
        .body(Body::empty())
        .unwrap();
    let response = balancer
        .send(Box::new(request), std::time::Instant::now())
        .await?;
    assert_eq!(response.status(), StatusCode::OK);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    Ok(String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn every_equal_endpoint_gets_its_share() {
    let (balancer, _) = balancer(&[]);
    let addrs = [server().await, server().await, server().await];
    balancer.reset(unknown(&addrs));
    let mut counts = HashMap::<String, u32>::new();
    // Several at once: one after the other, an answer that happened to be slow keeps its endpoint out for seconds.
    for _ in 0..30 {
        let asked = (0..10).map(|_| ask(&balancer));
        for answer in futures_util::future::join_all(asked).await {
            *counts.entry(answer.unwrap()).or_default() += 1;
        }
    }
    assert_eq!(counts.len(), 3, "{counts:?}");
}

#[tokio::test]
async fn an_endpoint_that_left_gets_no_new_request() {
    let (balancer, registry) = balancer(&[]);
    let addrs = [server().await, server().await];
    balancer.reset(unknown(&addrs));
    balancer.remove(&addrs[..1]);
    for _ in 0..20 {
        assert_eq!(ask(&balancer).await.unwrap(), addrs[1].to_string());
    }
    let live = testing::sample(&registry, &format!("{FAMILY}_p2c_endpoints"), &[]);
    assert_eq!(live, Some(1.0));
}

#[tokio::test]
async fn an_unreachable_endpoint_costs_no_request() {
    let backoff = [("OUTBOUND_CONNECT_EXP_BACKOFF_MIN", "60s")];
    let (balancer, registry) = balancer(&backoff);
    let addrs = [server().await, nobody().await];
    balancer.reset(unknown(&addrs));
    // The one that cannot be reached looks better, so it is tried.
    let now = std::time::Instant::now();
    let server = balancer.set.lock().all[&addrs[0]].clone();
    server.load.lock().record(Duration::from_secs(5), now);
    for _ in 0..20 {
        assert_eq!(ask(&balancer).await.unwrap(), addrs[0].to_string());
    }
    let state = |s: &str| {
        let label = format!("endpoint_state=\"{s}\"");
        testing::sample(&registry, &format!("{FAMILY}_endpoints"), &[&label])
    };
    assert_eq!((state("ready"), state("pending")), (Some(1.0), Some(1.0)));
}

#[tokio::test]
async fn an_endpoint_that_can_be_reached_again_is_used_again() {
    let (balancer, _) = balancer(&[("OUTBOUND_CONNECT_EXP_BACKOFF_MIN", "10ms")]);
    let late = nobody().await;
    balancer.reset(unknown(&[late]));
    let asked = tokio::spawn({
        let balancer = balancer.clone();
        async move { ask(&balancer).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let listener = TcpListener::bind(late).await.unwrap();
    tokio::spawn(async move {
        loop {
            let (mut io, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut seen = [0; 4096];
                while io.read(&mut seen).await.is_ok_and(|n| n > 0) {
                    let text = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                    io.write_all(text.as_bytes()).await.unwrap();
                }
            });
        }
    });
    assert_eq!(asked.await.unwrap().unwrap(), "ok");
}

#[tokio::test(start_paused = true)]
async fn without_endpoints_a_request_fails_after_the_limit_and_the_next_at_once() {
    let (balancer, registry) = balancer(&[]);
    let start = Instant::now();
    assert!(matches!(ask(&balancer).await, Err(Error::FailFast { .. })));
    assert_eq!(start.elapsed(), Duration::from_secs(3));
    assert!(matches!(ask(&balancer).await, Err(Error::FailFast { .. })));
    assert_eq!(start.elapsed(), Duration::from_secs(3));
    let shut = testing::sample(&registry, &format!("{FAMILY}_queue_gate_shut_total"), &[]);
    assert_eq!(shut, Some(1.0));
}

#[tokio::test]
async fn a_waiting_request_is_served_when_an_endpoint_comes() {
    let (balancer, _) = balancer(&[]);
    let addr = server().await;
    let asked = tokio::spawn({
        let balancer = balancer.clone();
        async move { ask(&balancer).await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    balancer.add(unknown(&[addr]));
    assert_eq!(asked.await.unwrap().unwrap(), addr.to_string());
}

#[tokio::test(start_paused = true)]
async fn failfast_ends_when_an_endpoint_comes() {
    let (balancer, _) = balancer(&[]);
    assert!(ask(&balancer).await.is_err());
    assert!(!balancer.is_ready());
    balancer.add(unknown(&[(Ipv4Addr::LOCALHOST, 1).into()]));
    assert!(balancer.is_ready());
    assert!(!balancer.set.lock().shut);
}

#[tokio::test(start_paused = true)]
async fn the_queue_has_an_end() {
    let (balancer, _) = balancer(&[("OUTBOUND_HTTP_QUEUE_CAPACITY", "1")]);
    let first = tokio::spawn({
        let balancer = balancer.clone();
        async move { ask(&balancer).await }
    });
    tokio::task::yield_now().await;
    assert!(matches!(ask(&balancer).await, Err(Error::LoadShed { .. })));
    assert!(matches!(first.await.unwrap(), Err(Error::FailFast { .. })));
}

#[tokio::test]
async fn an_update_that_says_nothing_new_changes_nothing() {
    let (balancer, _) = balancer(&[]);
    let addr: SocketAddr = (Ipv4Addr::LOCALHOST, 1).into();
    balancer.reset(unknown(&[addr]));
    let before = balancer.choose().unwrap();
    balancer.add(unknown(&[addr]));
    balancer.reset(unknown(&[addr]));
    assert!(
        Arc::ptr_eq(&before, &balancer.choose().unwrap()),
        "case L06"
    );
}

#[tokio::test]
async fn no_endpoints_means_none() {
    let (balancer, _) = balancer(&[]);
    balancer.reset(unknown(&[(Ipv4Addr::LOCALHOST, 1).into()]));
    balancer.reset(Vec::new());
    assert!(!balancer.is_ready(), "case L07");
}

#[tokio::test]
async fn the_least_loaded_of_two_is_chosen() {
    let (balancer, _) = balancer(&[]);
    let addrs: Vec<SocketAddr> = (1..=2).map(|p| (Ipv4Addr::LOCALHOST, p).into()).collect();
    balancer.reset(unknown(&addrs));
    let slow = balancer.choose().unwrap();
    let now = std::time::Instant::now();
    slow.load.lock().record(Duration::from_secs(5), now);
    for _ in 0..50 {
        assert_ne!(balancer.choose().unwrap().addr, slow.addr);
    }
}

#[tokio::test]
async fn an_exchange_without_an_answer_does_not_make_an_endpoint_look_good() {
    let (balancer, _) = balancer(&[]);
    balancer.reset(unknown(&[(Ipv4Addr::LOCALHOST, 1).into()]));
    let endpoint = balancer.choose().unwrap();
    let now = std::time::Instant::now();
    let before = endpoint.load.lock().estimate(now);
    drop(Pending::start(&endpoint));
    assert_eq!(endpoint.in_flight.load(Ordering::Relaxed), 0);
    assert_eq!(endpoint.load.lock().estimate(now), before);
}

proptest::proptest! {
    /// Whatever discovery says in whatever order, the balancer's set is what a plain map would be.
    #[test]
    fn the_set_is_what_discovery_said(updates in proptest::collection::vec((0u8..4, 1u16..6), 0..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (balancer, _) = balancer(&[]);
            let mut model = std::collections::BTreeSet::new();
            for (op, port) in updates {
                let addr: SocketAddr = (Ipv4Addr::LOCALHOST, port).into();
                match op {
                    0 | 1 => { balancer.add(unknown(&[addr])); model.insert(addr); }
                    2 => { balancer.remove(&[addr]); model.remove(&addr); }
                    _ => { balancer.reset(unknown(&[addr])); model.clear(); model.insert(addr); }
                }
                let set = balancer.set.lock();
                let all: std::collections::BTreeSet<_> = set.all.keys().copied().collect();
                let ready: std::collections::BTreeSet<_> = set.ready.iter().map(|e| e.addr).collect();
                assert_eq!(all, model);
                assert_eq!(ready, model);
                assert_eq!(set.ready.len(), model.len());
            }
        });
    }
}
