//! Owns the environment of the proxy (contract 1.2, 1.3). Later variables may name earlier ones (`$(_pod_ns)`), so the order
//! matters; the literal text of some is read by Linkerd's tools (contract 11.1).

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector};
use serde_json::Value;

use super::settings::Settings;
use super::values::Tree;
use super::{Config, Target};

/// What the names of the proxy's variables begin with.
const PREFIX: &str = "LINKERD2_PROXY_";
/// Where the proxy keeps its key; in memory.
pub(super) const END_ENTITY_DIR: &str = "/var/run/linkerd/identity/end-entity";
/// Where the token is that was made for the mesh.
pub(super) const TOKEN_DIR: &str = "/var/run/secrets/tokens";
/// Name of the token's volume and file.
pub(super) const TOKEN_NAME: &str = "linkerd-identity-token";
/// Where every pod finds its token for the API server.
pub(super) const API_TOKEN_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Where the pod's labels are, for traces.
pub(super) const POD_INFO_DIR: &str = "/var/run/linkerd/podinfo";

/// Puts a variable into the list: in the place of the one of its name, so that none is there twice, or at the end.
pub(super) fn put(list: &mut Vec<EnvVar>, variable: EnvVar) {
    match list.iter_mut().find(|known| known.name == variable.name) {
        Some(known) => *known = variable,
        None => list.push(variable),
    }
}

/// The variables, collected in order.
struct Variables(Vec<EnvVar>);

impl Variables {
    /// A text that reaches the proxy byte by byte: Kubernetes replaces `$(NAME)` and turns `$$` into `$` (case J10).
    fn text(&mut self, name: &str, value: impl ToString) {
        let value = value.to_string().replace('$', "$$");
        self.template(name, value);
    }

    /// A text in which `$(NAME)` stands for another variable.
    fn template(&mut self, name: &str, value: impl Into<String>) {
        self.push(name, Some(value.into()), None);
    }

    /// A field of the pod.
    fn field(&mut self, name: &str, path: &str) {
        let source = EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                api_version: None,
                field_path: path.to_owned(),
            }),
            ..EnvVarSource::default()
        };
        self.push(name, None, Some(source));
    }

    fn push(&mut self, name: &str, value: Option<String>, value_from: Option<EnvVarSource>) {
        let name = match name.starts_with('_') {
            true => name.to_owned(),
            false => format!("{PREFIX}{name}"),
        };
        self.0.push(EnvVar {
            name,
            value,
            value_from,
        });
    }
}

/// The environment of the proxy of `target`.
pub(super) fn environment(
    config: &Config,
    settings: &Settings,
    target: &Target<'_>,
) -> Vec<EnvVar> {
    let mut env = Variables(Vec::with_capacity(64));
    helpers(&mut env, config);
    process(&mut env, settings);
    control_plane(&mut env, config, settings);
    timeouts(&mut env, settings);
    listeners(&mut env, settings, target);
    traffic(&mut env, settings, target);
    identity(&mut env, config, settings);
    tracing(&mut env, config, settings, target);
    let mut env = env.0;
    let proxy = &settings.values.proxy;
    let additional = proxy.additional_env.iter().chain(&proxy.experimental_env);
    for variable in additional.chain(&settings.environment) {
        put(&mut env, variable.clone());
    }
    env
}

fn helpers(env: &mut Variables, config: &Config) {
    for (name, path) in [
        ("_pod_name", "metadata.name"),
        ("_pod_ns", "metadata.namespace"),
        ("_pod_uid", "metadata.uid"),
        ("_pod_ip", "status.podIP"),
        ("_pod_nodeName", "spec.nodeName"),
    ] {
        env.field(name, path);
    }
    env.text("_pod_containerName", super::PROXY);
    env.field("_pod_sa", "spec.serviceAccountName");
    env.text("_l5d_ns", &config.control_namespace);
    env.text("_l5d_trustdomain", config.values.trust_domain());
}

fn process(env: &mut Variables, settings: &Settings) {
    let proxy = &settings.values.proxy;
    let workers = &proxy.runtime.workers;
    let minimum = workers.minimum.unwrap_or(proxy.cores).max(1);
    env.text("CORES", minimum);
    env.text("CORES_MIN", minimum);
    if let Some(maximum) = workers.maximum {
        env.text("CORES_MAX", maximum.max(1));
    }
    if let Some(ratio) = workers.maximum_cpu_ratio {
        env.text("CORES_MAX_RATIO", ratio);
    }
    env.text("SHUTDOWN_ENDPOINT_ENABLED", proxy.enable_shutdown_endpoint);
    if !proxy.shutdown_grace_period.is_empty() {
        env.text("SHUTDOWN_GRACE_PERIOD", &proxy.shutdown_grace_period);
    }
    let headers = match proxy.log_http_headers.as_str() {
        "insecure" => "",
        _ => ",[{headers}]=off,[{request}]=off",
    };
    env.text("LOG", format!("{}{headers}", proxy.log_level));
    env.text("LOG_FORMAT", &proxy.log_format);
    if proxy.has_access_log() {
        env.text("ACCESS_LOG", &proxy.access_log);
    }
}

fn control_plane(env: &mut Variables, config: &Config, settings: &Settings) {
    let values = &settings.values;
    let (ns, domain) = (&config.control_namespace, &values.cluster_domain);
    env.text(
        "DESTINATION_SVC_ADDR",
        format!("linkerd-dst-headless.{ns}.svc.{domain}.:8086"),
    );
    env.text("DESTINATION_PROFILE_NETWORKS", &values.cluster_networks);
    env.text(
        "POLICY_SVC_ADDR",
        format!("linkerd-policy.{ns}.svc.{domain}.:8090"),
    );
    env.template(
        "POLICY_WORKLOAD",
        "{\"ns\":\"$(_pod_ns)\", \"pod\":\"$(_pod_name)\"}\n",
    );
    env.text(
        "INBOUND_DEFAULT_POLICY",
        &values.proxy.default_inbound_policy,
    );
    env.text("POLICY_CLUSTER_NETWORKS", &values.cluster_networks);
    let streams = &values.proxy.control.streams;
    for (name, time) in [
        ("CONTROL_STREAM_INITIAL_TIMEOUT", &streams.initial_timeout),
        ("CONTROL_STREAM_IDLE_TIMEOUT", &streams.idle_timeout),
        ("CONTROL_STREAM_LIFETIME", &streams.lifetime),
    ] {
        env.text(name, time);
    }
}

fn timeouts(env: &mut Variables, settings: &Settings) {
    let proxy = &settings.values.proxy;
    env.text("INBOUND_CONNECT_TIMEOUT", &proxy.inbound_connect_timeout);
    env.text("OUTBOUND_CONNECT_TIMEOUT", &proxy.outbound_connect_timeout);
    env.text(
        "OUTBOUND_DISCOVERY_IDLE_TIMEOUT",
        &proxy.outbound_discovery_cache_unused_timeout,
    );
    env.text(
        "INBOUND_DISCOVERY_IDLE_TIMEOUT",
        &proxy.inbound_discovery_cache_unused_timeout,
    );
    // A year instead of "never", which the proxy has no word for.
    if proxy.disable_outbound_protocol_detect_timeout {
        env.text("OUTBOUND_DETECT_TIMEOUT", "365d");
    }
    if proxy.disable_inbound_protocol_detect_timeout {
        env.text("INBOUND_DETECT_TIMEOUT", "365d");
    }
}

fn listeners(env: &mut Variables, settings: &Settings, target: &Target<'_>) {
    let ports = settings.values.proxy.ports;
    let (any, two_families) = match settings.values.disable_ipv6 {
        true => ("0.0.0.0", false),
        false => ("[::]", true),
    };
    let outbound = format!("127.0.0.1:{}", ports.outbound);
    env.text("CONTROL_LISTEN_ADDR", format!("{any}:{}", ports.control));
    env.text("ADMIN_LISTEN_ADDR", format!("{any}:{}", ports.admin));
    env.text("OUTBOUND_LISTEN_ADDR", &outbound);
    env.text(
        "OUTBOUND_LISTEN_ADDRS",
        match two_families {
            true => format!("{outbound},[::1]:{}", ports.outbound),
            false => outbound,
        },
    );
    env.text("INBOUND_LISTEN_ADDR", format!("{any}:{}", ports.inbound));
    env.field("INBOUND_IPS", "status.podIPs");
    let listed: Vec<String> = target.ports.iter().map(u16::to_string).collect();
    env.text("INBOUND_PORTS", listed.join(","));
}

fn traffic(env: &mut Variables, settings: &Settings, target: &Target<'_>) {
    let values = &settings.values;
    let proxy = &values.proxy;
    if target.ingress {
        env.text("INGRESS_MODE", true);
    }
    let services = format!("svc.{}.", values.cluster_domain);
    if settings.gateway {
        env.text("INBOUND_GATEWAY_SUFFIXES", &services);
    }
    for (name, ports) in [
        (
            "INBOUND_PORTS_REQUIRE_IDENTITY",
            &proxy.require_identity_on_inbound_ports,
        ),
        (
            "INBOUND_PORTS_REQUIRE_TLS",
            &proxy.require_tls_on_inbound_ports,
        ),
    ] {
        if !ports.is_empty() {
            env.text(name, ports);
        }
    }
    env.text(
        "DESTINATION_PROFILE_SUFFIXES",
        match proxy.enable_external_profiles {
            true => ".",
            false => &services,
        },
    );
    env.text(
        "OUTBOUND_METRICS_HOSTNAME_LABELS",
        proxy.metrics.hostname_labels,
    );
    for side in ["INBOUND_ACCEPT", "OUTBOUND_CONNECT"] {
        env.text(&format!("{side}_KEEPALIVE"), "10000ms");
        env.text(&format!("{side}_USER_TIMEOUT"), "30s");
    }
    tree(env, "INBOUND", &proxy.inbound);
    tree(env, "OUTBOUND", &proxy.outbound);
    env.text(
        "INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION",
        &proxy.opaque_ports,
    );
    env.template(
        "DESTINATION_CONTEXT",
        "{\"ns\":\"$(_pod_ns)\", \"nodeName\":\"$(_pod_nodeName)\", \"pod\":\"$(_pod_name)\"}\n",
    );
}

/// `server.http2.keepAliveInterval` below `proxy.inbound` is `INBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL` (contract 1.3). What is
/// not three levels deep is something else.
fn tree(env: &mut Variables, side: &str, tree: &Tree) {
    for (scope, protocols) in tree {
        for (protocol, parameters) in protocols.as_object().into_iter().flatten() {
            for (parameter, value) in parameters.as_object().into_iter().flatten() {
                let value = match value {
                    Value::String(text) => text.clone(),
                    Value::Number(_) | Value::Bool(_) => value.to_string(),
                    _ => continue,
                };
                let [scope, protocol, parameter] =
                    [scope, protocol, parameter].map(|part| upper_snake(part));
                env.text(&format!("{side}_{scope}_{protocol}_{parameter}"), value);
            }
        }
    }
}

fn upper_snake(camel: &str) -> String {
    let mut name = String::with_capacity(camel.len() + 4);
    for letter in camel.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        match letter.is_ascii_alphanumeric() {
            true => name.push(letter.to_ascii_uppercase()),
            false => name.push('_'),
        }
    }
    name
}

fn identity(env: &mut Variables, config: &Config, settings: &Settings) {
    let values = &settings.values;
    let (ns, domain) = (&config.control_namespace, &values.cluster_domain);
    let identities = format!("serviceaccount.identity.{ns}.{}", values.trust_domain());
    let token = match values.identity.service_account_token_projection {
        true => format!("{TOKEN_DIR}/{TOKEN_NAME}"),
        false => format!("{API_TOKEN_DIR}/token"),
    };
    env.text("IDENTITY_DIR", END_ENTITY_DIR);
    env.text("IDENTITY_TRUST_ANCHORS", &config.trust_anchors);
    env.text("IDENTITY_TOKEN_FILE", token);
    env.text(
        "IDENTITY_SVC_ADDR",
        format!("linkerd-identity-headless.{ns}.svc.{domain}.:8080"),
    );
    env.template(
        "IDENTITY_LOCAL_NAME",
        format!("$(_pod_sa).$(_pod_ns).{identities}"),
    );
    for (name, account) in [
        ("IDENTITY_SVC_NAME", "linkerd-identity"),
        ("DESTINATION_SVC_NAME", "linkerd-destination"),
        ("POLICY_SVC_NAME", "linkerd-destination"),
    ] {
        env.text(name, format!("{account}.{ns}.{identities}"));
    }
}

fn tracing(env: &mut Variables, config: &Config, settings: &Settings, target: &Target<'_>) {
    let tracing = &settings.values.proxy.tracing;
    if !tracing.enabled || tracing.collector.endpoint.is_empty() {
        return;
    }
    let account = &tracing.collector.mesh_identity;
    let labels = target.pod.metadata.labels.as_ref();
    let label = |name: &str| {
        labels
            .and_then(|labels| labels.get(&format!("app.kubernetes.io/{name}")))
            .filter(|value| !value.is_empty())
    };
    let annotations = target.pod.metadata.annotations.iter().flatten();
    let extra: Vec<String> = annotations
        .filter_map(|(name, value)| {
            let key = name.strip_prefix("resource.opentelemetry.io/")?;
            Some(format!("{key}={}\n", value.replace(['\n', '\r'], " ")))
        })
        .collect();
    env.text("TRACE_ATTRIBUTES_PATH", format!("{POD_INFO_DIR}/labels"));
    env.text("TRACE_COLLECTOR_SVC_ADDR", &tracing.collector.endpoint);
    if !account.service_account_name.is_empty() {
        let identity = format!(
            "{}.{}.serviceaccount.identity.{}.{}",
            account.service_account_name,
            account.namespace,
            config.control_namespace,
            settings.values.trust_domain()
        );
        env.text("TRACE_COLLECTOR_SVC_NAME", identity);
    }
    let service = label("instance").or_else(|| label("name"));
    env.text(
        "TRACE_SERVICE_NAME",
        service.unwrap_or(&tracing.trace_service_name),
    );
    if !extra.is_empty() {
        env.text("TRACE_EXTRA_ATTRIBUTES", extra.concat());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_tree() {
        assert_eq!(upper_snake("keepAliveInterval"), "KEEP_ALIVE_INTERVAL");
        assert_eq!(upper_snake("http2"), "HTTP2");
        assert_eq!(
            upper_snake("maxPendingAcceptResetStreams"),
            "MAX_PENDING_ACCEPT_RESET_STREAMS"
        );
        assert_eq!(upper_snake("a-b=c d"), "A_B_C_D");
    }

    #[test]
    fn j10_dollars_are_not_expanded() {
        let mut env = Variables(Vec::new());
        env.text("LOG", "a$(B)c$$d\n\\\"😀");
        let variable = env.0.first().unwrap();
        assert_eq!(variable.value.as_deref(), Some("a$$(B)c$$$$d\n\\\"😀"));
    }
}
