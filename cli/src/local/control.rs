//! Owns the control plane of a mesh on one machine: a process in a sandbox of its own that reads the manifests and serves
//! identity, destination and policy, and the host's end of the pipe to it. It starts no proxies.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::io::BufReader;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use weft_cluster::manifests::{LocalMesh, LocalPod, LocalService, ManifestSource};
use weft_cluster::{Changed, Index, Listener, MeshSettings, Object, Shared};
use weft_destination::grpc;
use weft_identity::{LocalAuthority, Scheme, TokenCheck};
use weft_runtime::metrics::Registry;

use super::netns::CONTROL;
use super::protocol;
use super::sidecar::CONTROL_NAME;

/// How the mesh is set up beyond its manifests; handed from the client to the host and on to the control plane.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// How long a certificate is valid, in seconds
    #[arg(long, default_value_t = 86_400)]
    pub certificate_seconds: u64,
    /// Shortest time between two certificates, in milliseconds, if not the proxy's own
    #[arg(long)]
    pub min_refresh_ms: Option<u64>,
    /// Log directives of the proxies and the control plane
    #[arg(long, default_value = "warn,weft=info")]
    pub log: String,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            certificate_seconds: 86_400,
            min_refresh_ms: None,
            log: "warn,weft=info".to_owned(),
        }
    }
}

impl Tuning {
    /// The same as arguments.
    pub fn arguments(&self) -> Vec<String> {
        let mut list = vec![
            format!("--certificate-seconds={}", self.certificate_seconds),
            format!("--log={}", self.log),
        ];
        list.extend(
            self.min_refresh_ms
                .map(|ms| format!("--min-refresh-ms={ms}")),
        );
        list
    }
}

/// Arguments of `weft mesh-control`.
#[derive(Args, Clone, Debug)]
pub struct ControlArgs {
    /// Directory of manifests
    #[arg(long)]
    pub manifests: PathBuf,
    /// Folder of the local authority
    #[arg(long)]
    pub authority: PathBuf,
    /// The set-up
    #[command(flatten)]
    pub tuning: Tuning,
}

/// What the host tells the control plane: a pod has an address now, or none any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodAddress {
    /// Namespace of the Pod.
    pub namespace: String,
    /// Name of the Pod.
    pub workload: String,
    /// Its address.
    pub ip: Option<IpAddr>,
}

impl PodAddress {
    /// Address of the pod of this namespace and name.
    pub fn new(key: &(String, String), ip: Option<IpAddr>) -> Self {
        PodAddress {
            namespace: key.0.clone(),
            workload: key.1.clone(),
            ip,
        }
    }
}

/// What the control plane tells the host, at first when it serves and then after each change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Services with an address.
    pub services: Vec<SeenService>,
    /// Pods.
    pub pods: Vec<SeenPod>,
    /// What is wrong with the manifests.
    pub errors: Vec<String>,
}

/// A Service that has an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenService {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its ClusterIP.
    pub ip: IpAddr,
}

/// A Pod of the manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its service account.
    pub service_account: String,
    /// Its address, if the manifest or the host gave it one.
    pub ip: Option<IpAddr>,
    /// Names and numbers of its ports.
    pub ports: Vec<(String, u16)>,
    /// Its annotations.
    pub annotations: std::collections::BTreeMap<String, String>,
}

/// How long idle series of the control plane stay.
const RETAIN: Duration = Duration::from_secs(600);
/// Longest pause between a change and its line, so that a burst of changes is one line.
const GATHER: Duration = Duration::from_millis(5);

/// Runs `weft mesh-control` until the host has gone.
pub async fn run_control(args: ControlArgs) -> anyhow::Result<()> {
    let shutdown = CancellationToken::new();
    let shared = Shared::new();
    let source = ManifestSource::new(
        args.manifests.clone(),
        LocalMesh::new("linkerd"),
        Arc::clone(&shared),
    );
    source.reload();
    shared.apply(&own_pod(CONTROL)?);
    let changes = Arc::new(Changes(watch::Sender::new(())));
    let listener: Weak<dyn Listener> = Arc::downgrade(&(Arc::clone(&changes) as Arc<dyn Listener>));
    shared.listen(listener);
    let (from, to) = host()?.into_split();
    let serving = serve(&args, &shared, &shutdown).await?;
    let watching = tokio::spawn(Arc::clone(&source).watch(shutdown.clone()));
    tokio::select! {
        result = take_addresses(&source, from) => result?,
        result = tell_changes(&source, to, changes.0.subscribe()) => result?,
        result = serving => result?,
        _ = watching => anyhow::bail!("watching the manifests ended"),
    }
    shutdown.cancel();
    Ok(())
}

/// Standard input is a socket to the host, in both directions; standard output is the log.
fn host() -> std::io::Result<UnixStream> {
    let stream = StdStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

struct Changes(watch::Sender<()>);

impl Listener for Changes {
    fn changed(&self, _: &Index, _: &Changed) {
        self.0.send_replace(());
    }
}

/// Our own Pod, which is in no manifest: without it the policy service would not know its proxy.
fn own_pod(ip: Ipv4Addr) -> anyhow::Result<Object> {
    let pod = serde_json::json!({
        "metadata": {
            "name": CONTROL_NAME,
            "namespace": "linkerd",
            "labels": { "linkerd.io/control-plane-ns": "linkerd" },
            // Before it has a certificate, a proxy has no identity to show (contract 2.5).
            "annotations": { "config.linkerd.io/default-inbound-policy": "all-unauthenticated" },
        },
        "spec": {
            "serviceAccountName": CONTROL_NAME,
            "containers": [{
                "name": "control",
                "ports": [{ "containerPort": 8080 }, { "containerPort": 8086 }, { "containerPort": 8090 }],
            }],
        },
        "status": { "podIP": ip.to_string(), "phase": "Running" },
    });
    Ok(Object::Pod(Box::new(serde_json::from_value(pod)?)))
}

type Serving = std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;

/// Opens the listeners, then gives back what serves on them.
async fn serve(
    args: &ControlArgs,
    shared: &Arc<Shared>,
    shutdown: &CancellationToken,
) -> anyhow::Result<Serving> {
    let authority = LocalAuthority::open(&args.authority)?;
    let bind =
        async |port: u16| TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))).await;
    let (identity, destination, policy) = (bind(8080).await?, bind(8086).await?, bind(8090).await?);
    let mesh = MeshSettings {
        external_workloads_ready: true,
        ..MeshSettings::default()
    };
    let config = weft_identity::Config {
        addr: identity.local_addr()?,
        admin_addr: None,
        trust_domain: mesh.trust_domain.clone(),
        controller_namespace: mesh.control_namespace.clone(),
        issuance_lifetime: Duration::from_secs(args.tuning.certificate_seconds),
        // One machine has one clock.
        clock_skew_allowance: Duration::ZERO,
        issuer_dir: authority.issuer_dir(),
        scheme: Scheme::Linkerd,
        trust_roots: authority.trust_roots(),
        tokens: TokenCheck::Local(authority.tokens()),
    };
    let identity = weft_identity::serve_on(identity, None, config, shutdown.clone());
    let metrics = grpc::Metrics::register(&Registry::new(RETAIN));
    let (settings, more) = (
        weft_destination::Settings::new(mesh.clone()),
        (metrics.clone(), shutdown.clone()),
    );
    let destination =
        weft_destination::serve_on(destination, settings, shared.clone(), more.0, more.1);
    let settings = weft_policy::Settings::new(mesh);
    let policy = weft_policy::serve_on(policy, settings, shared.clone(), metrics, shutdown.clone());
    Ok(Box::pin(async move {
        tokio::select! {
            result = identity => result?,
            result = destination => result?,
            result = policy => result?,
        }
        Ok(())
    }))
}

async fn take_addresses(source: &ManifestSource, from: OwnedReadHalf) -> anyhow::Result<()> {
    let mut orders = BufReader::new(from);
    while let Some(order) = protocol::read::<PodAddress>(&mut orders).await? {
        source.set_pod_ip(&order.namespace, &order.workload, order.ip);
    }
    Ok(())
}

async fn tell_changes(
    source: &ManifestSource,
    mut to: OwnedWriteHalf,
    mut changes: watch::Receiver<()>,
) -> anyhow::Result<()> {
    let mut said = None;
    loop {
        let seen = seen(source);
        if said.as_ref() != Some(&seen) {
            protocol::write(&mut to, &seen).await?;
            said = Some(seen);
        }
        changes.changed().await?;
        tokio::time::sleep(GATHER).await;
    }
}

fn seen(source: &ManifestSource) -> Seen {
    let service = |service: LocalService| {
        let (namespace, name) = (
            service.name.namespace.to_string(),
            service.name.name.to_string(),
        );
        Some(SeenService {
            namespace,
            name,
            ip: service.cluster_ip?,
        })
    };
    let pod = |pod: LocalPod| SeenPod {
        namespace: pod.name.namespace.to_string(),
        name: pod.name.name.to_string(),
        service_account: pod.service_account,
        ip: pod.ip,
        ports: pod.ports,
        annotations: pod.annotations,
    };
    Seen {
        services: source.services().into_iter().filter_map(service).collect(),
        pods: source.pods().into_iter().map(pod).collect(),
        errors: source.errors().iter().map(ToString::to_string).collect(),
    }
}
