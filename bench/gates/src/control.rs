//! Owns a control plane that says each thing once and then is silent, so that nothing happens beside what is measured: a
//! policy of 20 routes for every destination, endpoints with an identity, and a policy for every inbound port.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;

use linkerd2_proxy_api::destination as dst;
use linkerd2_proxy_api::destination::destination_server::{Destination, DestinationServer};
use linkerd2_proxy_api::http_route::{self, HttpRouteMatch, header_match, path_match};
use linkerd2_proxy_api::inbound as inb;
use linkerd2_proxy_api::inbound::inbound_server_policies_server as inb_server;
use linkerd2_proxy_api::outbound as out;
use linkerd2_proxy_api::outbound::outbound_policies_server as out_server;
use linkerd2_proxy_api::{http_types, meta, net};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

/// Endpoints of the service that is chosen from in the gate of that name.
pub const ENDPOINTS: u8 = 10;
/// Port of destinations whose service has [`ENDPOINTS`]; others have one.
pub const MANY: u16 = 81;

/// The control plane.
#[derive(Clone)]
pub struct Control {
    /// Where endpoints are.
    pub endpoint: SocketAddr,
    /// Who they are, and who may come in.
    pub identity: String,
}

impl Control {
    /// Serves until the runtime ends.
    pub fn serve(self, listener: TcpListener) {
        let server = tonic::transport::Server::builder()
            .add_service(DestinationServer::new(self.clone()))
            .add_service(out_server::OutboundPoliciesServer::new(self.clone()))
            .add_service(inb_server::InboundServerPoliciesServer::new(self))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
    }
}

type Watch<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

fn once<T: Send + 'static>(message: T) -> Answer<Watch<T>> {
    let stream = tokio_stream::once(Ok(message)).chain(tokio_stream::pending());
    Ok(Response::new(Box::pin(stream)))
}

#[tonic::async_trait]
impl Destination for Control {
    type GetStream = Watch<dst::Update>;
    type GetProfileStream = Watch<dst::DestinationProfile>;

    async fn get(&self, request: Request<dst::GetDestination>) -> Answer<Self::GetStream> {
        let many = request.get_ref().path.ends_with(&format!(":{MANY}"));
        let number = if many { ENDPOINTS } else { 1 };
        let addr = |at| SocketAddr::new(Ipv4Addr::new(127, 0, 0, at).into(), self.endpoint.port());
        let name = dst::tls_identity::DnsLikeIdentity {
            name: self.identity.clone(),
        };
        let endpoint = |at| dst::WeightedAddr {
            addr: Some(addr(at).into()),
            weight: 1,
            metric_labels: labels(&[("pod", "web-0"), ("serviceaccount", "web")]),
            tls_identity: Some(dst::TlsIdentity {
                server_name: Some(name.clone()),
                strategy: Some(dst::tls_identity::Strategy::DnsLikeIdentity(name.clone())),
            }),
            protocol_hint: Some(dst::ProtocolHint {
                opaque_transport: None,
                protocol: Some(dst::protocol_hint::Protocol::H2(Default::default())),
            }),
            ..Default::default()
        };
        once(dst::Update {
            update: Some(dst::update::Update::Add(dst::WeightedAddrSet {
                addrs: (1..=number).map(endpoint).collect(),
                metric_labels: labels(&[("namespace", "bench"), ("service", "web")]),
            })),
        })
    }

    async fn get_profile(&self, _: Request<dst::GetDestination>) -> Answer<Self::GetProfileStream> {
        once(dst::DestinationProfile::default())
    }
}

#[tonic::async_trait]
impl out_server::OutboundPolicies for Control {
    type WatchStream = Watch<out::OutboundPolicy>;

    async fn get(&self, _: Request<out::TrafficSpec>) -> Answer<out::OutboundPolicy> {
        Err(Status::unimplemented("policies are watched"))
    }

    async fn watch(&self, request: Request<out::TrafficSpec>) -> Answer<Self::WatchStream> {
        let port = match &request.get_ref().target {
            Some(out::traffic_spec::Target::Addr(addr)) => addr.port,
            _ => 0,
        };
        once(outbound_policy(port))
    }
}

#[tonic::async_trait]
impl inb_server::InboundServerPolicies for Control {
    type WatchPortStream = Watch<inb::Server>;

    async fn get_port(&self, _: Request<inb::PortSpec>) -> Answer<inb::Server> {
        Err(Status::unimplemented("policies are watched"))
    }

    async fn watch_port(&self, _: Request<inb::PortSpec>) -> Answer<Self::WatchPortStream> {
        once(inbound_policy(&self.identity))
    }
}

fn labels(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

fn resource(kind: &str, name: String, port: u32) -> Option<meta::Metadata> {
    let resource = meta::Resource {
        kind: kind.to_owned(),
        name,
        namespace: "bench".to_owned(),
        port,
        ..Default::default()
    };
    Some(meta::Metadata {
        kind: Some(meta::metadata::Kind::Resource(resource)),
    })
}

fn outbound_policy(port: u32) -> out::OutboundPolicy {
    use out::proxy_protocol as protocol;
    let routes: Vec<_> = matches()
        .into_iter()
        .enumerate()
        .map(|(at, matched)| out::HttpRoute {
            metadata: resource("HTTPRoute", format!("route-{at}"), 0),
            hosts: Vec::new(),
            rules: vec![out::http_route::Rule {
                matches: vec![matched],
                backends: Some(out::http_route::Distribution {
                    kind: Some(out::http_route::distribution::Kind::FirstAvailable(
                        out::http_route::distribution::FirstAvailable {
                            backends: vec![out::http_route::RouteBackend {
                                backend: Some(backend(port)),
                                ..Default::default()
                            }],
                        },
                    )),
                }),
                ..Default::default()
            }],
        })
        .collect();
    let opaque = out::OpaqueRoute {
        metadata: resource("Service", "web".to_owned(), port),
        rules: vec![out::opaque_route::Rule {
            backends: Some(out::opaque_route::Distribution {
                kind: Some(out::opaque_route::distribution::Kind::Empty(
                    Default::default(),
                )),
            }),
            filters: Vec::new(),
        }],
    };
    let detect = protocol::Detect {
        timeout: None,
        opaque: Some(protocol::Opaque {
            routes: vec![opaque],
        }),
        http1: Some(protocol::Http1 {
            routes: routes.clone(),
            failure_accrual: None,
        }),
        http2: Some(protocol::Http2 {
            routes,
            failure_accrual: None,
        }),
    };
    out::OutboundPolicy {
        metadata: resource("Service", "web".to_owned(), port),
        protocol: Some(out::ProxyProtocol {
            kind: Some(protocol::Kind::Detect(detect)),
        }),
    }
}

/// 20 ways to match; the request of `peers` is for the last one but three.
fn matches() -> Vec<HttpRouteMatch> {
    let path = |kind| HttpRouteMatch {
        path: Some(http_route::PathMatch { kind: Some(kind) }),
        ..Default::default()
    };
    let prefix = |prefix: String| path(path_match::Kind::Prefix(prefix));
    let header = |at| HttpRouteMatch {
        headers: vec![http_route::HeaderMatch {
            name: "x-version".to_owned(),
            value: Some(header_match::Value::Exact(format!("v{at}").into())),
        }],
        ..Default::default()
    };
    let post =
        http_types::http_method::Type::Registered(http_types::http_method::Registered::Post.into());
    let post = http_types::HttpMethod { r#type: Some(post) };
    let mut all: Vec<_> = (2..12)
        .map(|v| prefix(format!("/api/v{v}/items")))
        .collect();
    all.extend((0..6).map(header));
    all.push(prefix("/api/v1".to_owned()));
    all.push(HttpRouteMatch {
        method: Some(post),
        ..prefix("/api/v1/items".to_owned())
    });
    all.push(path(path_match::Kind::Exact("/healthz".to_owned())));
    all.push(path(path_match::Kind::Regex("/files/[a-z]+".to_owned())));
    all
}

fn backend(port: u32) -> out::Backend {
    use out::backend as kind;
    let discovery = kind::EndpointDiscovery {
        kind: Some(kind::endpoint_discovery::Kind::Dst(
            kind::endpoint_discovery::DestinationGet {
                path: format!("web.bench.svc.cluster.local:{port}"),
            },
        )),
    };
    out::Backend {
        metadata: resource("Service", "web".to_owned(), port),
        queue: None,
        kind: Some(kind::Kind::Balancer(kind::BalanceP2c {
            discovery: Some(discovery),
            load: Some(kind::balance_p2c::Load::PeakEwma(Default::default())),
        })),
    }
}

/// What a Server with an HTTPRoute and an AuthorizationPolicy comes to.
fn inbound_policy(identity: &str) -> inb::Server {
    use inb::authn;
    let everywhere = ipnet::IpNet::V4(ipnet::Ipv4Net::default());
    let clients = authn::permit_mesh_tls::PermitClientIdentities {
        identities: vec![inb::Identity {
            name: identity.to_owned(),
        }],
        suffixes: Vec::new(),
    };
    let authorization = inb::Authz {
        networks: vec![inb::Network {
            net: Some(everywhere.into()),
            except: Vec::new(),
        }],
        authentication: Some(inb::Authn {
            permit: Some(authn::Permit::MeshTls(authn::PermitMeshTls {
                clients: Some(authn::permit_mesh_tls::Clients::Identities(clients)),
            })),
        }),
        labels: HashMap::new(),
        metadata: resource("AuthorizationPolicy", "web".to_owned(), 0),
    };
    let route = inb::HttpRoute {
        metadata: resource("HTTPRoute", "web".to_owned(), 0),
        hosts: Vec::new(),
        authorizations: vec![authorization],
        rules: vec![inb::http_route::Rule::default()],
    };
    inb::Server {
        protocol: Some(inb::ProxyProtocol {
            kind: Some(inb::proxy_protocol::Kind::Detect(
                inb::proxy_protocol::Detect {
                    http_routes: vec![route],
                    ..Default::default()
                },
            )),
        }),
        server_ips: Vec::<net::IpAddress>::new(),
        authorizations: Vec::new(),
        labels: labels(&[("kind", "Server"), ("name", "web")]),
    }
}
