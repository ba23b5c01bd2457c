//! Owns `TlsRoutes`: where connections go by the server name in their ClientHello (contract 4.2), and reading them. Their
//! bytes are forwarded as they are; nothing here speaks TLS.

use super::{Compiler, OpaqueRoute};
use crate::convert::{self, ConvertError, Meta};
use linkerd2_proxy_api::outbound::{self as api, opaque_route as opaque, tls_route as tls};
use linkerd2_proxy_api::tls_route::{SniMatch, sni_match};
use std::sync::Arc;
use weft_core::route::{self, HostMatch};

/// Routes of TLS connections, each for some server names; a route without names is for all.
pub struct TlsRoutes(Vec<(Vec<HostMatch>, Arc<OpaqueRoute>)>);

impl TlsRoutes {
    /// The route for a server name: the most specific one, and of equal ones the first.
    pub fn find(&self, server_name: &str) -> Option<&Arc<OpaqueRoute>> {
        route::find_by_host(&self.0, server_name)
    }

    /// The same server names, with other routes.
    pub fn map(&self, change: impl Fn(Arc<OpaqueRoute>) -> Arc<OpaqueRoute>) -> Self {
        let routes = self.0.iter();
        Self(
            routes
                .map(|(names, route)| (names.clone(), change(route.clone())))
                .collect(),
        )
    }
}

impl Compiler<'_> {
    /// A TLS route has exactly one rule (contract 4.2).
    pub(super) fn tls(
        &self,
        parent: &Meta,
        routes: Vec<api::TlsRoute>,
    ) -> Result<Arc<TlsRoutes>, ConvertError> {
        let route = |route: api::TlsRoute| {
            convert::meta(route.metadata)?;
            let names = route.snis.into_iter().map(server_name);
            let mut rules = route.rules.into_iter();
            let (Some(rule), None) = (rules.next(), rules.next()) else {
                return Err(convert::invalid("tls.rules", "there must be one"));
            };
            let rule = self.opaque_rule(parent, as_opaque(rule))?;
            Ok((names.collect::<Result<_, _>>()?, Arc::new(rule)))
        };
        let routes: Result<_, ConvertError> = routes.into_iter().map(route).collect();
        Ok(Arc::new(TlsRoutes(routes?)))
    }
}

fn server_name(name: SniMatch) -> Result<HostMatch, ConvertError> {
    match name.r#match {
        Some(sni_match::Match::Exact(name)) => Ok(HostMatch::exact(&name)?),
        Some(sni_match::Match::Suffix(suffix)) => {
            Ok(HostMatch::suffix_of_reverse_labels(&suffix.reverse_labels)?)
        }
        None => Err(ConvertError::Missing("server name")),
    }
}

/// The API has the same rule twice, once for each protocol.
fn as_opaque(rule: tls::Rule) -> opaque::Rule {
    use opaque::distribution::{Empty, FirstAvailable, Kind, RandomAvailable};
    let filter = |filter: tls::Filter| opaque::Filter {
        kind: filter.kind.map(|kind| match kind {
            tls::filter::Kind::Invalid(invalid) => opaque::filter::Kind::Invalid(invalid),
            tls::filter::Kind::Forbidden(forbidden) => opaque::filter::Kind::Forbidden(forbidden),
        }),
    };
    let backend = |backend: tls::RouteBackend| opaque::RouteBackend {
        backend: backend.backend,
        filters: backend.filters.into_iter().map(filter).collect(),
    };
    let weighted = |weighted: tls::WeightedRouteBackend| opaque::WeightedRouteBackend {
        backend: weighted.backend.map(backend),
        weight: weighted.weight,
    };
    let kind = |kind| match kind {
        tls::distribution::Kind::Empty(_) => Kind::Empty(Empty {}),
        tls::distribution::Kind::FirstAvailable(first) => Kind::FirstAvailable(FirstAvailable {
            backends: first.backends.into_iter().map(backend).collect(),
        }),
        tls::distribution::Kind::RandomAvailable(random) => {
            Kind::RandomAvailable(RandomAvailable {
                backends: random.backends.into_iter().map(weighted).collect(),
            })
        }
    };
    opaque::Rule {
        backends: rule.backends.map(|distribution| opaque::Distribution {
            kind: distribution.kind.map(kind),
        }),
        filters: rule.filters.into_iter().map(filter).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Distribution;
    use super::*;
    use crate::outbound::backend::Backends;
    use crate::testing;
    use linkerd2_proxy_api::destination::destination_client::DestinationClient;
    use linkerd2_proxy_api::meta;
    use linkerd2_proxy_api::opaque_route::Forbidden;

    fn named(name: &str) -> Option<meta::Metadata> {
        Some(meta::Metadata {
            kind: Some(meta::metadata::Kind::Default(name.into())),
        })
    }

    fn exact(name: &str) -> SniMatch {
        SniMatch {
            r#match: Some(sni_match::Match::Exact(name.into())),
        }
    }

    fn below(reverse_labels: &[&str]) -> SniMatch {
        let reverse_labels = reverse_labels.iter().map(ToString::to_string).collect();
        SniMatch {
            r#match: Some(sni_match::Match::Suffix(sni_match::Suffix {
                reverse_labels,
            })),
        }
    }

    /// A rule with one balancer for each weight.
    fn rule(weights: &[u32], filters: Vec<tls::Filter>) -> tls::Rule {
        let backend = |weight: &u32| tls::WeightedRouteBackend {
            weight: *weight,
            backend: Some(tls::RouteBackend {
                backend: Some(api::Backend {
                    metadata: named("backend"),
                    queue: None,
                    kind: None,
                }),
                filters: Vec::new(),
            }),
        };
        let random = tls::distribution::RandomAvailable {
            backends: weights.iter().map(backend).collect(),
        };
        tls::Rule {
            backends: Some(tls::Distribution {
                kind: Some(tls::distribution::Kind::RandomAvailable(random)),
            }),
            filters,
        }
    }

    fn compile(routes: Vec<(Vec<SniMatch>, Vec<tls::Rule>)>) -> Result<Arc<TlsRoutes>, String> {
        let (context, _) = testing::outbound(&[]);
        let client = DestinationClient::new(testing::dead_channel());
        let backends = Backends::new(context, client, String::new(), testing::watch());
        let routes = routes.into_iter().map(|(snis, rules)| api::TlsRoute {
            metadata: named("route"),
            snis,
            rules,
        });
        let compiler = Compiler {
            backends: &backends,
        };
        let compiled = compiler.tls(&Meta::default_named("web"), routes.collect());
        compiled.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn the_most_specific_server_name_decides() {
        let forbidden = tls::Filter {
            kind: Some(tls::filter::Kind::Forbidden(Forbidden {})),
        };
        let routes = compile(vec![
            (Vec::new(), vec![rule(&[1], vec![forbidden])]),
            (vec![below(&["example"])], vec![rule(&[1, 2], Vec::new())]),
            (
                vec![exact("shop.example"), exact("till.example")],
                vec![rule(&[1, 2, 3], Vec::new())],
            ),
        ])
        .unwrap();
        for (name, backends, refused) in [
            ("other.test", 1, Some("forbidden")),
            ("a.b.example", 2, None),
            ("Till.example", 3, None),
        ] {
            let route = routes.find(name).unwrap();
            let Distribution::Random { weights, .. } = &route.backends else {
                panic!("weighted");
            };
            assert_eq!(
                (weights.len(), route.refused),
                (backends, refused),
                "{name}"
            );
        }
    }

    #[tokio::test]
    async fn a_name_that_no_route_has_leads_nowhere() {
        let routes = compile(vec![(
            vec![exact("shop.example")],
            vec![rule(&[1], Vec::new())],
        )]);
        assert!(routes.unwrap().find("other.example").is_none());
        assert!(compile(Vec::new()).unwrap().find("a.example").is_none());
    }

    #[tokio::test]
    async fn what_is_not_understood_is_named() {
        let no_name = SniMatch { r#match: None };
        let one = || rule(&[1], Vec::new());
        for (snis, rules, part) in [
            (Vec::new(), Vec::new(), "tls.rules"),
            (Vec::new(), vec![one(), one()], "tls.rules"),
            (vec![no_name], vec![one()], "server name"),
            (vec![exact("10.0.0.1")], vec![one()], "10.0.0.1"),
            (Vec::new(), vec![rule(&[], Vec::new())], "backends"),
        ] {
            let error = compile(vec![(snis, rules)]).err().unwrap();
            assert!(error.contains(part), "{error}");
        }
    }
}
