//! Owns one object as the API server writes it: reading it, and leaving out what nobody looks at. One that cannot be read
//! is told apart by name, so that it does not stop the others.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::fetch::FetchError;
use crate::{
    index::PROXY_CONTAINER,
    objects::{Kind, Name, Object, pod::Pod},
};

/// The copy of the whole object that `kubectl apply` keeps in it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// End of the names of the variables that say where a proxy listens (contract 8.1).
const LISTEN_ADDR: &str = "_LISTEN_ADDR";

/// What every object has.
#[derive(Deserialize)]
pub(super) struct Head {
    metadata: HeadMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeadMeta {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    resource_version: String,
}

impl Head {
    /// Reads the head only.
    pub(super) fn read(text: &RawValue) -> Result<Self, FetchError> {
        serde_json::from_str(text.get()).map_err(|error| {
            FetchError::Answer(format!("an object without readable metadata: {error}"))
        })
    }

    pub(super) fn name(&self) -> Name {
        Name::new(&self.metadata.namespace, &self.metadata.name)
    }

    pub(super) fn into_version(self) -> String {
        self.metadata.resource_version
    }
}

/// An object, or the name of one that cannot be read.
pub(super) enum Item {
    Object(Object),
    Unreadable(Name),
}

/// Reads an object. A fault in it is logged here, once for each time it comes.
pub(super) fn read(kind: Kind, text: &RawValue) -> Result<Item, FetchError> {
    let mut from = serde_json::Deserializer::from_str(text.get());
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(&mut from, &mut track);
    match Object::deserialize(kind, tracked) {
        Ok(object)
            if object
                .metadata()
                .name
                .as_deref()
                .unwrap_or_default()
                .is_empty() =>
        {
            Err(FetchError::Answer("an object without a name".to_owned()))
        }
        Ok(mut object) => {
            prune(&mut object);
            Ok(Item::Object(object))
        }
        Err(error) => {
            let name = Head::read(text)?.name();
            tracing::warn!(
                "{} {name}: {}: {error}; the object is ignored, its last good version stays in force",
                kind.as_str(),
                track.path()
            );
            Ok(Item::Unreadable(name))
        }
    }
}

/// Drops what the index does not read and what is large: a list holds all objects of a kind for a moment.
fn prune(object: &mut Object) {
    match object {
        Object::Pod(pod) => prune_pod(pod),
        Object::Service(o) => prune_metadata(&mut o.metadata),
        Object::EndpointSlice(o) => prune_metadata(&mut o.metadata),
        Object::Node(o) => prune_metadata(&mut o.metadata),
        // There are few of the others.
        _ => {}
    }
}

fn prune_metadata(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
}

fn prune_pod(pod: &mut Pod) {
    prune_metadata(&mut pod.metadata);
    let Some(spec) = &mut pod.spec else {
        return;
    };
    let init_containers = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(init_containers) {
        // Where the proxy listens is in its environment; those of others may be large, and are none of our business.
        let mut env = container.env.take().unwrap_or_default();
        env.retain(|variable| {
            container.name == PROXY_CONTAINER && variable.name.ends_with(LISTEN_ADDR)
        });
        env.shrink_to_fit();
        container.env = Some(env);
    }
    spec.containers.shrink_to_fit();
    if let Some(containers) = &mut spec.init_containers {
        containers.shrink_to_fit();
    }
}
