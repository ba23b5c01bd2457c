//! The charts as Helm renders them: objects that Kubernetes takes, names and ports that others rely on, no secret where it does not
//! belong, and refusals. What needs a cluster (installing, upgrading, the webhooks at work) is tested elsewhere.

// Tests may panic: that is how they fail.
#![allow(clippy::panic)]

mod agreement;
mod certificates;
mod objects;
mod plumbing;
mod render;
mod values;

use std::path::Path;

use serde_json::{Value, json};

use render::{MADE, Objects, helm, refusal, run, supplied, template, with, yaml_file};

/// Values that people use, each by a name.
fn sets() -> Vec<(&'static str, Value)> {
    let set = |more: Value| with(supplied(), more);
    let generated = json!({
        "identityTrustAnchorsPEM": MADE.root.certificate,
        "identity": supplied()["identity"],
    });
    vec![
        ("supplied", supplied()),
        ("generated", generated),
        ("ha", set(yaml_file("linkerd-control-plane/values-ha.yaml"))),
        (
            "cert-manager",
            yaml_file("examples/values-cert-manager.yaml"),
        ),
        (
            "cert-manager and ha",
            with(
                yaml_file("examples/values-cert-manager.yaml"),
                yaml_file("linkerd-control-plane/values-ha.yaml"),
            ),
        ),
        (
            "kubernetes.io/tls",
            set(json!({ "identity": { "issuer": { "scheme": "kubernetes.io/tls" } } })),
        ),
        ("self certificate", self_certificate()),
        (
            "no native sidecar",
            set(json!({ "proxy": { "nativeSidecar": false } })),
        ),
        (
            "ipv6",
            set(
                json!({ "disableIPv6": false, "proxyInit": { "iptablesMode": "legacy", "runAsRoot": true } }),
            ),
        ),
        ("cni", set(json!({ "cniEnabled": true }))),
        (
            "token of the API server",
            set(json!({ "identity": { "serviceAccountTokenProjection": false } })),
        ),
        (
            "monitored",
            set(
                json!({ "podMonitor": { "enabled": true, "labels": { "release": "prometheus" } } }),
            ),
        ),
        (
            "users of a large range",
            set(json!({
                "controllerUID": 1_000_660_000, "controllerGID": 1_000_660_000,
                "proxy": { "uid": 1_000_660_001, "gid": 1_000_660_001 },
                "proxyInit": { "runAsUser": 1_000_660_002 },
            })),
        ),
        ("everything", set(everything())),
    ]
}

fn self_certificate() -> Value {
    with(
        supplied(),
        json!({ "proxyInjector": { "selfCertificate": true, "crtPEM": "", "keyPEM": "" } }),
    )
}

/// Every optional value, so that its template is rendered once.
fn everything() -> Value {
    json!({
        "linkerdVersion": "2.1", "clusterDomain": "example.org", "identityTrustDomain": "trust.org",
        "imagePullSecrets": [{ "name": "pull" }], "priorityClassName": "system-cluster-critical", "runtimeClassName": "gvisor",
        "tolerations": [{ "key": "node", "operator": "Exists" }],
        "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
            { "matchExpressions": [{ "key": "a", "operator": "Exists" }] } ] } },
        "podAnnotations": { "example.org/a": "1" }, "podLabels": { "example.org/b": "2" }, "commonLabels": { "example.org/c": "3" },
        "enablePodAntiAffinity": true, "enablePodDisruptionBudget": true,
        "identity": { "podAnnotations": { "example.org/d": "4" }, "additionalArgs": ["--enable-pprof"], "additionalEnv": [{ "name": "A", "value": "b" }] },
        "destinationController": { "podAnnotations": { "example.org/e": "5" }, "additionalArgs": ["--enable-pprof"], "additionalEnv": [{ "name": "A", "value": "b" }] },
        "policyController": { "additionalArgs": ["--allow-l5d-request-headers"] },
        "proxyInjector": { "podAnnotations": { "example.org/f": "6" }, "additionalEnv": [{ "name": "A", "value": "b" }] },
        "proxyInit": { "skipSubnets": "192.0.2.0/24", "closeWaitTimeoutSecs": 60, "privileged": true, "iptablesMode": "plain" },
        "proxy": {
            "runtime": { "workers": { "minimum": 2, "maximum": 4, "maximumCPURatio": 0.5 } },
            "logHTTPHeaders": "insecure", "gid": 2102,
            "inbound": { "server": { "http2": { "maxConcurrentStreams": 100 } } },
        },
        "podMonitor": { "enabled": true, "controller": { "namespaceSelector": "matchNames: [x]" } },
    })
}

#[test]
fn lint_has_nothing_to_say() {
    let Some(helm) = helm() else { return };
    for (name, values) in sets() {
        let output = run(&helm, &["lint", "--strict"], &values, &[]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}: {said}");
        assert!(!said.contains("[WARNING]"), "{name}: {said}");
    }
}

#[test]
fn c01_c02_two_renders_are_the_same_bytes() {
    let Some(helm) = helm() else { return };
    for (name, values) in sets() {
        // What Helm makes itself is random, and is documented as such.
        if name != "generated" {
            assert!(
                template(&helm, &values) == template(&helm, &values),
                "{name}"
            );
        }
    }
}

#[test]
fn no_private_key_outside_of_secrets() {
    let Some(helm) = helm() else { return };
    for (name, values) in sets() {
        for object in Objects::render(&helm, &values).0 {
            assert!(
                object["kind"] == "Secret" || !object.to_string().contains("PRIVATE KEY"),
                "{name}: {}",
                object["metadata"]["name"]
            );
        }
    }
}

#[test]
fn misspelled_values_are_refused_by_name() {
    let Some(helm) = helm() else { return };
    for (values, named) in [
        (
            json!({ "proxy": { "defaultInboundPolicy": "deyn" } }),
            "/proxy/defaultInboundPolicy",
        ),
        // 1.10 without quotes would be 1.1.
        (
            json!({ "controllerImageVersion": 1.1 }),
            "/controllerImageVersion",
        ),
        (
            json!({ "webhookFailurePolicy": "Fial" }),
            "/webhookFailurePolicy",
        ),
        (
            json!({ "imagePullPolicy": "ifNotPresent" }),
            "/imagePullPolicy",
        ),
        (
            json!({ "controllerLogFormat": "jsn" }),
            "/controllerLogFormat",
        ),
        (
            json!({ "controllerLogLevel": "infoo" }),
            "/controllerLogLevel",
        ),
        (
            json!({ "proxy": { "logFormat": "jsn" } }),
            "/proxy/logFormat",
        ),
        (
            json!({ "proxy": { "logHTTPHeaders": "on" } }),
            "/proxy/logHTTPHeaders",
        ),
        (
            json!({ "proxy": { "outboundTransportMode": "header" } }),
            "/proxy/outboundTransportMode",
        ),
        (
            json!({ "proxyInit": { "iptablesMode": "nftables" } }),
            "/proxyInit/iptablesMode",
        ),
        (
            json!({ "identity": { "issuer": { "scheme": "tls" } } }),
            "/identity/issuer/scheme",
        ),
        (
            json!({ "identity": { "issuer": { "issuanceLifetime": "1 day" } } }),
            "/identity/issuer/issuanceLifetime",
        ),
        (
            json!({ "identity": { "kubeAPI": { "clientQPS": 0 } } }),
            "/identity/kubeAPI/clientQPS",
        ),
        (
            json!({ "proxy": { "outboundConnectTimeout": "1.5s" } }),
            "/proxy/outboundConnectTimeout",
        ),
        (
            json!({ "proxy": { "ports": { "admin": 70000 } } }),
            "/proxy/ports/admin",
        ),
        (
            json!({ "proxy": { "opaquePorts": "25;3306" } }),
            "/proxy/opaquePorts",
        ),
        (
            json!({ "proxy": { "resources": { "cpu": { "limit": "200mm" } } } }),
            "/proxy/resources/cpu/limit",
        ),
        (
            json!({ "proxy": { "nativeSidecar": "yes" } }),
            "/proxy/nativeSidecar",
        ),
        (json!({ "proxy": { "uid": 0 } }), "/proxy/uid"),
        (json!({ "controllerReplicas": 0 }), "/controllerReplicas"),
        (
            json!({ "controllerReplicas": "three" }),
            "/controllerReplicas",
        ),
        (json!({ "clusterNetworks": "10.0.0.0" }), "/clusterNetworks"),
        (
            json!({ "policyController": { "probeNetworks": "0.0.0.0/0" } }),
            "/policyController/probeNetworks",
        ),
        (
            json!({ "proxyInjector": { "injectCaFrom": "certificate" } }),
            "/proxyInjector/injectCaFrom",
        ),
    ] {
        let said = refusal(&helm, &with(supplied(), values));
        assert!(said.contains(named), "{named}: {said}");
    }
}

#[test]
fn a_key_in_a_wrong_place_is_refused_and_not_shown() {
    let Some(helm) = helm() else { return };
    let key = &MADE.root.key;
    let secret = key.lines().nth(1).expect("a line of it");
    let broken = key.replace("BEGIN", "BEGN");
    let both = format!("{}{key}", MADE.root.certificate);
    for (values, named) in [
        (
            json!({ "identityTrustAnchorsPEM": key }),
            "identityTrustAnchorsPEM has a private key",
        ),
        (
            json!({ "identityTrustAnchorsPEM": both }),
            "identityTrustAnchorsPEM has a private key",
        ),
        (
            json!({ "identityTrustAnchorsPEM": "ca.crt" }),
            "identityTrustAnchorsPEM is no certificate",
        ),
        (
            json!({ "identity": { "issuer": { "tls": { "crtPEM": key } } } }),
            "identity.issuer.tls.crtPEM has",
        ),
        (
            json!({ "identity": { "issuer": { "tls": { "keyPEM": broken } } } }),
            "identity.issuer.tls.keyPEM is no",
        ),
        (
            json!({ "identity": { "issuer": { "tls": { "keyPEM": MADE.root.certificate } } } }),
            "identity.issuer.tls.keyPEM is no",
        ),
        (
            json!({ "proxyInjector": { "caBundle": both } }),
            "proxyInjector.caBundle has",
        ),
        (
            json!({ "policyValidator": { "crtPEM": both } }),
            "policyValidator.crtPEM has",
        ),
        (
            json!({ "profileValidator": { "keyPEM": broken } }),
            "profileValidator.keyPEM is no",
        ),
    ] {
        let said = refusal(&helm, &with(supplied(), values));
        assert!(said.contains(named), "{named}: {said}");
        assert!(!said.contains(secret), "{named}: the key is shown");
    }
}

#[test]
fn values_that_need_each_other_are_refused_with_the_remedy() {
    let Some(helm) = helm() else { return };
    for (values, named) in [
        (
            json!({ "identityTrustAnchorsPEM": "" }),
            "set identity.externalCA to true",
        ),
        (
            json!({ "identity": { "issuer": { "tls": { "keyPEM": "" } } } }),
            "give both",
        ),
        (
            json!({ "identity": { "issuer": { "tls": { "crtPEM": "", "keyPEM": "" } } } }),
            "set identity.issuer.scheme to kubernetes.io/tls",
        ),
        (
            json!({ "policyValidator": { "keyPEM": "" } }),
            "policyValidator has only one",
        ),
        (
            json!({ "policyValidator": { "externalSecret": true } }),
            "policyValidator.externalSecret",
        ),
        (
            json!({ "profileValidator": { "externalSecret": true, "crtPEM": "", "keyPEM": "" } }),
            "set profileValidator.caBundle, injectCaFrom or injectCaFromSecret",
        ),
        (
            json!({ "profileValidator": { "caBundle": MADE.webhook.certificate, "injectCaFrom": "a/b" } }),
            "more than one of caBundle",
        ),
        (
            json!({ "profileValidator": { "injectCaFrom": "a/b", "crtPEM": "", "keyPEM": "" } }),
            "set profileValidator.externalSecret to true",
        ),
        (
            json!({ "proxyInjector": { "selfCertificate": true } }),
            "leave externalSecret, crtPEM",
        ),
        (
            json!({ "proxyInit": { "closeWaitTimeoutSecs": 60 } }),
            "proxyInit.privileged",
        ),
    ] {
        let said = refusal(&helm, &with(supplied(), values));
        assert!(said.contains(named), "{named}: {said}");
    }
}

#[test]
fn the_other_chart_lints() {
    let Some(helm) = helm() else { return };
    let chart = render::charts().join("linkerd-crds");
    if !Path::exists(&chart.join("Chart.yaml")) {
        return;
    }
    let output = std::process::Command::new(&helm)
        .args(["lint", "--strict", "--kube-version", "1.34.4"])
        .arg(&chart)
        .output()
        .expect("helm starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}
