//! What Kubernetes and its users find: objects without unknown fields, that refer to each other correctly, with the names, ports
//! and labels of contract 0 and 11, and no more rights than needed.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::render::{
    NAMESPACE, Objects, container, containers, helm, list, pod, supplied, text, with,
};
use super::{self_certificate, sets};

/// Whether all of `given` is in `kept`: what the types do not know is lost when they are written again.
fn lost(path: &str, given: &Value, kept: &Value, found: &mut Vec<String>) {
    match (given, kept) {
        (Value::Object(given), Value::Object(kept)) => {
            for (key, value) in given {
                lost(
                    &format!("{path}.{key}"),
                    value,
                    kept.get(key).unwrap_or(&Value::Null),
                    found,
                );
            }
        }
        (Value::Array(given), Value::Array(kept)) => {
            for (index, value) in given.iter().enumerate() {
                lost(
                    &format!("{path}[{index}]"),
                    value,
                    kept.get(index).unwrap_or(&Value::Null),
                    found,
                );
            }
        }
        (given, kept) if given == kept => {}
        _ => found.push(format!("{path}: {given}")),
    }
}

fn strict<T: Serialize + DeserializeOwned>(object: &Value) -> Vec<String> {
    match serde_json::from_value::<T>(object.clone()) {
        Err(error) => vec![error.to_string()],
        Ok(typed) => {
            let mut found = Vec::new();
            lost(
                "",
                object,
                &serde_json::to_value(typed).expect("JSON"),
                &mut found,
            );
            found
        }
    }
}

#[test]
fn kubernetes_knows_every_field() {
    let Some(helm) = helm() else { return };
    for (name, values) in sets() {
        for object in &Objects::render(&helm, &values).0 {
            let found = match text(&object["kind"]) {
                "Deployment" => strict::<Deployment>(object),
                "Service" => strict::<Service>(object),
                "ServiceAccount" => strict::<ServiceAccount>(object),
                "ConfigMap" => strict::<ConfigMap>(object),
                "Secret" => strict::<Secret>(object),
                "Role" => strict::<Role>(object),
                "RoleBinding" => strict::<RoleBinding>(object),
                "ClusterRole" => strict::<ClusterRole>(object),
                "ClusterRoleBinding" => strict::<ClusterRoleBinding>(object),
                "PodDisruptionBudget" => strict::<PodDisruptionBudget>(object),
                "MutatingWebhookConfiguration" => strict::<MutatingWebhookConfiguration>(object),
                "ValidatingWebhookConfiguration" => {
                    strict::<ValidatingWebhookConfiguration>(object)
                }
                // Of the Prometheus operator.
                "PodMonitor" => Vec::new(),
                other => vec![format!("unexpected kind {other}")],
            };
            assert!(
                found.is_empty(),
                "{name}: {}: {found:?}",
                object["metadata"]["name"]
            );
        }
    }
}

#[test]
fn what_an_object_refers_to_is_there() {
    let Some(helm) = helm() else { return };
    for (name, values) in sets() {
        let objects = Objects::render(&helm, &values);
        let mut seen = BTreeSet::new();
        for object in &objects.0 {
            let key = format!("{} {}", object["kind"], object["metadata"]["name"]);
            assert!(seen.insert(key.clone()), "{name}: {key} twice");
            assert_eq!(
                object["metadata"]["labels"]["linkerd.io/control-plane-ns"], NAMESPACE,
                "{name}: {key}"
            );
        }
        for deployment in objects.of_kind("Deployment") {
            check_pod(name, &objects, deployment);
        }
        for service in objects.of_kind("Service") {
            let component =
                text(&service["spec"]["selector"]["linkerd.io/control-plane-component"]);
            let deployment = objects.get("Deployment", &format!("linkerd-{component}"));
            for port in list(&service["spec"]["ports"]) {
                let target = list(&pod(deployment)["containers"])
                    .flat_map(|container| list(&container["ports"]))
                    .find(|open| open["name"] == port["targetPort"]);
                assert!(
                    target.is_some(),
                    "{name}: {} {port}",
                    service["metadata"]["name"]
                );
            }
        }
        for binding in objects
            .of_kind("ClusterRoleBinding")
            .chain(objects.of_kind("RoleBinding"))
        {
            let role = &binding["roleRef"];
            objects.get(text(&role["kind"]), text(&role["name"]));
            for subject in list(&binding["subjects"]) {
                objects.get("ServiceAccount", text(&subject["name"]));
                assert_eq!(subject["namespace"], NAMESPACE, "{name}");
            }
        }
    }
}

fn check_pod(name: &str, objects: &Objects, deployment: &Value) {
    let template = &deployment["spec"]["template"];
    let called = text(&deployment["metadata"]["name"]);
    for (label, value) in deployment["spec"]["selector"]["matchLabels"]
        .as_object()
        .expect("labels")
    {
        assert_eq!(
            &template["metadata"]["labels"][label], value,
            "{name}: {called}"
        );
    }
    let spec = pod(deployment);
    objects.get("ServiceAccount", text(&spec["serviceAccountName"]));
    let volumes: BTreeSet<&str> = list(&spec["volumes"])
        .map(|volume| text(&volume["name"]))
        .collect();
    let mounted: BTreeSet<&str> = containers(spec)
        .flat_map(|container| list(&container["volumeMounts"]))
        .map(|mount| text(&mount["name"]))
        .collect();
    assert_eq!(volumes, mounted, "{name}: {called}");
    let mut ports = BTreeSet::new();
    for port in containers(spec).flat_map(|container| list(&container["ports"])) {
        assert!(
            ports.insert(text(&port["name"])),
            "{name}: {called}: {port} twice"
        );
        assert!(text(&port["name"]).len() <= 15, "{port}");
    }
}

#[test]
fn names_and_ports_are_those_others_rely_on() {
    let Some(helm) = helm() else { return };
    let objects = Objects::render(&helm, &supplied());
    for (service, port, name, headless) in [
        ("linkerd-identity", 8080, "ident-grpc", false),
        ("linkerd-identity-headless", 8080, "ident-grpc", true),
        ("linkerd-dst", 8086, "dest-grpc", false),
        ("linkerd-dst-headless", 8086, "dest-grpc", true),
        ("linkerd-policy", 8090, "policy-grpc", true),
        ("linkerd-policy-validator", 443, "policy-https", false),
        ("linkerd-sp-validator", 443, "sp-validator", false),
        ("linkerd-proxy-injector", 443, "proxy-injector", false),
    ] {
        let spec = &objects.get("Service", service)["spec"];
        assert_eq!(
            spec["ports"],
            json!([{ "name": name, "port": port, "targetPort": name }]),
            "{service}"
        );
        assert_eq!(spec["clusterIP"] == "None", headless, "{service}");
    }
    let open = |deployment: &str, container: &str| -> Vec<(String, u64)> {
        let pod = pod(objects.get("Deployment", deployment));
        list(&super::render::container(pod, container)["ports"])
            .map(|port| {
                (
                    text(&port["name"]).to_owned(),
                    port["containerPort"].as_u64().expect("a number"),
                )
            })
            .collect()
    };
    let ports = |list: &[(&str, u64)]| -> Vec<(String, u64)> {
        list.iter()
            .map(|(name, port)| ((*name).to_owned(), *port))
            .collect()
    };
    assert_eq!(
        open("linkerd-identity", "identity"),
        ports(&[("ident-grpc", 8080), ("ident-admin", 9990)])
    );
    assert_eq!(
        open("linkerd-destination", "destination"),
        ports(&[
            ("dest-grpc", 8086),
            ("dest-admin", 9996),
            ("policy-grpc", 8090),
            ("policy-admin", 9990),
            ("policy-https", 9443),
            ("sp-validator", 8443),
        ])
    );
    assert_eq!(
        open("linkerd-proxy-injector", "proxy-injector"),
        ports(&[("proxy-injector", 8443), ("injector-admin", 9995)])
    );
    for (deployment, component) in [
        ("linkerd-identity", "identity"),
        ("linkerd-destination", "destination"),
        ("linkerd-proxy-injector", "proxy-injector"),
    ] {
        assert_eq!(
            open(deployment, "linkerd-proxy"),
            ports(&[("linkerd-proxy", 4143), ("linkerd-admin", 4191)])
        );
        let labels =
            &objects.get("Deployment", deployment)["spec"]["template"]["metadata"]["labels"];
        assert_eq!(labels["linkerd.io/control-plane-component"], component);
        assert_eq!(labels["linkerd.io/workload-ns"], NAMESPACE);
        assert_eq!(labels["linkerd.io/proxy-deployment"], deployment);
    }
    for (kind, name) in [
        ("ClusterRole", "linkerd-mesh-identity"),
        ("ClusterRole", "linkerd-mesh-destination"),
        ("ClusterRole", "linkerd-mesh-proxy-injector"),
        ("ClusterRole", "linkerd-policy"),
        ("Role", "ext-namespace-metadata-linkerd-config"),
        ("ConfigMap", "linkerd-identity-trust-roots"),
        ("Secret", "linkerd-identity-issuer"),
        (
            "MutatingWebhookConfiguration",
            "linkerd-proxy-injector-webhook-config",
        ),
        (
            "ValidatingWebhookConfiguration",
            "linkerd-policy-validator-webhook-config",
        ),
        (
            "ValidatingWebhookConfiguration",
            "linkerd-sp-validator-webhook-config",
        ),
    ] {
        objects.get(kind, name);
    }
}

#[test]
fn containers_can_do_nothing_but_their_work() {
    let Some(helm) = helm() else { return };
    for (name, values) in sets() {
        let objects = Objects::render(&helm, &values);
        for deployment in objects.of_kind("Deployment") {
            let spec = pod(deployment);
            assert_eq!(spec["automountServiceAccountToken"], false, "{name}");
            assert!(
                spec["hostNetwork"].is_null() && spec["hostPID"].is_null(),
                "{name}"
            );
            for container in containers(spec) {
                let what = format!("{name}: {}", container["name"]);
                let context = &container["securityContext"];
                assert_eq!(context["readOnlyRootFilesystem"], true, "{what}");
                assert_eq!(
                    context["seccompProfile"]["type"], "RuntimeDefault",
                    "{what}"
                );
                if container["name"] == "linkerd-init" {
                    let privileged = context["privileged"] == true;
                    assert!(
                        privileged
                            || context["capabilities"]["add"] == json!(["NET_ADMIN", "NET_RAW"]),
                        "{what}"
                    );
                    continue;
                }
                // The level "restricted" of the Pod Security Standards.
                assert_eq!(context["runAsNonRoot"], true, "{what}");
                assert_eq!(context["allowPrivilegeEscalation"], false, "{what}");
                assert_eq!(
                    context["capabilities"],
                    json!({ "drop": ["ALL"] }),
                    "{what}"
                );
                assert!(
                    context["runAsUser"].as_u64().is_some_and(|user| user > 0),
                    "{what}"
                );
                let may_ask = list(&container["volumeMounts"])
                    .any(|mount| mount["name"] == "kube-api-access");
                let ours = !text(&container["name"]).starts_with("linkerd-");
                assert_eq!(may_ask, ours, "{what}: the token of the API server");
            }
        }
    }
}

/// Case J13: with a CNI plugin all of the control plane is restricted (the test above has such a set), and users may be left to the
/// platform or be those of a range.
#[test]
fn j13_the_platform_may_choose_the_user_of_the_network_validator() {
    let Some(helm) = helm() else { return };
    let values = json!({
        "cniEnabled": true, "networkValidator": { "enableSecurityContext": false },
        "controllerUID": 1_000_810_000, "proxy": { "uid": 1_000_810_001, "gid": 2102 },
    });
    let objects = Objects::render(&helm, &with(supplied(), values));
    for deployment in objects.of_kind("Deployment") {
        for container in containers(pod(deployment)) {
            let user = &container["securityContext"]["runAsUser"];
            match text(&container["name"]) {
                "linkerd-network-validator" => assert!(container["securityContext"].is_null()),
                "linkerd-proxy" => assert_eq!(user, 1_000_810_001),
                name => assert_eq!(user, 1_000_810_000, "{name}"),
            }
        }
    }
}

/// Every right, as `KIND/NAME: VERBS GROUP/RESOURCE [OBJECT]`, in a form that a reviewer reads.
fn rights(objects: &Objects) -> Vec<String> {
    let mut rights = Vec::new();
    for role in objects
        .of_kind("ClusterRole")
        .chain(objects.of_kind("Role"))
    {
        for rule in list(&role["rules"]) {
            let join = |key: &str| list(&rule[key]).map(text).collect::<Vec<_>>().join(",");
            rights.push(format!(
                "{} {}: {} {}/{} {}",
                text(&role["kind"]),
                text(&role["metadata"]["name"]),
                join("verbs"),
                join("apiGroups"),
                join("resources"),
                join("resourceNames")
            ));
        }
    }
    rights.sort();
    rights
        .iter()
        .map(|right| right.trim_end().to_owned())
        .collect()
}

#[test]
fn rights_are_few() {
    let Some(helm) = helm() else { return };
    let few = rights(&Objects::render(&helm, &supplied()));
    let own = rights(&Objects::render(&helm, &self_certificate()));
    for right in &own {
        assert!(!right.contains('*') && !right.contains("delete"), "{right}");
    }
    assert!(
        !few.iter().any(|right| right.contains("secrets")),
        "{few:#?}"
    );
    // Nobody may write to what others own, but for statuses, Events and, if asked for, the own webhook.
    let writing: Vec<&String> = own
        .iter()
        .filter(|right| {
            ["create", "patch", "update"]
                .iter()
                .any(|verb| right.contains(verb))
        })
        .collect();
    assert_eq!(
        writing,
        [
            "ClusterRole linkerd-mesh-identity: create /events",
            "ClusterRole linkerd-mesh-identity: create authentication.k8s.io/tokenreviews",
            "ClusterRole linkerd-mesh-proxy-injector: create /events",
            "ClusterRole linkerd-mesh-proxy-injector: get,patch admissionregistration.k8s.io/mutatingwebhookconfigurations linkerd-proxy-injector-webhook-config",
            "ClusterRole linkerd-policy: patch gateway.networking.k8s.io/httproutes/status,grpcroutes/status,tlsroutes/status,tcproutes/status",
            "ClusterRole linkerd-policy: patch policy.linkerd.io/authorizationpolicies/status,egressnetworks/status,httplocalratelimitpolicies/status,httproutes/status,servers/status",
            "Role linkerd-policy: create coordination.k8s.io/leases",
            "Role linkerd-policy: get,patch coordination.k8s.io/leases policy-controller-write",
            "Role linkerd-proxy-injector: create /secrets",
            "Role linkerd-proxy-injector: get,update /secrets linkerd-proxy-injector-k8s-tls",
        ]
    );
}

#[test]
fn upgrades_and_node_drains_leave_replicas() {
    let Some(helm) = helm() else { return };
    let objects = Objects::render(
        &helm,
        &with(
            supplied(),
            super::yaml_file("linkerd-control-plane/values-ha.yaml"),
        ),
    );
    for name in [
        "linkerd-identity",
        "linkerd-destination",
        "linkerd-proxy-injector",
    ] {
        let deployment = objects.get("Deployment", name);
        assert_eq!(deployment["spec"]["replicas"], 3);
        assert_eq!(
            deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"],
            1
        );
        let spread = &pod(deployment)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            [0];
        assert_eq!(spread["topologyKey"], "kubernetes.io/hostname");
        let component = &deployment["metadata"]["labels"]["linkerd.io/control-plane-component"];
        assert_eq!(
            &spread["labelSelector"]["matchLabels"]["linkerd.io/control-plane-component"],
            component
        );
        let budget = &objects.get("PodDisruptionBudget", name)["spec"];
        assert_eq!(budget["maxUnavailable"], 1);
        assert_eq!(
            &budget["selector"]["matchLabels"]["linkerd.io/control-plane-component"],
            component
        );
        let own = text(&deployment["metadata"]["labels"]["linkerd.io/control-plane-component"]);
        let serving = container(pod(deployment), own);
        assert_eq!(
            serving["lifecycle"]["preStop"]["sleep"]["seconds"], 5,
            "{name}"
        );
        assert!(serving["readinessProbe"].is_object(), "{name}");
        assert_eq!(
            serving["resources"],
            json!({ "requests": { "cpu": "100m", "memory": "50Mi" }, "limits": { "memory": "250Mi" } })
        );
    }
    for kind in [
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
    ] {
        for webhook in objects
            .of_kind(kind)
            .flat_map(|object| list(&object["webhooks"]))
        {
            assert_eq!(webhook["failurePolicy"], "Fail");
        }
    }
}

/// What a pod says of its ports is what its controller opens, for IPv4 and IPv6.
#[test]
fn ports_of_the_control_plane_are_open() {
    let Some(helm) = helm() else { return };
    for (name, values) in sets() {
        let objects = Objects::render(&helm, &values);
        for deployment in objects.of_kind("Deployment") {
            let spec = pod(deployment);
            let component =
                text(&deployment["metadata"]["labels"]["linkerd.io/control-plane-component"]);
            let controller = container(spec, component);
            let listed = list(&container(spec, "linkerd-proxy")["env"])
                .find(|variable| variable["name"] == "LINKERD2_PROXY_INBOUND_PORTS")
                .map(|variable| text(&variable["value"]).split(',').map(str::to_owned))
                .expect("the ports");
            let listed: BTreeSet<String> = listed.collect();
            let opened: BTreeSet<String> = list(&controller["ports"])
                .map(|port| port["containerPort"].to_string())
                .collect();
            let arguments: BTreeSet<String> = list(&controller["args"])
                .filter_map(|arg| {
                    text(arg)
                        .split_once("-addr=:")
                        .or(text(arg).split_once("--addr=:"))
                })
                .map(|(_, port)| port.to_owned())
                .collect();
            assert_eq!(listed, opened, "{name}: {component}");
            assert_eq!(arguments, opened, "{name}: {component}");
        }
    }
}

/// Contract 6.3: dashboards know a controller by the name of its container.
#[test]
fn controllers_are_scraped_by_the_names_of_their_containers() {
    let Some(helm) = helm() else { return };
    let values = with(supplied(), json!({ "podMonitor": { "enabled": true } }));
    let objects = Objects::render(&helm, &values);
    let monitor = objects.get("PodMonitor", "linkerd-controller");
    let relabelings = &monitor["spec"]["podMetricsEndpoints"][0]["relabelings"];
    let component = list(relabelings).find(|rule| rule["targetLabel"] == "component");
    assert_eq!(
        component.expect("a rule")["sourceLabels"],
        json!(["__meta_kubernetes_pod_container_name"])
    );
}
