//! Owns what the conditions of Servers and AuthorizationPolicies say: whether an older Server speaks for the same port (case
//! R05), and whether what they name is there (case R19). Proxies are told the same without them: the oldest Server speaks, and
//! a policy that names what does not exist lets nobody in.

use std::collections::BTreeSet;

use weft_cluster::{
    Index, Name, Reader,
    index::{
        AuthenticationRef, Authorization, AuthorizationTarget, ContainerPort, ExternalWorkload,
        Pod, PortRef, Server,
    },
};

use super::{Refusal, refuse};

/// Names in a message; more are counted.
const MAX_NAMED: usize = 10;

/// A workload that a Server selects.
enum Workload<'a> {
    Pod(&'a Pod),
    External(&'a ExternalWorkload),
}

impl Workload<'_> {
    fn ports(&self) -> &[ContainerPort] {
        match self {
            Self::Pod(pod) => &pod.ports,
            Self::External(workload) => &workload.ports,
        }
    }

    fn is_selected(&self, server: &Server, port: u16) -> bool {
        match self {
            Self::Pod(pod) => server.selects(pod, port),
            Self::External(workload) => server.selects_workload(workload, port),
        }
    }
}

fn selected<'a>(index: &'a Index, reader: &Reader<'a>, server: &Server) -> Vec<Workload<'a>> {
    let namespace = &server.name.namespace;
    let mut selected = Vec::new();
    if let Some(pods) = &server.pods {
        let matching = index.pods_of(namespace).filter(|p| pods.matches(&p.labels));
        selected.extend(matching.map(Workload::Pod));
    }
    if let Some(workloads) = &server.workloads {
        let all = reader.workloads(namespace);
        let matching = all.filter(|w| workloads.matches(&w.labels));
        selected.extend(matching.map(Workload::External));
    }
    selected
}

/// `Accepted` of a Server: no older one speaks for a port of a workload that it selects.
///
/// # Errors
/// The Servers that do, by port.
pub(crate) fn server(index: &Index, reader: &Reader<'_>, server: &Server) -> Result<(), Refusal> {
    let age = |server: &Server| (server.created, server.name.clone());
    let mine = age(server);
    let servers = reader.servers(&server.name.namespace);
    let mut older: Vec<&Server> = servers.filter(|other| age(other) < mine).collect();
    older.sort_by_key(|other| age(other));
    if older.is_empty() {
        return Ok(());
    }
    let (mut winners, mut kept) = (BTreeSet::new(), false);
    for workload in selected(index, reader, server) {
        for port in server.port.numbers(workload.ports()) {
            match older.iter().find(|other| workload.is_selected(other, port)) {
                Some(winner) => drop(winners.insert((port, &winner.name))),
                None => kept = true,
            }
        }
    }
    if winners.is_empty() {
        return Ok(());
    }
    let named = winners
        .iter()
        .map(|(port, name)| format!("port {port}: Server {name}"));
    let named = listed(named.collect());
    let effect = match kept {
        true => "this Server speaks for other workloads only",
        false => "this Server has no effect",
    };
    refuse(
        "Conflicted",
        format!("an older Server speaks for the same workloads ({named}): {effect}"),
    )
}

/// `ResolvedRefs` of a Server: it selects something, and that has a port of this name. A number needs no declaration.
///
/// # Errors
/// What is missing.
pub(crate) fn server_port(
    index: &Index,
    reader: &Reader<'_>,
    server: &Server,
) -> Result<(), Refusal> {
    let selected = selected(index, reader, server);
    if selected.is_empty() {
        return refuse("NoMatchingWorkload", "the selector matches nothing now");
    }
    let PortRef::Name(wanted) = &server.port else {
        return Ok(());
    };
    let ports = selected.iter().flat_map(Workload::ports);
    let names: BTreeSet<&str> = ports.filter_map(|port| port.name.as_deref()).collect();
    if names.contains(&**wanted) {
        return Ok(());
    }
    let has = match names.is_empty() {
        true => "none has a name".to_owned(),
        false => format!(
            "there are {}",
            listed(names.into_iter().map(str::to_owned).collect())
        ),
    };
    refuse(
        "PortNotFound",
        format!("no selected workload has a port named {wanted:?}: {has}"),
    )
}

/// `Accepted` of an AuthorizationPolicy: its target exists.
///
/// # Errors
/// The target.
pub(crate) fn authorization(index: &Reader<'_>, policy: &Authorization) -> Result<(), Refusal> {
    let here = |name: &std::sync::Arc<str>| Name {
        namespace: policy.name.namespace.clone(),
        name: name.clone(),
    };
    let missing = match &policy.target {
        AuthorizationTarget::Namespace => None,
        AuthorizationTarget::Server(name) => {
            let name = here(name);
            let missing = index.server(&name).is_none();
            missing.then(|| format!("Server {name}"))
        }
        AuthorizationTarget::Route(kind, name) => {
            let name = here(name);
            let missing = index.route(*kind, &name).is_none();
            missing.then(|| format!("{} {name}", kind.as_str()))
        }
    };
    match missing {
        None => Ok(()),
        Some(missing) => refuse("NoMatchingTarget", format!("{missing} does not exist")),
    }
}

/// `ResolvedRefs` of an AuthorizationPolicy: the authentications that it requires exist. Service accounts are not looked at.
///
/// # Errors
/// Those that do not.
pub(crate) fn authentications(index: &Reader<'_>, policy: &Authorization) -> Result<(), Refusal> {
    let missing = policy
        .required
        .iter()
        .filter_map(|required| match required {
            AuthenticationRef::MeshTls(name) => {
                let missing = index.identities(name).is_none();
                missing.then(|| format!("MeshTLSAuthentication {name}"))
            }
            AuthenticationRef::Network(name) => {
                let missing = index.networks(name).is_none();
                missing.then(|| format!("NetworkAuthentication {name}"))
            }
            AuthenticationRef::ServiceAccount(_) => None,
        });
    let missing: Vec<String> = missing.collect();
    let verb = if missing.len() == 1 { "does" } else { "do" };
    match listed(missing) {
        missing if missing.is_empty() => Ok(()),
        missing => refuse(
            "AuthenticationNotFound",
            format!("{missing} {verb} not exist: the policy lets nobody in"),
        ),
    }
}

fn listed(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(MAX_NAMED);
    names.truncate(MAX_NAMED);
    match more {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}
