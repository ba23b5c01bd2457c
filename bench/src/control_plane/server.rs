//! Owns the child process with the discovery and identity services (`weft-bench control-server`). It changes endpoints as
//! it is told on standard input, and ends when that is closed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use weft_cluster::{MeshSettings, Object, Shared};
use weft_identity::{LocalAuthority, Scheme, TokenCheck};
use weft_runtime::grpc;
use weft_runtime::metrics::Registry;

/// Port of every Service.
pub const PORT: u16 = 80;
/// Endpoints of each Service that stay as they are.
const STABLE: u32 = 10;
/// How long idle series stay.
const RETAIN: Duration = Duration::from_secs(600);

/// Arguments of `weft-bench control-server`.
#[derive(Args, Clone, Debug)]
pub struct ServerArgs {
    /// Services
    #[arg(long)]
    pub services: usize,
    /// Folder of the local authority
    #[arg(long)]
    pub authority: PathBuf,
}

/// Where the services are, on loopback; the first line of output.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Ports {
    /// Discovery.
    pub destination: u16,
    /// Certificates.
    pub identity: u16,
}

/// Name of a Service.
pub fn name(service: usize) -> String {
    format!("s{service}")
}

/// The address by which a change is known.
pub fn marker(number: u32) -> Ipv4Addr {
    let [_, b, c, d] = number.to_be_bytes();
    Ipv4Addr::new(172, b, c, d)
}

/// The change an address stands for; `None` for endpoints that stay.
pub fn number_of(address: Ipv4Addr) -> Option<u32> {
    let [a, b, c, d] = address.octets();
    (a == 172).then(|| u32::from_be_bytes([0, b, c, d]))
}

/// Serves until standard input is closed.
///
/// # Errors
/// A listener, the authority, or an order that is not understood.
pub async fn run(args: ServerArgs) -> anyhow::Result<()> {
    let shared = Shared::new();
    for service in 0..args.services {
        shared.apply(&service_object(service)?);
        shared.apply(&slice(service, 0)?);
    }
    shared.set_filled();
    let bind = async || TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await;
    let (destination, identity) = (bind().await?, bind().await?);
    let ports = Ports {
        destination: destination.local_addr()?.port(),
        identity: identity.local_addr()?.port(),
    };
    let shutdown = CancellationToken::new();
    let authority = LocalAuthority::open(&args.authority)?;
    let certificates =
        weft_identity::serve_on(identity, None, config(&authority), shutdown.clone());
    let metrics = grpc::Metrics::register(&Registry::new(RETAIN));
    let settings = weft_destination::Settings::new(MeshSettings::default());
    let discovery = weft_destination::serve_on(
        destination,
        settings,
        Arc::clone(&shared),
        metrics,
        shutdown.clone(),
    );
    println!("{}", serde_json::to_string(&ports)?);
    tokio::select! {
        result = certificates => result?,
        result = discovery => result?,
        result = take_orders(&shared) => result?,
    }
    Ok(())
}

/// Lines `SERVICE NUMBER`: the Service gets the endpoint of that number instead of the one before.
async fn take_orders(shared: &Shared) -> anyhow::Result<()> {
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let (service, number) = line
            .split_once(' ')
            .context("an order is `SERVICE NUMBER`")?;
        shared.apply(&slice(service.parse()?, number.parse()?)?);
    }
    Ok(())
}

fn config(authority: &LocalAuthority) -> weft_identity::Config {
    let mesh = MeshSettings::default();
    weft_identity::Config {
        addr: (Ipv4Addr::LOCALHOST, 0).into(),
        admin_addr: None,
        trust_domain: mesh.trust_domain,
        controller_namespace: mesh.control_namespace,
        issuance_lifetime: Duration::from_secs(86_400),
        clock_skew_allowance: Duration::ZERO,
        issuer_dir: authority.issuer_dir(),
        scheme: Scheme::Linkerd,
        trust_roots: authority.trust_roots(),
        tokens: TokenCheck::Local(authority.tokens()),
    }
}

fn service_object(service: usize) -> anyhow::Result<Object> {
    // Two of the four parts number the Service, so that there can be 65,536.
    let [.., c, d] = u32::try_from(service)?.to_be_bytes();
    let object = json!({
        "metadata": { "name": name(service), "namespace": "bench" },
        "spec": { "clusterIP": Ipv4Addr::new(10, 96, c, d).to_string(), "ports": [{ "port": PORT }] },
    });
    Ok(Object::Service(serde_json::from_value(object)?))
}

/// The endpoints of a Service: those that stay, and the one of a change unless that is 0.
fn slice(service: usize, number: u32) -> anyhow::Result<Object> {
    let stable = (0..STABLE).map(|at| Ipv4Addr::from_bits(0x0a01_0000 + service as u32 * 16 + at));
    let changed = (number > 0).then(|| marker(number));
    let endpoints: Vec<Value> = stable
        .chain(changed)
        .map(|address| json!({ "addresses": [address.to_string()] }))
        .collect();
    let object = json!({
        "metadata": {
            "name": name(service),
            "namespace": "bench",
            "labels": { "kubernetes.io/service-name": name(service) },
        },
        "addressType": "IPv4",
        "ports": [{ "port": 8080 }],
        "endpoints": endpoints,
    });
    Ok(Object::EndpointSlice(serde_json::from_value(object)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_known_by_its_address() {
        for number in [1, 255, 256, 1_000_000] {
            assert_eq!(number_of(marker(number)), Some(number));
        }
        assert_eq!(number_of(Ipv4Addr::new(10, 1, 0, 1)), None);
    }

    #[test]
    fn objects_are_understood() {
        service_object(65_535).expect("a Service");
        let Object::EndpointSlice(slice) = slice(3, 7).expect("a slice") else {
            panic!("another kind")
        };
        assert_eq!(slice.endpoints.len(), STABLE as usize + 1);
    }
}
