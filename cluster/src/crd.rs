//! Owns the CustomResourceDefinitions of the kinds in [`objects`](crate::objects) that are Linkerd's (contract 10): names,
//! versions and columns here, schemas in the modules below. Installs nothing; the chart `linkerd-crds` is made from this.

mod links;
mod policy;
mod profile;
mod routes;
mod schema;
mod status;
mod workload;

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        CustomResourceColumnDefinition, CustomResourceConversion, CustomResourceDefinition,
        CustomResourceDefinitionNames, CustomResourceDefinitionSpec,
        CustomResourceDefinitionVersion, CustomResourceSubresourceStatus,
        CustomResourceSubresources, CustomResourceValidation,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde_norway::Value;

use crate::objects::Kind;
use schema::{Schema, opt, req};

/// All definitions, in the order of their kinds.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![
        policy::server(),
        policy::server_authorization(),
        policy::authorization_policy(),
        policy::mesh_tls_authentication(),
        policy::network_authentication(),
        policy::egress_network(),
        policy::http_local_rate_limit_policy(),
        routes::http_route(),
        profile::service_profile(),
        workload::external_workload(),
        links::link(),
    ]
}

/// A definition as YAML, with whole numbers written as such.
///
/// # Errors
/// Those of the serializer.
pub fn to_yaml(definition: &CustomResourceDefinition) -> Result<String, serde_norway::Error> {
    let mut value = serde_norway::to_value(definition)?;
    whole_numbers(&mut value);
    serde_norway::to_string(&value)
}

/// Limits are floating-point numbers in the API; `65535.0` is written `65535`, as the API server gives it back.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let float = number.as_f64().unwrap_or_default();
            if float.fract() == 0.0 && float.abs() < 9e15 {
                *value = Value::from(float as i64);
            }
        }
        Value::Sequence(items) => items.iter_mut().for_each(whole_numbers),
        Value::Mapping(map) => map.values_mut().for_each(whole_numbers),
        _ => {}
    }
}

/// One version of a kind.
struct Version {
    name: &'static str,
    description: &'static str,
    spec: Schema,
    /// Whether `spec` may be absent.
    spec_optional: bool,
    status: Option<Schema>,
    columns: Vec<CustomResourceColumnDefinition>,
    /// What clients of this version are told.
    deprecated: Option<&'static str>,
}

impl Version {
    fn new(name: &'static str, description: &'static str, spec: Schema) -> Self {
        Self {
            name,
            description,
            spec,
            spec_optional: false,
            status: None,
            columns: Vec::new(),
            deprecated: None,
        }
    }

    fn into_api(self, storage: bool) -> CustomResourceDefinitionVersion {
        let spec = match self.spec_optional {
            true => opt("spec", self.spec),
            false => req("spec", self.spec),
        };
        let subresources = self.status.as_ref().map(|_| CustomResourceSubresources {
            status: Some(CustomResourceSubresourceStatus(serde_json::Value::Object(
                serde_json::Map::new(),
            ))),
            ..CustomResourceSubresources::default()
        });
        let status = self.status.map(|status| opt("status", status));
        let fields = [
            opt("apiVersion", schema::string("Group and version.")),
            opt("kind", schema::string("Kind.")),
            opt("metadata", schema::plain_object()),
            spec,
        ];
        let root = schema::object(self.description, fields.into_iter().chain(status));
        CustomResourceDefinitionVersion {
            name: self.name.to_owned(),
            served: true,
            storage,
            deprecated: self.deprecated.map(|_| true),
            deprecation_warning: self.deprecated.map(str::to_owned),
            schema: Some(CustomResourceValidation {
                open_api_v3_schema: Some(root),
            }),
            subresources,
            additional_printer_columns: (!self.columns.is_empty()).then_some(self.columns),
            ..CustomResourceDefinitionVersion::default()
        }
    }
}

/// Puts a definition together. Versions go from the oldest to the newest, which is the stored one: `linkerd check` looks
/// for the last (contract 10).
fn definition(
    kind: Kind,
    short_names: &[&str],
    versions: Vec<Version>,
) -> CustomResourceDefinition {
    let api = kind.api();
    let newest = versions.len().saturating_sub(1);
    let versions = versions
        .into_iter()
        .enumerate()
        .map(|(index, version)| version.into_api(index == newest));
    CustomResourceDefinition {
        metadata: ObjectMeta {
            name: Some(format!("{}.{}", api.plural, api.group)),
            ..ObjectMeta::default()
        },
        spec: CustomResourceDefinitionSpec {
            // Written out as the API server does, so that comparing tools see no difference.
            conversion: Some(CustomResourceConversion {
                strategy: "None".to_owned(),
                webhook: None,
            }),
            group: api.group.to_owned(),
            names: CustomResourceDefinitionNames {
                categories: None,
                kind: api.kind.to_owned(),
                list_kind: Some(format!("{}List", api.kind)),
                plural: api.plural.to_owned(),
                short_names: (!short_names.is_empty())
                    .then(|| short_names.iter().map(|&name| name.to_owned()).collect()),
                singular: Some(api.kind.to_lowercase()),
            },
            preserve_unknown_fields: None,
            scope: "Namespaced".to_owned(),
            versions: versions.collect(),
        },
        status: None,
    }
}

/// A column of `kubectl get`.
fn column(
    name: &str,
    type_: &str,
    json_path: &str,
    description: &str,
) -> CustomResourceColumnDefinition {
    CustomResourceColumnDefinition {
        name: name.to_owned(),
        type_: type_.to_owned(),
        json_path: json_path.to_owned(),
        description: Some(description.to_owned()),
        ..CustomResourceColumnDefinition::default()
    }
}

/// The column that `kubectl get` has by itself as long as there are no others.
fn age() -> CustomResourceColumnDefinition {
    column(
        "Age",
        "date",
        ".metadata.creationTimestamp",
        "Time since it was created.",
    )
}

#[cfg(test)]
mod tests;
