//! Where each value of the chart lands in an injected pod (case C11): `values/chart.yaml` has a line for each value of the chart that is
//! about workloads, with another value for it and the places that change, all of them. `WEFT_UPDATE=1` writes the places anew; read the
//! difference before it is kept.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how tests fail")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weft_injector::patch::{Admission, Annotations, Config, Kind, Values, review};

/// Values of the chart that are about workloads, by their first part.
const OF_WORKLOADS: [&str; 9] = [
    "clusterDomain",
    "identityTrustDomain",
    "clusterNetworks",
    "disableIPv6",
    "cniEnabled",
    "proxy",
    "proxyInit",
    "networkValidator",
    "debugContainer",
];

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// The value, its parts joined by dots.
    value: String,
    /// What it is set to.
    to: Value,
    /// Values without which this one has no effect.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    with: Value,
    /// What changes.
    changes: BTreeSet<String>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/values")
}

fn chart() -> Value {
    let file = folder().join("../../../charts/linkerd-control-plane/values.yaml");
    serde_norway::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// The values that are no maps, by their names.
fn leaves(path: &str, value: &Value, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                leaves(&path, value, found);
            }
        }
        value => drop(found.insert(path.to_owned(), value.clone())),
    }
}

fn merge(base: &mut Value, more: &Value) {
    match (base, more) {
        (base @ Value::Object(_), Value::Object(more)) => {
            for (key, value) in more {
                merge(&mut base[key], value);
            }
        }
        (_, Value::Null) => {}
        (base, more) => *base = more.clone(),
    }
}

/// The pod as it is injected by these values, with a port, a debug container and an init container.
fn injected(values: &Value) -> Value {
    let config = Config {
        values: Values::from_yaml(&values.to_string()).unwrap(),
        trust_anchors: "anchors".to_owned(),
        control_namespace: "linkerd".to_owned(),
        version: "1".to_owned(),
    };
    let pod = json!({
        "metadata": { "annotations": { "linkerd.io/inject": "enabled", "config.linkerd.io/enable-debug-sidecar": "true" } },
        "spec": { "containers": [{ "name": "app", "ports": [{ "containerPort": 80 }] }] },
    });
    let decision = review(&Admission {
        kind: Kind::Pod,
        object: &pod,
        namespace: "shop",
        namespace_annotations: &Annotations::new(),
        owner: None,
        config: Ok(&config),
    })
    .unwrap();
    assert!(decision.skip.is_empty());
    let patch = serde_json::to_value(&decision.patch).unwrap();
    let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
    let mut patched = pod;
    json_patch::patch(&mut patched, &patch).unwrap();
    patched
}

/// Where two pods differ; the items of lists by their names.
fn differences(path: &str, one: &Value, other: &Value, found: &mut BTreeSet<String>) {
    if one == other {
        return;
    }
    let named = |value: &Value| -> Option<BTreeMap<String, Value>> {
        match value {
            Value::Object(map) => Some(map.clone().into_iter().collect()),
            Value::Array(items) => items
                .iter()
                .map(|item| Some((item["name"].as_str()?.to_owned(), item.clone())))
                .collect(),
            _ => None,
        }
    };
    let (Some(one), Some(other)) = (named(one), named(other)) else {
        found.insert(path.to_owned());
        return;
    };
    let names: BTreeSet<_> = one.keys().chain(other.keys()).collect();
    for name in names {
        let path = format!("{path}/{name}");
        match (one.get(name), other.get(name)) {
            (Some(one), Some(other)) => differences(&path, one, other, found),
            (None, _) => drop(found.insert(format!("{path} (new)"))),
            (_, None) => drop(found.insert(format!("{path} (gone)"))),
        }
    }
}

#[test]
fn c11_each_value_lands_in_its_place() {
    let file = folder().join("chart.yaml");
    let mut lines: Vec<Line> =
        serde_norway::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let chart = chart();
    let mut known = BTreeMap::new();
    leaves("", &chart, &mut known);
    known.retain(|name, _| OF_WORKLOADS.contains(&name.split('.').next().unwrap()));

    let usual = injected(&chart);
    let mut wrong = Vec::new();
    for line in &mut lines {
        // Also values that the chart knows but does not list.
        known.remove(&line.value);
        let mut before = chart.clone();
        merge(&mut before, &line.with);
        let mut after = before.clone();
        let more = line
            .value
            .rsplit('.')
            .fold(line.to.clone(), |value, part| json!({ part: value }));
        merge(&mut after, &more);
        let mut changes = BTreeSet::new();
        let old = match line.with.is_null() {
            true => usual.clone(),
            false => injected(&before),
        };
        let new = injected(&after);
        differences("", &old["spec"], &new["spec"], &mut changes);
        if changes != line.changes {
            wrong.push(format!("{}: {changes:#?}", line.value));
            line.changes = changes;
        }
    }
    assert!(
        known.is_empty(),
        "values without a line in {}: {known:#?}",
        file.display()
    );
    if std::env::var_os("WEFT_UPDATE").is_some() {
        std::fs::write(&file, serde_norway::to_string(&lines).unwrap()).unwrap();
    } else {
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
