//! Owns what a proxy needs around it to be measured: settings, a certificate, a control plane, an application and another
//! proxy's port, all on loopback and in this thread. The proxy itself is built as `weft-proxy` builds it.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use tokio::net::{TcpListener, TcpStream};
use weft_core::name::Identity;
use weft_proxy::app;
use weft_proxy::inbound::Inbound;
use weft_proxy::metrics::Metrics;
use weft_proxy::outbound::Outbound;
use weft_proxy::settings::Settings;
use weft_runtime::drain;
use weft_runtime::metrics::Registry;
use weft_tls::{PrivateKey, Store, TrustAnchors};

use crate::control::Control;
use crate::peers;

pub const HOUR: Duration = Duration::from_secs(3600);
/// The one identity of both proxies and their peers.
pub const NAME: &str = "web.bench.serviceaccount.identity.linkerd.cluster.local";

/// A proxy and what is around it.
pub struct World {
    pub store: Store,
    pub inbound: Arc<Inbound>,
    /// Where `inbound` listens.
    pub inbound_addr: SocketAddr,
    pub outbound: Arc<Outbound>,
    /// Ports of the application, which speaks HTTP/1.1 and HTTP/2.
    pub app_ports: [u16; 2],
    /// That of connections; nobody drains.
    pub watch: drain::Watch,
}

impl World {
    pub async fn new() -> anyhow::Result<Self> {
        let authority = Authority::new()?;
        let store = authority.store()?;
        let remote = remote(store.clone()).await?;
        let control = bind().await?;
        let control_addr = control.local_addr()?;
        Control {
            endpoint: remote,
            identity: NAME.to_owned(),
        }
        .serve(control);
        let listener = bind().await?;
        let inbound_addr = listener.local_addr()?;
        let settings = settings(control_addr, inbound_addr, &authority.pem)?;
        let metrics = Metrics::new(&Registry::new(HOUR));
        let inbound = Arc::new(app::inbound(&settings, &metrics, &store));
        let outbound = Arc::new(app::outbound(&settings, &metrics, &store));
        let (drain, watch) = drain::channel();
        tokio::spawn(inbound.clone().serve(listener, drain.source()));
        Ok(Self {
            store,
            inbound,
            inbound_addr,
            outbound,
            app_ports: [application(false).await?, application(true).await?],
            watch,
        })
    }
}

async fn bind() -> std::io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await
}

/// Both ends of a connection.
pub async fn pair() -> anyhow::Result<(TcpStream, TcpStream)> {
    let listener = bind().await?;
    let connecting = TcpStream::connect(listener.local_addr()?);
    let (near, accepted) = tokio::try_join!(connecting, listener.accept())?;
    near.set_nodelay(true)?;
    accepted.0.set_nodelay(true)?;
    Ok((near, accepted.0))
}

/// An application; its port.
async fn application(http2: bool) -> anyhow::Result<u16> {
    let listener = bind().await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            let _ = io.set_nodelay(true);
            tokio::spawn(async move {
                if http2 {
                    peers::serve_http2(io).await
                } else {
                    peers::serve_http1(io).await
                }
            });
        }
    });
    Ok(port)
}

/// Where another proxy takes HTTP/2 over mesh TLS.
async fn remote(store: Store) -> anyhow::Result<SocketAddr> {
    let listener = bind().await?;
    let addr = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            let store = store.clone();
            tokio::spawn(async move {
                io.set_nodelay(true)?;
                let credentials = store.current().context("a certificate was installed")?;
                let accepted = weft_tls::accept(io, &credentials, false).await?;
                peers::serve_http2(accepted.stream).await
            });
        }
    });
    Ok(addr)
}

fn settings(control: SocketAddr, inbound: SocketAddr, anchors: &str) -> anyhow::Result<Settings> {
    let (control, inbound) = (control.to_string(), inbound.to_string());
    let pairs = [
        ("DESTINATION_SVC_ADDR", control.as_str()),
        ("DESTINATION_PROFILE_NETWORKS", "192.0.2.0/24"),
        ("POLICY_SVC_ADDR", &control),
        ("POLICY_WORKLOAD", "bench:web"),
        ("IDENTITY_SVC_ADDR", &control),
        ("IDENTITY_DIR", "/nonexistent"),
        ("IDENTITY_TRUST_ANCHORS", anchors),
        ("IDENTITY_TOKEN_FILE", "/nonexistent/token"),
        ("IDENTITY_LOCAL_NAME", NAME),
        ("INBOUND_LISTEN_ADDR", &inbound),
    ];
    let env: HashMap<String, String> = pairs
        .into_iter()
        .map(|(name, value)| (format!("LINKERD2_PROXY_{name}"), value.to_owned()))
        .collect();
    Settings::from_env(&env).map_err(|errors| anyhow::anyhow!("{errors:?}"))
}

/// A root that signs the one certificate.
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> anyhow::Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let pem = params.self_signed(&key)?.pem();
        Ok(Self {
            pem,
            issuer: Issuer::new(params, key),
        })
    }

    /// A store with a certificate for [`NAME`].
    pub fn store(&self) -> anyhow::Result<Store> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![NAME.to_owned()])?;
        let now = SystemTime::now();
        params.not_before = (now - HOUR).into();
        params.not_after = (now + HOUR).into();
        let leaf = params.signed_by(&key, &self.issuer)?.der().to_vec();
        let store = Store::new(
            TrustAnchors::from_pem(&self.pem)?,
            Identity::parse(NAME)?,
            NAME.to_owned(),
            PrivateKey::from_pkcs8_der(key.serialized_der())?,
        );
        store.install(leaf, Vec::new(), now + HOUR)?;
        Ok(store)
    }
}
