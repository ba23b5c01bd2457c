//! The whole service on real sockets: Certify over gRPC, the admin server, the metrics, rotation under load, the end.

use std::time::Instant;

use linkerd2_proxy_api::identity::identity_client::IdentityClient;
use linkerd2_proxy_api::identity::{CertifyRequest, CertifyResponse};
use rcgen::CertifiedIssuer;
use rustls_pki_types::{CertificateDer, UnixTime};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::*;
use crate::local::LocalAuthority;
use crate::roots::TrustRoots;
use crate::testing::{ID, ca_params, ca_under, csr, key, root, write_pair, write_roots};

pub(super) struct Running {
    _dir: TempDir,
    pub(super) authority: LocalAuthority,
    addr: SocketAddr,
    admin: SocketAddr,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), ServeError>>,
}

pub(super) fn config(authority: &LocalAuthority) -> Config {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    Config {
        addr: any,
        admin_addr: Some(any),
        trust_domain: "cluster.local".to_owned(),
        controller_namespace: "linkerd".to_owned(),
        issuance_lifetime: Duration::from_secs(600),
        clock_skew_allowance: Duration::from_secs(20),
        issuer_dir: authority.issuer_dir(),
        scheme: Scheme::Linkerd,
        trust_roots: authority.trust_roots(),
        tokens: TokenCheck::Local(authority.tokens()),
    }
}

impl Running {
    async fn start() -> Self {
        Self::start_with(config).await
    }

    pub(super) async fn start_with(settings: impl FnOnce(&LocalAuthority) -> Config) -> Self {
        let dir = tempfile::tempdir().expect("folder");
        let authority = LocalAuthority::open(&dir.path().join("a")).expect("authority");
        let bind = || net::bind(SocketAddr::from(([127, 0, 0, 1], 0)), None).expect("bound");
        let (listener, admin) = (bind(), bind());
        let addresses = (
            listener.local_addr().expect("address"),
            admin.local_addr().expect("address"),
        );
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(serve_on(
            listener,
            Some(admin),
            settings(&authority),
            shutdown.clone(),
        ));
        Self {
            _dir: dir,
            authority,
            addr: addresses.0,
            admin: addresses.1,
            shutdown,
            task,
        }
    }

    pub(super) async fn client(&self) -> IdentityClient<Channel> {
        IdentityClient::connect(format!("http://{}", self.addr))
            .await
            .expect("connected")
    }

    pub(super) fn request(&self) -> CertifyRequest {
        let token =
            self.authority
                .issue_token("emojivoto", "web", "web-1", Duration::from_secs(600));
        CertifyRequest {
            identity: ID.to_owned(),
            token: token.into_bytes(),
            certificate_signing_request: csr(ID),
        }
    }

    pub(super) async fn admin(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.admin).await.expect("connected");
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.expect("written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("read");
        answer
    }

    pub(super) async fn end(self) {
        self.shutdown.cancel();
        self.task.await.expect("no panic").expect("a clean end");
    }
}

pub(super) async fn certify(
    client: &mut IdentityClient<Channel>,
    request: CertifyRequest,
) -> Result<CertifyResponse, Status> {
    client
        .certify(request)
        .await
        .map(tonic::Response::into_inner)
}

/// As a proxy does before it uses an answer (contract 2.2).
pub(super) fn assert_usable(response: &CertifyResponse, authority: &LocalAuthority) {
    let roots = TrustRoots::from_pem(authority.trust_anchors_pem().as_bytes()).expect("roots");
    let leaf = CertificateDer::from(response.leaf_certificate.clone());
    let above: Vec<CertificateDer<'_>> = response
        .intermediate_certificates
        .iter()
        .map(|der| CertificateDer::from(der.as_slice()))
        .collect();
    roots
        .verify(&leaf, &above, UnixTime::now())
        .expect("verifies to the anchors");
    let until = response.valid_until.expect("mandatory").seconds;
    assert!(until > crate::authority::unix_seconds(SystemTime::now()));
}

#[tokio::test]
async fn certify_over_grpc_and_the_admin_server() {
    let running = Running::start().await;
    let mut client = running.client().await;
    let response = certify(&mut client, running.request())
        .await
        .expect("issued");
    assert_usable(&response, &running.authority);
    let refused = certify(
        &mut client,
        CertifyRequest {
            identity: "x.y".to_owned(),
            ..running.request()
        },
    )
    .await;
    let refused = refused.expect_err("not ours");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("x.y"), "{}", refused.message());
    let large = CertifyRequest {
        token: vec![b'x'; MAX_REQUEST_BYTES],
        ..running.request()
    };
    assert_eq!(
        certify(&mut client, large)
            .await
            .expect_err("too large")
            .code(),
        Code::OutOfRange
    );

    assert!(running.admin("/ping").await.ends_with("pong\n"));
    assert!(running.admin("/ready").await.starts_with("HTTP/1.1 200"));
    let text = running.admin("/metrics").await;
    let method = "grpc_service=\"io.linkerd.proxy.identity.Identity\",grpc_method=\"Certify\",grpc_type=\"unary\"";
    for line in [
        format!("grpc_server_started_total{{{method}}} 2"),
        format!("grpc_server_handled_total{{{method},grpc_code=\"OK\"}} 1"),
        format!("grpc_server_handled_total{{{method},grpc_code=\"FailedPrecondition\"}} 1"),
        format!("grpc_server_handling_seconds_count{{{method}}} 2"),
        format!("grpc_server_msg_received_total{{{method}}} 2"),
        format!("grpc_server_msg_sent_total{{{method}}} 1"),
        "issuer_reload_total{result=\"updated\"} 1".to_owned(),
    ] {
        assert!(text.contains(&line), "{line}\n{text}");
    }
    assert!(
        text.contains("\nissuer_cert_ttl_seconds ") && text.contains("\nissuer_not_after "),
        "{text}"
    );
    drop(client);
    running.end().await;
}

#[tokio::test]
async fn the_issuer_rotates_while_certificates_are_issued() {
    let running = Running::start().await;
    let mut client = running.client().await;
    let mut issuers = std::collections::BTreeSet::new();
    for _ in 0..10 {
        running.authority.rotate_issuer().expect("rotated");
        for _ in 0..10 {
            let response = certify(&mut client, running.request())
                .await
                .expect("always one in use");
            assert_usable(&response, &running.authority);
            issuers.extend(response.intermediate_certificates);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert!(
        issuers.len() > 5,
        "the new ones were used: {}",
        issuers.len()
    );
    running.end().await;
}

#[tokio::test]
async fn without_an_issuer_it_starts_and_says_so() {
    let running = Running::start().await;
    let issuer = running.authority.issuer_dir();
    let away = issuer.with_extension("away");
    running.shutdown.cancel();
    std::fs::rename(&issuer, &away).expect("moved");

    let (listener, admin) = (
        net::bind(SocketAddr::from(([127, 0, 0, 1], 0)), None),
        net::bind(SocketAddr::from(([127, 0, 0, 1], 0)), None),
    );
    let (listener, admin) = (listener.expect("bound"), admin.expect("bound"));
    let (addr, admin_addr) = (
        listener.local_addr().expect("address"),
        admin.local_addr().expect("address"),
    );
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(serve_on(
        listener,
        Some(admin),
        config(&running.authority),
        shutdown.clone(),
    ));
    let running = Running {
        addr,
        admin: admin_addr,
        shutdown,
        task,
        ..running
    };
    let mut client = running.client().await;
    let status = certify(&mut client, running.request())
        .await
        .expect_err("no issuer");
    assert_eq!(status.code(), Code::Unavailable);
    let ready = running.admin("/ready").await;
    assert!(
        ready.starts_with("HTTP/1.1 500") && ready.contains("crt.pem"),
        "{ready}"
    );
    running.end().await;
}

/// Case I10: root and issuer have expired, and both are replaced while the service runs.
#[tokio::test]
async fn i10_an_expired_issuer_and_root_are_replaced_without_a_restart() {
    let folder = tempfile::tempdir().expect("folder");
    let dir = folder.path();
    let past = |name: &str| {
        let mut params = ca_params(name);
        params.not_before -= time::Duration::days(2);
        params.not_after = params.not_before + time::Duration::days(1);
        params
    };
    let p256 = || key(&rcgen::PKCS_ECDSA_P256_SHA256);
    let old = CertifiedIssuer::self_signed(past("old root"), p256()).expect("root");
    let expired = CertifiedIssuer::signed_by(past("old issuer"), p256(), &old).expect("issuer");
    write_roots(dir, &[&old]);
    write_pair(&dir.join("issuer"), &expired);
    let running = Running::start_with(|authority| Config {
        issuer_dir: dir.join("issuer"),
        trust_roots: dir.join("roots/ca-bundle.crt"),
        ..config(authority)
    })
    .await;
    let mut client = running.client().await;
    let refused = certify(&mut client, running.request())
        .await
        .expect_err("expired");
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(
        refused.message().contains("renew it"),
        "{}",
        refused.message()
    );
    assert!(running.admin("/live").await.starts_with("HTTP/1.1 200"));
    assert!(running.admin("/ready").await.starts_with("HTTP/1.1 500"));

    // As an upgrade of the chart does it: a new bundle (the old root may stay in it) and a new pair.
    let new = root("new root");
    write_roots(dir, &[&old, &new]);
    write_pair(&dir.join("issuer"), &ca_under(&new, "new issuer"));
    let started = Instant::now();
    let issued = loop {
        match certify(&mut client, running.request()).await {
            Ok(issued) => break issued,
            Err(status) => assert_eq!(status.code(), Code::Unavailable),
        }
        // Generous, for a busy machine; usual is 30 ms.
        assert!(started.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let leaf = CertificateDer::from(issued.leaf_certificate);
    let above: Vec<CertificateDer<'_>> = issued
        .intermediate_certificates
        .into_iter()
        .map(CertificateDer::from)
        .collect();
    TrustRoots::from_pem(new.pem().as_bytes())
        .expect("roots")
        .verify(&leaf, &above, UnixTime::now())
        .expect("of the new root");
    assert!(running.admin("/ready").await.starts_with("HTTP/1.1 200"));
    running.end().await;
}

#[tokio::test]
async fn it_ends_although_a_client_stays() {
    let running = Running::start().await;
    let mut client = running.client().await;
    certify(&mut client, running.request())
        .await
        .expect("issued");
    let started = Instant::now();
    running.end().await;
    assert!(started.elapsed() < grpc::GRACE + Duration::from_secs(2));
}

#[tokio::test]
async fn settings_that_cannot_work() {
    let dir = tempfile::tempdir().expect("folder");
    let authority = LocalAuthority::open(&dir.path().join("a")).expect("authority");
    let shutdown = CancellationToken::new();
    let bad_namespace = Config {
        controller_namespace: "link.erd".to_owned(),
        ..config(&authority)
    };
    let refused = serve(bad_namespace, shutdown.clone())
        .await
        .expect_err("a dot")
        .to_string();
    assert!(refused.contains("link.erd"), "{refused}");
    let no_time = Config {
        issuance_lifetime: Duration::from_millis(999),
        ..config(&authority)
    };
    assert!(matches!(
        serve(no_time, shutdown.clone()).await,
        Err(ServeError::Lifetime(_))
    ));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let no_place = Config {
        addr: taken.local_addr().expect("address"),
        ..config(&authority)
    };
    assert!(matches!(
        serve(no_place, shutdown).await,
        Err(ServeError::Bind(_))
    ));
}
