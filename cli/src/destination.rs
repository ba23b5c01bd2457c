//! `weft destination`: the flags of Linkerd's destination and policy controllers (contract 8.1, 8.2), turned into the settings
//! of `weft_destination` and `weft_policy`, which run here over one index. The services live in their own crates.

mod controllers;
mod source;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{ArgAction, Args};
use ipnet::IpNet;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use weft_cluster::{DefaultPolicy, MeshSettings, Shared};
use weft_core::{name::PortSet, parse};
use weft_destination::{Http2Params, OutboundTransport};
use weft_runtime::metrics::Registry;
use weft_runtime::{grpc, net, process, service_admin};

use crate::flags::{LogArgs, listen_address};
use controllers::{ControllerArgs, Controllers};
use source::SourceArgs;

/// Idle series leave after this time; the same as in proxies.
const RETAIN_METRICS: Duration = Duration::from_secs(600);
/// How often idle series are looked for.
const SWEEP_METRICS: Duration = Duration::from_secs(60);

/// Serves discovery and policy from a cluster or from a directory of manifests. Flags may be written with one dash or two.
#[derive(Args, Clone, Debug)]
pub struct DestinationArgs {
    /// Where objects come from.
    #[command(flatten)]
    pub source: SourceArgs,
    /// What is done on a cluster besides.
    #[command(flatten)]
    pub controllers: ControllerArgs,
    /// Address of discovery; without a host it is every address.
    #[arg(long, default_value = ":8086", value_parser = listen_address)]
    pub addr: SocketAddr,
    /// Address of discovery's /live, /ready and /metrics.
    #[arg(long, default_value = ":9996", value_parser = listen_address)]
    pub metrics_addr: SocketAddr,
    /// Address of policy.
    #[arg(long, default_value = ":8090", value_parser = listen_address)]
    pub grpc_addr: SocketAddr,
    /// Address of policy's /live, /ready and /metrics.
    #[arg(long, default_value = ":9990", value_parser = listen_address)]
    pub admin_addr: SocketAddr,
    /// Namespace of the control plane, part of every identity.
    #[arg(long, alias = "control-plane-namespace", default_value = "linkerd")]
    pub controller_namespace: String,
    /// Domain of Service names.
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Last part of every identity; the cluster domain if it is not given.
    #[arg(long, alias = "identity-domain")]
    pub identity_trust_domain: Option<String>,
    /// Networks of pods and Services.
    #[arg(long, value_parser = networks)]
    pub cluster_networks: Option<Networks>,
    /// Networks of the kubelets' probes; all of them if it is not given.
    #[arg(long, value_parser = networks)]
    pub probe_networks: Option<Networks>,
    /// Who may connect where nothing says so.
    #[arg(long, default_value = "all-unauthenticated")]
    pub default_policy: DefaultPolicy,
    /// Ports without protocol detection unless an annotation says otherwise.
    #[arg(long, value_parser = parse::port_set)]
    pub default_opaque_ports: Option<PortSet>,
    /// transparent (header for opaque ports only) or transport-header (for all ports of meshed pods).
    #[arg(long, default_value = "transport-header")]
    pub outbound_transport_mode: OutboundTransport,
    /// HTTP/1 between proxies is carried over HTTP/2.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enable_h2_upgrade: bool,
    /// Announce IPv6 endpoints, and prefer them.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enable_ipv6: bool,
    /// Namespace whose EgressNetworks count for clients in namespaces that have none.
    #[arg(long, default_value = "linkerd-egress")]
    pub global_egress_network_namespace: String,
    /// Clients may set retries and time limits by l5d-* headers.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub allow_l5d_request_headers: bool,
    /// HTTP/2 settings of connections to meshed endpoints, JSON.
    #[arg(long)]
    pub meshed_http2_client_params: Option<Http2Params>,
    /// How it logs.
    #[command(flatten)]
    pub log: LogArgs,
    #[command(flatten)]
    ignored: Ignored,
}

/// Flags that Linkerd's charts pass and that have nothing to do here. They are taken, so that the same arguments start either.
#[derive(Args, Clone, Debug)]
struct Ignored {
    #[arg(long, hide = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    enable_endpoint_slices: Option<bool>,
    #[arg(long, hide = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    enable_pprof: Option<bool>,
    #[arg(long, hide = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    export_queue_metrics: Option<bool>,
    #[arg(long, hide = true)]
    stream_queue_capacity: Option<String>,
    #[arg(long, hide = true)]
    ext_endpoint_zone_weights: Option<String>,
}

impl Ignored {
    fn given(&self) -> impl Iterator<Item = &'static str> {
        let given = [
            (
                "enable-endpoint-slices",
                self.enable_endpoint_slices == Some(false),
            ),
            ("enable-pprof", self.enable_pprof == Some(true)),
            (
                "export-queue-metrics",
                self.export_queue_metrics == Some(true),
            ),
            (
                "stream-queue-capacity",
                self.stream_queue_capacity.is_some(),
            ),
            (
                "ext-endpoint-zone-weights",
                self.ext_endpoint_zone_weights
                    .as_ref()
                    .is_some_and(|w| !w.is_empty()),
            ),
        ];
        given
            .into_iter()
            .filter_map(|(name, given)| given.then_some(name))
    }
}

/// A list of networks in one flag.
#[derive(Clone, Debug)]
pub struct Networks(Vec<IpNet>);

impl DestinationArgs {
    fn mesh(&self) -> MeshSettings {
        let default = MeshSettings::default();
        MeshSettings {
            control_namespace: self.controller_namespace.clone(),
            trust_domain: self
                .identity_trust_domain
                .clone()
                .unwrap_or_else(|| self.cluster_domain.clone()),
            cluster_domain: self.cluster_domain.clone(),
            cluster_networks: self
                .cluster_networks
                .clone()
                .map_or(default.cluster_networks, |networks| networks.0),
            default_opaque_ports: self
                .default_opaque_ports
                .clone()
                .unwrap_or(default.default_opaque_ports),
            enable_ipv6: self.enable_ipv6,
            external_workloads_ready: self.source.is_local(),
        }
    }

    fn discovery(&self) -> weft_destination::Settings {
        let default = weft_destination::Settings::new(self.mesh());
        weft_destination::Settings {
            enable_h2_upgrade: self.enable_h2_upgrade,
            outbound_transport: self.outbound_transport_mode,
            meshed_http2: self.meshed_http2_client_params.clone().unwrap_or_default(),
            ..default
        }
    }

    fn policy(&self) -> weft_policy::Settings {
        let default = weft_policy::Settings::new(self.mesh());
        weft_policy::Settings {
            default_policy: self.default_policy,
            probe_networks: self
                .probe_networks
                .clone()
                .map_or(default.probe_networks, |networks| networks.0),
            global_egress_namespace: self.global_egress_network_namespace.clone(),
            allow_l5d_request_headers: self.allow_l5d_request_headers,
            ..default
        }
    }
}

/// Serves until SIGTERM or SIGINT.
pub async fn run(args: DestinationArgs) -> Result<()> {
    args.log.start()?;
    for flag in args.ignored.given() {
        tracing::info!("the flag --{flag} has no effect here");
    }
    serve(&args, process::shutdown()).await
}

async fn serve(args: &DestinationArgs, shutdown: CancellationToken) -> Result<()> {
    let (discovery, policy) = (args.discovery(), args.policy());
    tracing::info!(?discovery, ?policy, "starting");
    let shared = Shared::new();
    let registry = Arc::new(Registry::new(RETAIN_METRICS));
    let source = args
        .source
        .open(&args.controller_namespace, Arc::clone(&shared), &registry)
        .await?;
    let metrics = grpc::Metrics::register(&registry);
    let controllers = match source.client() {
        None => Controllers::none(),
        Some(client) => {
            let (shared, mesh) = (Arc::clone(&shared), args.mesh());
            let started = args
                .controllers
                .start(client, shared, mesh, &registry, shutdown.clone());
            started.await?
        }
    };
    // Discovery goes on without the webhooks: whether they have certificates is asked at policy's port only.
    let admin = [
        (args.metrics_addr, Vec::new()),
        (args.admin_addr, controllers.certificates.clone()),
    ];
    for (addr, certificates) in admin {
        let source = source.clone();
        let ready = move || {
            source.ready()?;
            Controllers::ready(&certificates)
        };
        tokio::spawn(service_admin::serve(
            listen(addr)?,
            ready,
            Arc::clone(&registry),
            shutdown.clone(),
        ));
    }
    let following = tokio::spawn(source.run(shutdown.clone()));
    tokio::spawn(sweep(Arc::clone(&registry), shutdown.clone()));
    let (discovery_listener, policy_listener) = (listen(args.addr)?, listen(args.grpc_addr)?);
    let served = tokio::try_join!(
        weft_destination::serve_on(
            discovery_listener,
            discovery,
            Arc::clone(&shared),
            metrics.clone(),
            shutdown.clone()
        ),
        weft_policy::serve_on(policy_listener, policy, shared, metrics, shutdown.clone()),
    );
    shutdown.cancel();
    served.context("serving has failed")?;
    controllers.tasks.join_all().await;
    following.await.context("following the objects has failed")
}

async fn sweep(registry: Arc<Registry>, shutdown: CancellationToken) {
    let mut ticks = tokio::time::interval(SWEEP_METRICS);
    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        registry.sweep(std::time::Instant::now());
    }
}

/// The name of this pod, by which it holds leases: that of its host, as its variable HOSTNAME.
fn host_name() -> Result<String> {
    let name = nix::unistd::gethostname().context("this host has no name")?;
    Ok(name.to_string_lossy().into_owned())
}

fn listen(addr: SocketAddr) -> Result<TcpListener> {
    let listener = net::bind(addr, None)?;
    tracing::info!(addr = %listener.local_addr()?, "listening");
    Ok(listener)
}

fn networks(text: &str) -> Result<Networks> {
    Ok(Networks(parse::networks(text)?))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: DestinationArgs,
    }

    #[derive(Parser)]
    enum Weft {
        Destination(Box<DestinationArgs>),
    }

    #[test]
    fn one_dash_or_two() {
        for line in [
            "-manifests m -addr=:1 -enable-ipv6 -log-format json",
            "--manifests=m --addr :1 --enable-ipv6=true --log-format=json",
        ] {
            let line = format!("weft destination {line}");
            let arguments = line.split_whitespace().map(Into::into);
            let parsed = Weft::try_parse_from(crate::flags::with_long_flags(arguments));
            let Weft::Destination(args) = parsed.expect("accepted");
            assert_eq!(args.addr.to_string(), "[::]:1");
            assert!(args.enable_ipv6);
            assert_eq!(args.log.log_format, weft_runtime::log::Format::Json);
        }
    }

    fn parse_args(line: &str) -> Result<DestinationArgs, clap::Error> {
        Program::try_parse_from(line.split_whitespace()).map(|program| program.args)
    }

    #[test]
    fn the_arguments_of_the_chart() {
        let args = parse_args(
            "weft --manifests=/m --addr=:8086 --controller-namespace=mesh --outbound-transport-mode=transport-header \
             --enable-h2-upgrade=true --log-level=info --log-format=json --enable-endpoint-slices=true \
             --cluster-domain=example.org --identity-trust-domain=trust.org --default-opaque-ports=25,443 --enable-ipv6=false \
             --enable-pprof=false --global-egress-network-namespace=egress --patch-timeout-ms=1000 --policy-deployment-name=d \
             --default-policy=cluster-authenticated --cluster-networks=10.0.0.0/8,fd00::/8 \
             --meshed-http2-client-params={\"keep_alive\":{\"interval\":{\"seconds\":10},\"timeout\":{\"seconds\":3},\"while_idle\":true}}",
        )
        .expect("accepted");
        assert_eq!(args.addr.to_string(), "[::]:8086");
        assert_eq!(args.discovery().meshed_http2, Http2Params::default());
        let mesh = args.mesh();
        assert_eq!(
            (&*mesh.control_namespace, &*mesh.trust_domain),
            ("mesh", "trust.org")
        );
        assert_eq!(mesh.cluster_networks.len(), 2);
        assert!(
            mesh.default_opaque_ports.contains(443) && !mesh.default_opaque_ports.contains(3306)
        );
        assert_eq!(
            args.policy().default_policy.as_str(),
            "cluster-authenticated"
        );
        assert_eq!(args.policy().global_egress_namespace, "egress");
        assert_eq!(args.ignored.given().count(), 0);
    }

    #[test]
    fn the_trust_domain_follows_the_cluster_domain() {
        let args = parse_args("weft --manifests m --cluster-domain example.org").expect("accepted");
        assert_eq!(args.mesh().trust_domain, "example.org");
        assert!(args.enable_h2_upgrade && !args.enable_ipv6);
        assert!(parse_args("weft --manifests m --default-policy open").is_err());
    }

    #[test]
    fn a_directory_or_a_cluster() {
        let cluster = parse_args("weft --kubeconfig k").expect("accepted");
        assert!(!cluster.mesh().external_workloads_ready);
        assert!(
            !parse_args("weft")
                .expect("in a pod")
                .mesh()
                .external_workloads_ready
        );
        let local = parse_args("weft --manifests m --as-written").expect("accepted");
        assert!(local.mesh().external_workloads_ready);
        assert!(parse_args("weft --manifests m --kubeconfig k").is_err());
        assert!(parse_args("weft --as-written").is_err());
    }
}
