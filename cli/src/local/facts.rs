//! Owns what follows for a workload from its Pod and the Services: the facts its proxy needs, its iptables rules and its
//! `/etc/hosts`. Pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;

use super::control::{Seen, SeenPod};
use super::netns::{CONTROL, GATEWAY, NETWORK};
use super::sidecar::{Facts, PROXY_USER};
use crate::init::rules::{PortRange, Rules};

/// Why a Pod cannot be run here.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FactsError {
    /// The manifests have no such Pod.
    #[error(
        "the manifests have no Pod `{name}` in namespace `{namespace}`{known}; add a document `kind: Pod` of that name{broken}"
    )]
    Unknown {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The pods there are.
        known: String,
        /// What is wrong with the manifests.
        broken: String,
    },
    /// An annotation cannot be read.
    #[error(
        "Pod `{pod}`: metadata.annotations[{annotation}]: `{value}` is no list of ports: write `80,8000-8010` or names of its ports"
    )]
    Ports {
        /// Whose.
        pod: String,
        /// Which.
        annotation: &'static str,
        /// What it says.
        value: String,
    },
}

/// Finds a Pod.
pub fn find<'a>(seen: &'a Seen, namespace: &str, name: &str) -> Result<&'a SeenPod, FactsError> {
    let found = seen
        .pods
        .iter()
        .find(|pod| pod.namespace == namespace && pod.name == name);
    found.ok_or_else(|| {
        let known: Vec<String> = seen
            .pods
            .iter()
            .take(10)
            .map(|pod| format!("{}/{}", pod.namespace, pod.name))
            .collect();
        let known = if known.is_empty() {
            String::new()
        } else {
            format!(" (there are {})", known.join(", "))
        };
        let broken = if seen.errors.is_empty() {
            String::new()
        } else {
            format!("; errors: {}", seen.errors.join("; "))
        };
        FactsError::Unknown {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            known,
            broken,
        }
    })
}

/// The facts of a Pod.
pub fn facts(pod: &SeenPod) -> Result<Facts, FactsError> {
    Ok(Facts {
        namespace: pod.namespace.clone(),
        workload: pod.name.clone(),
        service_account: pod.service_account.clone(),
        ports: pod.ports.iter().map(|(_, number)| *number).collect(),
        opaque_ports: ports(pod, "config.linkerd.io/opaque-ports")?
            .into_iter()
            .flat_map(|r| r.low..=r.high)
            .collect(),
        default_policy: pod
            .annotations
            .get("config.linkerd.io/default-inbound-policy")
            .cloned(),
    })
}

/// The iptables rules of a Pod; none if it is not in the mesh, by `linkerd.io/inject: disabled` (contract 9.2).
pub fn rules(pod: &SeenPod) -> Result<Option<Rules>, FactsError> {
    if pod
        .annotations
        .get("linkerd.io/inject")
        .is_some_and(|value| value == "disabled")
    {
        return Ok(None);
    }
    let mut rules = Rules {
        proxy_uid: PROXY_USER,
        ..Rules::default()
    };
    rules
        .inbound_ports_to_ignore
        .extend(ports(pod, "config.linkerd.io/skip-inbound-ports")?);
    rules
        .outbound_ports_to_ignore
        .extend(ports(pod, "config.linkerd.io/skip-outbound-ports")?);
    Ok(Some(rules))
}

/// Numbers, ranges and names of ports (contract 9.3), by annotation.
fn ports(pod: &SeenPod, annotation: &'static str) -> Result<Vec<PortRange>, FactsError> {
    let Some(list) = pod.annotations.get(annotation) else {
        return Ok(Vec::new());
    };
    let one = |item: &str| {
        if let Some((_, number)) = pod.ports.iter().find(|(name, _)| name == item) {
            return Ok(PortRange {
                low: *number,
                high: *number,
            });
        }
        let error = || FactsError::Ports {
            pod: pod.name.clone(),
            annotation,
            value: item.to_owned(),
        };
        item.parse().map_err(|_| error())
    };
    // By the rule for port lists (contract 1.1), blanks and empty items are allowed.
    list.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(one)
        .collect()
}

/// The text of `/etc/hosts`: the names of each Service as a cluster's DNS would have them, the short one in its own
/// namespace only.
pub fn hosts(seen: &Seen, namespace: &str, workload: &str, ip: Ipv4Addr) -> String {
    let mut text =
        format!("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{ip} {workload}\n");
    let mut services: Vec<_> = seen.services.iter().collect();
    services.sort_by_key(|service| (&service.namespace, &service.name));
    for service in services {
        let long = format!("{}.{}", service.name, service.namespace);
        let short = if service.namespace == namespace {
            format!(" {}", service.name)
        } else {
            String::new()
        };
        text.push_str(&format!(
            "{} {long}.svc.cluster.local {long}.svc {long}{short}\n",
            service.ip
        ));
    }
    text
}

/// A Pod as it is started.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// What its proxy needs to know.
    pub facts: Facts,
    /// What is redirected; nothing, and no proxy, if it is not in the mesh.
    pub rules: Option<Rules>,
    /// Its address.
    pub ip: Ipv4Addr,
}

/// The address of a Pod: the one it had before, else the one it wants, else the next free one. `None` if it cannot have
/// the one it wants, or if none is left.
pub fn address(wanted: Option<IpAddr>, taken: &BTreeSet<Ipv4Addr>) -> Option<Ipv4Addr> {
    let (network, bits) = NETWORK;
    let network = Ipv4Net::new_assert(network, bits);
    let free = |ip: &Ipv4Addr| ![GATEWAY, CONTROL].contains(ip) && !taken.contains(ip);
    let Some(wanted) = wanted else {
        return network.hosts().find(free);
    };
    match wanted {
        IpAddr::V4(ip)
            if network.contains(&ip)
                && ip != network.network()
                && ip != network.broadcast()
                && free(&ip) =>
        {
            Some(ip)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::control::SeenService;

    fn pod() -> SeenPod {
        let annotations = [
            ("config.linkerd.io/opaque-ports", "store, 25,"),
            ("config.linkerd.io/skip-inbound-ports", "9000-9001"),
            ("config.linkerd.io/skip-outbound-ports", "5432"),
        ];
        SeenPod {
            namespace: "demo".to_owned(),
            name: "a".to_owned(),
            service_account: "sa".to_owned(),
            ports: vec![("store".to_owned(), 6379)],
            annotations: annotations
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into(),
            ip: None,
        }
    }

    #[test]
    fn annotations_become_facts_and_rules() {
        assert_eq!(
            facts(&pod()).expect("good annotations").opaque_ports,
            [6379, 25]
        );
        let rules = rules(&pod())
            .expect("good annotations")
            .expect("in the mesh");
        assert_eq!(
            rules.inbound_ports_to_ignore.last(),
            Some(&PortRange {
                low: 9000,
                high: 9001
            })
        );
        assert_eq!(
            rules.outbound_ports_to_ignore,
            [PortRange {
                low: 5432,
                high: 5432
            }]
        );
    }

    #[test]
    fn a_pod_outside_the_mesh_has_no_rules() {
        let mut pod = pod();
        for (value, meshed) in [("disabled", false), ("enabled", true)] {
            pod.annotations
                .insert("linkerd.io/inject".to_owned(), value.to_owned());
            assert_eq!(rules(&pod).expect("good annotations").is_some(), meshed);
        }
    }

    #[test]
    fn a_bad_annotation_is_named() {
        let mut pod = pod();
        pod.annotations.insert(
            "config.linkerd.io/opaque-ports".to_owned(),
            "nowhere".to_owned(),
        );
        let error = facts(&pod).expect_err("no port has that name");
        assert!(
            error.to_string().contains("config.linkerd.io/opaque-ports"),
            "{error}"
        );
    }

    #[test]
    fn an_unknown_pod_lists_the_known_ones() {
        let seen = Seen {
            pods: vec![pod()],
            errors: vec!["x.yaml: bad".to_owned()],
            ..Seen::default()
        };
        let error = find(&seen, "demo", "b")
            .expect_err("it is not there")
            .to_string();
        assert!(
            error.contains("there are demo/a") && error.contains("x.yaml: bad"),
            "{error}"
        );
    }

    #[test]
    fn addresses_are_free_and_of_the_network() {
        let taken = BTreeSet::from([Ipv4Addr::new(10, 88, 0, 3)]);
        assert_eq!(address(None, &taken), Some(Ipv4Addr::new(10, 88, 0, 4)));
        let wanted = |text: &str| address(Some(text.parse().expect("an address")), &taken);
        assert_eq!(wanted("10.88.7.7"), Some(Ipv4Addr::new(10, 88, 7, 7)));
        for bad in [
            "10.88.0.0",
            "10.88.0.1",
            "10.88.0.2",
            "10.88.0.3",
            "10.88.255.255",
            "10.89.0.1",
            "fd00::1",
        ] {
            assert_eq!(wanted(bad), None, "{bad}");
        }
    }

    #[test]
    fn hosts_has_short_names_in_the_own_namespace_only() {
        let service = |namespace: &str, last| SeenService {
            namespace: namespace.to_owned(),
            name: "web".to_owned(),
            ip: IpAddr::from([10, 96, 0, last]),
        };
        let seen = Seen {
            services: vec![service("other", 2), service("demo", 1)],
            ..Seen::default()
        };
        assert_eq!(
            hosts(&seen, "demo", "load", Ipv4Addr::new(10, 88, 0, 3)),
            "127.0.0.1 localhost\n\
             ::1 localhost ip6-localhost ip6-loopback\n\
             10.88.0.3 load\n\
             10.96.0.1 web.demo.svc.cluster.local web.demo.svc web.demo web\n\
             10.96.0.2 web.other.svc.cluster.local web.other.svc web.other\n"
        );
    }
}
