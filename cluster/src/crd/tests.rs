//! The definitions against the Rust types, against objects that must be refused, and against the files of the chart.

use std::{collections::BTreeSet, env, fs, path::PathBuf};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use regex::Regex;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::*;
use crate::objects::{
    Object, link::Link, policy::*, profile::ServiceProfile, route::HttpRoute, traffic::*,
    workload::ExternalWorkload,
};

const SAMPLES: &str = include_str!("tests/samples.yaml");
const DEFINED: [Kind; 11] = [
    Kind::Server,
    Kind::ServerAuthorization,
    Kind::AuthorizationPolicy,
    Kind::MeshTlsAuthentication,
    Kind::NetworkAuthentication,
    Kind::EgressNetwork,
    Kind::HttpLocalRateLimitPolicy,
    Kind::PolicyHttpRoute,
    Kind::ServiceProfile,
    Kind::ExternalWorkload,
    Kind::Link,
];

fn samples() -> Vec<(Kind, Value)> {
    serde_norway::Deserializer::from_str(SAMPLES)
        .map(|document| {
            let value = Value::deserialize(document).expect("YAML");
            let text = |field: &str| value[field].as_str().expect("a text").to_owned();
            let kind = Kind::of(&text("apiVersion"), &text("kind")).expect("a kind of ours");
            (kind, value)
        })
        .collect()
}

fn definition_of(kind: Kind) -> CustomResourceDefinition {
    let name = format!("{}.{}", kind.api().plural, kind.api().group);
    let found = all()
        .into_iter()
        .find(|definition| definition.metadata.name.as_ref() == Some(&name));
    found.expect("a definition for each kind of ours")
}

fn schema_of(kind: Kind, version: &str) -> Schema {
    let versions = definition_of(kind).spec.versions;
    let version = versions
        .into_iter()
        .find(|v| v.name == version)
        .expect("a version that is served");
    version
        .schema
        .and_then(|schema| schema.open_api_v3_schema)
        .expect("a schema")
}

fn schema_for(kind: Kind, object: &Value) -> Schema {
    let version = object["apiVersion"].as_str().expect("a text");
    schema_of(kind, version.rsplit('/').next().expect("a version"))
}

/// Checks a value as the API server does, without rules; fields that it would drop are errors.
fn check(
    schema: &Schema,
    value: &Value,
    path: &str,
    seen: &mut BTreeSet<String>,
) -> Result<(), String> {
    seen.insert(path.to_owned());
    if schema.x_kubernetes_int_or_string == Some(true) {
        return match value.is_i64() || value.is_string() {
            true => Ok(()),
            false => Err(format!("{path}: neither a whole number nor a text")),
        };
    }
    if let Some(choices) = &schema.enum_
        && !choices.iter().any(|choice| choice.0 == *value)
    {
        return Err(format!("{path}: not a choice"));
    }
    match (schema.type_.as_deref(), value) {
        (Some("object"), Value::Object(fields)) => {
            for name in schema.required.iter().flatten() {
                if !fields.contains_key(name) {
                    return Err(format!("{path}.{name}: missing"));
                }
            }
            for (name, value) in fields {
                let property = schema.properties.as_ref().and_then(|p| p.get(name));
                match (property, &schema.additional_properties) {
                    (Some(property), _) => check(property, value, &format!("{path}.{name}"), seen)?,
                    (None, Some(JSONSchemaPropsOrBool::Schema(each))) => {
                        check(each, value, &format!("{path}.*"), seen)?;
                    }
                    _ if schema.x_kubernetes_preserve_unknown_fields == Some(true) => {}
                    _ if path == ".metadata" => {}
                    _ => return Err(format!("{path}.{name}: unknown")),
                }
            }
        }
        (Some("array"), Value::Array(items)) => {
            let count = i64::try_from(items.len()).expect("few");
            if schema.max_items.is_some_and(|max| count > max) {
                return Err(format!("{path}: too many"));
            }
            if schema.min_items.is_some_and(|min| count < min) {
                return Err(format!("{path}: too few"));
            }
            let Some(JSONSchemaPropsOrArray::Schema(each)) = &schema.items else {
                return Err(format!("{path}: a list without a schema of its items"));
            };
            for item in items {
                check(each, item, &format!("{path}[]"), seen)?;
            }
        }
        (Some("string"), Value::String(text)) => {
            let length = i64::try_from(text.chars().count()).expect("short");
            let short = schema.min_length.is_some_and(|min| length < min);
            if short || schema.max_length.is_some_and(|max| length > max) {
                return Err(format!("{path}: length"));
            }
            if let Some(pattern) = &schema.pattern
                && !Regex::new(pattern).expect("a pattern").is_match(text)
            {
                return Err(format!("{path}: pattern"));
            }
        }
        (Some("boolean"), Value::Bool(_)) => {}
        (Some("integer"), Value::Number(number)) if number.is_i64() => {
            within(schema, number, path)?
        }
        (Some("number"), Value::Number(number)) => within(schema, number, path)?,
        (type_, _) => return Err(format!("{path}: not {type_:?}")),
    }
    Ok(())
}

fn within(schema: &Schema, number: &serde_json::Number, path: &str) -> Result<(), String> {
    let number = number.as_f64().expect("finite");
    let small = schema.minimum.is_some_and(|min| number < min);
    match small || schema.maximum.is_some_and(|max| number > max) {
        true => Err(format!("{path}: out of range")),
        false => Ok(()),
    }
}

/// All paths that a schema has, as `check` writes them.
fn paths(schema: &Schema, path: &str, found: &mut BTreeSet<String>) {
    found.insert(path.to_owned());
    for (name, property) in schema.properties.iter().flatten() {
        paths(property, &format!("{path}.{name}"), found);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(each)) = &schema.additional_properties {
        paths(each, &format!("{path}.*"), found);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(each)) = &schema.items {
        paths(each, &format!("{path}[]"), found);
    }
}

/// Reads an object with its Rust type and writes it again.
fn through_rust(kind: Kind, object: &Value) -> Value {
    fn through<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
        let read: T = serde_json::from_value(object.clone()).expect("the type reads it");
        serde_json::to_value(read).expect("JSON")
    }
    match kind {
        Kind::Server => through::<Server>(object),
        Kind::ServerAuthorization => through::<ServerAuthorization>(object),
        Kind::AuthorizationPolicy => through::<AuthorizationPolicy>(object),
        Kind::MeshTlsAuthentication => through::<MeshTlsAuthentication>(object),
        Kind::NetworkAuthentication => through::<NetworkAuthentication>(object),
        Kind::EgressNetwork => through::<EgressNetwork>(object),
        Kind::HttpLocalRateLimitPolicy => through::<HttpLocalRateLimitPolicy>(object),
        Kind::PolicyHttpRoute => through::<HttpRoute>(object),
        Kind::ServiceProfile => through::<ServiceProfile>(object),
        Kind::ExternalWorkload => through::<ExternalWorkload>(object),
        Kind::Link => through::<Link>(object),
        other => unreachable!("{other:?} has no definition of ours"),
    }
}

/// Whether everything of `part` is in `whole`; the Rust types may write out what is absent.
fn holds(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(name, value)| whole.get(name).is_some_and(|found| holds(found, value))),
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(w, p)| holds(w, p))
        }
        _ => whole == part,
    }
}

#[test]
fn samples_are_accepted_and_the_types_lose_nothing_of_them() {
    for (kind, mut object) in samples() {
        let schema = schema_for(kind, &object);
        check(&schema, &object, "", &mut BTreeSet::new()).unwrap_or_else(|e| panic!("{kind:?}{e}"));
        let fields = object.as_object_mut().expect("an object");
        fields.remove("apiVersion");
        fields.remove("kind");
        let again = through_rust(kind, &object);
        assert!(
            holds(&again, &object),
            "{kind:?}: {again:#} lacks something of {object:#}"
        );
    }
}

#[test]
fn the_types_know_every_field_of_the_newest_schema() {
    for kind in DEFINED {
        let newest = kind.api().versions[0];
        let mut seen = BTreeSet::new();
        for (_, mut object) in samples().into_iter().filter(|(k, _)| *k == kind) {
            object["apiVersion"] = format!("{}/{newest}", kind.api().group).into();
            check(&schema_of(kind, newest), &object, "", &mut seen)
                .unwrap_or_else(|e| panic!("{kind:?}{e}"));
        }
        let mut known = BTreeSet::new();
        paths(&schema_of(kind, newest), "", &mut known);
        // Conditions of Kubernetes do not have it; some writers of older objects do.
        known.retain(|path| !path.ends_with(".lastProbeTime"));
        let missing: Vec<_> = known.difference(&seen).collect();
        assert!(missing.is_empty(), "{kind:?}: no sample has {missing:?}");
    }
}

#[test]
fn every_version_that_is_read_is_served_and_the_newest_is_last_and_stored() {
    for kind in DEFINED {
        let spec = definition_of(kind).spec;
        let served: Vec<_> = spec.versions.iter().rev().map(|v| &*v.name).collect();
        assert_eq!(served, kind.api().versions, "{kind:?}");
        let stored: Vec<_> = spec.versions.iter().map(|v| v.storage).collect();
        assert_eq!(stored.iter().filter(|s| **s).count(), 1, "{kind:?}");
        assert_eq!(stored.last(), Some(&true), "{kind:?}");
    }
    assert_eq!(all().len(), DEFINED.len());
}

/// Takes the first sample of a kind, changes one field, and expects it to be refused there.
fn refused(kind: Kind, pointer: &str, value: Value, at: &str) {
    let (_, mut object) = samples()
        .into_iter()
        .find(|(k, _)| *k == kind)
        .expect("a sample");
    *object.pointer_mut(pointer).expect("a field of the sample") = value;
    let error = check(
        &schema_for(kind, &object),
        &object,
        "",
        &mut BTreeSet::new(),
    )
    .expect_err(pointer);
    assert!(error.starts_with(at), "{pointer}: {error}");
}

#[test]
fn bad_values_are_refused() {
    refused(
        Kind::Server,
        "/spec/proxyProtocol",
        json!("HTTP/3"),
        ".spec.proxyProtocol",
    );
    refused(
        Kind::Server,
        "/spec/accessPolicy",
        json!("allow"),
        ".spec.accessPolicy",
    );
    refused(Kind::Server, "/spec/port", json!(1.5), ".spec.port");
    refused(
        Kind::Server,
        "/spec/podSelector/matchExpressions/0/operator",
        json!("Like"),
        ".spec.podSelector.matchExpressions[].operator",
    );
    refused(
        Kind::ServerAuthorization,
        "/spec/client/networks/0/cidr",
        json!("everywhere"),
        ".spec.client.networks[].cidr",
    );
    refused(
        Kind::ServerAuthorization,
        "/spec/client/meshTLS/identities/0",
        json!("front.*"),
        ".spec.client.meshTLS.identities[]",
    );
    refused(
        Kind::NetworkAuthentication,
        "/spec/networks",
        json!([]),
        ".spec.networks",
    );
    refused(
        Kind::AuthorizationPolicy,
        "/spec/targetRef/name",
        json!(""),
        ".spec.targetRef.name",
    );
    refused(
        Kind::EgressNetwork,
        "/spec/trafficPolicy",
        json!("Maybe"),
        ".spec.trafficPolicy",
    );
    refused(
        Kind::HttpLocalRateLimitPolicy,
        "/spec/total/requestsPerSecond",
        json!(0),
        ".spec.total.requestsPerSecond",
    );
    refused(
        Kind::PolicyHttpRoute,
        "/spec/rules/0/timeouts/request",
        json!("1.5s"),
        ".spec.rules[].timeouts.request",
    );
    refused(
        Kind::PolicyHttpRoute,
        "/spec/rules/0/backendRefs/0/port",
        json!(0),
        ".spec.rules[].backendRefs[].port",
    );
    refused(
        Kind::PolicyHttpRoute,
        "/spec/rules/0/filters/0/type",
        json!("URLRewrite"),
        ".spec.rules[].filters[].type",
    );
    refused(
        Kind::ExternalWorkload,
        "/spec/ports/0/port",
        json!(65536),
        ".spec.ports[].port",
    );
    refused(
        Kind::ExternalWorkload,
        "/spec/workloadIPs",
        json!([{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}, {"ip": "192.0.2.3"}]),
        ".spec.workloadIPs",
    );
}

#[test]
fn defaults_are_values_that_the_schema_takes() {
    fn walk(schema: &Schema, path: &str) {
        if let Some(default) = &schema.default {
            check(schema, &default.0, path, &mut BTreeSet::new()).expect("a default is valid");
        }
        for (name, property) in schema.properties.iter().flatten() {
            walk(property, &format!("{path}.{name}"));
        }
        if let Some(JSONSchemaPropsOrArray::Schema(each)) = &schema.items {
            walk(each, &format!("{path}[]"));
        }
    }
    for kind in DEFINED {
        for version in kind.api().versions {
            walk(&schema_of(kind, version), "");
        }
    }
}

#[test]
fn samples_are_objects_of_the_index() {
    for (kind, value) in samples() {
        let object = Object::deserialize(kind, value.clone()).expect("readable");
        assert_eq!(object.kind(), kind);
        assert_eq!(
            &*object.name().name,
            value["metadata"]["name"].as_str().expect("a name")
        );
    }
}

/// The file of the chart: the definition, and what only a release knows.
fn template(definition: &CustomResourceDefinition) -> String {
    let mut definition = definition.clone();
    let metadata = &mut definition.metadata;
    let one = |name: &str, value: &str| Some([(name.to_owned(), value.to_owned())].into());
    metadata.annotations = one("linkerd.io/created-by", "weft/helm {{ .Chart.AppVersion }}");
    metadata.labels = one("linkerd.io/control-plane-ns", "{{ .Release.Namespace }}");
    let yaml = to_yaml(&definition).expect("YAML");
    let text = format!(
        "# Made from cluster/src/crd.rs. After a change there: WEFT_UPDATE=1 cargo test -p weft-cluster crd\n{yaml}"
    );
    // Linkerd's multicluster chart brings its own.
    match definition.spec.group == Kind::Link.api().group {
        true => format!("{{{{- if .Values.installLink }}}}\n{text}{{{{- end }}}}\n"),
        false => text,
    }
}

#[test]
fn the_chart_has_what_is_made_here() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../charts/linkerd-crds/templates");
    let update = env::var_os("WEFT_UPDATE").is_some();
    let mut expected = BTreeSet::new();
    for definition in all() {
        let name = format!(
            "{}.yaml",
            definition.metadata.name.as_deref().expect("a name")
        );
        let (file, text) = (folder.join(&name), template(&definition));
        if update {
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(&file, &text).expect("a file");
        }
        let found = fs::read_to_string(&file).unwrap_or_default();
        assert!(
            found == text,
            "{} is out of date: WEFT_UPDATE=1 cargo test -p weft-cluster crd",
            file.display()
        );
        expected.insert(name);
    }
    let found = fs::read_dir(&folder).expect("a folder").flatten();
    let found = found.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let others: Vec<_> = found
        .filter(|name| name.contains(".linkerd.io.") && !expected.contains(name))
        .collect();
    assert!(others.is_empty(), "made from nothing: {others:?}");
}

/// `kubectl apply` keeps the object in an annotation, which may have 262144 bytes.
#[test]
fn c06_definitions_fit_into_an_annotation() {
    for definition in all() {
        let size = serde_json::to_string(&definition).expect("JSON").len();
        assert!(
            size < 200_000,
            "{:?}: {size} bytes",
            definition.metadata.name
        );
    }
}

/// Values that the API server would write differently differ for ever in tools that compare.
#[test]
fn c05_definitions_are_in_canonical_form() {
    let numbers = Regex::new(r"(?m)^\s*(maximum|minimum): [0-9]+\.0$").expect("a pattern");
    for definition in all() {
        let text = to_yaml(&definition).expect("YAML");
        assert!(!text.contains("preserveUnknownFields"), "{text}");
        assert!(
            text.contains("\n  conversion:\n    strategy: None\n"),
            "{text}"
        );
        assert!(!text.contains(": []") && !text.contains(": null"), "{text}");
        assert!(!numbers.is_match(&text), "{text}");
        let empty = text.matches(": {}\n").count();
        assert_eq!(empty, text.matches("status: {}\n").count(), "{text}");
    }
}
