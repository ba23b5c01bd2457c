//! Owns what controllers have written about objects, as it was read: whoever writes statuses compares with it and must keep what
//! others wrote. Has no part in what proxies are told.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::objects::{
    Object,
    policy::{ConditionsStatus, TypedRef},
    route::{ParentRef, ParentStatus, RouteStatus},
};

/// The status of an object and what it is about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WrittenStatus {
    /// The version of the object that this was read from.
    pub resource_version: Option<String>,
    /// The generation of the object that the facts in the index are from: an older one than the object's while a change of
    /// it is refused.
    pub generation: Option<i64>,
    /// Parents, as the author of a route wrote them.
    pub parent_refs: Vec<ParentRef>,
    /// What controllers say about the parents of a route.
    pub parents: Vec<ParentStatus>,
    /// What controllers say about an object of another kind.
    pub conditions: Vec<Condition>,
    /// The target that the conditions of an HTTPLocalRateLimitPolicy are about.
    pub target: Option<TypedRef>,
}

/// `None` for kinds whose status the mesh does not write.
pub(super) fn read(object: &Object) -> Option<WrittenStatus> {
    let route = |refs: &[ParentRef], status: &Option<RouteStatus>| WrittenStatus {
        parent_refs: refs.to_vec(),
        parents: status.iter().flat_map(|s| s.parents.clone()).collect(),
        ..WrittenStatus::default()
    };
    let conditions = |conditions: Option<&Vec<Condition>>| WrittenStatus {
        conditions: conditions.cloned().unwrap_or_default(),
        ..WrittenStatus::default()
    };
    let of = |status: &Option<ConditionsStatus>| conditions(status.as_ref().map(|s| &s.conditions));
    let written = match object {
        Object::HttpRoute(_, o) => route(&o.spec.parent_refs, &o.status),
        Object::GrpcRoute(o) => route(&o.spec.parent_refs, &o.status),
        Object::TlsRoute(o) => route(&o.spec.parent_refs, &o.status),
        Object::TcpRoute(o) => route(&o.spec.parent_refs, &o.status),
        Object::Server(o) => of(&o.status),
        Object::AuthorizationPolicy(o) => of(&o.status),
        Object::EgressNetwork(o) => of(&o.status),
        Object::HttpLocalRateLimitPolicy(o) => WrittenStatus {
            target: o.status.as_ref().map(|s| s.target_ref.clone()),
            ..conditions(o.status.as_ref().map(|s| &s.conditions))
        },
        _ => return None,
    };
    Some(WrittenStatus {
        resource_version: object.metadata().resource_version.clone(),
        generation: object.metadata().generation,
        ..written
    })
}
