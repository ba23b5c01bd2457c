//! Whether each value lands where it belongs, and only there (case C11), and how the control plane's own proxies differ from those
//! of workloads (contract 11.3).

use serde_json::{Value, json};

use super::render::{
    NAMESPACE, Objects, container, containers, helm, list, pod, supplied, text, with,
};

const DEPLOYMENTS: [&str; 3] = [
    "linkerd-identity",
    "linkerd-destination",
    "linkerd-proxy-injector",
];

/// What is random, so that any marker may be in it.
const RANDOM: [&str; 3] = ["caBundle", "ca-bundle.crt", "linkerd.io/trust-root-sha256"];

/// Where a text stands: `KIND/NAME/PATH`, without linkerd-config, which has all values.
fn places(objects: &Objects, marker: &str) -> Vec<String> {
    let mut found = Vec::new();
    for object in &objects.0 {
        let name = text(&object["metadata"]["name"]);
        if name != "linkerd-config" && object["kind"] != "Secret" {
            look(
                &format!("{}/{name}", text(&object["kind"])),
                object,
                marker,
                &mut found,
            );
        }
    }
    found
}

fn look(path: &str, value: &Value, marker: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            if RANDOM.contains(&key.as_str()) {
                return;
            }
            if key.contains(marker) {
                found.push(path.to_owned());
            }
            look(&format!("{path}/{key}"), value, marker, found);
        }),
        // Containers and variables by their names, so that the table below can be read.
        Value::Array(items) => items.iter().for_each(|item| {
            let step = item["name"].as_str().unwrap_or("-");
            look(&format!("{path}/{step}"), item, marker, found);
        }),
        Value::String(text) if text.contains(marker) => found.push(path.to_owned()),
        Value::Number(number) if number.to_string() == marker => found.push(path.to_owned()),
        _ => {}
    }
}

#[test]
fn c11_each_value_lands_in_its_place() {
    let Some(helm) = helm() else { return };
    // The value, what to look for, how often it is there, and what every place has in its path.
    for (value, marker, times, within) in [
        (
            json!({ "identityResources": { "cpu": { "request": "123m" } } }),
            "123m",
            1,
            "Deployment/linkerd-identity/spec/template/spec/containers/identity/resources/requests/cpu",
        ),
        (
            json!({ "destinationResources": { "memory": { "limit": "123Mi" } } }),
            "123Mi",
            1,
            "linkerd-destination/spec/template/spec/containers/destination/resources/limits/memory",
        ),
        (
            json!({ "proxyInjectorResources": { "ephemeral-storage": { "limit": "123Mi" } } }),
            "123Mi",
            1,
            "containers/proxy-injector/resources/limits/ephemeral-storage",
        ),
        (
            json!({ "identityProxyResources": { "cpu": { "limit": "123m" } } }),
            "123m",
            1,
            "linkerd-identity/spec/template/spec/containers/linkerd-proxy/resources",
        ),
        (
            json!({ "destinationProxyResources": { "cpu": { "limit": "123m" } } }),
            "123m",
            1,
            "linkerd-destination/spec/template/spec/initContainers/linkerd-proxy/resources",
        ),
        (
            json!({ "proxyInjectorProxyResources": { "cpu": { "limit": "123m" } } }),
            "123m",
            1,
            "linkerd-proxy-injector/spec/template/spec/initContainers/linkerd-proxy/resources",
        ),
        (
            json!({ "proxy": { "resources": { "cpu": { "limit": "123m" } } } }),
            "123m",
            3,
            "/linkerd-proxy/resources/limits/cpu",
        ),
        (
            json!({ "proxyInit": { "resources": { "cpu": { "limit": "123m" } } } }),
            "123m",
            3,
            "/linkerd-init/resources/limits/cpu",
        ),
        (
            json!({ "identity": { "podAnnotations": { "m/x": "marker" } } }),
            "marker",
            1,
            "linkerd-identity/spec/template/metadata/annotations",
        ),
        (
            json!({ "destinationController": { "podAnnotations": { "m/x": "marker" } } }),
            "marker",
            1,
            "linkerd-destination/spec/template/metadata/annotations",
        ),
        (
            json!({ "proxyInjector": { "podAnnotations": { "m/x": "marker" } } }),
            "marker",
            1,
            "linkerd-proxy-injector/spec/template/metadata/annotations",
        ),
        (
            json!({ "podAnnotations": { "m/x": "marker" } }),
            "marker",
            3,
            "/spec/template/metadata/annotations",
        ),
        (
            json!({ "podLabels": { "m": "marker" } }),
            "marker",
            3,
            "/spec/template/metadata/labels",
        ),
        (
            json!({ "nodeSelector": { "m": "marker" } }),
            "marker",
            3,
            "/spec/template/spec/nodeSelector",
        ),
        (
            json!({ "tolerations": [{ "key": "marker" }] }),
            "marker",
            3,
            "/spec/template/spec/tolerations",
        ),
        (
            json!({ "priorityClassName": "marker" }),
            "marker",
            3,
            "/spec/template/spec/priorityClassName",
        ),
        (
            json!({ "runtimeClassName": "marker" }),
            "marker",
            3,
            "/spec/template/spec/runtimeClassName",
        ),
        (
            json!({ "imagePullSecrets": [{ "name": "marker" }] }),
            "marker",
            3,
            "/spec/template/spec/imagePullSecrets",
        ),
        (
            json!({ "identity": { "additionalArgs": ["--marker"] } }),
            "marker",
            1,
            "/containers/identity/args",
        ),
        (
            json!({ "destinationController": { "additionalArgs": ["--marker"] } }),
            "marker",
            1,
            "/containers/destination/args",
        ),
        (
            json!({ "policyController": { "additionalArgs": ["--marker"] } }),
            "marker",
            1,
            "/containers/destination/args",
        ),
        (
            json!({ "proxyInjector": { "additionalArgs": ["--marker"] } }),
            "marker",
            1,
            "/containers/proxy-injector/args",
        ),
        (
            json!({ "identity": { "additionalEnv": [{ "name": "A", "value": "marker" }] } }),
            "marker",
            1,
            "/containers/identity/env",
        ),
        (
            json!({ "destinationController": { "additionalEnv": [{ "name": "A", "value": "marker" }] } }),
            "marker",
            1,
            "/containers/destination/env",
        ),
        (
            json!({ "proxyInjector": { "additionalEnv": [{ "name": "A", "value": "marker" }] } }),
            "marker",
            1,
            "/containers/proxy-injector/env",
        ),
        (
            json!({ "controllerImage": "marker" }),
            "marker",
            3,
            "/image",
        ),
        (
            json!({ "proxy": { "image": { "name": "marker" } } }),
            "marker",
            6,
            "/linkerd-",
        ),
        (
            json!({ "controllerUID": 12345 }),
            "12345",
            3,
            "/securityContext/runAsUser",
        ),
        (
            json!({ "identity": { "issuer": { "issuanceLifetime": "77h" } } }),
            "77h",
            1,
            "/containers/identity/args",
        ),
        (
            json!({ "identity": { "issuer": { "clockSkewAllowance": "77s" } } }),
            "77s",
            1,
            "/containers/identity/args",
        ),
        (
            json!({ "identity": { "kubeAPI": { "clientQPS": 777 } } }),
            "qps=777",
            1,
            "/containers/identity/args",
        ),
        (
            json!({ "identity": { "kubeAPI": { "clientBurst": 777 } } }),
            "burst=777",
            1,
            "/containers/identity/args",
        ),
        (
            json!({ "policyController": { "probeNetworks": ["192.0.2.0/24"] } }),
            "192.0.2.0/24",
            1,
            "/containers/destination/args",
        ),
        (
            json!({ "egress": { "globalEgressNetworkNamespace": "marker" } }),
            "marker",
            1,
            "/containers/destination/args",
        ),
        (
            json!({ "proxy": { "outboundTransportMode": "transparent" } }),
            "transparent",
            1,
            "/containers/destination/args",
        ),
        (
            json!({ "proxyInit": { "kubeAPIServerPorts": "7777" } }),
            "7777",
            3,
            "/linkerd-init/args",
        ),
        (
            json!({ "proxyInit": { "skipSubnets": "192.0.2.0/24" } }),
            "192.0.2.0/24",
            3,
            "/linkerd-init/args",
        ),
        (
            json!({ "proxyInit": { "ignoreInboundPorts": "7777" } }),
            "7777",
            3,
            "/linkerd-init/args",
        ),
        // Those of workloads, which use what is in linkerd-config.
        (
            json!({ "proxyInit": { "ignoreOutboundPorts": "7777" } }),
            "7777",
            0,
            "",
        ),
        (
            json!({ "proxy": { "additionalEnv": [{ "name": "A", "value": "marker" }] } }),
            "marker",
            0,
            "",
        ),
        (
            json!({ "proxy": { "shutdownGracePeriod": "77s" } }),
            "77s",
            0,
            "",
        ),
        (
            json!({ "proxy": { "waitBeforeExitSeconds": 77 } }),
            "77",
            0,
            "",
        ),
        (
            json!({ "proxy": { "requireIdentityOnInboundPorts": "7777" } }),
            "7777",
            0,
            "",
        ),
        // The default of workloads is what policy is told, and not what the control plane lets in.
        (
            json!({ "proxy": { "defaultInboundPolicy": "audit" } }),
            "audit",
            1,
            "/containers/destination/args",
        ),
    ] {
        let found = places(
            &Objects::render(&helm, &with(supplied(), value.clone())),
            marker,
        );
        assert_eq!(found.len(), times, "{value}: {found:#?}");
        for place in found {
            assert!(place.contains(within), "{value}: {place}");
        }
    }
}

#[test]
fn c11_a_budget_may_be_a_percentage() {
    let Some(helm) = helm() else { return };
    let values = json!({ "enablePodDisruptionBudget": true, "controller": { "podDisruptionBudget": { "maxUnavailable": "50%" } } });
    let objects = Objects::render(&helm, &with(supplied(), values));
    assert_eq!(objects.of_kind("PodDisruptionBudget").count(), 3);
    for budget in objects.of_kind("PodDisruptionBudget") {
        assert_eq!(budget["spec"]["maxUnavailable"], "50%");
    }
}

#[test]
fn large_user_numbers_are_written_as_such() {
    let Some(helm) = helm() else { return };
    let values = with(
        supplied(),
        json!({ "proxy": { "uid": 1_000_660_000_u64, "gid": 1_000_660_000_u64 } }),
    );
    let objects = Objects::render(&helm, &values);
    for name in DEPLOYMENTS {
        let pod = pod(objects.get("Deployment", name));
        let context = &container(pod, "linkerd-proxy")["securityContext"];
        assert_eq!(context["runAsUser"], 1_000_660_000_u64);
        assert_eq!(context["runAsGroup"], 1_000_660_000_u64);
        let args = &container(pod, "linkerd-init")["args"];
        assert!(
            list(args).any(|arg| arg == "--proxy-uid=1000660000"),
            "{args}"
        );
    }
    assert!(
        objects.config().contains("uid: 1000660000"),
        "{}",
        objects.config()
    );
}

fn variable<'a>(container: &'a Value, name: &str) -> &'a Value {
    list(&container["env"])
        .find(|variable| variable["name"] == format!("LINKERD2_PROXY_{name}"))
        .unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn the_control_plane_is_meshed_by_the_chart() {
    let Some(helm) = helm() else { return };
    let objects = Objects::render(
        &helm,
        &with(
            supplied(),
            json!({ "proxy": { "defaultInboundPolicy": "deny" } }),
        ),
    );
    for (name, ports, identity, destination, policy) in [
        (
            "linkerd-identity",
            "8080,9990",
            "localhost.",
            "linkerd-dst-headless.mesh.svc.cluster.local.",
            "linkerd-policy.mesh.svc.cluster.local.",
        ),
        (
            "linkerd-destination",
            "8086,8090,8443,9443,9990,9996",
            "linkerd-identity-headless.mesh.svc.cluster.local.",
            "localhost.",
            "localhost.",
        ),
        (
            "linkerd-proxy-injector",
            "8443,9995",
            "linkerd-identity-headless.mesh.svc.cluster.local.",
            "linkerd-dst-headless.mesh.svc.cluster.local.",
            "linkerd-policy.mesh.svc.cluster.local.",
        ),
    ] {
        let deployment = objects.get("Deployment", name);
        let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
        assert_eq!(
            annotations["config.linkerd.io/default-inbound-policy"], "all-unauthenticated",
            "{name}"
        );
        let pod = pod(deployment);
        let proxy = container(pod, "linkerd-proxy");
        let value = |variable_name: &str| text(&variable(proxy, variable_name)["value"]).to_owned();
        assert_eq!(value("INBOUND_PORTS"), ports, "{name}");
        assert_eq!(
            value("INBOUND_DEFAULT_POLICY"),
            "all-unauthenticated",
            "{name}"
        );
        assert_eq!(
            value("IDENTITY_SVC_ADDR"),
            format!("{identity}:8080"),
            "{name}"
        );
        assert_eq!(
            value("DESTINATION_SVC_ADDR"),
            format!("{destination}:8086"),
            "{name}"
        );
        assert_eq!(value("POLICY_SVC_ADDR"), format!("{policy}:8090"), "{name}");
        assert_eq!(
            variable(proxy, "IDENTITY_TRUST_ANCHORS")["valueFrom"]["configMapKeyRef"],
            json!({ "name": "linkerd-identity-trust-roots", "key": "ca-bundle.crt" })
        );
        let args = &container(pod, "linkerd-init")["args"];
        assert!(
            list(args).any(|arg| arg == "--outbound-ports-to-ignore=443,6443"),
            "{name}: {args}"
        );
        // Native, and after the redirection; but for identity, which its own proxy waits for.
        let native = name != "linkerd-identity";
        let order: Vec<&str> = list(&pod["initContainers"])
            .map(|c| text(&c["name"]))
            .collect();
        assert_eq!(
            order,
            if native {
                vec!["linkerd-init", "linkerd-proxy"]
            } else {
                vec!["linkerd-init"]
            }
        );
        assert_eq!(proxy["restartPolicy"] == "Always", native, "{name}");
        assert_eq!(proxy["startupProbe"].is_object(), native, "{name}");
    }
    let identity = pod(objects.get("Deployment", "linkerd-identity"));
    let last = list(&identity["containers"]).last().expect("containers");
    assert_eq!(last["name"], "linkerd-proxy");
}

#[test]
fn webhooks_keep_off_the_control_plane() {
    let Some(helm) = helm() else { return };
    let objects = Objects::render(&helm, &supplied());
    let config = objects.get(
        "MutatingWebhookConfiguration",
        "linkerd-proxy-injector-webhook-config",
    );
    let webhook = &config["webhooks"][0];
    // Case C09: holds whether or not somebody has labelled the namespace yet.
    assert!(
        list(&webhook["objectSelector"]["matchExpressions"]).any(|e| *e
            == json!({ "key": "linkerd.io/control-plane-component", "operator": "DoesNotExist" })),
        "{webhook}"
    );
    assert!(
        list(&webhook["namespaceSelector"]["matchExpressions"])
            .any(|e| e["values"] == json!(["kube-system", "cert-manager"]))
    );
    assert_eq!(
        webhook["rules"][0]["resources"],
        json!(["pods", "services"])
    );
    assert_eq!(webhook["timeoutSeconds"], 10);
    for kind in [
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
    ] {
        for config in objects.of_kind(kind) {
            let webhooks: Vec<&Value> = list(&config["webhooks"]).collect();
            assert_eq!(webhooks.len(), 1);
            let webhook = webhooks.first().expect("one");
            assert_eq!(webhook["failurePolicy"], "Ignore");
            assert_eq!(webhook["sideEffects"], "None");
            assert_eq!(webhook["clientConfig"]["service"]["namespace"], NAMESPACE);
            objects.get("Service", text(&webhook["clientConfig"]["service"]["name"]));
            assert_eq!(
                format!(
                    "{}-webhook-config",
                    text(&webhook["name"]).trim_end_matches(".linkerd.io")
                ),
                text(&config["metadata"]["name"])
            );
        }
    }
}

#[test]
fn c10_there_are_no_hooks() {
    let Some(helm) = helm() else { return };
    for (name, values) in super::sets() {
        for object in Objects::render(&helm, &values).0 {
            assert!(
                !object["metadata"]["annotations"]
                    .to_string()
                    .contains("helm.sh/hook"),
                "{name}"
            );
        }
    }
}

#[test]
fn linkerd_config_says_what_is_in_use() {
    let Some(helm) = helm() else { return };
    let objects = Objects::render(
        &helm,
        &with(
            supplied(),
            json!({ "clusterDomain": "example.org", "disableHeartBeat": false }),
        ),
    );
    let config: Value = serde_norway::from_str(&objects.config()).expect("YAML");
    assert_eq!(config["identityTrustDomain"], "example.org");
    assert_eq!(config["disableHeartBeat"], true);
    for (pointer, image) in [
        ("/proxy/image/version", "linkerd-proxy"),
        ("/controllerImageVersion", "identity"),
    ] {
        let version = text(config.pointer(pointer).expect(pointer));
        let pod = pod(objects.get("Deployment", "linkerd-identity"));
        assert_eq!(
            container(pod, image)["image"],
            format!("weft.test/weft:{version}")
        );
        assert_eq!(config["linkerdVersion"], version);
    }
    assert_eq!(
        containers(pod(objects.get("Deployment", "linkerd-identity"))).count(),
        3
    );
}
