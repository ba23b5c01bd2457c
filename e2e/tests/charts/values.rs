//! Which values the chart of the control plane takes: all of Linkerd's, so that a file of values serves either, and no misspelled
//! one. That what has no effect is said in charts/README.md.

use serde_json::{Map, Value, json};

use super::render::{Objects, charts, helm, refusal, run, supplied, template, with, yaml_file};

/// Values of Linkerd's chart that ours does not name in values.yaml, as people have them (contract 11.4 and Linkerd's own file).
fn linkerds() -> Value {
    let probes = json!({ "livenessProbe": { "timeoutSeconds": 1 }, "readinessProbe": { "timeoutSeconds": 1 } });
    let resources = json!({ "cpu": { "request": "100m", "limit": "" }, "memory": { "request": "50Mi", "limit": "250Mi" } });
    let image = json!({ "name": "other/image", "version": "v1", "pullPolicy": "" });
    with(
        json!({
            "controlPlaneTracing": false, "controlPlaneTracingNamespace": "linkerd-jaeger", "enablePprof": true, "enablePSP": false,
            "kubeAPI": { "clientQPS": 100, "clientBurst": 200 }, "controllerResources": resources,
            "disableHeartBeat": false, "heartbeatSchedule": "0 0 * * *", "heartbeatResources": resources, "heartbeat": {},
            "spValidator": probes, "spValidatorResources": resources, "partials": {}, "global": { "imageRegistry": "" },
            "identity": { "experimentalEnv": [{ "name": "A", "value": "b" }] },
            "proxyInjector": { "experimentalEnv": [{ "name": "A", "value": "b" }] },
            "policyController": { "image": image, "resources": resources, "logLevel": "debug" },
            "controller": { "tracing": { "enable": false } },
            "proxy": {
                "cores": 2, "podInboundPorts": "80", "capabilities": null, "saMountPath": null, "accessLog": "apache",
                "tracing": { "traceServiceName": "x", "labels": {}, "enable": false }, "logLevel": "warn,linkerd=info,hickory=error",
            },
            "proxyInit": {
                "image": image, "logLevel": "", "logFormat": "", "runAsGroup": 65534, "capabilities": null, "saMountPath": null,
                "xtMountPath": { "name": "linkerd-proxy-init-xtables-lock", "mountPath": "/run" },
            },
            "networkValidator": { "logLevel": "debug", "logFormat": "plain", "enableSecurityContext": true },
            "podMonitor": { "serviceMirror": { "enabled": true } },
        }),
        json!({ "identity": probes, "destinationController": probes, "policyController": probes, "proxyInjector": probes }),
    )
}

#[test]
fn c11_values_of_linkerd_are_taken_and_kept() {
    let Some(helm) = helm() else { return };
    let objects = Objects::render(&helm, &with(supplied(), linkerds()));
    let config: Value = serde_norway::from_str(&objects.config()).expect("YAML");
    assert_eq!(config["kubeAPI"]["clientQPS"], 100);
    assert_eq!(config["proxy"]["podInboundPorts"], "80");
    for name in ["linkerd-identity", "linkerd-proxy-injector"] {
        let added = json!([{ "name": "A", "value": "b" }]);
        let deployment = objects.get("Deployment", name);
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["env"], added, "{name}");
    }
}

fn schema() -> Value {
    let file = charts().join("linkerd-control-plane/values.schema.json");
    let text = std::fs::read_to_string(file).expect("the schema");
    serde_json::from_str(&text).expect("JSON")
}

/// What the schema has at a path of values; none where it lets in anything.
fn at<'a>(schema: &'a Value, path: &[String]) -> Option<&'a Map<String, Value>> {
    let follow = |node: &'a Value| match node["$ref"].as_str() {
        Some(target) => schema
            .pointer(target.trim_start_matches('#'))
            .expect(target),
        None => node,
    };
    let mut node = schema;
    for step in path {
        node = follow(node["properties"].get(step)?);
    }
    node.as_object()
}

/// The paths of values.yaml, parents first, with their values.
fn paths(values: &Value, above: &[String], found: &mut Vec<(Vec<String>, Value)>) {
    for (name, value) in values.as_object().into_iter().flatten() {
        let path: Vec<String> = above.iter().chain([name]).cloned().collect();
        found.push((path.clone(), value.clone()));
        paths(value, &path, found);
    }
}

fn given() -> Vec<(Vec<String>, Value)> {
    let mut found = Vec::new();
    paths(
        &yaml_file("linkerd-control-plane/values.yaml"),
        &[],
        &mut found,
    );
    found
}

/// `value` at a path.
fn nested(path: &[String], value: Value) -> Value {
    path.iter()
        .rev()
        .fold(value, |value, name| json!({ name: value }))
}

/// Where any name may stand: labels, selectors and the like, and settings that are passed on by their names.
const FREE: [&str; 11] = [
    "nodeSelector",
    "nodeAffinity",
    "podAnnotations",
    "podLabels",
    "commonLabels",
    "labels",
    "namespaceSelector",
    "objectSelector",
    "meshedHttp2ClientProtobuf",
    "tracing",
    "global",
];

#[test]
fn a_misspelled_name_is_refused_wherever_it_stands() {
    let Some(helm) = helm() else { return };
    let mut places = vec![Vec::new()];
    places.extend(given().into_iter().filter_map(|(path, value)| {
        let free = path.iter().any(|name| FREE.contains(&name.as_str()))
            || path.starts_with(&["proxy".to_owned(), "inbound".to_owned()])
            || path.starts_with(&["proxy".to_owned(), "outbound".to_owned()]);
        (value.is_object() && !free).then_some(path)
    }));
    assert!(places.len() > 40, "{places:?}");
    // Helm names all that is wrong.
    let wrong = places.iter().fold(supplied(), |values, place| {
        let named: Vec<String> = place
            .iter()
            .cloned()
            .chain(["mispelled".to_owned()])
            .collect();
        with(values, nested(&named, json!(true)))
    });
    let said = refusal(&helm, &wrong);
    for place in places {
        let pointer: String = place.iter().map(|name| format!("/{name}")).collect();
        let line = format!("at '{pointer}': additional properties 'mispelled' not allowed");
        assert!(said.contains(&line), "{pointer}: {said}");
    }
    let said = refusal(
        &helm,
        &with(
            supplied(),
            json!({ "proxy": { "defaultInboundPolcy": "deny" } }),
        ),
    );
    assert!(
        said.contains("at '/proxy': additional properties 'defaultInboundPolcy'"),
        "{said}"
    );
}

/// `null` takes a default away: what cannot be without is refused by its name, and everything else can.
#[test]
fn a_value_that_is_taken_away_is_missed_by_name() {
    let Some(helm) = helm() else { return };
    let schema = schema();
    let required = |path: &[String]| {
        let (name, parent) = path.split_last().expect("a path");
        at(&schema, parent)
            .and_then(|parent| parent.get("required")?.as_array())
            .is_some_and(|names| names.iter().any(|required| required == name))
    };
    let mut optional = 0;
    for (path, value) in given() {
        let number = value.is_number() || value.is_boolean();
        let settings = path
            .first()
            .is_some_and(|name| name != "destinationController")
            && !path.iter().any(|name| {
                ["inbound", "outbound"].contains(&name.as_str()) || name.ends_with("Probe")
            });
        let free = path
            .iter()
            .any(|name| FREE.contains(&name.as_str()) || name == "deploymentStrategy");
        // An absent number would be 0: the user root, any port.
        assert!(
            !number || required(&path) || free || !settings,
            "{path:?} is not required"
        );
        if required(&path) || path.len() > 2 {
            continue;
        }
        optional += 1;
        let output = run(
            &helm,
            &["template", "weft"],
            &with(supplied(), nested(&path, Value::Null)),
            &[],
        );
        let said = String::from_utf8_lossy(&output.stderr);
        // A sentence of the chart, and no error in a template.
        let sentence = said.starts_with("Error: execution error at");
        assert!(output.status.success() || sentence, "{path:?}: {said}");
    }
    assert!(optional > 40, "{optional}");
    for (path, named) in [
        (
            json!({ "proxy": { "runtime": null } }),
            "at '/proxy': missing property 'runtime'",
        ),
        (
            json!({ "proxy": { "uid": null } }),
            "at '/proxy': missing property 'uid'",
        ),
        (
            json!({ "proxy": { "ports": { "inbound": null } } }),
            "at '/proxy/ports': missing property 'inbound'",
        ),
        (
            json!({ "egress": null }),
            "at '': missing property 'egress'",
        ),
    ] {
        let said = refusal(&helm, &with(supplied(), path));
        assert!(said.contains(named), "{named}: {said}");
    }
}

/// A file of values that somebody brings along must not lose a setting in silence.
#[test]
fn the_readme_names_every_value_without_effect() {
    fn unused(node: &Value, name: &str, found: &mut Vec<String>) {
        if node["$ref"] == "#/definitions/unused" {
            found.push(name.to_owned());
        }
        for (below, node) in node["properties"].as_object().into_iter().flatten() {
            let path = if name.is_empty() {
                below.clone()
            } else {
                format!("{name}.{below}")
            };
            unused(node, &path, found);
        }
    }
    let mut found = Vec::new();
    unused(&schema(), "", &mut found);
    assert!(found.len() > 20, "{found:?}");
    let readme = std::fs::read_to_string(charts().join("README.md")).expect("README.md");
    let (_, table) = readme
        .split_once("## Values of Linkerd that differ")
        .expect("the table");
    for path in found {
        assert!(
            table.contains(&format!("`{path}`")),
            "{path} is not in the table of charts/README.md"
        );
    }
}

#[test]
fn c11_the_level_of_the_proxys_log_is_one_that_it_reads() {
    let Some(helm) = helm() else { return };
    let values = |level: &str| with(supplied(), json!({ "proxy": { "logLevel": level } }));
    for level in [
        "",
        "off",
        "info",
        "WARN",
        "2",
        "warn,linkerd=info,hickory=error",
        "linkerd",
        "warn, linkerd=debug",
        "linkerd[name]=debug",
        "linkerd[{name=\"outbound\"}]=debug",
        "warn,[{headers}]=off,[{request}]=off",
    ] {
        template(&helm, &values(level));
        assert!(weft_runtime::log::check(level).is_ok(), "{level}");
    }
    for level in [
        "linkerd=verbose",
        "warn,linkerd=infoo",
        "linkerd=",
        "linkerd=info=debug",
        "linkerd[name=debug",
        "linkerd_app[a{b,c}]=trace",
    ] {
        let said = refusal(&helm, &values(level));
        assert!(said.contains("/proxy/logLevel"), "{level}: {said}");
    }
    assert!(weft_runtime::log::check("linkerd=verbose").is_err());
}

#[test]
fn c11_ports_of_the_proxy_are_its_own() {
    let Some(helm) = helm() else { return };
    for (ports, named) in [
        (
            json!({ "inbound": 4191 }),
            "proxy.ports.inbound is 4191, which proxy.ports.admin has already",
        ),
        (
            json!({ "admin": 5000, "outbound": 5000 }),
            "proxy.ports.outbound is 5000, which proxy.ports.admin",
        ),
        (
            json!({ "admin": 9990 }),
            "proxy.ports.admin is 9990, which linkerd-identity has already",
        ),
        (
            json!({ "inbound": 8443 }),
            "proxy.ports.inbound is 8443, which linkerd-destination",
        ),
    ] {
        let said = refusal(
            &helm,
            &with(supplied(), json!({ "proxy": { "ports": ports } })),
        );
        assert!(said.contains(named), "{named}: {said}");
    }
    template(
        &helm,
        &with(
            supplied(),
            json!({ "proxy": { "ports": { "inbound": 5143, "outbound": 5140, "admin": 5191 } } }),
        ),
    );
}

/// The image that images/build makes is the one that is asked for, by a name with a host: without one, Kubernetes would look for it in
/// a public registry.
#[test]
fn the_image_of_the_guide_is_that_of_the_chart() {
    let root = charts().join("..");
    let values = yaml_file("linkerd-control-plane/values.yaml");
    let version = yaml_file("linkerd-control-plane/Chart.yaml")["appVersion"].clone();
    let image = format!(
        "{}:{}",
        values["controllerImage"].as_str().expect("a name"),
        version.as_str().expect("a version")
    );
    assert_eq!(values["proxy"]["image"]["name"], values["controllerImage"]);
    let host = image.split('/').next().expect("a host");
    assert!(host.ends_with(".test"), "{image}");
    let sample = std::fs::read_to_string(root.join("docs/sample.yaml")).expect("the sample");
    for line in sample
        .lines()
        .filter(|line| line.trim().starts_with("image:"))
    {
        assert_eq!(line.trim(), format!("image: {image}"));
    }
    let build = std::process::Command::new(root.join("images/build"))
        .arg("--help")
        .output();
    let help = String::from_utf8(build.expect("images/build starts").stdout).expect("UTF-8");
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains(&format!("(default {image})")), "{help}");
}

/// The first command of the guide makes what the third one takes.
#[test]
fn the_certificates_of_the_guide_are_taken() {
    let Some(helm) = helm() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let made = std::process::Command::new(charts().join("certificates"))
        .arg(folder.path())
        .output()
        .expect("charts/certificates starts");
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
    let file = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect(name);
    let values = json!({
        "identityTrustAnchorsPEM": file("root.crt"),
        "identity": { "issuer": { "tls": { "crtPEM": file("issuer.crt"), "keyPEM": file("issuer.key") } } },
    });
    Objects::render(&helm, &values).get("Secret", "linkerd-identity-issuer");
    let again = std::process::Command::new(charts().join("certificates"))
        .arg(folder.path())
        .output()
        .expect("charts/certificates starts");
    assert!(!again.status.success(), "a root is never written over");
    assert_eq!(file("root.crt"), values["identityTrustAnchorsPEM"]);
}
