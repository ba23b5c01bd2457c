//! Owns `Discovery`: for each original destination what the control plane says of it, watched
//! while it is in use and for a moment longer (contract 4.1). Does not act on it.

use super::backend::{Backend, Backends};
use super::balance::Traffic;
use super::endpoint::Metadata;
use super::policy::{Compiler, Distribution, HttpRoutes, OpaqueRoute, Policy, Protocol};
use super::policy::{RequestPolicy, RuleBackend};
use crate::control::stream::{self, Event, Watch};
use crate::convert::{ConvertError, Meta};
use crate::error::Error;
use linkerd2_proxy_api::destination::destination_client::DestinationClient;
use linkerd2_proxy_api::destination::{DestinationProfile, GetDestination};
use linkerd2_proxy_api::outbound::outbound_policies_client::OutboundPoliciesClient;
use linkerd2_proxy_api::outbound::{self as api, TrafficSpec, traffic_spec};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;
use tonic::{Code, Status};
use weft_core::route::{Route, Rule};

/// Destinations that are remembered at the same time.
const MAX_DESTINATIONS: usize = 10_000;
/// How often a destination that the control plane does not know is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// What must be known to ask the control plane.
pub struct Queries {
    /// Policies.
    pub policies: OutboundPoliciesClient<Channel>,
    /// Profiles.
    pub profiles: DestinationClient<Channel>,
    /// The workload's token for policies (contract 1.2).
    pub workload: String,
    /// The workload's token for profiles (contract 1.2).
    pub context_token: String,
    /// Addresses for which profiles are asked.
    pub profile_networks: Vec<ipnet::IpNet>,
    /// How streams to the policy service are kept.
    pub policy_watch: Watch,
    /// How streams to the destination service are kept.
    pub profile_watch: Watch,
}

/// Knows destinations.
pub struct Discovery {
    backends: Arc<Backends>,
    queries: Arc<Queries>,
    entries: Arc<Mutex<HashMap<SocketAddr, Arc<Entry>>>>,
}

struct Entry {
    policy: watch::Receiver<Option<Arc<Policy>>>,
    last_used: Mutex<Instant>,
    _watches: AbortOnDropHandle<()>,
}

/// A destination in use; what is known of it stays up to date.
pub struct Destination(Arc<Entry>);

impl Drop for Destination {
    fn drop(&mut self) {
        *self.0.last_used.lock() = Instant::now();
    }
}

impl Destination {
    /// What is known now.
    pub fn policy(&self) -> Option<Arc<Policy>> {
        self.0.policy.borrow().clone()
    }
}

impl Discovery {
    /// Knows nothing yet; forgets a destination `idle` after its last use.
    pub fn new(backends: Arc<Backends>, queries: Queries, idle: Duration) -> Self {
        let entries = Arc::default();
        tokio::spawn(forget(Arc::downgrade(&entries), idle));
        Self {
            backends,
            queries: Arc::new(queries),
            entries,
        }
    }

    /// Finds out about `addr`, within `limit` if it is new.
    ///
    /// # Errors
    /// No answer in time, or too many destinations.
    pub async fn find(
        &self,
        addr: SocketAddr,
        limit: Duration,
    ) -> Result<(Destination, Arc<Policy>), Error> {
        let destination = Destination(self.entry(addr)?);
        let mut policy = destination.0.policy.clone();
        let known = policy.wait_for(Option::is_some);
        let known = match tokio::time::timeout(limit, known).await {
            Ok(Ok(known)) => known.clone(),
            _ => None,
        };
        match known {
            Some(policy) => Ok((destination, policy)),
            None => Err(Error::Undiscovered(addr)),
        }
    }

    fn entry(&self, addr: SocketAddr) -> Result<Arc<Entry>, Error> {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get(&addr) {
            return Ok(entry.clone());
        }
        if entries.len() >= MAX_DESTINATIONS {
            expire(&mut entries, Duration::ZERO);
        }
        if entries.len() >= MAX_DESTINATIONS {
            return Err(Error::LoadShed {
                what: "destinations in use".into(),
                limit: MAX_DESTINATIONS,
            });
        }
        let (tx, policy) = watch::channel(None);
        let watches = tokio::spawn(keep(addr, self.backends.clone(), self.queries.clone(), tx));
        let entry = Arc::new(Entry {
            policy,
            last_used: Mutex::new(Instant::now()),
            _watches: AbortOnDropHandle::new(watches),
        });
        entries.insert(addr, entry.clone());
        Ok(entry)
    }
}

async fn forget(entries: Weak<Mutex<HashMap<SocketAddr, Arc<Entry>>>>, idle: Duration) {
    let period = (idle / 4).clamp(Duration::from_millis(100), Duration::from_secs(1));
    loop {
        tokio::time::sleep(period).await;
        match entries.upgrade() {
            Some(entries) => expire(&mut entries.lock(), idle),
            None => return,
        }
    }
}

fn expire(entries: &mut HashMap<SocketAddr, Arc<Entry>>, idle: Duration) {
    let now = Instant::now();
    entries.retain(|_, entry| {
        Arc::strong_count(entry) > 1 || now.duration_since(*entry.last_used.lock()) < idle
    });
}

/// What the control plane has said of one destination.
#[derive(Default)]
struct Answers {
    policy: Option<Result<api::OutboundPolicy, Status>>,
    profile: Option<Option<DestinationProfile>>,
}

/// Watches one destination until it is dropped.
async fn keep(
    addr: SocketAddr,
    backends: Arc<Backends>,
    queries: Arc<Queries>,
    tx: watch::Sender<Option<Arc<Policy>>>,
) {
    let answers = Mutex::new(Answers::default());
    let publish = |change: &dyn Fn(&mut Answers) -> bool| {
        let mut answers = answers.lock();
        if change(&mut answers)
            && let (Some(policy), Some(profile)) = (&answers.policy, &answers.profile)
        {
            let policy = compile(addr, &backends, policy, profile.as_ref());
            tx.send_replace(Some(Arc::new(policy)));
        }
    };
    let policies = watch_policy(addr, &queries, |answer| {
        publish(&|known| {
            let changed = match (&known.policy, &answer) {
                (Some(Ok(before)), Ok(now)) => before != now,
                // A refusal after an answer does not undo it: we go on with what we knew.
                (Some(Ok(_)), Err(status)) => status.code() == Code::NotFound,
                (Some(Err(before)), Err(now)) => before.code() != now.code(),
                _ => true,
            };
            if changed {
                known.policy = Some(answer.clone());
            }
            changed
        });
    });
    let profiles = watch_profile(addr, &queries, |answer| {
        publish(&|known| {
            let changed = known.profile.as_ref() != Some(&answer);
            known.profile = Some(answer.clone());
            changed
        });
    });
    tokio::join!(policies, profiles);
}

async fn watch_policy(
    addr: SocketAddr,
    queries: &Queries,
    mut on: impl FnMut(Result<api::OutboundPolicy, Status>),
) {
    let watch = Watch {
        what: format!("policy for {addr}"),
        terminal: &[
            Code::NotFound,
            Code::Unimplemented,
            Code::InvalidArgument,
            Code::FailedPrecondition,
        ],
        ..queries.policy_watch.clone()
    };
    let query = TrafficSpec {
        source_workload: queries.workload.clone(),
        target: Some(traffic_spec::Target::Addr(addr.into())),
    };
    loop {
        let open = || {
            let (mut client, query) = (queries.policies.clone(), query.clone());
            stream::opening(async move { client.watch(query).await })
        };
        let status = stream::watch(&watch, open, |event| {
            if let Event::Message(policy) = event {
                on(Ok(policy));
            }
        })
        .await;
        on(Err(status));
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

async fn watch_profile(
    addr: SocketAddr,
    queries: &Queries,
    mut on: impl FnMut(Option<DestinationProfile>),
) {
    if !queries
        .profile_networks
        .iter()
        .any(|n| n.contains(&addr.ip()))
    {
        return on(None);
    }
    let watch = Watch {
        what: format!("profile of {addr}"),
        terminal: &[Code::InvalidArgument, Code::FailedPrecondition],
        ..queries.profile_watch.clone()
    };
    let query = GetDestination {
        path: addr.to_string(),
        context_token: queries.context_token.clone(),
        ..Default::default()
    };
    let open = || {
        let (mut client, query) = (queries.profiles.clone(), query.clone());
        stream::opening(async move { client.get_profile(query).await })
    };
    let _refused = stream::watch(&watch, open, |event| {
        if let Event::Message(profile) = event {
            on(Some(profile));
        }
    })
    .await;
    on(None);
}

/// Puts policy and profile together (contract 4.1, precedence).
fn compile(
    addr: SocketAddr,
    backends: &Backends,
    policy: &Result<api::OutboundPolicy, Status>,
    profile: Option<&DestinationProfile>,
) -> Policy {
    let compiled = match policy {
        Ok(policy) => Compiler { backends }.policy(policy.clone()),
        Err(status) if is_unknown(status) => fallback(addr, backends, profile),
        Err(status) => Ok(invalid(&format!(
            "{:?}: {}",
            status.code(),
            status.message()
        ))),
    };
    let compiled = compiled.and_then(|policy| apply_profile(policy, backends, profile));
    compiled.unwrap_or_else(|error| {
        tracing::warn!(destination = %addr, %error, "the policy is not valid: refusing its traffic");
        invalid(&error.to_string())
    })
}

fn is_unknown(status: &Status) -> bool {
    matches!(status.code(), Code::NotFound | Code::Unimplemented)
}

fn invalid(reason: &str) -> Policy {
    Policy {
        parent: Meta::default_named("invalid"),
        protocol: Protocol::Invalid(reason.into()),
    }
}

/// Without a policy: the endpoint that the profile names, else the address itself.
fn fallback(
    addr: SocketAddr,
    backends: &Backends,
    profile: Option<&DestinationProfile>,
) -> Result<Policy, ConvertError> {
    let endpoint = profile.and_then(|p| p.endpoint.clone());
    let name = if endpoint.is_some() {
        "endpoint"
    } else {
        "fallback"
    };
    let backend = || match endpoint.clone() {
        Some(endpoint) => backends.address(endpoint),
        None => Ok(backends.endpoint(addr, Metadata::unknown())),
    };
    let http = Arc::new(http_to(vec![rule_backend(backend()?)], vec![1]));
    Ok(Policy {
        parent: Meta::default_named(name),
        protocol: Protocol::Detect {
            http1: http.clone(),
            http2: http,
            opaque: Arc::new(OpaqueRoute {
                refused: None,
                backends: Distribution::First(vec![rule_backend(backend()?)]),
            }),
        },
    })
}

fn rule_backend(backend: Backend) -> RuleBackend {
    RuleBackend {
        backend,
        filters: Vec::new(),
    }
}

fn http_to(backends: Vec<RuleBackend>, weights: Vec<u32>) -> HttpRoutes {
    HttpRoutes::Http(vec![Route {
        hosts: Vec::new(),
        rules: vec![Rule {
            matches: Vec::new(),
            policy: RequestPolicy {
                filters: Vec::new(),
                backends: Distribution::Random { backends, weights },
            },
        }],
    }])
}

/// What a ServiceProfile changes: the protocol, and where traffic goes.
fn apply_profile(
    policy: Policy,
    backends: &Backends,
    profile: Option<&DestinationProfile>,
) -> Result<Policy, ConvertError> {
    let Some(profile) = profile else {
        return Ok(policy);
    };
    let parent = policy.parent;
    let overrides = |traffic| {
        let backend = |dst: &linkerd2_proxy_api::destination::WeightedDst| {
            let load = super::endpoint::LoadSettings::default();
            let path = dst.authority.clone();
            let meta = Meta::default_named(&path);
            rule_backend(backends.service(path, traffic, &parent, meta, load))
        };
        let weights = profile.dst_overrides.iter().map(|d| d.weight).collect();
        (profile.dst_overrides.iter().map(backend).collect(), weights)
    };
    let overridden = !profile.dst_overrides.is_empty();
    let protocol = match policy.protocol {
        Protocol::Detect { opaque, .. } if profile.opaque_protocol => Protocol::Opaque(opaque),
        protocol => protocol,
    };
    let opaque = |route: Arc<OpaqueRoute>| {
        if !overridden || route.refused.is_some() {
            return route;
        }
        let (backends, weights) = overrides(Traffic::Tcp);
        Arc::new(OpaqueRoute {
            refused: None,
            backends: Distribution::Random { backends, weights },
        })
    };
    let http = |routes: Arc<HttpRoutes>| {
        if !overridden {
            return routes;
        }
        let (backends, weights) = overrides(Traffic::Http);
        Arc::new(http_to(backends, weights))
    };
    let protocol = match protocol {
        Protocol::Detect {
            http1,
            http2,
            opaque: route,
        } => Protocol::Detect {
            http1: http(http1),
            http2: http(http2),
            opaque: opaque(route),
        },
        Protocol::Http1(routes) => Protocol::Http1(http(routes)),
        Protocol::Http2(routes) => Protocol::Http2(http(routes)),
        Protocol::Opaque(route) => Protocol::Opaque(opaque(route)),
        Protocol::Tls(routes) => Protocol::Tls(Arc::new(routes.map(opaque))),
        Protocol::Invalid(reason) => Protocol::Invalid(reason),
    };
    Ok(Policy { parent, protocol })
}

#[cfg(test)]
mod tests;
