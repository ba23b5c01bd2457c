//! Owns Servers as facts: which pods, which port, which protocol; does not choose between two that match (contract
//! 8.2: the older wins), the reader does.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{ContainerPort, Created, ExternalWorkload, Pod, Selector, notes::Notes};
use crate::{
    mesh::DefaultPolicy,
    objects::{
        Name,
        policy::{self, ProxyProtocol},
    },
};

/// A Server.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Its name.
    pub name: Name,
    /// Its age.
    pub created: Created,
    /// Its labels, by which ServerAuthorizations choose it.
    pub labels: BTreeMap<String, String>,
    /// Its pods; `None` when it selects external workloads.
    pub pods: Option<Selector>,
    /// Its external workloads; `None` when it selects pods.
    pub workloads: Option<Selector>,
    /// Its port.
    pub port: PortRef,
    /// What is spoken there.
    pub protocol: ProxyProtocol,
    /// Who may connect besides those authorized.
    pub access_policy: DefaultPolicy,
}

/// A port by number or by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortRef {
    /// By number.
    Number(u16),
    /// By the name of a container port.
    Name(Arc<str>),
}

impl Server {
    /// Whether this Server speaks for a port of a pod.
    pub fn selects(&self, pod: &Pod, port: u16) -> bool {
        let selected = |selector: &Selector| selector.matches(&pod.labels);
        self.port.is(port, &pod.ports) && self.pods.as_ref().is_some_and(selected)
    }

    /// Whether this Server speaks for a port of an external workload.
    pub fn selects_workload(&self, workload: &ExternalWorkload, port: u16) -> bool {
        let selected = |selector: &Selector| selector.matches(&workload.labels);
        self.port.is(port, &workload.ports) && self.workloads.as_ref().is_some_and(selected)
    }
}

impl PortRef {
    /// The numbers it means, by the names that the ports have.
    pub fn numbers(&self, ports: &[ContainerPort]) -> BTreeSet<u16> {
        match self {
            Self::Number(number) => BTreeSet::from([*number]),
            Self::Name(name) => {
                let named = ports.iter().filter(|p| p.name.as_ref() == Some(name));
                named.map(|p| p.number).collect()
            }
        }
    }

    /// Whether it means this number, by the names that the ports have.
    fn is(&self, number: u16, ports: &[ContainerPort]) -> bool {
        match self {
            Self::Number(wanted) => *wanted == number,
            Self::Name(name) => ports
                .iter()
                .any(|p| p.number == number && p.name.as_ref() == Some(name)),
        }
    }
}

pub(super) fn read(server: &policy::Server, name: &Name, notes: &mut Notes) -> Option<Server> {
    let spec = &server.spec;
    let port = match &spec.port {
        IntOrString::Int(number) => match u16::try_from(*number).ok().filter(|n| *n > 0) {
            Some(number) => PortRef::Number(number),
            None => {
                return notes.refuse("spec.port", format!("{number} is not a port (1 to 65535)"));
            }
        },
        IntOrString::String(text) => match text.parse() {
            Ok(number) => PortRef::Number(number),
            Err(_) => PortRef::Name(text.as_str().into()),
        },
    };
    let (pods, workloads) = match (&spec.pod_selector, &spec.external_workload_selector) {
        (Some(pods), None) => (Some(Selector::read(pods, "spec.podSelector", notes)?), None),
        (None, Some(workloads)) => {
            let field = "spec.externalWorkloadSelector";
            (None, Some(Selector::read(workloads, field, notes)?))
        }
        _ => {
            return notes.refuse(
                "spec",
                "exactly one of podSelector and externalWorkloadSelector is needed",
            );
        }
    };
    let access_policy = match spec.access_policy.as_deref().map(str::parse) {
        None => DefaultPolicy::Deny,
        Some(Ok(policy)) => policy,
        Some(Err(error)) => return notes.refuse("spec.accessPolicy", error),
    };
    Some(Server {
        name: name.clone(),
        created: super::pod::created(&server.metadata),
        labels: server.metadata.labels.clone().unwrap_or_default(),
        pods,
        workloads,
        port,
        protocol: spec.proxy_protocol,
        access_policy,
    })
}
