//! Owns what statuses say: from the index to the patches that make the difference. Pure; the time is an argument.
//!
//! Only our own entry is compared and changed, in whatever order it stands; the entries of other controllers are kept, and an
//! object that says what it should is left alone (case R10). An object that the index has refused keeps what it has.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use serde_json::{Value, json};
use weft_cluster::{
    Index, Kind, MeshSettings, Name, ObjectRef, Reader,
    index::{Route, RouteParent, RouteParentKind, WrittenStatus},
    objects::route::{ParentRef, ParentStatus},
};

use crate::acceptance::{self, Refusal};

/// Under which name this control plane speaks in statuses.
const CONTROLLER: &str = "linkerd.io/policy-controller";
const POLICY: &str = "policy.linkerd.io";

/// A status that has to be written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StatusPatch {
    /// Whose status.
    pub(super) object: ObjectRef,
    /// The version it was made from.
    pub(super) resource_version: String,
    /// The fields that change.
    pub(super) status: Value,
}

impl StatusPatch {
    /// What is written and from what.
    pub(super) fn key(&self) -> (ObjectRef, String) {
        (self.object.clone(), self.resource_version.clone())
    }
}

/// All statuses that differ from what they should be.
pub(super) fn plan(index: &Index, mesh: &MeshSettings, now: Timestamp) -> Vec<StatusPatch> {
    // Whole seconds, as every other controller writes them.
    let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    let reader = Reader::new(index);
    let planner = Planner {
        index: &reader,
        mesh,
        now,
    };
    let statuses = index.statuses();
    statuses
        .filter_map(|(object, written)| {
            let status = match object.kind {
                Kind::EgressNetwork => planner.egress_network(&object.name, written),
                Kind::HttpLocalRateLimitPolicy => planner.rate_limit(&object.name, written),
                _ => planner.route(&object, written),
            }?;
            // Without a version it is from no API server, and there is nowhere to write to.
            let resource_version = written.resource_version.clone()?;
            Some(StatusPatch {
                object,
                resource_version,
                status,
            })
        })
        .collect()
}

struct Planner<'a> {
    index: &'a Reader<'a>,
    mesh: &'a MeshSettings,
    now: Time,
}

impl Planner<'_> {
    fn route(&self, object: &ObjectRef, written: &WrittenStatus) -> Option<Value> {
        let route = self.index.route(object.kind, &object.name)?;
        let mut ours: Vec<ParentStatus> = Vec::with_capacity(route.parents.len());
        for parent in &route.parents {
            let parent_ref = reference(parent);
            if ours.iter().all(|status| status.parent_ref != parent_ref) {
                ours.push(self.parent(route, parent, parent_ref, written));
            }
        }
        let is_ours = |status: &&ParentStatus| status.controller_name == CONTROLLER;
        let present: Vec<_> = written.parents.iter().filter(is_ours).collect();
        if same(&present, &ours) {
            return None;
        }
        let others = written.parents.iter().filter(|status| !is_ours(status));
        let parents: Vec<_> = others.chain(&ours).collect();
        Some(json!({ "parents": parents }))
    }

    fn parent(
        &self,
        route: &Route,
        parent: &RouteParent,
        parent_ref: ParentRef,
        written: &WrittenStatus,
    ) -> ParentStatus {
        let mut found = written.parents.iter();
        let before = found
            .find(|status| status.controller_name == CONTROLLER && status.parent_ref == parent_ref)
            .map_or(&[][..], |status| &status.conditions);
        let accepted = acceptance::route(self.index, self.mesh, route, parent);
        let mut conditions = vec![self.condition("Accepted", accepted, before)];
        if parent.kind != RouteParentKind::Server {
            let resolved = acceptance::backends(self.index, route, parent);
            conditions.push(self.condition("ResolvedRefs", resolved, before));
        }
        ParentStatus {
            parent_ref,
            controller_name: CONTROLLER.to_owned(),
            conditions,
        }
    }

    fn egress_network(&self, name: &Name, written: &WrittenStatus) -> Option<Value> {
        let network = self.index.egress_network(name)?;
        let accepted = acceptance::egress_network(self.mesh, network);
        let conditions = self.conditions(accepted, &written.conditions)?;
        Some(json!({ "conditions": conditions }))
    }

    fn rate_limit(&self, name: &Name, written: &WrittenStatus) -> Option<Value> {
        let limit = self.index.rate_limit(name)?;
        let accepted = acceptance::rate_limit(self.index, limit);
        let target = json!({"group": POLICY, "kind": "Server", "name": &*limit.server});
        let described = written
            .target
            .as_ref()
            .is_some_and(|target| target.name == *limit.server);
        let conditions = match self.conditions(accepted, &written.conditions) {
            None if described => return None,
            None => written.conditions.clone(),
            Some(conditions) => conditions,
        };
        Some(json!({"conditions": conditions, "targetRef": target}))
    }

    /// The conditions with `Accepted` as it should be; `None` if it is so already. Other conditions are kept.
    fn conditions(
        &self,
        accepted: Result<(), Refusal>,
        written: &[Condition],
    ) -> Option<Vec<Condition>> {
        let accepted = self.condition("Accepted", accepted, written);
        if written.contains(&accepted) {
            return None;
        }
        let others = written
            .iter()
            .filter(|c| c.type_ != accepted.type_)
            .cloned();
        Some(others.chain([accepted.clone()]).collect())
    }

    /// A condition; its time stays that of `before` unless its status changes.
    fn condition(
        &self,
        kind: &str,
        verdict: Result<(), Refusal>,
        before: &[Condition],
    ) -> Condition {
        let (status, reason, message) = match verdict {
            // The reason of what is well is the name of the condition.
            Ok(()) => ("True", kind, String::new()),
            Err(Refusal { reason, message }) => ("False", reason, message),
        };
        let earlier = before
            .iter()
            .find(|c| c.type_ == kind && c.status == status);
        Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            last_transition_time: earlier
                .map_or(&self.now, |c| &c.last_transition_time)
                .clone(),
            observed_generation: None,
        }
    }
}

/// A parent as statuses name it: the group of core kinds is spelled out.
fn reference(parent: &RouteParent) -> ParentRef {
    let (group, kind) = match parent.kind {
        RouteParentKind::Service => ("core", "Service"),
        RouteParentKind::Server => (POLICY, "Server"),
        RouteParentKind::EgressNetwork => (POLICY, "EgressNetwork"),
    };
    ParentRef {
        group: Some(group.to_owned()),
        kind: Some(kind.to_owned()),
        namespace: Some(parent.name.namespace.to_string()),
        name: parent.name.name.to_string(),
        section_name: None,
        port: parent.port,
    }
}

/// Whether two lists of entries say the same, in any order.
fn same(present: &[&ParentStatus], wanted: &[ParentStatus]) -> bool {
    let says = |present: &ParentStatus, wanted: &ParentStatus| {
        present.parent_ref == wanted.parent_ref
            && present.conditions.len() == wanted.conditions.len()
            && wanted
                .conditions
                .iter()
                .all(|c| present.conditions.contains(c))
    };
    present.len() == wanted.len()
        && wanted
            .iter()
            .all(|wanted| present.iter().any(|p| says(p, wanted)))
}
