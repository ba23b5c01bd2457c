//! The application's own TLS passes untouched, however its first bytes are cut up (case T01), and goes where TLSRoutes say by
//! its server name.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tokio::time::sleep;
use weft_e2e::{Manifests, Node, Process, Way, Wire, mesh, over_each_hop};

const NAME: &str = "shop.example";

/// A folder with a certificate, and what trusts it.
fn certificate() -> anyhow::Result<(tempfile::TempDir, RootCertStore)> {
    let folder = tempfile::tempdir()?;
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    std::fs::write(folder.path().join("crt.pem"), made.cert.pem())?;
    std::fs::write(
        folder.path().join("key.pem"),
        made.signing_key.serialize_pem(),
    )?;
    let mut roots = RootCertStore::empty();
    roots.add(rustls::pki_types::CertificateDer::from_pem_slice(
        made.cert.pem().as_bytes(),
    )?)?;
    Ok((folder, roots))
}

/// openssl as a server that sends each line back, turned round.
async fn server(node: &Node, folder: &std::path::Path) -> anyhow::Result<Process> {
    let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (crt, key) = (file("crt.pem"), file("key.pem"));
    let arguments = [
        "s_server", "-accept", "9443", "-cert", &crt, "-key", &key, "-rev", "-quiet",
    ];
    let process = node.spawn("openssl", &arguments)?;
    weft_e2e::eventually("openssl listens", Duration::from_secs(5), async || {
        Ok(node.connect("127.0.0.1:9443").await.ok())
    })
    .await?;
    Ok(process)
}

fn client(roots: RootCertStore, name: &'static str, sni: bool) -> anyhow::Result<ClientConnection> {
    // A post-quantum share first, as browsers have it: the hello does not fit a first look then.
    let mut provider = aws_lc_rs::default_provider();
    provider.kx_groups = vec![
        aws_lc_rs::kx_group::X25519MLKEM768,
        aws_lc_rs::kx_group::X25519,
    ];
    let builder = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.enable_sni = sni;
    Ok(ClientConnection::new(
        Arc::new(config),
        ServerName::try_from(name)?,
    )?)
}

fn to_send(tls: &mut ClientConnection) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut bytes)?;
    }
    Ok(bytes)
}

/// Goes on with a handshake whose first bytes were sent, then has a line turned round.
async fn talk(tls: &mut ClientConnection, wire: &mut Wire) -> anyhow::Result<()> {
    std::io::Write::write_all(&mut tls.writer(), b"stressed\n")?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\n") {
        wire.send(to_send(tls)?).await?;
        let bytes = wire.some().await?;
        ensure!(!bytes.is_empty(), "the server ended the connection");
        let mut bytes = bytes.as_slice();
        while !bytes.is_empty() {
            tls.read_tls(&mut bytes)?;
            tls.process_new_packets().context("TLS")?;
        }
        // What is not there yet is an error of its own kind.
        let _ = tls.reader().read_to_end(&mut answer);
    }
    ensure!(
        answer == b"desserts\n",
        "{:?}",
        String::from_utf8_lossy(&answer)
    );
    Ok(())
}

/// The same handshake message in two records (RFC 8446 section 5.1).
fn in_two_records(hello: &[u8]) -> Vec<u8> {
    let (head, body) = hello.split_at(5);
    let (one, two) = body.split_at(200);
    let record = |part: &[u8]| {
        [
            &head[..3],
            &u16::try_from(part.len()).unwrap_or(0).to_be_bytes(),
            part,
        ]
        .concat()
    };
    [record(one), record(two)].concat()
}

#[test]
fn t01_a_hello_in_two_records_passes() {
    over_each_hop(async |way| {
        let (folder, roots) = certificate()?;
        let _openssl = server(&way.server, folder.path()).await?;
        let mut tls = client(roots, NAME, true)?;
        let hello = to_send(&mut tls)?;
        let mut wire = way.connect().await?;
        wire.send(in_two_records(&hello)).await?;
        reach_openssl(way).await?;
        talk(&mut tls, &mut wire).await
    });
}

/// Joins what arrived in the server's workload to openssl.
async fn reach_openssl(way: &Way) -> anyhow::Result<()> {
    let mut arrived = way.listener.accept().await?.into_stream();
    let mut openssl = way.server.connect("127.0.0.1:9443").await?.into_stream();
    tokio::spawn(async move { tokio::io::copy_bidirectional(&mut arrived, &mut openssl).await });
    Ok(())
}

#[test]
fn t01_a_hello_in_pieces_passes_with_and_without_a_name() {
    over_each_hop(async |way| {
        let (folder, roots) = certificate()?;
        let _openssl = server(&way.server, folder.path()).await?;
        for sni in [true, false] {
            let mut tls = client(roots.clone(), NAME, sni)?;
            let hello = to_send(&mut tls)?;
            ensure!(
                hello.len() > 1216,
                "a hello with a post-quantum share has {} bytes",
                hello.len()
            );
            let mut wire = way.connect().await?;
            let (first, rest) = hello.split_at(1);
            let (second, rest) = rest.split_at(511);
            for piece in [first, second, rest] {
                wire.send(piece).await?;
                sleep(Duration::from_millis(100)).await;
            }
            reach_openssl(way).await?;
            talk(&mut tls, &mut wire)
                .await
                .with_context(|| format!("SNI: {sni}"))?;
        }
        Ok(())
    });
}

const ROUTE: &str = "
apiVersion: gateway.networking.k8s.io/v1alpha2
kind: TLSRoute
metadata: {name: shop, namespace: demo}
spec:
  parentRefs: [{group: core, kind: Service, name: web}]
  hostnames: [shop.example]
  rules: [{backendRefs: [{name: shop, port: 443}]}]";

/// A TLSRoute alone on a Service: what has its name goes to its backend, and nothing else goes anywhere.
#[test]
fn a_tls_route_decides_by_the_server_name() {
    let manifests = Manifests::default()
        .service("web", &[(443, 9443)])
        .service("shop", &[(443, 9443)])
        .pod("web", &[9443])
        .pod("shop", &[9443])
        .pod("client", &[])
        .yaml(ROUTE);
    mesh(manifests, async |net| {
        let (_web, shop) = (net.start("web").await?, net.start("shop").await?);
        let from = net.start("client").await?;
        let (folder, roots) = certificate()?;
        let _openssl = server(&shop, folder.path()).await?;
        // A Service without the route, for comparison.
        for service in ["shop:443", "web:443"] {
            let mut tls = client(roots.clone(), NAME, true)?;
            let mut wire = from.connect(service).await?;
            talk(&mut tls, &mut wire).await.context(service)?;
        }
        for (name, sni) in [("other.example", true), (NAME, false)] {
            let mut tls = client(roots.clone(), name, sni)?;
            let mut wire = from.connect("web:443").await?;
            wire.send(to_send(&mut tls)?).await?;
            wire.ended()
                .await
                .with_context(|| format!("{name} {sni}"))?;
        }
        let mut wire = from.connect("web:443").await?;
        wire.send("GET / HTTP/1.1\r\nhost: shop.example\r\n\r\n")
            .await?;
        wire.ended().await.context("plain HTTP")
    });
}
