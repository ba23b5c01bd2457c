//! Owns the questions to the API server: what a namespace says, and which controller a pod comes from. Each has a time limit well
//! below that of the webhook. Does not cache: an annotation must hold for the next pod.

use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Api, Client};

use crate::patch::{Annotations, Owner};

/// Of one attempt. The webhook has 10 s (contract 9.1).
const TIMEOUT: Duration = Duration::from_secs(3);
/// For a connection that was closed under us, and an API server that starts.
const ATTEMPTS: usize = 2;

/// The API server.
pub(super) struct Cluster {
    client: Client,
}

/// The controller that a pod comes from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Controller {
    /// For labels and metrics.
    pub owner: Owner,
    /// For Events.
    reference: OwnerReference,
}

impl Controller {
    fn new(reference: OwnerReference) -> Self {
        let owner = Owner {
            kind: reference.kind.to_lowercase(),
            name: reference.name.clone(),
        };
        Self { owner, reference }
    }

    pub fn reference(&self, namespace: &str) -> ObjectReference {
        ObjectReference {
            api_version: Some(self.reference.api_version.clone()),
            kind: Some(self.reference.kind.clone()),
            name: Some(self.reference.name.clone()),
            namespace: Some(namespace.to_owned()),
            uid: Some(self.reference.uid.clone()),
            ..ObjectReference::default()
        }
    }
}

/// A pod that is about to be created, so that it has no uid yet.
pub(super) fn pod_reference(namespace: &str, name: String) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(name),
        namespace: Some(namespace.to_owned()),
        ..ObjectReference::default()
    }
}

impl Cluster {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Annotations of a namespace.
    ///
    /// # Errors
    /// The API server does not answer, or knows no such namespace. Without them nobody can tell whether a proxy is wanted.
    pub async fn annotations_of(&self, namespace: &str) -> Result<Annotations, String> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            match tokio::time::timeout(TIMEOUT, api.get_metadata(namespace)).await {
                Ok(Ok(found)) => return Ok(found.metadata.annotations.unwrap_or_default()),
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                    last = "there is none of that name".to_owned();
                    break;
                }
                Ok(Err(error)) => last = error.to_string(),
                Err(_) => last = format!("the API server did not answer within {TIMEOUT:?}"),
            }
        }
        Err(format!(
            "whether to inject a proxy cannot be decided, because the namespace {namespace} cannot be read: {last}; try again"
        ))
    }

    /// The controller of a pod; for those that a ReplicaSet or a Job made, the one above. What cannot be read is not followed: a
    /// label and an Event are not worth refusing a pod.
    pub async fn controller(&self, namespace: &str, pod: &ObjectMeta) -> Option<Controller> {
        let direct = controller_of(pod)?;
        let above = match (direct.api_version.as_str(), direct.kind.as_str()) {
            ("apps/v1", "ReplicaSet") => self.metadata::<ReplicaSet>(namespace, &direct).await,
            ("batch/v1", "Job") => self.metadata::<Job>(namespace, &direct).await,
            _ => return Some(Controller::new(direct)),
        };
        let above = match above {
            Ok(above) => controller_of(&above),
            Err(reason) => {
                tracing::warn!(
                    namespace,
                    kind = direct.kind,
                    name = direct.name,
                    reason,
                    "an owner cannot be read"
                );
                deployment_by_name(pod, &direct)
            }
        };
        Some(Controller::new(above.unwrap_or(direct)))
    }

    async fn metadata<K>(
        &self,
        namespace: &str,
        owner: &OwnerReference,
    ) -> Result<ObjectMeta, String>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        match tokio::time::timeout(TIMEOUT, api.get_metadata(&owner.name)).await {
            Ok(Ok(found)) => Ok(found.metadata),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {TIMEOUT:?}")),
        }
    }
}

fn controller_of(metadata: &ObjectMeta) -> Option<OwnerReference> {
    let mut owners = metadata.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true)).cloned()
}

/// A Deployment names its ReplicaSets `NAME-HASH`, so it is known without reading them, but for its uid.
fn deployment_by_name(pod: &ObjectMeta, replica_set: &OwnerReference) -> Option<OwnerReference> {
    let hash = pod.labels.as_ref()?.get("pod-template-hash")?;
    let name = replica_set.name.strip_suffix(hash)?.strip_suffix('-')?;
    (replica_set.kind == "ReplicaSet" && !name.is_empty()).then(|| OwnerReference {
        api_version: "apps/v1".to_owned(),
        kind: "Deployment".to_owned(),
        name: name.to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    })
}
