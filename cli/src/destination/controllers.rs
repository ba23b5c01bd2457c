//! What `weft destination` does on a cluster besides answering proxies (contract 8.2, 9.6): it writes statuses while it holds the
//! lease, and judges objects before they are stored. The flags of both, and their start; the work is `weft_policy`'s.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use kube::Client;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use weft_cluster::{MeshSettings, Shared};
use weft_policy::admission::{self, TlsFiles, Webhook};
use weft_policy::{lease, status};
use weft_runtime::admission::Certificate;
use weft_runtime::metrics::Registry;

use super::listen;
use crate::flags::listen_address;

/// The flags of statuses and webhooks. They have no effect where objects come from a directory.
#[derive(Args, Clone, Debug)]
pub struct ControllerArgs {
    /// Address of the webhook that judges policies.
    #[arg(long, default_value = "0.0.0.0:9443", value_parser = listen_address)]
    server_addr: SocketAddr,
    /// Its certificate, PEM, the leaf first; read again when it changes.
    #[arg(long, default_value = "/var/run/linkerd/tls/tls.crt")]
    server_tls_certs: PathBuf,
    /// Its key, PEM.
    #[arg(long, default_value = "/var/run/linkerd/tls/tls.key")]
    server_tls_key: PathBuf,
    /// Address of the webhook that judges ServiceProfiles.
    #[arg(long, default_value = "0.0.0.0:8443", value_parser = listen_address)]
    sp_validator_addr: SocketAddr,
    /// Its certificate.
    #[arg(long, default_value = "/var/run/linkerd/sp-tls/tls.crt")]
    sp_validator_tls_certs: PathBuf,
    /// Its key.
    #[arg(long, default_value = "/var/run/linkerd/sp-tls/tls.key")]
    sp_validator_tls_key: PathBuf,
    /// Serve no webhooks.
    #[arg(long)]
    admission_controller_disabled: bool,
    /// Time limit of writing a status, in milliseconds.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    patch_timeout_ms: u64,
    /// The Deployment that owns the lease.
    #[arg(long, default_value = "linkerd-destination")]
    policy_deployment_name: String,
}

/// What runs.
pub struct Controllers {
    /// The certificates of the webhooks: without them nothing can be judged.
    pub certificates: Vec<Arc<Certificate>>,
    /// They end with the shutdown, the statuses' after they have given the lease back.
    pub tasks: JoinSet<()>,
}

impl ControllerArgs {
    /// Starts the status writer and the webhooks.
    ///
    /// # Errors
    /// An address cannot be listened on, or this host has no name.
    pub async fn start(
        &self,
        client: Client,
        shared: Arc<Shared>,
        mesh: MeshSettings,
        registry: &Registry,
        shutdown: CancellationToken,
    ) -> Result<Controllers> {
        let mut started = Controllers::none();
        let metrics = admission::Metrics::register(registry);
        for (addr, files) in self.webhooks() {
            let webhook = Webhook::new(listen(addr)?, files);
            started.certificates.push(webhook.certificate());
            let serving = admission::serve(webhook, metrics.clone(), shutdown.clone());
            started.tasks.spawn(serving);
        }
        let settings = status::Settings {
            patch_timeout: Duration::from_millis(self.patch_timeout_ms),
            lease: lease::Settings {
                namespace: mesh.control_namespace.clone(),
                holder: super::host_name()?,
                deployment: self.policy_deployment_name.clone(),
                terms: lease::Terms::default(),
            },
            mesh,
        };
        let metrics = status::Metrics::register(registry);
        let writing = status::run(client, shared, settings, metrics, shutdown);
        started.tasks.spawn(writing);
        Ok(started)
    }

    fn webhooks(&self) -> Vec<(SocketAddr, TlsFiles)> {
        if self.admission_controller_disabled {
            return Vec::new();
        }
        let files = |certificate: &PathBuf, key: &PathBuf| TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
        };
        vec![
            (
                self.server_addr,
                files(&self.server_tls_certs, &self.server_tls_key),
            ),
            (
                self.sp_validator_addr,
                files(&self.sp_validator_tls_certs, &self.sp_validator_tls_key),
            ),
        ]
    }
}

impl Controllers {
    /// Nothing runs: objects come from a directory.
    pub fn none() -> Self {
        Self {
            certificates: Vec::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Why the webhooks cannot answer, if so.
    ///
    /// # Errors
    /// What is wrong with a certificate.
    pub fn ready(certificates: &[Arc<Certificate>]) -> Result<(), String> {
        certificates.iter().try_for_each(|c| c.ready())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: ControllerArgs,
    }

    fn parse(line: &str) -> ControllerArgs {
        Program::try_parse_from(line.split_whitespace())
            .expect("accepted")
            .args
    }

    #[test]
    fn two_webhooks_with_a_certificate_each() {
        let args = parse("weft");
        let shown: Vec<String> = args
            .webhooks()
            .iter()
            .map(|(addr, files)| format!("{addr} {}", files.certificate.display()))
            .collect();
        let expected = [
            "0.0.0.0:9443 /var/run/linkerd/tls/tls.crt",
            "0.0.0.0:8443 /var/run/linkerd/sp-tls/tls.crt",
        ];
        assert_eq!(shown, expected);
        assert_eq!(args.patch_timeout_ms, 5000);
        assert_eq!(args.policy_deployment_name, "linkerd-destination");
    }

    #[test]
    fn webhooks_can_be_left_out() {
        let args = parse("weft --admission-controller-disabled --server-addr :1");
        assert!(args.webhooks().is_empty());
        assert!(Program::try_parse_from(["weft", "--patch-timeout-ms", "0"]).is_err());
    }
}
