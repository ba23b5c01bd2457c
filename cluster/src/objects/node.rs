//! Owns the part of core/v1 Nodes that the control plane reads, which is what every object has: of nodes only metadata is asked for, and
//! the API server calls those PartialObjectMetadata. Says nothing of what is in there.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Name and labels.
    pub metadata: ObjectMeta,
}
