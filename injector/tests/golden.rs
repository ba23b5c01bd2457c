//! Whole objects before and after injection, as files in `golden/`: `NAME.in.yaml` is what the API server, the namespace and the
//! installation say, `NAME.out.yaml` what comes out. `WEFT_UPDATE=1` writes the latter anew; read the difference before it is kept.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how tests fail")]

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod};
use serde::Deserialize;
use serde_json::{Value, json};
use weft_injector::patch::{
    Admission, Annotations, Config, Decision, Kind, Owner, PROXY, Skip, Values, review,
};

/// The case that shows all of what is added; the others show how theirs differs from it.
const PLAIN: &str = "plain";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Case {
    /// What the case is about.
    #[serde(rename = "about")]
    _about: String,
    #[serde(default)]
    namespace_annotations: Annotations,
    #[serde(default)]
    values: Value,
    owner: Option<OwnerOf>,
    object: Value,
}

#[derive(Deserialize)]
struct OwnerOf {
    kind: String,
    name: String,
}

impl Case {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        serde_norway::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    fn config(&self) -> Config {
        Config {
            values: Values::from_yaml(&self.values.to_string()).unwrap(),
            trust_anchors: "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
                .to_owned(),
            control_namespace: "linkerd".to_owned(),
            version: "edge-1.2.3".to_owned(),
        }
    }

    fn review(&self, object: &Value) -> Decision {
        let owner = self.owner.as_ref().map(|owner| Owner {
            kind: owner.kind.clone(),
            name: owner.name.clone(),
        });
        review(&Admission {
            kind: match object["kind"].as_str() {
                Some("Service") => Kind::Service,
                _ => Kind::Pod,
            },
            object,
            namespace: "shop",
            namespace_annotations: &self.namespace_annotations,
            owner: owner.as_ref(),
            config: Ok(&self.config()),
        })
        .unwrap()
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn apply(object: &Value, decision: &Decision) -> Value {
    let patch = serde_json::to_value(&decision.patch).unwrap();
    let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
    let mut patched = object.clone();
    json_patch::patch(&mut patched, &patch).unwrap();
    patched
}

fn containers(object: &mut Value) -> impl Iterator<Item = &mut Value> {
    let spec = object.get_mut("spec").and_then(Value::as_object_mut);
    let lists = spec.into_iter().flat_map(|spec| spec.iter_mut());
    lists
        .filter(|(name, _)| matches!(name.as_str(), "containers" | "initContainers"))
        .filter_map(|(_, list)| list.as_array_mut())
        .flatten()
}

/// The members of an object, or of a list whose items have names.
fn members(value: &Value) -> BTreeMap<String, Value> {
    match value {
        Value::Object(map) => map.clone().into_iter().collect(),
        Value::Array(list) => list
            .iter()
            .map(|item| {
                let mut rest = item.clone();
                let name = rest.as_object_mut().unwrap().remove("name").unwrap();
                (name.as_str().unwrap().to_owned(), rest)
            })
            .collect(),
        other => panic!("{other}"),
    }
}

/// How `value` differs from `plain`: members that are new or changed, and names of those that are missing.
fn against(value: &Value, plain: &Value) -> Value {
    let (own, plain) = (members(value), members(plain));
    let mut changed = serde_json::Map::new();
    for (name, value) in &own {
        match (plain.get(name), name.as_str()) {
            (Some(other), _) if other == value => {}
            (Some(other), "env") => drop(changed.insert(name.clone(), against(value, other))),
            _ => drop(changed.insert(name.clone(), value.clone())),
        }
    }
    let missing: Vec<_> = plain
        .keys()
        .filter(|name| !own.contains_key(*name))
        .collect();
    json!({ "changed": changed, "missing": missing })
}

/// Containers and volumes that are also in the plain case, as their difference from it.
fn shorten(object: &mut Value, plain: &Value) {
    let mut plain = plain.clone();
    let plain_containers: BTreeMap<_, _> = containers(&mut plain)
        .map(|container| (container["name"].clone().to_string(), container.clone()))
        .collect();
    for container in containers(object) {
        let name = container["name"].clone();
        let known = plain_containers.get(&name.to_string());
        if let Some(known) = known.filter(|_| name != "web") {
            *container = json!({ "name": name, "againstPlain": against(container, known) });
        }
    }
    let known = plain["spec"]["volumes"].as_array().unwrap();
    if let Some(volumes) = object["spec"]["volumes"].as_array_mut() {
        for volume in volumes.iter_mut().filter(|volume| known.contains(volume)) {
            *volume = json!({ "name": volume["name"], "asPlain": true });
        }
    }
}

fn rendered(name: &str, decision: &Decision, patched: &Value, plain: &Value) -> String {
    let mut patched = patched.clone();
    if name != PLAIN && decision.skip.is_empty() {
        shorten(&mut patched, plain);
    }
    let skip: Vec<_> = decision.skip.iter().map(|skip| skip.as_str()).collect();
    let notes: Vec<_> = decision.notes.iter().map(|note| note.as_str()).collect();
    let mut out = json!({ "skip": skip, "annotationAt": decision.annotation_at, "notes": notes });
    if decision.patch.is_empty() {
        out["unchanged"] = true.into();
    } else {
        out["object"] = patched;
    }
    serde_norway::to_string(&out).unwrap()
}

/// What holds for every injected pod.
fn check_injected(name: &str, case: &Case, patched: &Value) {
    let typed: Pod =
        serde_json::from_value(patched.clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let spec = typed.spec.unwrap();
    let own: Pod = serde_json::from_value(case.object.clone()).unwrap();
    let own = own.spec.unwrap();
    for container in &own.containers {
        assert!(
            spec.containers.contains(container),
            "{name}: {}",
            container.name
        );
    }
    for container in own.init_containers.iter().flatten() {
        assert!(
            spec.init_containers
                .iter()
                .flatten()
                .any(|c| c == container),
            "{name}"
        );
    }
    let mut names: Vec<_> = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .map(|c| &c.name)
        .collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count, "{name}: a container twice");
    let mut object = patched.clone();
    let env = containers(&mut object)
        .find(|c| c["name"] == PROXY)
        .unwrap()["env"]
        .clone();
    assert_eq!(
        members(&env).len(),
        env.as_array().unwrap().len(),
        "{name}: a variable twice"
    );
}

/// What the kubelet makes of the variables of a container.
fn expanded(env: &Value) -> HashMap<String, String> {
    let mut known = HashMap::new();
    for variable in env.as_array().unwrap() {
        let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
            Some("status.podIP" | "status.podIPs") => "10.0.0.9".to_owned(),
            Some(path) => path.rsplit('.').next().unwrap().to_lowercase(),
            None => expand(variable["value"].as_str().unwrap_or_default(), &known),
        };
        known.insert(variable["name"].as_str().unwrap().to_owned(), value);
    }
    known
}

fn expand(text: &str, known: &HashMap<String, String>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        rest = after;
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
            out.push_str(&known[name]);
            rest = after;
        } else {
            out.push('$');
        }
    }
    out + rest
}

/// The proxy starts with the environment it is given.
fn check_proxy(name: &str, patched: &Value) {
    let mut object = patched.clone();
    let proxy = containers(&mut object)
        .find(|c| c["name"] == PROXY)
        .unwrap();
    let mut env = expanded(&proxy["env"]);
    let anchors = "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS".to_owned();
    let made = rcgen::generate_simple_self_signed(vec!["root".to_owned()]).unwrap();
    env.insert(anchors, made.cert.pem());
    let settings = weft_proxy::settings::Settings::from_env(&env);
    assert_eq!(settings.err(), None, "{name}: the proxy would not start");
}

#[test]
fn golden() {
    let plain = Case::read(&folder().join(format!("{PLAIN}.in.yaml")));
    let plain = apply(&plain.object, &plain.review(&plain.object));
    let update = std::env::var_os("WEFT_UPDATE").is_some();
    let mut seen = 0;
    let mut wrong = Vec::new();
    let mut entries: Vec<_> = std::fs::read_dir(folder())
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        let Some(name) = file.strip_suffix(".in.yaml") else {
            continue;
        };
        seen += 1;
        let case = Case::read(&path);
        let decision = case.review(&case.object);
        let patched = apply(&case.object, &decision);
        if decision.skip.is_empty() {
            check_injected(name, &case, &patched);
            check_proxy(name, &patched);
            let again = case.review(&patched);
            assert!(
                again.skip.contains(&Skip::SidecarExists),
                "{name}: {:?}",
                again.skip
            );
        }
        assert_eq!(
            case.review(&patched).patch,
            [],
            "{name}: a second patch (J09)"
        );
        let text = rendered(name, &decision, &patched, &plain);
        let expected = path.with_file_name(format!("{name}.out.yaml"));
        if update {
            std::fs::write(&expected, &text).unwrap();
        } else if std::fs::read_to_string(&expected).unwrap_or_default() != text {
            wrong.push(format!("{name}:\n{text}"));
        }
    }
    assert!(seen >= 25, "only {seen} cases were found");
    assert!(
        wrong.is_empty(),
        "WEFT_UPDATE=1 writes these anew:\n{}",
        wrong.join("\n")
    );
}

/// The pod that the golden case `name` gives.
fn injected(name: &str) -> Pod {
    let case = Case::read(&folder().join(format!("{name}.in.yaml")));
    let patched = apply(&case.object, &case.review(&case.object));
    serde_json::from_value(patched).unwrap()
}

fn added(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.as_ref().unwrap();
    let all = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers);
    all.filter(|container| container.name.starts_with("linkerd-"))
}

/// What the Pod Security level "restricted" asks of a container.
fn violations(container: &Container) -> Vec<&'static str> {
    let context = container.security_context.clone().unwrap_or_default();
    let capabilities = context.capabilities.unwrap_or_default();
    let dropped = capabilities.drop.unwrap_or_default();
    let profile = context.seccomp_profile.map(|profile| profile.type_);
    let held = [
        (
            "allowPrivilegeEscalation",
            context.allow_privilege_escalation == Some(false),
        ),
        ("privileged", context.privileged != Some(true)),
        ("runAsNonRoot", context.run_as_non_root == Some(true)),
        ("runAsUser", context.run_as_user != Some(0)),
        ("drop", dropped == ["ALL"]),
        ("add", capabilities.add.unwrap_or_default().is_empty()),
        (
            "seccompProfile",
            profile.as_deref() == Some("RuntimeDefault"),
        ),
        (
            "ports",
            container
                .ports
                .iter()
                .flatten()
                .all(|port| port.host_port.is_none()),
        ),
    ];
    held.into_iter()
        .filter(|(_, held)| !held)
        .map(|(rule, _)| rule)
        .collect()
}

#[test]
fn j13_with_a_cni_plugin_all_that_is_added_is_restricted() {
    let pod = injected("j13_cni");
    let names: Vec<_> = added(&pod)
        .map(|container| container.name.as_str())
        .collect();
    assert_eq!(names, ["linkerd-network-validator", PROXY]);
    for container in added(&pod) {
        assert_eq!(violations(container), [""; 0], "{}", container.name);
    }
    for volume in pod.spec.unwrap().volumes.unwrap() {
        assert!(
            volume.empty_dir.is_some() || volume.projected.is_some(),
            "{}",
            volume.name
        );
    }
    // Without one, only the init container asks for more.
    let pod = injected("plain");
    for container in added(&pod) {
        match container.name.as_str() {
            "linkerd-init" => assert_eq!(violations(container), ["add"]),
            name => assert_eq!(violations(container), [""; 0], "{name}"),
        }
    }
}

/// OpenShift's SCC "restricted-v2": every user is in the range of the namespace, or left to it.
#[test]
fn j13_users_are_in_the_range_of_the_namespace() {
    let range = 1_000_810_000..1_000_820_000;
    let pod = injected("j13_openshift");
    for container in added(&pod) {
        let user = container
            .security_context
            .as_ref()
            .and_then(|context| context.run_as_user);
        assert!(
            user.is_none_or(|user| range.contains(&user)),
            "{}: {user:?}",
            container.name
        );
    }
    // Root, or no number at all, is refused for the proxy's user: the rules must know it.
    let case = Case::read(&folder().join("j13_user_of_the_namespace.in.yaml"));
    for bad in ["0", "-1", "", "1000810000/10000", "4294967296"] {
        let annotation = ("config.linkerd.io/proxy-uid".to_owned(), bad.to_owned());
        let case = Case {
            namespace_annotations: [annotation]
                .into_iter()
                .chain(
                    case.namespace_annotations
                        .clone()
                        .into_iter()
                        .filter(|(name, _)| name == "linkerd.io/inject"),
                )
                .collect(),
            object: case.object.clone(),
            owner: None,
            values: Value::Null,
            _about: String::new(),
        };
        let decision = case.review(&case.object);
        assert_eq!(decision.notes.len(), 1, "{bad}");
        let text = serde_json::to_string(&decision.patch).unwrap();
        assert!(text.contains("--proxy-uid=2102"), "{bad}: {text}");
    }
}

/// An autoscaler by CPU gives up on a pod with a container that requests none.
#[test]
fn j15_every_container_of_the_charts_values_requests_cpu() {
    let chart =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/linkerd-control-plane/values.yaml");
    let chart: Value = serde_norway::from_str(&std::fs::read_to_string(chart).unwrap()).unwrap();
    for (native, cni) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut case = Case::read(&folder().join("plain.in.yaml"));
        case.values = chart.clone();
        case.values["proxy"]["nativeSidecar"] = native.into();
        case.values["cniEnabled"] = cni.into();
        let patched = apply(&case.object, &case.review(&case.object));
        let pod: Pod = serde_json::from_value(patched).unwrap();
        assert_eq!(added(&pod).count(), 2);
        for container in added(&pod) {
            let requests = container
                .resources
                .as_ref()
                .and_then(|r| r.requests.as_ref());
            assert!(
                requests.is_some_and(|r| r.contains_key("cpu")),
                "{}",
                container.name
            );
        }
    }
}
