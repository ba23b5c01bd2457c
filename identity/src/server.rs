//! Puts the service together and runs it: listeners, issuer watch, admin server, graceful end. Decides nothing about requests.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use linkerd2_proxy_api::identity::identity_server::IdentityServer;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use weft_core::name::{IdentityError, workload_identity};
use weft_runtime::metrics::Registry;
use weft_runtime::net::{self, BindError};
use weft_runtime::{grpc, service_admin};

use crate::authority::{Scheme, Terms};
use crate::csr::MAX_CSR_BYTES;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::reload::{IssuerFiles, Outcome, POLL_INTERVAL, Sources};
use crate::service::{Certifier, IdentityService, Names};
use crate::token::{MAX_TOKEN_BYTES, TokenCheck};

/// A proxy asks once a day. Pings as in contract 1.2 for the proxies' own servers; one that vanished is noticed within 13 s.
const LIMITS: grpc::Limits = grpc::Limits {
    streams_per_connection: 64,
    ping_interval: Duration::from_secs(10),
    ping_timeout: Duration::from_secs(3),
};
/// One request: token, CSR and the identity.
const MAX_REQUEST_BYTES: usize = MAX_TOKEN_BYTES + MAX_CSR_BYTES + 1024;
/// Idle series of the identity service are few and all of them wanted.
const METRICS_RETAIN: Duration = Duration::from_secs(24 * 3600);

/// The settings of the identity service (contract 2.5).
#[derive(Debug)]
pub struct Config {
    /// Where Certify is served.
    pub addr: SocketAddr,
    /// Where `/ping`, `/ready`, `/live` and `/metrics` are served, if anywhere.
    pub admin_addr: Option<SocketAddr>,
    /// Last part of every identity, for example `cluster.local`.
    pub trust_domain: String,
    /// Namespace of the control plane, part of every identity.
    pub controller_namespace: String,
    /// How long a certificate is valid.
    pub issuance_lifetime: Duration,
    /// Added to both ends of the validity.
    pub clock_skew_allowance: Duration,
    /// Folder of the issuer pair.
    pub issuer_dir: PathBuf,
    /// File names in it.
    pub scheme: Scheme,
    /// The trust bundle, PEM.
    pub trust_roots: PathBuf,
    /// How callers are authenticated.
    pub tokens: TokenCheck,
}

/// Why the service did not start or did not go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A listener could not be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Trust domain or namespace cannot be part of a name.
    #[error(
        "controller namespace \"{namespace}\" and trust domain \"{domain}\" make no valid identity: {source}"
    )]
    Names {
        /// What was given.
        namespace: String,
        /// What was given.
        domain: String,
        /// What is wrong.
        source: IdentityError,
    },
    /// A lifetime below a second would be over before it is used.
    #[error("issuance lifetime {0:?} is too short; give at least 1s, usually 24h")]
    Lifetime(Duration),
    /// The gRPC server ended.
    #[error("the identity server failed: {0}")]
    Grpc(#[from] tonic::transport::Error),
}

/// Opens the listeners of `config` and serves until `shutdown`.
pub async fn serve(config: Config, shutdown: CancellationToken) -> Result<(), ServeError> {
    let listener = net::bind(config.addr, None)?;
    let admin = config
        .admin_addr
        .map(|addr| net::bind(addr, None))
        .transpose()?;
    serve_on(listener, admin, config, shutdown).await
}

/// Serves on listeners that are open already (`addr` and `admin_addr` of `config` are not looked at) until `shutdown`.
///
/// An issuer that cannot be loaded is no reason to end: Certify answers `Unavailable` and `/ready` says why until the files are right.
pub async fn serve_on(
    listener: TcpListener,
    admin: Option<TcpListener>,
    config: Config,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    check(&config)?;
    let registry = Arc::new(Registry::new(METRICS_RETAIN));
    let metrics = Arc::new(Metrics::new(&registry));
    let sources = Sources {
        issuer_dir: config.issuer_dir,
        scheme: config.scheme,
        trust_roots: config.trust_roots,
    };
    // Whatever ends this function, also being dropped, ends its tasks.
    let tasks = shutdown.child_token();
    let _end_tasks = tasks.clone().drop_guard();
    let events = match &config.tokens {
        TokenCheck::Local(_) => Events::off(),
        TokenCheck::Kubernetes(reviews) => Events::start(
            reviews.client().clone(),
            &config.controller_namespace,
            metrics.clone(),
            tasks.clone(),
        ),
    };
    let issuer = Arc::new(IssuerFiles::new(sources, metrics.clone(), events.clone()));
    // Before the first request can come, so that a good start never answers `Unavailable`.
    let first = issuer.clone();
    let loaded = tokio::task::spawn_blocking(move || first.refresh(SystemTime::now())).await;
    if !matches!(loaded, Ok(Outcome::Updated)) {
        tracing::warn!(
            "starting without an issuer; no certificate is issued until its files are right"
        );
    }

    tokio::spawn(issuer.clone().watch(POLL_INTERVAL, tasks.clone()));
    if let Some(admin) = admin {
        let issuer = issuer.clone();
        let ready = move || issuer.ready(SystemTime::now());
        tokio::spawn(service_admin::serve(
            admin,
            ready,
            registry.clone(),
            tasks.clone(),
        ));
    }

    let names = Names {
        trust_domain: config.trust_domain,
        controller_namespace: config.controller_namespace,
    };
    let terms = Terms {
        lifetime: config.issuance_lifetime,
        clock_skew: config.clock_skew_allowance,
    };
    let certifier = Certifier::new(issuer, config.tokens, names, terms, metrics, events);
    serve_grpc(listener, certifier, shutdown).await
}

fn check(config: &Config) -> Result<(), ServeError> {
    if config.issuance_lifetime < Duration::from_secs(1) {
        return Err(ServeError::Lifetime(config.issuance_lifetime));
    }
    workload_identity(
        "any",
        "any",
        &config.controller_namespace,
        &config.trust_domain,
    )
    .map_err(|source| ServeError::Names {
        namespace: config.controller_namespace.clone(),
        domain: config.trust_domain.clone(),
        source,
    })?;
    Ok(())
}

async fn serve_grpc(
    listener: TcpListener,
    certifier: Certifier,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    if let Ok(addr) = listener.local_addr() {
        tracing::info!(%addr, "identity service listening");
    }
    let service = IdentityServer::new(IdentityService(Arc::new(certifier)))
        .max_decoding_message_size(MAX_REQUEST_BYTES);
    Ok(grpc::serve(listener, Routes::new(service), LIMITS, shutdown).await?)
}

#[cfg(test)]
mod kubernetes_tests;
#[cfg(test)]
mod tests;
