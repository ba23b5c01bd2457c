//! Owns rate limits of inbound ports as messages: of several HTTPLocalRateLimitPolicies for a Server the oldest (contract
//! 8.2).

use linkerd2_proxy_api::inbound::{
    HttpLocalRateLimit, Identity,
    http_local_rate_limit::{Limit, Override, r#override::ClientIdentities},
};
use weft_cluster::{
    Name,
    index::{RateLimit, Server},
};

use super::{Port, authorizations::GROUP};
use crate::{acceptance, wire};

impl Port<'_> {
    /// The limit of a Server.
    pub(super) fn rate_limit(&self, server: &Server) -> Option<HttpLocalRateLimit> {
        let limits = self.index.rate_limits(&server.name);
        let mut limits = limits.into_iter();
        let limit = limits.find(|limit| acceptance::rate_limit(self.index, limit).is_ok())?;
        Some(self.limit(limit))
    }

    fn limit(&self, given: &RateLimit) -> HttpLocalRateLimit {
        let limit = |requests_per_second| Limit {
            requests_per_second,
        };
        let overrides = given.overrides.iter().map(|(rate, clients)| Override {
            limit: Some(limit(*rate)),
            clients: Some(self.clients(clients)),
        });
        let resource = wire::resource(GROUP, "HTTPLocalRateLimitPolicy", &given.name.name);
        HttpLocalRateLimit {
            metadata: Some(wire::resource_meta(resource)),
            total: given.total.map(limit),
            identity: given.identity.map(limit),
            overrides: overrides.collect(),
        }
    }

    /// An account whose name cannot be in a certificate is nobody.
    fn clients(&self, accounts: &[Name]) -> ClientIdentities {
        let mesh = &self.settings.mesh;
        let known = accounts
            .iter()
            .filter_map(|account| mesh.identity(&account.name, &account.namespace).ok());
        let identities = known.map(|identity| Identity {
            name: identity.as_str().to_owned(),
        });
        ClientIdentities {
            identities: identities.collect(),
        }
    }
}
