//! Handshakes over in-memory pipes: who is let in, who is refused, and what changes while connections live.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256};
use rustls::version::{TLS12, TLS13};
use rustls::{CertificateError, ClientConfig, HandshakeKind, ServerConfig};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::parameters::provider;
use crate::testing::{Authority, HOUR, empty_store, id};
use crate::verify::ChainVerifier;
use crate::*;

type Server = Result<Accepted<DuplexStream>, AcceptError>;
type Client = Result<TlsStream<DuplexStream>, ConnectError>;

async fn handshake(
    server: &Credentials,
    client: ClientConfigRef<'_>,
    expected: &str,
    direct: (bool, bool),
) -> (Server, Client) {
    let (near, far) = duplex(64 * 1024);
    let expected = id(expected);
    tokio::join!(
        accept(far, server, direct.0),
        connect(near, client, &expected, "db.example", direct.1)
    )
}

async fn meet(server: &Credentials, client: &Credentials) -> (Server, Client) {
    handshake(
        server,
        ClientConfigRef::Credentials(client),
        "db.example",
        (false, false),
    )
    .await
}

async fn echo<A, B>(server: &mut A, client: &mut B)
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let mut seen = [0; 4];
    client.write_all(b"ping").await.unwrap();
    client.flush().await.unwrap();
    server.read_exact(&mut seen).await.unwrap();
    server.write_all(&seen).await.unwrap();
    server.flush().await.unwrap();
    client.read_exact(&mut seen).await.unwrap();
    assert_eq!(&seen, b"ping");
}

#[tokio::test]
async fn both_sides_know_each_other() {
    let root = Authority::root();
    let (db, web) = (root.store("db.example"), root.store("web.example"));
    let (server, client) = meet(&db.current().unwrap(), &web.current().unwrap()).await;
    let (mut server, mut client) = (server.unwrap(), client.unwrap());
    assert_eq!(server.client, Some(id("web.example")));
    assert!(!server.alpn_transport);
    echo(&mut server.stream, &mut client).await;
}

#[tokio::test]
async fn the_first_parameters_of_the_contract_are_agreed() {
    let root = Authority::root();
    let db = root.store("db.example").current().unwrap();
    let connector = TlsConnector::from(db.client(false).clone());
    let (near, far) = duplex(64 * 1024);
    let name = ServerName::try_from("db.example").unwrap();
    let (server, client) = tokio::join!(accept(far, &db, false), connector.connect(name, near));
    let (mut server, mut client) = (server.unwrap(), client.unwrap());
    let session = client.get_ref().1;
    assert_eq!(session.alpn_protocol(), None);
    let suite = session.negotiated_cipher_suite().unwrap().suite();
    assert_eq!(suite, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    let group = session.negotiated_key_exchange_group().unwrap().name();
    assert_eq!(group, rustls::NamedGroup::X25519MLKEM768);
    echo(&mut server.stream, &mut client).await;
}

#[tokio::test]
async fn a_client_without_certificate_is_let_in_nameless() {
    let root = Authority::root();
    let (db, web) = (root.store("db.example"), root.store("web.example"));
    let anonymous = web.anonymous_client();
    let client = ClientConfigRef::Anonymous(&anonymous);
    let (server, client) =
        handshake(&db.current().unwrap(), client, "db.example", (false, false)).await;
    let mut server = server.unwrap();
    assert_eq!(server.client, None);
    echo(&mut server.stream, &mut client.unwrap()).await;
}

#[tokio::test]
async fn direct_needs_both_sides() {
    let root = Authority::root();
    let db = root.store("db.example").current().unwrap();
    let web = root.store("web.example").current().unwrap();
    let client = ClientConfigRef::Credentials(&web);

    let (server, ours) = handshake(&db, client, "db.example", (true, true)).await;
    assert!(server.unwrap().alpn_transport);
    assert!(ours.is_ok());

    let (server, ours) = handshake(&db, client, "db.example", (true, false)).await;
    assert!(!server.unwrap().alpn_transport);
    assert!(ours.is_ok());

    let (_, ours) = handshake(&db, client, "db.example", (false, true)).await;
    assert!(
        matches!(ours, Err(ConnectError::NotDirect { .. })),
        "{ours:?}"
    );
}

#[tokio::test]
async fn another_workload_is_refused_before_any_payload() {
    let root = Authority::root();
    let (db, web) = (root.store("db.example"), root.store("web.example"));
    let web = web.current().unwrap();
    let client = ClientConfigRef::Credentials(&web);
    let (server, ours) = handshake(
        &db.current().unwrap(),
        client,
        "cache.example",
        (false, false),
    )
    .await;
    match ours {
        Err(ConnectError::WrongIdentity { expected, found }) => {
            assert_eq!(expected, id("cache.example"));
            assert_eq!(found, ["db.example"]);
        }
        other => unreachable!("{other:?}"),
    }
    let mut rest = Vec::new();
    let end = server.unwrap().stream.read_to_end(&mut rest).await;
    assert!(rest.is_empty(), "the server got {rest:?}, {end:?}");
}

#[tokio::test]
async fn a_uri_identity_is_reached_by_its_server_name() {
    let root = Authority::root();
    let uri = "spiffe://td/ns/prod/sa/db";
    let db = root.store(uri);
    let web = root.store("web.example").current().unwrap();
    let client = ClientConfigRef::Credentials(&web);
    let (server, ours) = handshake(&db.current().unwrap(), client, uri, (false, false)).await;
    assert!(server.is_ok() && ours.is_ok());

    let (server, _) = meet(&web, &db.current().unwrap()).await;
    assert_eq!(server.unwrap().client, Some(id(uri)));
}

/// Roots of different meshes often have the same subject, and then it is the signature that tells them apart.
fn is_foreign(reason: &CertificateError) -> bool {
    matches!(
        reason,
        CertificateError::UnknownIssuer | CertificateError::BadSignature
    )
}

#[tokio::test]
async fn a_server_of_another_mesh_is_refused() {
    let db = Authority::root().store("db.example");
    let web = Authority::root().store("web.example");
    let (server, ours) = meet(&db.current().unwrap(), &web.current().unwrap()).await;
    assert!(
        matches!(&ours, Err(ConnectError::Certificate { reason, .. }) if is_foreign(reason)),
        "{ours:?}"
    );
    assert!(
        matches!(server, Err(AcceptError::RefusedByClient(_))),
        "{server:?}"
    );
}

#[tokio::test]
async fn a_client_of_another_mesh_is_refused() {
    let (ours, theirs) = (Authority::root(), Authority::root());
    let db = ours.store("db.example").current().unwrap();
    // Trusts our mesh, but its own certificate is of another.
    let mixed = ours.unchecked(&theirs.leaf("web.example"));
    let (server, client) = meet(&db, &mixed).await;
    assert!(
        matches!(&server, Err(AcceptError::Certificate(reason)) if is_foreign(reason)),
        "{server:?}"
    );
    // In TLS 1.3 the client learns of it with its first read.
    drop(server);
    let mut client = client.unwrap();
    assert!(client.read_u8().await.is_err());
}

#[tokio::test]
async fn an_expired_leaf_is_refused_in_both_directions() {
    let root = Authority::root();
    let past = SystemTime::now() - HOUR;
    let good = root.store("db.example").current().unwrap();
    let expired = root.unchecked(&root.leaf_until("db.example", past));
    let is_expired = |reason: &CertificateError| {
        matches!(
            reason,
            CertificateError::Expired | CertificateError::ExpiredContext { .. }
        )
    };

    let (_, ours) = meet(&expired, &good).await;
    assert!(
        matches!(&ours, Err(ConnectError::Certificate { reason, .. }) if is_expired(reason)),
        "{ours:?}"
    );
    let (server, _) = meet(&good, &expired).await;
    assert!(
        matches!(&server, Err(AcceptError::Certificate(reason)) if is_expired(reason)),
        "{server:?}"
    );
}

#[tokio::test]
async fn chains_through_an_issuer_and_any_kind_of_root() {
    for algorithm in [&PKCS_RSA_SHA256, &PKCS_ECDSA_P384_SHA384] {
        let root = Authority::root_of(algorithm);
        let issuer = root.issuer();
        let store = |name| {
            let leaf = issuer.leaf(name);
            let store = empty_store(root.anchors(), name, &leaf);
            let until = SystemTime::now() + HOUR;
            store
                .install(leaf.der, vec![issuer.der.clone()], until)
                .unwrap();
            store.current().unwrap()
        };
        let (server, client) = meet(&store("db.example"), &store("web.example")).await;
        assert_eq!(server.unwrap().client, Some(id("web.example")));
        client.unwrap();
    }
}

#[tokio::test]
async fn tls_1_2_is_refused_in_both_directions() {
    let root = Authority::root();
    let db = root.store("db.example").current().unwrap();
    let tls12 = Arc::new(rustls::crypto::aws_lc_rs::default_provider());

    let verifier = Arc::new(ChainVerifier::new(root.anchors().roots()));
    let old_client = ClientConfig::builder_with_provider(tls12.clone())
        .with_protocol_versions(&[&TLS12])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    let (near, far) = duplex(64 * 1024);
    let name = ServerName::try_from("db.example").unwrap();
    let connector = TlsConnector::from(Arc::new(old_client));
    let (server, client) = tokio::join!(accept(far, &db, false), connector.connect(name, near));
    assert!(matches!(server, Err(AcceptError::Tls(_))), "{server:?}");
    assert!(client.is_err());

    let old_server = ServerConfig::builder_with_provider(tls12)
        .with_protocol_versions(&[&TLS12])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(db.server(false).cert_resolver.clone());
    let (near, far) = duplex(64 * 1024);
    let acceptor = TlsAcceptor::from(Arc::new(old_server));
    let expected = id("db.example");
    let ours = connect(
        near,
        ClientConfigRef::Credentials(&db),
        &expected,
        "db.example",
        false,
    );
    let (server, ours) = tokio::join!(acceptor.accept(far), ours);
    assert!(server.is_err());
    assert!(
        matches!(ours, Err(ConnectError::RefusedByServer(_))),
        "{ours:?}"
    );
}

#[tokio::test]
async fn no_session_is_resumed() {
    let root = Authority::root();
    let db = root.store("db.example").current().unwrap();
    // A client that would resume if it were given a ticket.
    let verifier = Arc::new(ChainVerifier::new(root.anchors().roots()));
    let eager = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(eager));
    for _ in 0..2 {
        let (near, far) = duplex(64 * 1024);
        let name = ServerName::try_from("db.example").unwrap();
        let (server, client) = tokio::join!(accept(far, &db, false), connector.connect(name, near));
        let (mut server, mut client) = (server.unwrap(), client.unwrap());
        echo(&mut server.stream, &mut client).await;
        assert_eq!(client.get_ref().1.tls13_tickets_received(), 0);
        assert_eq!(
            client.get_ref().1.handshake_kind(),
            Some(HandshakeKind::Full)
        );
    }
}

#[tokio::test]
async fn a_new_certificate_serves_new_connections_and_leaves_old_ones_alone() {
    let root = Authority::root();
    let leaf = root.leaf("db.example");
    let db = empty_store(root.anchors(), "db.example", &leaf);
    db.install(leaf.der.clone(), vec![], SystemTime::now() + HOUR)
        .unwrap();
    let web = root.store("web.example").current().unwrap();

    let (old_server, old_client) = meet(&db.current().unwrap(), &web).await;
    let (mut old_server, mut old_client) = (old_server.unwrap(), old_client.unwrap());

    db.install(
        leaf.der,
        vec![],
        SystemTime::now() + Duration::from_secs(60),
    )
    .unwrap();
    let (new_server, new_client) = meet(&db.current().unwrap(), &web).await;
    echo(&mut new_server.unwrap().stream, &mut new_client.unwrap()).await;
    echo(&mut old_server.stream, &mut old_client).await;
}

#[tokio::test]
async fn roots_rotate_without_a_failed_handshake() {
    let (old, new) = (Authority::root(), Authority::root());
    let both = TrustAnchors::from_pem(&format!("{}{}", old.pem, new.pem)).unwrap();
    let (db, web) = (old.store("db.example"), old.store("web.example"));
    let still_meet = async || {
        let (server, client) = meet(&db.current().unwrap(), &web.current().unwrap()).await;
        server.unwrap();
        client.unwrap();
    };
    still_meet().await;
    db.replace_anchors(&both).unwrap();
    still_meet().await;
    web.replace_anchors(&both).unwrap();
    still_meet().await;

    let renewed = new.leaf("db.example");
    let fresh = empty_store(both, "db.example", &renewed);
    fresh
        .install(renewed.der, vec![], SystemTime::now() + HOUR)
        .unwrap();
    let (server, client) = meet(&fresh.current().unwrap(), &web.current().unwrap()).await;
    server.unwrap();
    client.unwrap();
}

#[tokio::test]
async fn a_name_that_is_not_dns_cannot_be_asked_for() {
    let web = Authority::root().store("web.example").current().unwrap();
    let (near, _far) = duplex(1024);
    let client = ClientConfigRef::Credentials(&web);
    let ours = connect(near, client, &id("db.example"), "not a name", false).await;
    assert!(matches!(ours, Err(ConnectError::ServerName(_))), "{ours:?}");
}
