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
const ACCEPTED: &str = "Accepted";
const RESOLVED: &str = "ResolvedRefs";

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
        all: index,
        index: &reader,
        mesh,
        now,
    };
    let statuses = index.statuses();
    statuses
        .filter_map(|(object, written)| {
            let status = match object.kind {
                Kind::Server => planner.server(&object.name, written),
                Kind::AuthorizationPolicy => planner.authorization(&object.name, written),
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
    all: &'a Index,
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
        let condition = |kind, verdict| self.condition(kind, verdict, before, written.generation);
        let mut conditions = vec![condition(ACCEPTED, accepted)];
        if parent.kind != RouteParentKind::Server {
            let resolved = acceptance::backends(self.index, route, parent);
            conditions.push(condition(RESOLVED, resolved));
        }
        ParentStatus {
            parent_ref,
            controller_name: CONTROLLER.to_owned(),
            conditions,
        }
    }

    fn server(&self, name: &Name, written: &WrittenStatus) -> Option<Value> {
        let server = self.index.server(name)?;
        let accepted = acceptance::server(self.all, self.index, server);
        let resolved = acceptance::server_port(self.all, self.index, server);
        let conditions = self.conditions([(ACCEPTED, accepted), (RESOLVED, resolved)], written)?;
        Some(json!({ "conditions": conditions }))
    }

    fn authorization(&self, name: &Name, written: &WrittenStatus) -> Option<Value> {
        let policy = self.index.authorization(name)?;
        let accepted = acceptance::authorization(self.index, policy);
        let resolved = acceptance::authentications(self.index, policy);
        let conditions = self.conditions([(ACCEPTED, accepted), (RESOLVED, resolved)], written)?;
        Some(json!({ "conditions": conditions }))
    }

    fn egress_network(&self, name: &Name, written: &WrittenStatus) -> Option<Value> {
        let network = self.index.egress_network(name)?;
        let accepted = acceptance::egress_network(self.mesh, network);
        let conditions = self.conditions([(ACCEPTED, accepted)], written)?;
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
        let conditions = match self.conditions([(ACCEPTED, accepted)], written) {
            None if described => return None,
            None => written.conditions.clone(),
            Some(conditions) => conditions,
        };
        Some(json!({"conditions": conditions, "targetRef": target}))
    }

    /// The conditions with those of these types as they should be; `None` if they are so already. Others are kept.
    fn conditions<const N: usize>(
        &self,
        verdicts: [(&str, Result<(), Refusal>); N],
        written: &WrittenStatus,
    ) -> Option<Vec<Condition>> {
        let before = &written.conditions;
        let ours = verdicts
            .map(|(kind, verdict)| self.condition(kind, verdict, before, written.generation));
        if ours.iter().all(|condition| before.contains(condition)) {
            return None;
        }
        let is_other = |c: &&Condition| ours.iter().all(|our| our.type_ != c.type_);
        let mut all: Vec<Condition> = before.iter().filter(is_other).cloned().collect();
        all.extend(ours);
        Some(all)
    }

    /// A condition; its time stays that of `before` unless its status changes.
    fn condition(
        &self,
        kind: &str,
        verdict: Result<(), Refusal>,
        before: &[Condition],
        generation: Option<i64>,
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
            observed_generation: generation,
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
