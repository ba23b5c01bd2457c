//! Channels over real sockets: resolution, mesh TLS with the right certificate, and reconnection.
#![allow(clippy::unwrap_used)] // A panic is how a test fails.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use linkerd2_proxy_api::identity::CertifyRequest;
use linkerd2_proxy_api::identity::identity_client::IdentityClient;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tonic::{Code, Status};

use super::*;
use crate::identity::testing::{Authority, Fake};

const SERVICE: &str = "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local";
const HOUR: Duration = Duration::from_secs(3600);

fn options(present_certificate: bool) -> ConnectOptions {
    ConnectOptions {
        timeout: Duration::from_secs(5),
        socket: SocketOptions::default(),
        present_certificate,
    }
}

/// Serves `Fake` on a port, with mesh TLS if a store is given; keeps the identity of each client.
async fn serve(fake: Fake, store: Option<Store>) -> (u16, Arc<Mutex<Vec<Option<Identity>>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let clients = Arc::<Mutex<Vec<_>>>::default();
    let seen = clients.clone();
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let Some(store) = &store else {
                tokio::spawn(fake.clone().serve(tcp));
                continue;
            };
            let credentials = store.current().unwrap();
            let asked = server_name(&tcp).await;
            if let Ok(accepted) = weft_tls::accept(tcp, &credentials, false).await {
                assert_eq!(asked.as_deref(), Some(store.server_name()));
                seen.lock().push(accepted.client);
                tokio::spawn(fake.clone().serve(accepted.stream));
            }
        }
    });
    (port, clients)
}

/// The name that a client asks for.
async fn server_name(tcp: &tokio::net::TcpStream) -> Option<String> {
    let mut hello = vec![0; 4096];
    loop {
        let n = tcp.peek(&mut hello).await.unwrap();
        match weft_core::detect::client_hello(&hello[..n]) {
            weft_core::detect::ClientHello::Sni(name) => return Some(name),
            weft_core::detect::ClientHello::Incomplete if n > 0 => tokio::task::yield_now().await,
            _ => return None,
        }
    }
}

async fn call(channel: Channel) -> Status {
    IdentityClient::new(channel)
        .certify(CertifyRequest::default())
        .await
        .unwrap_err()
}

fn refused_by_service(status: &Status) -> bool {
    status.code() == Code::Unavailable && status.message() == "the script is over"
}

#[tokio::test]
async fn loopback_names_need_no_dns() {
    for host in ["localhost:8086", "localhost.:8086", "127.0.0.1:8086"] {
        let addrs = resolve(&host.parse().unwrap(), 7).await.unwrap();
        assert_eq!(addrs, ["127.0.0.1:8086".parse().unwrap()]);
    }
}

#[tokio::test]
async fn a_name_without_address_is_named() {
    let addr: Addr = "no-such-host.invalid.:8086".parse().unwrap();
    let error = resolve(&addr, 0).await.unwrap_err();
    assert!(
        error.to_string().contains("no-such-host.invalid.:8086"),
        "{error}"
    );
}

#[tokio::test]
async fn plaintext_keeps_the_configured_authority() {
    let authority = Arc::new(Authority::new());
    let fake = Fake::new(authority.clone(), vec![]);
    let (port, _) = serve(fake.clone(), None).await;
    let (store, _) = authority.empty_store("web.example");
    let addr = format!("localhost.:{port}");
    let channel = channel(addr.parse().unwrap(), None, &store, options(true));
    let status = call(channel).await;
    assert!(refused_by_service(&status), "{status:?}");
    assert_eq!(
        fake.calls.lock()[0].authority.as_deref(),
        Some(addr.as_str())
    );
}

#[tokio::test]
async fn our_certificate_is_presented_only_if_valid_and_wanted() {
    let authority = Arc::new(Authority::new());
    let fake = Fake::new(authority.clone(), vec![]);
    let server = authority.store(SERVICE, HOUR);
    let (port, clients) = serve(fake, Some(server)).await;
    let addr = Addr::Socket((Ipv4Addr::LOCALHOST, port).into());
    let name = Identity::parse(SERVICE).unwrap();

    let valid = authority.store("web.example", HOUR);
    let ended = authority.store("web.example", Duration::from_millis(1));
    let (empty, _) = authority.empty_store("web.example");
    tokio::time::sleep(Duration::from_millis(2)).await;
    for (store, present) in [
        (&valid, true),
        (&valid, false),
        (&ended, true),
        (&empty, true),
    ] {
        let channel = channel(addr.clone(), Some(name.clone()), store, options(present));
        let status = call(channel).await;
        assert!(refused_by_service(&status), "{status:?}");
    }
    let web = Identity::parse("web.example").unwrap();
    assert_eq!(*clients.lock(), [Some(web), None, None, None]);
}

#[tokio::test]
async fn an_impostor_is_refused() {
    let authority = Arc::new(Authority::new());
    let fake = Fake::new(authority.clone(), vec![]);
    let impostor = authority.store("web.example", HOUR);
    let (port, _) = serve(fake.clone(), Some(impostor)).await;
    let (store, _) = authority.empty_store("db.example");
    let addr = Addr::Socket((Ipv4Addr::LOCALHOST, port).into());
    let name = Identity::parse(SERVICE).unwrap();
    let status = call(channel(addr, Some(name), &store, options(true))).await;
    assert!(
        stream::reason(&status).contains("web.example"),
        "{}",
        stream::reason(&status)
    );
    assert!(fake.calls.lock().is_empty());
}

#[tokio::test]
async fn a_lost_connection_is_made_again() {
    let authority = Arc::new(Authority::new());
    let fake = Fake::new(authority.clone(), vec![]);
    let (store, _) = authority.empty_store("web.example");
    // A port that nobody listens on yet.
    let reserved = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = reserved.local_addr().unwrap();
    drop(reserved);
    let channel = channel(Addr::Socket(addr), None, &store, options(true));
    let status = call(channel.clone()).await;
    assert!(
        stream::reason(&status).contains(&addr.to_string()),
        "{}",
        stream::reason(&status)
    );

    let listener = TcpListener::bind(addr).await.unwrap();
    let (cut, connections) = (Arc::new(Notify::new()), Arc::<AtomicUsize>::default());
    let (cutting, counting) = (cut.clone(), connections.clone());
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            counting.fetch_add(1, Relaxed);
            tokio::select! {
                () = fake.clone().serve(tcp) => {}
                () = cutting.notified() => {}
            }
        }
    });
    for expected in 1..=3 {
        // A call that races with the loss of the connection may fail; the next one must not.
        while !refused_by_service(&call(channel.clone()).await) {}
        assert_eq!(connections.load(Relaxed), expected);
        cut.notify_one();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
