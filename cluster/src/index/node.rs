//! Owns what the mesh knows of a node: its zone; nothing else of it is kept.

use std::sync::Arc;

use crate::objects;

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Label `topology.kubernetes.io/zone`.
    pub zone: Option<Arc<str>>,
}

pub(super) fn read(node: &objects::node::Node) -> Node {
    let labels = node.metadata.labels.as_ref();
    Node {
        zone: labels
            .and_then(|l| l.get("topology.kubernetes.io/zone"))
            .map(|zone| zone.as_str().into()),
    }
}
