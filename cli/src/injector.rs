//! `weft injector`: the flags of Linkerd's proxy injector (contract 9.1), turned into the settings of `weft_injector`. Runs nothing
//! itself; the service lives in its own crate.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{ArgAction, Args};
use weft_injector::server::{self, CertificateSource, Settings};
use weft_runtime::{net, process};

use crate::flags::{LogArgs, listen_address};

/// Adds the proxy to pods. Every flag may be written with one dash or two.
#[derive(Args, Clone, Debug)]
pub struct InjectorArgs {
    /// Address of the webhook; without a host it is every address.
    #[arg(long, default_value = ":8443", value_parser = listen_address)]
    pub addr: SocketAddr,
    /// Address of /ping, /live, /ready and /metrics.
    #[arg(long, default_value = ":9995", value_parser = listen_address)]
    pub metrics_addr: SocketAddr,
    /// Namespace of the control plane.
    #[arg(long, alias = "controller-namespace", default_value = "linkerd")]
    pub linkerd_namespace: String,
    /// The values of the installation: key `values` of ConfigMap linkerd-config, mounted. Read at each request.
    #[arg(long, default_value = "/var/run/linkerd/config/values")]
    pub config_file: PathBuf,
    /// The trust bundle, PEM, mounted. Read at each request.
    #[arg(
        long,
        default_value = "/var/run/linkerd/identity/trust-roots/ca-bundle.crt"
    )]
    pub trust_roots: PathBuf,
    /// Folder of tls.crt and tls.key, the certificate of the webhook; it is followed.
    #[arg(long, default_value = "/var/run/linkerd/tls")]
    pub tls_dir: PathBuf,
    /// Make and renew the certificate of the webhook, keep it in a Secret, and write its authority into the webhook configuration.
    #[arg(long, conflicts_with = "tls_dir")]
    pub self_certificate: bool,
    /// Kubeconfig of the cluster; by default that of the pod this runs in.
    #[arg(long)]
    pub kubeconfig: Option<OsString>,
    /// How it logs.
    #[command(flatten)]
    pub log: LogArgs,
    /// Taken, so that the arguments of Linkerd's chart start it; there are no profiles.
    #[arg(long, hide = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    enable_pprof: Option<bool>,
}

impl InjectorArgs {
    fn settings(&self) -> Settings {
        let certificate = match self.self_certificate {
            true => CertificateSource::Own,
            false => CertificateSource::Files {
                certificate: self.tls_dir.join("tls.crt"),
                key: self.tls_dir.join("tls.key"),
            },
        };
        Settings {
            control_namespace: self.linkerd_namespace.clone(),
            config_file: self.config_file.clone(),
            trust_roots: self.trust_roots.clone(),
            certificate,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// Serves until SIGTERM or SIGINT.
pub async fn run(args: InjectorArgs) -> Result<()> {
    args.log.start()?;
    if args.enable_pprof == Some(true) {
        tracing::info!("the flag --enable-pprof has no effect here");
    }
    // The charts pass an empty name for the cluster that this pod is in.
    let kubeconfig = args.kubeconfig.as_ref().filter(|path| !path.is_empty());
    let client = weft_cluster::kube::connect(kubeconfig.map(Path::new)).await?;
    let settings = args.settings();
    tracing::info!(?settings, "starting");
    let (listener, admin) = (
        net::bind(args.addr, None)?,
        net::bind(args.metrics_addr, None)?,
    );
    server::serve(listener, admin, settings, client, process::shutdown()).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    enum Weft {
        Injector(Box<InjectorArgs>),
    }

    fn parse(line: &str) -> Result<InjectorArgs, clap::Error> {
        let arguments = line.split_whitespace().map(Into::into);
        let Weft::Injector(args) = Weft::try_parse_from(crate::flags::with_long_flags(arguments))?;
        Ok(*args)
    }

    /// The programs that are started in a pod understand what the injector writes.
    #[test]
    fn the_commands_of_injected_pods() {
        use weft_injector::patch::{Admission, Annotations, Config, Kind, Values, review};

        let values = [
            "{proxy: {nativeSidecar: false, gid: 5}, disableIPv6: false}",
            "{proxyInit: {closeWaitTimeoutSecs: 9, skipSubnets: 10.0.0.0/8, ignoreInboundPorts: 1-9, iptablesMode: legacy}}",
            "{cniEnabled: true, proxy: {nativeSidecar: false}}",
        ];
        let mut seen = std::collections::BTreeSet::new();
        for values in values {
            let config = Config {
                values: Values::from_yaml(values).expect("values"),
                ..Config::default()
            };
            let enabled = ("linkerd.io/inject".to_owned(), "enabled".to_owned());
            let decision = review(&Admission {
                kind: Kind::Pod,
                object: &serde_json::json!({ "spec": { "containers": [] } }),
                namespace: "shop",
                namespace_annotations: &Annotations::from([enabled]),
                owner: None,
                config: Ok(&config),
            })
            .expect("injected");
            let patch = serde_json::to_value(&decision.patch).expect("JSON");
            for operation in patch.as_array().expect("a list") {
                let container = &operation["value"];
                let list = |value: &serde_json::Value| -> Vec<String> {
                    serde_json::from_value(value.clone()).unwrap_or_default()
                };
                let own = [list(&container["command"]), list(&container["args"])].concat();
                let hook = list(&container["lifecycle"]["postStart"]["exec"]["command"]);
                for command in [own, hook] {
                    if command
                        .first()
                        .is_some_and(|program| program == "/usr/bin/weft")
                    {
                        crate::Cli::try_parse_from(&command).expect("understood");
                        seen.insert(command[1].clone());
                    }
                }
            }
        }
        assert_eq!(Vec::from_iter(seen), ["await", "init", "validate-network"]);
    }

    #[test]
    fn the_arguments_of_the_charts() {
        let args = parse(
            "weft injector -addr=:1 -metrics-addr :2 -linkerd-namespace=mesh -log-level=info -log-format=plain -enable-pprof=false -kubeconfig=",
        )
        .expect("accepted");
        assert_eq!(args.addr.to_string(), "[::]:1");
        assert_eq!(args.metrics_addr.to_string(), "[::]:2");
        assert_eq!(args.linkerd_namespace, "mesh");
        let CertificateSource::Files { certificate, .. } = args.settings().certificate else {
            panic!("files are the default");
        };
        assert_eq!(certificate, Path::new("/var/run/linkerd/tls/tls.crt"));
        let own = parse("weft injector --self-certificate").expect("accepted");
        assert!(matches!(own.settings().certificate, CertificateSource::Own));
        assert!(parse("weft injector --self-certificate --tls-dir=/x").is_err());
    }
}
