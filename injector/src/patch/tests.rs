//! Tests of the decision table, and properties over any pod and any JSON; whole pods are in tests/golden.rs.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn config() -> Config {
    Config {
        trust_anchors: "anchors".to_owned(),
        control_namespace: "linkerd".to_owned(),
        version: "1".to_owned(),
        ..Config::default()
    }
}

fn annotations(inject: Option<&str>) -> Annotations {
    let pair = inject.map(|value| (INJECT.to_owned(), value.to_owned()));
    pair.into_iter().collect()
}

fn decide(
    object: &Value,
    namespace: &Annotations,
    kind: Kind,
    config: &Config,
) -> Result<Decision, Refusal> {
    review(&Admission {
        kind,
        object,
        namespace: "shop",
        namespace_annotations: namespace,
        owner: None,
        config: Ok(config),
    })
}

fn apply(object: &Value, decision: &Decision) -> Value {
    let patch = serde_json::to_value(&decision.patch).unwrap();
    let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
    let mut patched = object.clone();
    json_patch::patch(&mut patched, &patch).unwrap();
    patched
}

#[test]
fn decision_table() {
    use Skip::*;
    type Row = (
        Option<&'static str>,
        Option<&'static str>,
        Option<Skip>,
        &'static str,
    );
    let table: &[Row] = &[
        (Some("enabled"), None, None, "namespace"),
        (Some("enabled"), Some(""), None, "namespace"),
        (Some("enabled"), Some("enabled"), None, "workload"),
        (Some("enabled"), Some("ingress"), None, "workload"),
        (Some("ingress"), None, None, "namespace"),
        (
            Some("enabled"),
            Some("disabled"),
            Some(Disabled),
            "workload",
        ),
        (
            Some("ingress"),
            Some("disabled"),
            Some(Disabled),
            "workload",
        ),
        (Some("disabled"), Some("enabled"), None, "workload"),
        (None, Some("ingress"), None, "workload"),
        (Some(""), Some("enabled"), None, "workload"),
        (Some("disabled"), Some("disabled"), Some(NotEnabled), ""),
        (Some("disabled"), None, Some(NotEnabled), ""),
        (None, None, Some(NotEnabled), ""),
        (None, Some("disabled"), Some(NotEnabled), ""),
        (
            Some("Enabled"),
            Some("enabled"),
            Some(InvalidNamespaceAnnotation),
            "namespace",
        ),
        (
            Some("x"),
            Some("y"),
            Some(InvalidNamespaceAnnotation),
            "namespace",
        ),
        (
            Some("enabled"),
            Some("true"),
            Some(InvalidPodAnnotation),
            "workload",
        ),
        (
            None,
            Some(" enabled"),
            Some(InvalidPodAnnotation),
            "workload",
        ),
    ];
    for (namespace, pod, skip, at) in table {
        let object = json!({ "metadata": { "annotations": annotations(*pod) }, "spec": { "containers": [] } });
        let decision = decide(&object, &annotations(*namespace), Kind::Pod, &config()).unwrap();
        let case = format!("{namespace:?} {pod:?}");
        assert_eq!(
            decision.skip,
            skip.iter().copied().collect::<Vec<_>>(),
            "{case}"
        );
        assert_eq!(decision.annotation_at, *at, "{case}");
    }
}

#[test]
fn all_reasons_are_collected() {
    let object = json!({
        "metadata": {},
        "spec": { "hostNetwork": true, "os": { "name": "windows" }, "containers": [{ "name": PROXY }] },
    });
    let mut config = config();
    config.values.identity.service_account_token_projection = false;
    let decision = decide(&object, &Annotations::new(), Kind::Pod, &config).unwrap();
    let reasons: Vec<_> = decision.skip.iter().map(|skip| skip.as_str()).collect();
    assert_eq!(
        reasons.join(","),
        "injection_enable_annotation_absent,host_network_enabled,sidecar_already_exists,unsupported_resource,\
         disabled_automount_service_account_token_account"
    );
}

#[test]
fn a_malformed_pod_is_refused_by_its_field() {
    let object = json!({ "spec": { "containers": [{ "name": 1 }] } });
    let refusal = decide(&object, &annotations(Some("enabled")), Kind::Pod, &config()).unwrap_err();
    assert!(
        refusal.to_string().contains("spec.containers[0].name"),
        "{refusal}"
    );
}

#[test]
fn names_of_metric_labels() {
    let label = |name| Annotation::label(name);
    assert_eq!(
        label("config.linkerd.io/proxy-cpu-limit"),
        "proxy_cpu_limit"
    );
    let legal = |name: &str| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    for annotation in annotations::ANNOTATIONS {
        assert!(legal(&label(annotation.name)), "{}", annotation.name);
    }
}

/// A pod's decision with these annotations and this member of its spec.
fn decide_pod(of_pod: &[(&str, &str)], spec: (&str, Value)) -> Decision {
    let of_pod: Annotations = of_pod
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let mut object = json!({ "metadata": { "annotations": of_pod }, "spec": { "containers": [{ "name": "web" }] } });
    object["spec"][spec.0] = spec.1;
    decide(&object, &annotations(Some("enabled")), Kind::Pod, &config()).unwrap()
}

/// Kubernetes refuses pods whose containers sleep for longer.
#[test]
fn the_wait_before_exit_fits_into_the_grace_period() {
    for (wanted, grace, sleep, noted) in [
        ("30", Value::Null, Some(30), false),
        ("31", Value::Null, Some(30), true),
        ("45", json!(45), Some(45), false),
        ("46", json!(45), Some(45), true),
        (
            "4294967295",
            json!(i64::MAX),
            Some(4_294_967_295_i64),
            false,
        ),
        ("10", json!(0), None, true),
        ("10", json!(-1), None, true),
        ("0", json!(0), None, false),
    ] {
        let wait = "config.alpha.linkerd.io/proxy-wait-before-exit-seconds";
        let decision = decide_pod(
            &[(wait, wanted)],
            ("terminationGracePeriodSeconds", grace.clone()),
        );
        let case = format!("{wanted} of {grace}: {:?}", decision.notes);
        let patch = serde_json::to_value(&decision.patch).unwrap();
        let mut operations = patch.as_array().unwrap().iter();
        let proxy = operations
            .find(|operation| operation["value"]["name"] == PROXY)
            .unwrap();
        let slept = &proxy["value"]["lifecycle"]["preStop"]["sleep"]["seconds"];
        assert_eq!(slept.as_i64(), sleep, "{case}");
        assert_eq!(decision.notes.len(), usize::from(noted), "{case}");
        let said = decision.notes.iter().all(|note| {
            note.as_str().contains(wait) && note.as_str().contains("terminationGracePeriodSeconds")
        });
        assert!(said, "{case}");
    }
}

#[test]
fn what_is_switched_off_needs_no_effect() {
    let decision = decide_pod(
        &[
            (INJECT, "enabled"),
            ("config.linkerd.io/access-log", "none"),
            ("config.linkerd.io/enable-gateway", "false"),
            ("config.linkerd.io/enable-debug-sidecar", "false"),
            ("config.linkerd.io/proxy-metrics-hostname-labels", "false"),
        ],
        ("hostNetwork", json!(false)),
    );
    assert_eq!(decision.notes, []);
}

/// What is not in effect is not in the metrics either.
#[test]
fn a_debug_sidecar_without_image_is_no_setting() {
    let debug = "config.linkerd.io/enable-debug-sidecar";
    let decision = decide_pod(&[(debug, "true")], ("hostNetwork", json!(false)));
    assert!(decision.settings.is_empty(), "{:?}", decision.settings);
    let note = decision.notes[0].as_str();
    for part in [
        debug,
        "debugContainer.image.name",
        "debugContainer.image.version",
    ] {
        assert!(note.contains(part), "{note}");
    }
}

/// Prometheus refuses all of a page with a label that is there twice.
#[test]
fn names_of_one_setting_are_one_label() {
    let decision = decide_pod(
        &[
            ("config.linkerd.io/proxy-enable-native-sidecar", "false"),
            (
                "config.alpha.linkerd.io/proxy-enable-native-sidecar",
                "true",
            ),
            ("config.beta.linkerd.io/proxy-enable-native-sidecar", "true"),
        ],
        ("hostNetwork", json!(false)),
    );
    let labels: Vec<_> = decision.settings.into_iter().collect();
    let expected = ("proxy_enable_native_sidecar", "false");
    assert_eq!(labels, [(expected.0.to_owned(), expected.1.to_owned())]);
}

/// A proxy does not start with a collector it cannot know, so the values are refused instead.
#[test]
fn half_a_collector_of_traces_is_refused() {
    for (collector, refused) in [
        ("{endpoint: 'c.t:4317'}", Some("meshIdentity")),
        (
            "{endpoint: 'c.t:4317', meshIdentity: {serviceAccountName: c}}",
            Some("meshIdentity"),
        ),
        (
            "{endpoint: c.t, meshIdentity: {serviceAccountName: c, namespace: t}}",
            Some("collector.endpoint"),
        ),
        (
            "{endpoint: 'c.t:4317', meshIdentity: {serviceAccountName: c, namespace: t}}",
            None,
        ),
        ("{endpoint: '127.0.0.1:4317'}", None),
        ("{}", None),
    ] {
        let values = format!("proxy: {{tracing: {{enabled: true, collector: {collector}}}}}");
        let config = Config {
            values: Values::from_yaml(&values).unwrap(),
            ..config()
        };
        let pod = json!({ "spec": { "containers": [{ "name": "web" }] } });
        let decided = decide(&pod, &annotations(Some("enabled")), Kind::Pod, &config);
        let said = decided.err().map(|refusal| refusal.to_string());
        let as_expected = match (&said, refused) {
            (Some(said), Some(part)) => said.contains(part),
            (said, refused) => said.is_none() && refused.is_none(),
        };
        assert!(as_expected, "{collector}: {said:?}");
    }
}

/// Values as people and machines write them.
fn any_value() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        prop::sample::select(vec![
            "enabled",
            "disabled",
            "true",
            "false",
            "0",
            "1",
            "65535",
            "99999",
            "10s",
            "1m30s",
            "100m",
            "1Gi",
            "json",
            "debug",
            "deny",
            "Always",
            "web,8080,1-65535",
            "10.0.0.0/8",
            "0.5",
            "[{\"name\":\"A\",\"value\":\"$(B)\"}]",
            "[{}]",
            "null",
        ])
        .prop_map(str::to_owned),
        ".{0,20}",
    ]
}

fn any_annotations() -> impl Strategy<Value = Annotations> {
    let names: Vec<&str> = annotations::ANNOTATIONS
        .iter()
        .map(|annotation| annotation.name)
        .chain([
            "config.linkerd.io/unknown",
            "a~b/c",
            "resource.opentelemetry.io/k",
        ])
        .collect();
    let name = prop::sample::select(names).prop_map(str::to_owned);
    prop::collection::btree_map(name, any_value(), 0..6)
}

fn any_containers() -> impl Strategy<Value = Value> {
    let port = prop_oneof![Just(0), 1..70_000i32, Just(-1), Just(3306)];
    let container = (
        "[a-z]{1,5}",
        prop::collection::vec(port, 0..3),
        prop::option::of("[a-z]{1,5}"),
    );
    let container = container.prop_map(|(name, ports, port_name)| {
        let ports: Vec<_> = ports
            .into_iter()
            .map(|port| json!({ "containerPort": port, "name": port_name }))
            .collect();
        json!({ "name": name, "image": "i", "ports": ports })
    });
    prop::option::of(prop::collection::vec(container, 0..3)).prop_map(|list| json!(list))
}

fn any_pod() -> impl Strategy<Value = Value> {
    let metadata = prop::option::of((prop::option::of(any_annotations()), any::<bool>()));
    let spec = (
        any_containers(),
        any_containers(),
        any::<bool>(),
        any::<bool>(),
    );
    (metadata, spec).prop_map(|(metadata, (containers, inits, volumes, host))| {
        let metadata = metadata.map(|(annotations, labels)| {
            json!({ "annotations": annotations, "labels": labels.then(|| json!({ "a": "b" })) })
        });
        json!({
            "metadata": metadata,
            "spec": {
                "containers": containers, "initContainers": inits, "hostNetwork": host.then_some(false),
                "volumes": volumes.then(|| json!([{ "name": "v", "emptyDir": {} }])),
            },
        })
    })
}

/// Any JSON, of the shape of a pod here and there.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        prop::sample::select(vec![
            "metadata",
            "spec",
            "annotations",
            "labels",
            "containers",
            "initContainers",
            "volumes",
            "ports",
            "name",
            "env",
            "securityContext",
            "containerPort",
            "targetPort",
            "port",
            "hostNetwork",
            "image",
        ])
        .prop_map(str::to_owned),
        "[a-z/~]{0,4}",
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..5).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #[test]
    fn j09_a_patched_pod_is_left_alone(
        pod in any_pod(),
        namespace in any_annotations(),
        inject in any::<bool>(),
        native in any::<bool>(),
        wait in any::<bool>(),
        cni in any::<bool>(),
    ) {
        let mut namespace = namespace;
        if inject {
            namespace.insert(INJECT.to_owned(), "enabled".to_owned());
        }
        let mut config = config();
        config.values.proxy.native_sidecar = native;
        config.values.proxy.wait = wait;
        config.values.cni_enabled = cni;
        let decision = decide(&pod, &namespace, Kind::Pod, &config).unwrap();
        let patched = apply(&pod, &decision);
        let typed: Pod = serde_json::from_value(patched.clone()).unwrap();
        let again = decide(&patched, &namespace, Kind::Pod, &config).unwrap();
        prop_assert_eq!(&again.patch, &[]);
        if inject {
            prop_assert_eq!(&decision.skip, &[]);
            prop_assert_eq!(again.skip, vec![Skip::SidecarExists]);
            prop_assert!(again.injected_before);
            let spec = typed.spec.unwrap();
            let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
            prop_assert_eq!(all.filter(|container| container.name == PROXY).count(), 1);
        }
    }

    #[test]
    fn no_json_panics(object in any_json(), namespace in any_annotations(), service in any::<bool>()) {
        let mut namespace = namespace;
        namespace.insert(INJECT.to_owned(), "enabled".to_owned());
        let kind = if service { Kind::Service } else { Kind::Pod };
        if let Ok(decision) = decide(&object, &namespace, kind, &config()) {
            let patched = if object.is_object() { apply(&object, &decision) } else { return Ok(()) };
            prop_assert_eq!(decide(&patched, &namespace, kind, &config()).unwrap().patch, vec![]);
        }
    }

    #[test]
    fn no_values_panic(values in any_json()) {
        let read = Values::from_yaml(&values.to_string());
        if let Ok(values) = read {
            let config = Config { values, ..config() };
            let pod = json!({ "spec": { "containers": [{ "name": "a" }] } });
            let _ = decide(&pod, &annotations(Some("enabled")), Kind::Pod, &config);
        }
    }
}
