//! Owns the proxy of one workload: its environment (contract 1.2, right column), its start, its readiness and its end. It
//! does not make the namespaces it runs in.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use weft_runtime::namespace::{self, Namespaces, NewNamespaces};

use super::netns::{CONTROL, Sandbox};
use super::{admin, place};

/// User and group of every proxy (contract 1.3).
pub const PROXY_USER: u32 = 2102;
/// Longest wait for a certificate and `/ready`.
const READY: Duration = Duration::from_secs(20);
/// How long requests under way may take after SIGTERM. In Kubernetes it is two minutes; here nobody waits that long.
const GRACE: Duration = Duration::from_secs(5);
/// Networks the proxies ask the control plane about (chart default of contract 11.4).
const CLUSTER_NETWORKS: &str = "10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16,fd00::/8";

/// Who a workload is and what its Pod says about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Namespace of the Pod.
    pub namespace: String,
    /// Name of the Pod.
    pub workload: String,
    /// Its service account.
    pub service_account: String,
    /// Its container ports.
    pub ports: Vec<u16>,
    /// Annotation `config.linkerd.io/opaque-ports`, if any.
    pub opaque_ports: Vec<u16>,
    /// Annotation `config.linkerd.io/default-inbound-policy`, if any.
    pub default_policy: Option<String>,
}

/// Where the control plane answers: for its own proxy on loopback without TLS, for all others by the address of its
/// workload and with its identity (contract 1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlPlane {
    /// We are the proxy of the control plane.
    Own,
    /// We are another one.
    Other,
}

/// What does not depend on the workload.
#[derive(Clone, Debug)]
pub struct Common {
    /// The trust bundle, PEM.
    pub trust_anchors: String,
    /// Shortest time between two certificates, if not the proxy's own.
    pub min_refresh: Option<Duration>,
    /// Log directives.
    pub log: String,
    /// Namespace of the control plane.
    pub control_namespace: String,
    /// Last part of every identity, and of every Service's name.
    pub trust_domain: String,
}

/// Service account and Pod of the control plane.
pub const CONTROL_NAME: &str = "weft-control";

impl Common {
    fn identity(&self, service_account: &str, namespace: &str) -> String {
        format!(
            "{service_account}.{namespace}.serviceaccount.identity.{}.{}",
            self.control_namespace, self.trust_domain
        )
    }
}

/// The proxy's environment.
pub fn environment(
    common: &Common,
    facts: &Facts,
    ip: Ipv4Addr,
    control: ControlPlane,
) -> Vec<(String, String)> {
    let fixed = FIXED
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()));
    let variables = fixed
        .chain(control_plane(common, control))
        .chain(of_pod(common, facts, ip))
        .map(|(name, value)| (format!("LINKERD2_PROXY_{name}"), value));
    let helpers = [
        ("_pod_name", facts.workload.clone()),
        ("_pod_ns", facts.namespace.clone()),
        ("_pod_ip", ip.to_string()),
        ("_pod_sa", facts.service_account.clone()),
        ("_l5d_ns", common.control_namespace.clone()),
        ("_l5d_trustdomain", common.trust_domain.clone()),
    ];
    let helpers = helpers.map(|(name, value)| (name.to_owned(), value));
    variables.chain(helpers).collect()
}

fn control_plane(common: &Common, control: ControlPlane) -> Vec<(&'static str, String)> {
    const SERVICES: [(&str, &str, u16); 3] = [
        ("IDENTITY_SVC_ADDR", "IDENTITY_SVC_NAME", 8080),
        ("DESTINATION_SVC_ADDR", "DESTINATION_SVC_NAME", 8086),
        ("POLICY_SVC_ADDR", "POLICY_SVC_NAME", 8090),
    ];
    let identity = common.identity(CONTROL_NAME, &common.control_namespace);
    let one = |(addr, name, port)| match control {
        ControlPlane::Own => vec![(addr, format!("localhost.:{port}"))],
        ControlPlane::Other => {
            vec![
                (addr, format!("{CONTROL}:{port}")),
                (name, identity.clone()),
            ]
        }
    };
    SERVICES.into_iter().flat_map(one).collect()
}

fn of_pod(common: &Common, facts: &Facts, ip: Ipv4Addr) -> Vec<(&'static str, String)> {
    let Facts {
        namespace,
        workload,
        service_account,
        ..
    } = facts;
    let list = |ports: &[u16]| {
        ports
            .iter()
            .map(u16::to_string)
            .collect::<Vec<_>>()
            .join(",")
    };
    // Both end in a line break, as those of the injector do (contract 1.2).
    let context = serde_json::json!({ "ns": namespace, "nodeName": "local", "pod": workload });
    let token = serde_json::json!({ "ns": namespace, "pod": workload });
    let mut pairs = vec![
        ("INBOUND_IPS", ip.to_string()),
        ("INBOUND_PORTS", list(&facts.ports)),
        (
            "IDENTITY_LOCAL_NAME",
            common.identity(service_account, namespace),
        ),
        ("IDENTITY_TRUST_ANCHORS", common.trust_anchors.clone()),
        ("DESTINATION_CONTEXT", format!("{context}\n")),
        ("POLICY_WORKLOAD", format!("{token}\n")),
        ("SHUTDOWN_GRACE_PERIOD", format!("{}s", GRACE.as_secs())),
        ("LOG", common.log.clone()),
    ];
    if !facts.opaque_ports.is_empty() {
        pairs.push((
            "INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION",
            list(&facts.opaque_ports),
        ));
    }
    let policy = facts
        .default_policy
        .clone()
        .map(|policy| ("INBOUND_DEFAULT_POLICY", policy));
    let refresh = common
        .min_refresh
        .map(|time| format!("{}ms", time.as_millis()));
    pairs.extend(policy);
    pairs.extend(refresh.map(|time| ("IDENTITY_MIN_REFRESH", time)));
    pairs
}

/// What the injector sets for every pod; IPv4 only, since a sandbox has no other addresses. Paths are relative to the
/// folder the proxy is started in.
const FIXED: [(&str, &str); 28] = [
    ("OUTBOUND_LISTEN_ADDR", "127.0.0.1:4140"),
    ("OUTBOUND_LISTEN_ADDRS", "127.0.0.1:4140"),
    ("INBOUND_LISTEN_ADDR", "0.0.0.0:4143"),
    ("CONTROL_LISTEN_ADDR", "0.0.0.0:4190"),
    ("ADMIN_LISTEN_ADDR", "0.0.0.0:4191"),
    ("INBOUND_CONNECT_TIMEOUT", "100ms"),
    ("OUTBOUND_CONNECT_TIMEOUT", "1000ms"),
    ("INBOUND_ACCEPT_KEEPALIVE", "10000ms"),
    ("OUTBOUND_CONNECT_KEEPALIVE", "10000ms"),
    ("INBOUND_ACCEPT_USER_TIMEOUT", "30s"),
    ("OUTBOUND_CONNECT_USER_TIMEOUT", "30s"),
    ("OUTBOUND_DISCOVERY_IDLE_TIMEOUT", "5s"),
    ("INBOUND_DISCOVERY_IDLE_TIMEOUT", "90s"),
    ("INBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL", "10s"),
    ("INBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT", "3s"),
    ("OUTBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL", "10s"),
    ("OUTBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT", "3s"),
    ("DESTINATION_PROFILE_SUFFIXES", "svc.cluster.local."),
    ("DESTINATION_PROFILE_NETWORKS", CLUSTER_NETWORKS),
    ("POLICY_CLUSTER_NETWORKS", CLUSTER_NETWORKS),
    ("CONTROL_STREAM_INITIAL_TIMEOUT", "3s"),
    ("CONTROL_STREAM_IDLE_TIMEOUT", "5m"),
    ("CONTROL_STREAM_LIFETIME", "1h"),
    ("IDENTITY_DIR", "identity"),
    ("IDENTITY_TOKEN_FILE", "token"),
    ("CORES", "1"),
    ("CORES_MIN", "1"),
    ("LOG_FORMAT", "plain"),
];

/// Why a proxy does not run.
#[derive(Debug, thiserror::Error)]
pub enum SidecarError {
    /// A file of it cannot be made.
    #[error("cannot prepare {} for the proxy: {source}", path.display())]
    Prepare {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It cannot be started.
    #[error("cannot start the proxy: {0}")]
    Spawn(io::Error),
    /// It ended.
    #[error("the proxy of `{workload}` ended at once ({how}); its log ({}) ends with:\n{tail}", log.display())]
    Ended {
        /// Whose it was.
        workload: String,
        /// Its exit status.
        how: String,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// It does not become ready.
    #[error("the proxy of `{workload}` is not ready after {READY:?}: {answer}; its log ({}) ends with:\n{tail}", log.display())]
    NotReady {
        /// Whose it is.
        workload: String,
        /// What `/ready` said last.
        answer: String,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
}

/// What runs beside a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// The proxy.
    Proxy(PathBuf),
    /// For a workload that is not in the mesh: a process that waits, as the pause container of a pod does.
    Pause,
}

/// The private folder of a proxy, in memory, and what to start in it.
#[derive(Clone, Debug)]
pub struct Sidecar {
    /// Whose proxy it is.
    pub workload: String,
    /// Its folder.
    pub folder: PathBuf,
    /// Its program.
    pub program: Program,
    /// Its log.
    pub log: PathBuf,
    /// Its environment.
    pub environment: Vec<(String, String)>,
}

impl Sidecar {
    /// Makes the folder, empty but for the token.
    pub fn prepare(&self, token: &str) -> Result<(), SidecarError> {
        let identity = self.folder.join("identity");
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| SidecarError::Prepare { path, source }
        };
        std::fs::create_dir_all(&identity).map_err(failed(&identity))?;
        for (folder, mode) in [(&self.folder, 0o711), (&identity, 0o700)] {
            std::fs::set_permissions(folder, PermissionsExt::from_mode(mode))
                .map_err(failed(folder))?;
        }
        chown(&identity, Some(PROXY_USER), Some(PROXY_USER)).map_err(failed(&identity))?;
        self.write_token(token)
    }

    /// Replaces the token, at once and never half, since the proxy may read it at any time.
    pub fn write_token(&self, token: &str) -> Result<(), SidecarError> {
        let (path, new) = (self.folder.join("token"), self.folder.join("token.new"));
        let write = || {
            std::fs::write(&new, token)?;
            std::fs::set_permissions(&new, PermissionsExt::from_mode(0o400))?;
            chown(&new, Some(PROXY_USER), Some(PROXY_USER))?;
            std::fs::rename(&new, &path)
        };
        write().map_err(|source| SidecarError::Prepare {
            path: path.clone(),
            source,
        })
    }

    /// Starts the proxy; its thread, the main one of the mesh host, is the one it dies with.
    pub fn spawn(&self, sandbox: &Sandbox, fresh_log: bool) -> Result<Child, SidecarError> {
        let failed = |source| SidecarError::Prepare {
            path: self.log.clone(),
            source,
        };
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .map_err(failed)?;
        if fresh_log {
            log.set_len(0).map_err(failed)?;
        }
        let errors = log.try_clone().map_err(failed)?;
        let mut command = match &self.program {
            Program::Proxy(path) => Command::new(path),
            Program::Pause => Command::new("/bin/sleep"),
        };
        if self.program == Program::Pause {
            command.arg("infinity");
        }
        command
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .kill_on_drop(true);
        let mut spawn = || {
            let join = Namespaces {
                net: Some(sandbox.net.try_clone()?),
                ..Namespaces::default()
            };
            let identity = Some((PROXY_USER, PROXY_USER));
            namespace::spawn(
                &mut command,
                &join,
                identity,
                NewNamespaces::default(),
                true,
            )
        };
        spawn().map_err(SidecarError::Spawn)
    }

    /// Waits until the proxy says it is ready.
    pub async fn ready(&self, sandbox: &Sandbox, child: &mut Child) -> Result<(), SidecarError> {
        if self.program == Program::Pause {
            return Ok(());
        }
        let until = Instant::now() + READY;
        loop {
            let net = sandbox.net.try_clone().map_err(SidecarError::Spawn)?;
            let answer = match admin::fetch(net, "/ready").await {
                Ok(page) if page.status == 200 => return Ok(()),
                Ok(page) => format!("/ready says {} {}", page.status, page.body.trim()),
                Err(error) => error.to_string(),
            };
            if let Ok(Some(status)) = child.try_wait() {
                return Err(SidecarError::Ended {
                    workload: self.workload.clone(),
                    how: how(status),
                    log: self.log.clone(),
                    tail: place::tail(&self.log),
                });
            }
            if Instant::now() > until {
                let tail = place::tail(&self.log);
                return Err(SidecarError::NotReady {
                    workload: self.workload.clone(),
                    answer,
                    log: self.log.clone(),
                    tail,
                });
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Ends a process of ours: SIGTERM, and SIGKILL if it takes longer than its grace period.
pub async fn end(child: &mut Child) {
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        // It may have ended by itself.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    if timeout(GRACE + Duration::from_secs(1), child.wait())
        .await
        .is_err()
    {
        let _ = child.kill().await;
    }
}

/// An exit status in a few words.
pub fn how(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (
        status.code(),
        status
            .signal()
            .and_then(|number| Signal::try_from(number).ok()),
    ) {
        (Some(code), _) => format!("exit code {code}"),
        (_, Some(signal)) => format!("signal {signal}"),
        _ => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn common() -> Common {
        Common {
            trust_anchors: "PEM".to_owned(),
            min_refresh: Some(Duration::from_secs(1)),
            log: "warn".to_owned(),
            control_namespace: "linkerd".to_owned(),
            trust_domain: "cluster.local".to_owned(),
        }
    }

    fn variables(control: ControlPlane) -> BTreeMap<String, String> {
        let facts = Facts {
            namespace: "demo".to_owned(),
            workload: "store".to_owned(),
            service_account: "keeper".to_owned(),
            ports: vec![6379, 80],
            opaque_ports: vec![6379],
            default_policy: None,
        };
        environment(&common(), &facts, Ipv4Addr::new(10, 88, 0, 9), control)
            .into_iter()
            .collect()
    }

    #[test]
    fn a_workload_gets_the_injectors_environment() {
        let variables = variables(ControlPlane::Other);
        let value = |name: &str| {
            variables
                .get(&format!("LINKERD2_PROXY_{name}"))
                .map(String::as_str)
        };
        assert_eq!(value("INBOUND_IPS"), Some("10.88.0.9"));
        assert_eq!(value("INBOUND_PORTS"), Some("6379,80"));
        assert_eq!(
            value("INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION"),
            Some("6379")
        );
        assert_eq!(
            value("DESTINATION_CONTEXT"),
            Some("{\"nodeName\":\"local\",\"ns\":\"demo\",\"pod\":\"store\"}\n")
        );
        assert_eq!(
            value("POLICY_WORKLOAD"),
            Some("{\"ns\":\"demo\",\"pod\":\"store\"}\n")
        );
        assert_eq!(
            value("IDENTITY_LOCAL_NAME"),
            Some("keeper.demo.serviceaccount.identity.linkerd.cluster.local")
        );
        assert_eq!(value("POLICY_SVC_ADDR"), Some("10.88.0.2:8090"));
        let control = Some("weft-control.linkerd.serviceaccount.identity.linkerd.cluster.local");
        assert_eq!(
            (value("POLICY_SVC_NAME"), value("IDENTITY_SVC_NAME")),
            (control, control)
        );
        assert_eq!(value("IDENTITY_MIN_REFRESH"), Some("1000ms"));
        assert_eq!(value("INBOUND_DEFAULT_POLICY"), None);
    }

    #[test]
    fn the_control_planes_own_proxy_uses_loopback_without_names() {
        let variables = variables(ControlPlane::Own);
        assert_eq!(
            variables["LINKERD2_PROXY_IDENTITY_SVC_ADDR"],
            "localhost.:8080"
        );
        assert!(!variables.keys().any(|name| name.ends_with("_SVC_NAME")));
    }
}
