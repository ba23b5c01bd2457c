//! Owns the life of the process: what is built from the settings, in which order it starts, and
//! how it ends. Carries no traffic itself.

use crate::admin::Admin;
use crate::control::{self, ConnectOptions, stream};
use crate::http::client::ClientSettings;
use crate::http::{Http2Params, KeepAlive, Limits, MAX_HEADERS};
use crate::identity::{CertificateMetrics, Certifier, Refresh};
use crate::inbound::ports::Ports;
use crate::inbound::{self, Inbound};
use crate::limit::InFlight;
use crate::metrics::Metrics;
use crate::outbound::backend::Backends;
use crate::outbound::discovery::{Discovery, Queries};
use crate::outbound::{self, Outbound};
use crate::random::Random;
use crate::settings::{ControlAddr, Http2Windows, Settings, Side};
use linkerd2_proxy_api::destination::destination_client::DestinationClient;
use linkerd2_proxy_api::inbound::inbound_server_policies_client::InboundServerPoliciesClient;
use linkerd2_proxy_api::outbound::outbound_policies_client::OutboundPoliciesClient;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use tonic::transport::Channel;
use weft_runtime::drain::Drained;
use weft_runtime::log::LogHandle;
use weft_runtime::metrics::Registry;
use weft_runtime::{drain, net, process};
use weft_tls::{Store, TrustAnchors};

/// Time between two sweeps.
const SWEEP: Duration = Duration::from_secs(5);
/// Time until the first: by then the first certificate is there.
const FIRST_SWEEP: Duration = Duration::from_secs(1);

/// Why the proxy did not start (exit code 1, contract 1.1).
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The trust anchors cannot be read.
    #[error("LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS: {0}")]
    Anchors(#[from] weft_tls::AnchorsError),
    /// The key or the CSR cannot be used.
    #[error(transparent)]
    Csr(#[from] weft_tls::CsrError),
    /// A port cannot be listened on.
    #[error(transparent)]
    Bind(#[from] net::BindError),
}

/// Runs the proxy until it has been told to end and has drained.
///
/// # Errors
/// What keeps it from starting.
pub async fn run(settings: Settings, log: LogHandle) -> Result<(), StartError> {
    let registry = Arc::new(Registry::new(settings.metrics.retain_idle));
    let metrics = Metrics::new(&registry);
    let store = identity(&settings, &registry)?;
    let (signal, watch) = drain::channel();
    drop(watch);
    let shutdown = Arc::new(Notify::new());

    let inbound = Arc::new(inbound(&settings, &metrics, &store));
    let outbound = Arc::new(outbound(&settings, &metrics, &store));
    let backlog = settings.inbound.side.accept.backlog;
    let admin_listener = net::bind(settings.admin.listen, backlog)?;
    let inbound_listener = net::bind(settings.inbound.listen, backlog)?;
    let mut outbound_listeners = Vec::new();
    for addr in &settings.outbound.listen {
        let backlog = settings.outbound.side.accept.backlog;
        outbound_listeners.push(net::bind(*addr, backlog)?);
    }

    let admin = Arc::new(Admin {
        store: store.clone(),
        registry: registry.clone(),
        log,
        shutdown: settings.admin.shutdown_endpoint.then(|| shutdown.clone()),
        settings: serde_json::to_vec(&settings).unwrap_or_default().into(),
    });
    let admin = inbound.clone().serve_admin(
        admin_listener,
        settings.admin.listen,
        admin,
        signal.source(),
    );
    tokio::spawn(admin);

    // Traffic is served only with a certificate (contract 2.2).
    let end = async {
        tokio::select! {
            name = process::terminated() => tracing::info!(signal = name, "ending"),
            () = shutdown.notified() => tracing::info!("ending, as /shutdown asked"),
        }
    };
    let mut end = std::pin::pin!(end);
    tokio::select! {
        () = end.as_mut() => return Ok(()),
        () = store.ready() => {}
    }
    tokio::spawn(inbound.serve(inbound_listener, signal.source()));
    for listener in outbound_listeners {
        tokio::spawn(outbound.clone().serve(listener, signal.source()));
    }
    tracing::info!(id = %store.id(), "serving");
    tokio::spawn(sweep(registry));

    end.await;
    match signal.drain(settings.runtime.shutdown_grace).await {
        Drained::Complete => tracing::info!("all connections have ended"),
        Drained::TimedOut { remaining } => {
            tracing::warn!(remaining, "ending with connections still open");
        }
    }
    Ok(())
}

/// Forgets series that nobody has used for a while, and takes code that does not run any more out of memory: what a
/// start, a certificate or a burst needed. What is still needed comes back at a cost of microseconds.
async fn sweep(registry: Arc<Registry>) {
    tokio::time::sleep(FIRST_SWEEP).await;
    loop {
        registry.sweep(std::time::Instant::now());
        if let Err(error) = weft_runtime::memory::release_code() {
            tracing::debug!(%error, "code that does not run stays resident");
        }
        tokio::time::sleep(SWEEP).await;
    }
}

/// Makes the key and starts to ask for certificates.
fn identity(settings: &Settings, registry: &Registry) -> Result<Store, StartError> {
    let identity = &settings.identity;
    let anchors = TrustAnchors::from_pem(&identity.trust_anchors)?;
    let server_name = identity.server_name.to_string();
    let key = weft_tls::load_or_create(&identity.dir, &identity.id, &server_name)?;
    let store = Store::new(anchors, identity.id.clone(), server_name, key.key);
    let service = identity.service.clone();
    let options = connect_options(settings, &service, false);
    let for_channel = store.clone();
    let certifier = Certifier {
        store: store.clone(),
        csr_der: key.csr_der,
        token_file: identity.token_file.clone(),
        refresh: Refresh {
            min: identity.min_refresh,
            max: identity.max_refresh,
        },
        backoff: settings.outbound.side.connect.backoff,
        channel: Box::new(move || {
            let (addr, name) = (service.addr.clone(), service.name.clone());
            control::channel(addr, name, &for_channel, options.clone())
        }),
        metrics: CertificateMetrics::register(registry),
        now: Arc::new(SystemTime::now),
    };
    tokio::spawn(certifier.run());
    Ok(store)
}

/// Loopback is this pod: inbound's limits hold (contract 1.2).
fn connect_options(
    settings: &Settings,
    service: &ControlAddr,
    present_certificate: bool,
) -> ConnectOptions {
    let side = if service.addr.is_loopback() {
        &settings.inbound.side
    } else {
        &settings.outbound.side
    };
    ConnectOptions {
        timeout: side.connect.timeout,
        socket: settings.outbound.side.connect.socket,
        present_certificate,
    }
}

fn channel(settings: &Settings, service: &ControlAddr, store: &Store) -> Channel {
    let options = connect_options(settings, service, true);
    control::channel(service.addr.clone(), service.name.clone(), store, options)
}

/// How streams to a service are kept; whoever uses it says what they are and what ends them.
fn watch(settings: &Settings, service: &ControlAddr) -> stream::Watch {
    stream::Watch {
        what: String::new(),
        limits: settings.control.stream_limits(service),
        backoff: settings.outbound.side.connect.backoff,
        terminal: &[],
    }
}

fn limits(settings: &Settings, side: &Side) -> Limits {
    let bytes = side.http2.max_header_list_size.map(|n| n as usize);
    Limits {
        max_header_bytes: bytes.unwrap_or(settings.max_header_bytes),
        max_headers: MAX_HEADERS,
    }
}

fn server_http2(settings: &Settings, side: &Side) -> Http2Params {
    let http2 = &side.http2;
    Http2Params {
        max_concurrent_streams: http2.max_concurrent_streams,
        max_frame_size: http2.max_frame_size,
        max_pending_accept_reset_streams: http2.max_pending_accept_reset_streams,
        max_send_buffer: http2.max_send_buf_size,
        keep_alive: http2.keep_alive.map(|k| KeepAlive {
            interval: k.interval,
            timeout: k.timeout,
        }),
        ..http2_params(http2.windows, limits(settings, side))
    }
}

fn http2_params(windows: Http2Windows, limits: Limits) -> Http2Params {
    Http2Params {
        stream_window: windows.stream,
        connection_window: windows.connection,
        max_concurrent_streams: None,
        max_frame_size: None,
        max_pending_accept_reset_streams: None,
        max_send_buffer: None,
        limits,
        keep_alive: None,
    }
}

fn client_settings(settings: &Settings, side: &Side) -> ClientSettings {
    let limits = limits(settings, side);
    ClientSettings {
        max_idle: side.max_idle_conns_per_endpoint,
        idle_timeout: side.http1_idle_timeout,
        http2: http2_params(settings.http2_client, limits),
        limits,
    }
}

fn own_ports(settings: &Settings) -> Vec<u16> {
    let outbound = settings.outbound.listen.iter().map(|a| a.port());
    outbound
        .chain([settings.inbound.listen.port(), settings.admin.listen.port()])
        .collect()
}

/// The inbound side as `settings` say. Must be called inside a tokio runtime; it serves nothing yet.
pub fn inbound(settings: &Settings, metrics: &Metrics, store: &Store) -> Inbound {
    let side = &settings.inbound.side;
    let policy = &settings.policy;
    let admin = settings.admin.listen.port();
    let ports = Ports::new(
        InboundServerPoliciesClient::new(channel(settings, &policy.service, store)),
        policy.clone(),
        settings.inbound.opaque_ports.clone(),
        settings.inbound.ports.iter().chain([admin]),
        side.discovery_idle_timeout,
        watch(settings, &policy.service),
    );
    Inbound {
        context: inbound::Context {
            settings: settings.inbound.clone(),
            client: client_settings(settings, side),
            limits: limits(settings, side),
            server_http2: server_http2(settings, side),
            store: store.clone(),
            app_series: metrics.inbound.tcp.series(inbound::app_labels()),
            metrics: metrics.inbound.clone(),
            in_flight: InFlight::new("inbound requests in flight", side.max_in_flight),
            random: Random::from_system(),
        },
        ports,
        own_ports: own_ports(settings),
        clients: Mutex::new(HashMap::new()),
    }
}

/// The outbound side as `settings` say. Must be called inside a tokio runtime; it serves nothing yet.
pub fn outbound(settings: &Settings, metrics: &Metrics, store: &Store) -> Outbound {
    let side = &settings.outbound.side;
    let destination = &settings.destination;
    let context = Arc::new(outbound::Context {
        settings: settings.outbound.clone(),
        client: client_settings(settings, side),
        limits: limits(settings, side),
        server_http2: server_http2(settings, side),
        store: store.clone(),
        local_ips: settings.inbound.ips.clone(),
        metrics: metrics.outbound.clone(),
        in_flight: InFlight::new("outbound requests in flight", side.max_in_flight),
        random: Random::from_system(),
    });
    let profiles = DestinationClient::new(channel(settings, &destination.service, store));
    let profile_watch = watch(settings, &destination.service);
    let backends = Arc::new(Backends::new(
        context.clone(),
        profiles.clone(),
        destination.context.clone(),
        profile_watch.clone(),
    ));
    let policy = &settings.policy;
    let queries = Queries {
        policies: OutboundPoliciesClient::new(channel(settings, &policy.service, store)),
        profiles,
        workload: policy.workload.clone(),
        context_token: destination.context.clone(),
        profile_networks: destination.profile_networks.clone(),
        policy_watch: watch(settings, &policy.service),
        profile_watch,
    };
    Outbound {
        context,
        discovery: Discovery::new(backends, queries, side.discovery_idle_timeout),
        own_ports: own_ports(settings),
    }
}
