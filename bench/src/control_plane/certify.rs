//! Owns asking the identity service for certificates, as fast as it gives them.

use std::time::{Duration, Instant};

use linkerd2_proxy_api::identity::CertifyRequest;
use linkerd2_proxy_api::identity::identity_client::IdentityClient;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tonic::transport::Channel;
use weft_identity::LocalAuthority;

use crate::process::counters;
use crate::stats::Percentiles;

/// Requests under way at once, each on a connection of its own.
const WORKERS: usize = 16;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Certificates {
    /// How long.
    pub seconds: f64,
    /// Certificates issued.
    pub issued: usize,
    /// Times of the requests.
    pub latency: Percentiles,
    /// Processor time of the service for each, µs.
    pub cpu_us: f64,
}

/// Asks for certificates for so many seconds.
///
/// # Errors
/// A request is refused.
pub async fn measure(
    authority: &LocalAuthority,
    port: u16,
    pid: u32,
    seconds: f64,
) -> anyhow::Result<Certificates> {
    let request = request(authority)?;
    let mut clients = Vec::new();
    for _ in 0..WORKERS {
        clients.push(IdentityClient::connect(format!("http://127.0.0.1:{port}")).await?);
    }
    let (before, begin) = (counters(pid)?, Instant::now());
    let until = begin + Duration::from_secs_f64(seconds);
    let mut workers = JoinSet::new();
    for client in clients {
        workers.spawn(ask(client, request.clone(), until));
    }
    let mut times = Vec::new();
    while let Some(worker) = workers.join_next().await {
        times.extend(worker??);
    }
    let (spent, issued) = (counters(pid)? - before, times.len());
    Ok(Certificates {
        seconds: begin.elapsed().as_secs_f64(),
        issued,
        latency: Percentiles::of(times).unwrap_or_default(),
        cpu_us: spent.cpu_us as f64 / issued.max(1) as f64,
    })
}

async fn ask(
    mut client: IdentityClient<Channel>,
    request: CertifyRequest,
    until: Instant,
) -> anyhow::Result<Vec<u64>> {
    let mut times = Vec::new();
    while Instant::now() < until {
        let begin = Instant::now();
        client.certify(request.clone()).await?;
        times.push(u64::try_from(begin.elapsed().as_micros())?);
    }
    Ok(times)
}

fn request(authority: &LocalAuthority) -> anyhow::Result<CertifyRequest> {
    let identity = "web.bench.serviceaccount.identity.linkerd.cluster.local";
    let mut params = CertificateParams::new(vec![identity.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    let csr = params.serialize_request(&KeyPair::generate()?)?;
    Ok(CertifyRequest {
        identity: identity.to_owned(),
        token: authority
            .issue_token("bench", "web", "web-1", Duration::from_secs(3600))
            .into_bytes(),
        certificate_signing_request: csr.der().to_vec(),
    })
}
