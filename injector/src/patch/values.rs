//! Owns [`Values`]: what the injector reads of the values the control plane was installed with (contract 11.4), with the chart's
//! defaults for all that is missing (case J11). Does not judge what a value means for a pod; `settings` does.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::EnvVar;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Why the values cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValuesError {
    /// They are not YAML.
    #[error("the values are not YAML: {0}")]
    Syntax(String),
    /// A value has another type than the one it must have.
    #[error("the value {path} cannot be used: {reason}")]
    Field {
        /// Its path, such as `proxy.ports.inbound`.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// The values that decide about the proxies of workloads. Unknown ones are ignored, missing ones have the chart's default.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Values {
    /// Domain of Service names.
    pub cluster_domain: String,
    /// Last part of identities; the cluster domain if empty.
    pub identity_trust_domain: String,
    /// Networks of pods and Services, a comma list.
    pub cluster_networks: String,
    /// Listen on IPv4 only.
    #[serde(rename = "disableIPv6")]
    pub disable_ipv6: bool,
    /// Traffic is redirected by a CNI plugin instead of an init container.
    pub cni_enabled: bool,
    /// Version of the installation; the default of image tags.
    #[serde(deserialize_with = "text")]
    pub linkerd_version: String,
    /// Pull policy of images without one of their own.
    pub image_pull_policy: String,
    /// The proxy.
    pub proxy: Proxy,
    /// The init container.
    pub proxy_init: ProxyInit,
    /// The container that checks the work of the CNI plugin.
    pub network_validator: NetworkValidator,
    /// The debug container.
    pub debug_container: DebugContainer,
    /// Identity.
    pub identity: Identity,
}

impl Default for Values {
    fn default() -> Self {
        Self {
            cluster_domain: "cluster.local".to_owned(),
            identity_trust_domain: String::new(),
            cluster_networks: "10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16,fd00::/8"
                .to_owned(),
            disable_ipv6: true,
            cni_enabled: false,
            linkerd_version: String::new(),
            image_pull_policy: "IfNotPresent".to_owned(),
            proxy: Proxy::default(),
            proxy_init: ProxyInit::default(),
            network_validator: NetworkValidator::default(),
            debug_container: DebugContainer::default(),
            identity: Identity::default(),
        }
    }
}

/// Values below `proxy`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Proxy {
    /// `proxy.image`.
    pub image: Image,
    /// `proxy.logLevel`.
    pub log_level: String,
    /// `proxy.logFormat`.
    pub log_format: String,
    /// `proxy.logHTTPHeaders`: `off` or `insecure`.
    #[serde(rename = "logHTTPHeaders", deserialize_with = "text")]
    pub log_http_headers: String,
    /// `proxy.accessLog`.
    pub access_log: String,
    /// `proxy.nativeSidecar`.
    pub native_sidecar: bool,
    /// `proxy.await`.
    #[serde(rename = "await")]
    pub wait: bool,
    /// `proxy.waitBeforeExitSeconds`.
    pub wait_before_exit_seconds: u32,
    /// `proxy.ports`.
    pub ports: Ports,
    /// `proxy.uid`.
    pub uid: u32,
    /// `proxy.gid`; none if negative.
    pub gid: i64,
    /// `proxy.opaquePorts`.
    #[serde(deserialize_with = "text")]
    pub opaque_ports: String,
    /// `proxy.defaultInboundPolicy`.
    pub default_inbound_policy: String,
    /// `proxy.enableShutdownEndpoint`.
    pub enable_shutdown_endpoint: bool,
    /// `proxy.enableExternalProfiles`.
    pub enable_external_profiles: bool,
    /// `proxy.outboundConnectTimeout`.
    pub outbound_connect_timeout: String,
    /// `proxy.inboundConnectTimeout`.
    pub inbound_connect_timeout: String,
    /// `proxy.outboundDiscoveryCacheUnusedTimeout`.
    pub outbound_discovery_cache_unused_timeout: String,
    /// `proxy.inboundDiscoveryCacheUnusedTimeout`.
    pub inbound_discovery_cache_unused_timeout: String,
    /// `proxy.disableOutboundProtocolDetectTimeout`.
    pub disable_outbound_protocol_detect_timeout: bool,
    /// `proxy.disableInboundProtocolDetectTimeout`.
    pub disable_inbound_protocol_detect_timeout: bool,
    /// `proxy.requireIdentityOnInboundPorts`.
    #[serde(deserialize_with = "text")]
    pub require_identity_on_inbound_ports: String,
    /// `proxy.requireTLSOnInboundPorts`.
    #[serde(rename = "requireTLSOnInboundPorts", deserialize_with = "text")]
    pub require_tls_on_inbound_ports: String,
    /// `proxy.shutdownGracePeriod`; the proxy's own default if empty.
    pub shutdown_grace_period: String,
    /// `proxy.control`.
    pub control: Control,
    /// `proxy.inbound`: passed on to the proxy, three levels deep (contract 1.3).
    pub inbound: Tree,
    /// `proxy.outbound`: the same.
    pub outbound: Tree,
    /// `proxy.runtime`.
    pub runtime: Runtime,
    /// `proxy.cores`: older name of `proxy.runtime.workers.minimum`.
    pub cores: u32,
    /// `proxy.metrics`.
    pub metrics: Metrics,
    /// `proxy.tracing`.
    pub tracing: Tracing,
    /// `proxy.resources`.
    pub resources: Resources,
    /// `proxy.livenessProbe`.
    pub liveness_probe: Probe,
    /// `proxy.readinessProbe`.
    pub readiness_probe: Probe,
    /// `proxy.startupProbe`: of native sidecars.
    pub startup_probe: Probe,
    /// `proxy.additionalEnv`.
    pub additional_env: Vec<EnvVar>,
    /// `proxy.experimentalEnv`.
    pub experimental_env: Vec<EnvVar>,
}

/// Scope, protocol, parameter.
pub type Tree = BTreeMap<String, Value>;

impl Proxy {
    /// Whether an access log is asked for.
    pub fn has_access_log(&self) -> bool {
        !matches!(self.access_log.as_str(), "" | "none")
    }
}

impl Default for Proxy {
    fn default() -> Self {
        Self {
            image: Image {
                name: "weft.test/weft".to_owned(),
                ..Image::default()
            },
            log_level: "warn,linkerd=info,hickory=error".to_owned(),
            log_format: "plain".to_owned(),
            log_http_headers: "off".to_owned(),
            access_log: String::new(),
            native_sidecar: true,
            wait: true,
            wait_before_exit_seconds: 0,
            ports: Ports::default(),
            uid: 2102,
            gid: -1,
            opaque_ports: "25,587,3306,4444,5432,6379,9300,11211".to_owned(),
            default_inbound_policy: "all-unauthenticated".to_owned(),
            enable_shutdown_endpoint: false,
            enable_external_profiles: false,
            outbound_connect_timeout: "1000ms".to_owned(),
            inbound_connect_timeout: "100ms".to_owned(),
            outbound_discovery_cache_unused_timeout: "5s".to_owned(),
            inbound_discovery_cache_unused_timeout: "90s".to_owned(),
            disable_outbound_protocol_detect_timeout: false,
            disable_inbound_protocol_detect_timeout: false,
            require_identity_on_inbound_ports: String::new(),
            require_tls_on_inbound_ports: String::new(),
            shutdown_grace_period: String::new(),
            control: Control::default(),
            inbound: keep_alive(),
            outbound: keep_alive(),
            runtime: Runtime::default(),
            cores: 0,
            metrics: Metrics::default(),
            tracing: Tracing::default(),
            resources: Resources::default(),
            liveness_probe: Probe::new(10, 1),
            readiness_probe: Probe::new(2, 1),
            startup_probe: Probe {
                period_seconds: Some(1),
                failure_threshold: Some(120),
                ..Probe::new(0, 0)
            },
            additional_env: Vec::new(),
            experimental_env: Vec::new(),
        }
    }
}

fn keep_alive() -> Tree {
    let server = serde_json::json!({
        "http2": { "keepAliveInterval": "10s", "keepAliveTimeout": "3s" }
    });
    Tree::from([("server".to_owned(), server)])
}

/// An image.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Image {
    /// Without tag.
    pub name: String,
    /// The tag.
    #[serde(deserialize_with = "text")]
    pub version: String,
    /// Pull policy; `imagePullPolicy` if empty.
    pub pull_policy: String,
}

/// The proxy's ports.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ports {
    /// Admin server.
    pub admin: u16,
    /// Tap.
    pub control: u16,
    /// What arrives.
    pub inbound: u16,
    /// What leaves.
    pub outbound: u16,
}

impl Default for Ports {
    fn default() -> Self {
        Self {
            admin: 4191,
            control: 4190,
            inbound: 4143,
            outbound: 4140,
        }
    }
}

/// `proxy.control`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Control {
    /// Limits of the streams of the control plane.
    pub streams: Streams,
}

/// `proxy.control.streams`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Streams {
    /// Until the first message.
    pub initial_timeout: String,
    /// Between messages.
    pub idle_timeout: String,
    /// At most.
    pub lifetime: String,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            initial_timeout: "3s".to_owned(),
            idle_timeout: "5m".to_owned(),
            lifetime: "1h".to_owned(),
        }
    }
}

/// `proxy.runtime`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Runtime {
    /// Worker threads.
    pub workers: Workers,
}

/// `proxy.runtime.workers`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Workers {
    /// At least these.
    pub minimum: Option<u32>,
    /// At most these.
    pub maximum: Option<u32>,
    /// At most this share of the node's CPUs.
    #[serde(rename = "maximumCPURatio")]
    pub maximum_cpu_ratio: Option<f64>,
}

/// `proxy.metrics`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metrics {
    /// Route metrics carry the host name of requests.
    pub hostname_labels: bool,
}

/// `proxy.tracing`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tracing {
    /// Whether proxies send traces.
    pub enabled: bool,
    /// Name of the service in traces.
    pub trace_service_name: String,
    /// Where they are sent to.
    pub collector: Collector,
}

impl Default for Tracing {
    fn default() -> Self {
        Self {
            enabled: false,
            trace_service_name: "linkerd-proxy".to_owned(),
            collector: Collector::default(),
        }
    }
}

/// `proxy.tracing.collector`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Collector {
    /// `name:port`.
    pub endpoint: String,
    /// Its service account.
    pub mesh_identity: MeshIdentity,
}

/// Who a meshed service is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MeshIdentity {
    /// Its service account.
    pub service_account_name: String,
    /// The service account's namespace.
    pub namespace: String,
}

/// Resources of a container; a value that is empty is not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Resources {
    /// CPU.
    pub cpu: Bounds,
    /// Memory.
    pub memory: Bounds,
    /// Disk space.
    #[serde(alias = "ephemeral-storage")]
    pub ephemeral_storage: Bounds,
}

/// Request and limit of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Bounds {
    /// Reserved.
    #[serde(deserialize_with = "text")]
    pub request: String,
    /// At most.
    #[serde(deserialize_with = "text")]
    pub limit: String,
}

/// Times of a probe; what is not set has the default of Kubernetes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Probe {
    /// Before the first attempt.
    pub initial_delay_seconds: Option<i32>,
    /// Of one attempt.
    pub timeout_seconds: Option<i32>,
    /// Between attempts.
    pub period_seconds: Option<i32>,
    /// Attempts that may fail.
    pub failure_threshold: Option<i32>,
}

impl Probe {
    /// 0 = not set.
    fn new(delay: i32, timeout: i32) -> Self {
        Self {
            initial_delay_seconds: (delay > 0).then_some(delay),
            timeout_seconds: (timeout > 0).then_some(timeout),
            ..Self::default()
        }
    }
}

/// Values below `proxyInit`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyInit {
    /// `nft`, `legacy` or `plain`.
    pub iptables_mode: String,
    /// Run as root instead of as user 65534.
    pub run_as_root: bool,
    /// The user if not root.
    pub run_as_user: u32,
    /// Run with all privileges.
    pub privileged: bool,
    /// Arriving connections to these ports bypass the proxy.
    #[serde(deserialize_with = "text")]
    pub ignore_inbound_ports: String,
    /// Leaving connections to these ports bypass the proxy.
    #[serde(deserialize_with = "text")]
    pub ignore_outbound_ports: String,
    /// Connections arriving from these networks bypass the proxy.
    pub skip_subnets: String,
    /// Seconds of CLOSE_WAIT; 0 leaves the kernel's setting alone.
    pub close_wait_timeout_secs: u32,
    /// Resources; those of the proxy if there are none.
    pub resources: Option<Resources>,
}

impl Default for ProxyInit {
    fn default() -> Self {
        Self {
            iptables_mode: "nft".to_owned(),
            run_as_root: false,
            run_as_user: 65534,
            privileged: false,
            ignore_inbound_ports: "4567,4568".to_owned(),
            ignore_outbound_ports: "4567,4568".to_owned(),
            skip_subnets: String::new(),
            close_wait_timeout_secs: 0,
            resources: None,
        }
    }
}

/// Values below `networkValidator`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkValidator {
    /// Address of a connection that must be redirected; by family if empty.
    pub connect_addr: String,
    /// Where the redirected connection must arrive; by family if empty.
    pub listen_addr: String,
    /// How long it may take.
    pub timeout: String,
    /// Whether it has a user and restrictions of its own; those of the namespace's policy otherwise (case J13).
    pub enable_security_context: bool,
}

impl Default for NetworkValidator {
    fn default() -> Self {
        Self {
            connect_addr: String::new(),
            listen_addr: String::new(),
            timeout: "10s".to_owned(),
            enable_security_context: true,
        }
    }
}

/// Values below `debugContainer`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DebugContainer {
    /// Its image; without a name there is no debug container.
    pub image: Image,
}

/// Values below `identity`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Identity {
    /// Proxies prove who they are by a token made for that alone, not by the one for the API server.
    pub service_account_token_projection: bool,
}

impl Default for Identity {
    fn default() -> Self {
        Self {
            service_account_token_projection: true,
        }
    }
}

impl Values {
    /// Reads the content of key `values` of ConfigMap `linkerd-config`.
    ///
    /// # Errors
    /// It is not YAML, or a value that we use has the wrong type.
    pub fn from_yaml(yaml: &str) -> Result<Self, ValuesError> {
        let mut values: Value =
            serde_norway::from_str(yaml).map_err(|e| ValuesError::Syntax(e.to_string()))?;
        without_nulls(&mut values);
        if values.is_null() {
            return Ok(Self::default());
        }
        serde_path_to_error::deserialize(values).map_err(|e| ValuesError::Field {
            path: e.path().to_string(),
            reason: e.inner().to_string(),
        })
    }

    /// Last part of every identity.
    pub fn trust_domain(&self) -> &str {
        match self.identity_trust_domain.as_str() {
            "" => &self.cluster_domain,
            domain => domain,
        }
    }
}

/// A chart's `key:` without a value means the default.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(without_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

/// People write `cpu: 1` and `version: 2.1` without quotes.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        // YAML 1.1 reads `off` as false.
        Value::Bool(false) => Ok("off".to_owned()),
        other => Err(serde::de::Error::custom(format!(
            "expected a text or a number, found {other}"
        ))),
    }
}

#[cfg(test)]
mod tests;
