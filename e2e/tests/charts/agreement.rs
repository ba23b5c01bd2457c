//! Whether the chart and the programs agree: they take the arguments and the environment that it gives them, and its proxies are
//! those that the injector makes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use clap::Parser;
use serde_json::{Value, json};
use weft_injector::patch::{self, Admission, Annotations, Config, Kind, Values};
use weft_proxy::settings::Settings;

use super::render::{MADE, NAMESPACE, Objects, container, containers, helm, list, pod, text};
use super::sets;

fn deployments(objects: &Objects) -> impl Iterator<Item = &Value> {
    objects.of_kind("Deployment")
}

#[test]
fn the_programs_take_their_arguments() {
    let Some(helm) = helm() else { return };
    for (name, values) in sets() {
        let objects = Objects::render(&helm, &values);
        for container in deployments(&objects).flat_map(|deployment| containers(pod(deployment))) {
            let words = list(&container["command"])
                .chain(list(&container["args"]))
                .map(text);
            let words: Vec<&str> = words.collect();
            if words.first() == Some(&"/usr/bin/weft-proxy") {
                assert_eq!(words.len(), 1, "{name}");
                continue;
            }
            if let Err(error) = weft_cli::Cli::try_parse_from(&words) {
                panic!("{name}: {words:?}: {error}");
            }
        }
    }
}

/// The environment as the kubelet gives it: the pod's fields filled in, `$(NAME)` replaced.
fn environment(container: &Value) -> HashMap<String, String> {
    let mut environment: HashMap<String, String> = HashMap::new();
    for variable in list(&container["env"]) {
        let from = &variable["valueFrom"];
        let value = if from["configMapKeyRef"].is_object() {
            MADE.root.certificate.clone()
        } else if from["fieldRef"]["fieldPath"] == "status.podIPs" {
            "10.0.0.1".to_owned()
        } else if from.is_object() {
            "name".to_owned()
        } else {
            let given = text(&variable["value"]).to_owned();
            environment.iter().fold(given, |text, (name, value)| {
                text.replace(&format!("$({name})"), value)
            })
        };
        assert!(
            !value.contains("$("),
            "{variable}: names no variable before it"
        );
        environment.insert(text(&variable["name"]).to_owned(), value);
    }
    environment
}

#[test]
fn the_proxy_takes_its_environment() {
    let Some(helm) = helm() else { return };
    for (name, values) in sets() {
        let objects = Objects::render(&helm, &values);
        for deployment in deployments(&objects) {
            let proxy = environment(container(pod(deployment), "linkerd-proxy"));
            if let Err(errors) = Settings::from_env(&proxy) {
                panic!("{name}: {errors:?}");
            }
        }
    }
}

/// The containers that the injector adds to a pod of the namespace of the control plane, by the values of the render.
fn injected(objects: &Objects, pod: &Value) -> HashMap<String, Value> {
    let config = Config {
        values: Values::from_yaml(&objects.config()).expect("the injector reads the values"),
        trust_anchors: MADE.root.certificate.clone(),
        control_namespace: NAMESPACE.to_owned(),
        version: "0".to_owned(),
    };
    let decision = patch::review(&Admission {
        kind: Kind::Pod,
        object: pod,
        namespace: NAMESPACE,
        namespace_annotations: &Annotations::from([(
            "linkerd.io/inject".to_owned(),
            "enabled".to_owned(),
        )]),
        owner: None,
        config: Ok(&config),
    })
    .expect("not refused");
    assert!(decision.skip.is_empty(), "{:?}", decision.skip);
    let operations = serde_json::to_value(&decision.patch).expect("JSON");
    list(&operations)
        .map(|operation| &operation["value"])
        .filter(|value| value["image"].is_string())
        .map(|value| (text(&value["name"]).to_owned(), value.clone()))
        .collect()
}

/// What the chart does differently on purpose (contract 11.3); everything else is to be as the injector has it.
fn without_differences(mut container: Value) -> Value {
    for fixed in ["startupProbe", "lifecycle"] {
        container
            .as_object_mut()
            .expect("a container")
            .remove(fixed);
    }
    let differs = [
        "IDENTITY_SVC_ADDR",
        "DESTINATION_SVC_ADDR",
        "POLICY_SVC_ADDR",
        "IDENTITY_TRUST_ANCHORS",
        "INBOUND_PORTS",
        "INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION",
        "INBOUND_DEFAULT_POLICY",
    ];
    let variables = container.get_mut("env").and_then(Value::as_array_mut);
    for variable in variables.into_iter().flatten() {
        let name = text(&variable["name"])
            .trim_start_matches("LINKERD2_PROXY_")
            .to_owned();
        if differs.contains(&name.as_str()) {
            *variable = json!({ "name": name });
        }
    }
    let api_server = |arg: &Value| text(arg).starts_with("--outbound-ports-to-ignore=");
    if let Some(args) = container.get_mut("args").and_then(Value::as_array_mut) {
        args.retain(|arg| !api_server(arg));
    }
    container
}

/// The fields, and variables by their names, that are not the same.
fn difference(ours: &Value, theirs: &Value) -> Vec<String> {
    let fields = |container: &Value| -> BTreeMap<String, String> {
        let fields = container.as_object().expect("a container");
        let variables = list(&container["env"])
            .enumerate()
            .map(|(index, v)| (format!("env {index}"), v.to_string()));
        let others = fields.iter().filter(|(key, _)| *key != "env");
        others
            .map(|(key, value)| (key.clone(), value.to_string()))
            .chain(variables)
            .collect()
    };
    let (ours, theirs) = (fields(ours), fields(theirs));
    let all: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    all.into_iter()
        .filter(|key| ours.get(*key) != theirs.get(*key))
        .map(|key| format!("{key}: {:?} and {:?}", ours.get(key), theirs.get(key)))
        .collect()
}

#[test]
fn proxies_of_the_control_plane_are_those_of_the_injector() {
    let Some(helm) = helm() else { return };
    for (name, values) in sets() {
        // That is for workloads; the control plane always has tokens of its own.
        if name == "token of the API server" {
            continue;
        }
        let objects = Objects::render(&helm, &values);
        for deployment in deployments(&objects) {
            let spec = pod(deployment);
            let bare = json!({
                "metadata": { "name": "x" },
                "spec": { "serviceAccountName": spec["serviceAccountName"], "containers": [{ "name": "app", "image": "app" }] },
            });
            for (added, theirs) in injected(&objects, &bare) {
                let mut theirs = without_differences(theirs);
                let ours = without_differences(container(spec, &added).clone());
                if deployment["metadata"]["name"] == "linkerd-identity" && added == "linkerd-proxy"
                {
                    // Never an init container there.
                    theirs
                        .as_object_mut()
                        .expect("a container")
                        .remove("restartPolicy");
                }
                let differ = difference(&ours, &theirs);
                assert!(
                    differ.is_empty(),
                    "{name}: {} {added}: {differ:#?}",
                    deployment["metadata"]["name"]
                );
            }
        }
    }
}
