//! `weft identity`: the flags of Linkerd's identity controller (contract 2.5), turned into the settings of `weft_identity`.
//! Runs nothing itself; the service lives in its own crate.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{ArgAction, Args};
use weft_core::parse;
use weft_identity::{Config, LocalTokens, Rate, Scheme, TokenCheck, TokenReviews};
use weft_runtime::process;

use crate::flags::{LogArgs, listen_address};

/// Issues workload certificates. Every flag may be written with one dash or two, as Linkerd's charts and people do.
#[derive(Debug, Args)]
pub struct IdentityArgs {
    /// Address of the Certify service; without a host it is every address.
    #[arg(long, default_value = ":8080", value_parser = listen_address)]
    pub addr: SocketAddr,
    /// Address of /ping, /live, /ready and /metrics.
    #[arg(long, default_value = ":9990", value_parser = listen_address)]
    pub admin_addr: SocketAddr,
    /// Namespace of the control plane, part of every identity.
    #[arg(long, default_value = "linkerd")]
    pub controller_namespace: String,
    /// Last part of every identity.
    #[arg(long, default_value = "cluster.local")]
    pub identity_trust_domain: String,
    /// How long a certificate is valid.
    #[arg(long, default_value = "24h", value_parser = parse::go_duration)]
    pub identity_issuance_lifetime: Duration,
    /// Added to both ends of the validity.
    #[arg(long, default_value = "20s", value_parser = parse::go_duration)]
    pub identity_clock_skew_allowance: Duration,
    /// File names in the issuer folder: linkerd.io/tls (crt.pem, key.pem) or kubernetes.io/tls (tls.crt, tls.key).
    #[arg(long, default_value = "linkerd.io/tls")]
    pub identity_scheme: Scheme,
    /// Folder of the issuer's certificate and key.
    #[arg(long, default_value = "/var/run/linkerd/identity/issuer")]
    pub issuer: PathBuf,
    /// The trust bundle, PEM.
    #[arg(
        long,
        default_value = "/var/run/linkerd/identity/trust-roots/ca-bundle.crt"
    )]
    pub trust_roots: PathBuf,
    /// Kubeconfig of the cluster whose API reviews workload tokens; by default that of the pod this runs in.
    #[arg(long)]
    pub kubeconfig: Option<OsString>,
    /// Calls a second to the Kubernetes API.
    #[arg(long, default_value_t = 100.0)]
    pub kube_apiclient_qps: f64,
    /// Calls to the Kubernetes API at once after a pause.
    #[arg(long, default_value_t = 200)]
    pub kube_apiclient_burst: u32,
    /// Public key (PEM) that checks workload tokens instead of a Kubernetes API: the token.pub of a local authority.
    #[arg(long)]
    pub token_public_key: Option<PathBuf>,
    /// How it logs.
    #[command(flatten)]
    pub log: LogArgs,
    #[command(flatten)]
    ignored: Ignored,
}

/// Flags that Linkerd's charts pass and that have nothing to do here. They are taken, so that the same arguments start either.
#[derive(Debug, Args)]
struct Ignored {
    #[arg(long, hide = true)]
    trace_collector: Option<String>,
    #[arg(long, hide = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    enable_pprof: Option<bool>,
}

impl Ignored {
    fn given(&self) -> Vec<&'static str> {
        [
            (
                "trace-collector",
                self.trace_collector
                    .as_ref()
                    .is_some_and(|addr| !addr.is_empty()),
            ),
            ("enable-pprof", self.enable_pprof == Some(true)),
        ]
        .into_iter()
        .filter_map(|(name, given)| given.then_some(name))
        .collect()
    }
}

/// Serves until SIGTERM or SIGINT.
pub async fn run(args: IdentityArgs) -> Result<()> {
    args.log.start()?;
    for flag in args.ignored.given() {
        tracing::info!("the flag --{flag} has no effect here");
    }
    let tokens = token_check(&args).await?;
    let config = Config {
        addr: args.addr,
        admin_addr: Some(args.admin_addr),
        trust_domain: args.identity_trust_domain,
        controller_namespace: args.controller_namespace,
        issuance_lifetime: args.identity_issuance_lifetime,
        clock_skew_allowance: args.identity_clock_skew_allowance,
        issuer_dir: args.issuer,
        scheme: args.identity_scheme,
        trust_roots: args.trust_roots,
        tokens,
    };
    tracing::info!(?config, "starting");
    weft_identity::serve(config, process::shutdown()).await?;
    Ok(())
}

async fn token_check(args: &IdentityArgs) -> Result<TokenCheck> {
    if let Some(key) = &args.token_public_key {
        let tokens = LocalTokens::load(key).context("--token-public-key")?;
        return Ok(TokenCheck::Local(tokens));
    }
    let rate = Rate {
        per_second: args.kube_apiclient_qps,
        burst: args.kube_apiclient_burst,
    };
    // The charts pass an empty name for the cluster that this pod is in.
    let kubeconfig = args
        .kubeconfig
        .as_ref()
        .filter(|path| !path.is_empty())
        .map(Path::new);
    let reviews = TokenReviews::connect(kubeconfig, rate).await?;
    Ok(TokenCheck::Kubernetes(reviews))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::flags::with_long_flags;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(subcommand)]
        command: Command,
    }

    #[derive(Debug, clap::Subcommand)]
    enum Command {
        Identity(Box<IdentityArgs>),
    }

    fn parse(line: &str) -> Result<IdentityArgs, clap::Error> {
        let arguments = with_long_flags(line.split_whitespace().map(OsString::from));
        let Command::Identity(args) = Program::try_parse_from(arguments)?.command;
        Ok(*args)
    }

    #[test]
    fn the_arguments_of_the_chart() {
        let args = parse(
            "weft identity -log-level=info -log-format=json -controller-namespace=mesh -identity-trust-domain=example.org \
             -identity-issuance-lifetime=24h0m0s -identity-clock-skew-allowance=20s -identity-scheme=kubernetes.io/tls \
             -enable-pprof=false -kube-apiclient-qps=50 -kube-apiclient-burst 60 -kubeconfig=",
        )
        .expect("accepted");
        assert_eq!(args.addr.to_string(), "[::]:8080");
        assert_eq!(args.admin_addr.to_string(), "[::]:9990");
        assert_eq!(args.controller_namespace, "mesh");
        assert_eq!(args.identity_trust_domain, "example.org");
        assert_eq!(
            args.identity_issuance_lifetime,
            Duration::from_secs(24 * 3600)
        );
        assert_eq!(args.identity_clock_skew_allowance, Duration::from_secs(20));
        assert_eq!(args.identity_scheme, Scheme::Kubernetes);
        assert_eq!(args.log.log_format, weft_runtime::log::Format::Json);
        assert_eq!(
            (args.kube_apiclient_qps, args.kube_apiclient_burst),
            (50.0, 60)
        );
        assert!(args.token_public_key.is_none() && args.ignored.given().is_empty());
    }

    #[tokio::test]
    async fn without_a_cluster_it_says_what_to_give() {
        for line in ["", " -kubeconfig="] {
            let args = parse(&format!("weft identity{line}")).expect("accepted");
            assert_eq!(
                (args.kube_apiclient_qps, args.kube_apiclient_burst),
                (100.0, 200)
            );
            let error = token_check(&args).await.expect_err("no pod").to_string();
            assert!(error.contains("--token-public-key FILE"), "{error}");
        }
    }

    #[test]
    fn one_dash_or_two() {
        for line in [
            "-addr 127.0.0.1:1 -enable-pprof",
            "--addr=127.0.0.1:1 --enable-pprof=true",
        ] {
            let args =
                parse(&format!("weft identity {line} -token-public-key=t")).expect("accepted");
            assert_eq!(args.addr.to_string(), "127.0.0.1:1");
            assert_eq!(args.ignored.given(), ["enable-pprof"]);
        }
    }

    #[test]
    fn values_that_are_refused() {
        for line in [
            "-addr 8080",
            "-addr :70000",
            "-identity-scheme=x",
            "-log-format=xml",
            "-identity-issuance-lifetime=24",
            "-kube-apiclient-qps=fast",
            "-kube-apiclient-burst=-1",
        ] {
            let text = parse(&format!("weft identity {line} -token-public-key=t"))
                .expect_err(line)
                .to_string();
            assert!(text.contains("invalid value"), "{line}: {text}");
        }
    }
}
