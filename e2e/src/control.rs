//! Owns a control plane for tests of the proxy alone: any server of `linkerd2-proxy-api` will do, and this one is the
//! smallest. It shares no code with the services of the mesh, so that it can disagree with them.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use linkerd2_proxy_api::destination::{self, destination_server::Destination};
use linkerd2_proxy_api::identity::{self, identity_server::Identity};
use linkerd2_proxy_api::inbound::{self, inbound_server_policies_server::InboundServerPolicies};
use linkerd2_proxy_api::meta::{Metadata, metadata};
use linkerd2_proxy_api::outbound::{self, outbound_policies_server::OutboundPolicies};
use linkerd2_proxy_api::{http_route as matches, net};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt, once, pending};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Port that is detected, of each pod and of its Service.
pub const HTTP: u16 = 8080;
/// Port that is opaque, of each pod and of its Service.
pub const OPAQUE: u16 = 9000;
/// Port of a pod's proxy for what arrives.
const INBOUND: u32 = 4143;

/// A root that signs leaves itself.
pub struct Authority {
    /// Its certificate.
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A leaf and its key, PEM.
pub struct Leaf {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

impl Authority {
    /// A root of a new key.
    ///
    /// # Errors
    /// Those of the library.
    pub fn new() -> anyhow::Result<Self> {
        let (key, mut params) = (KeyPair::generate()?, CertificateParams::default());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let pem = params.self_signed(&key)?.pem();
        Ok(Authority {
            pem,
            issuer: Issuer::new(params, key),
        })
    }

    /// Signs a request, DER; the answer is DER.
    ///
    /// # Errors
    /// The request is none.
    pub fn certify(&self, csr: &[u8], until: SystemTime) -> anyhow::Result<Vec<u8>> {
        let mut request = CertificateSigningRequestParams::from_der(&csr.into())?;
        request.params.not_before = (until - Duration::from_secs(86_400)).into();
        request.params.not_after = until.into();
        Ok(request.signed_by(&self.issuer)?.der().to_vec())
    }

    /// A leaf for a name, with a key of its own, valid up to `until` and for a day before.
    ///
    /// # Errors
    /// Those of the library.
    pub fn leaf(&self, name: &str, until: SystemTime) -> anyhow::Result<Leaf> {
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.not_before = (until - Duration::from_secs(86_400)).into();
        params.not_after = until.into();
        let key = KeyPair::generate()?;
        Ok(Leaf {
            certificate: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

/// A pod the control plane knows, which is also the only endpoint of a Service.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Its address.
    pub ip: Ipv4Addr,
    /// Address of its Service.
    pub cluster_ip: Ipv4Addr,
    /// Its identity.
    pub identity: String,
}

/// What the services do, to be changed at any time.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Lifetime of certificates.
    pub lifetime: Duration,
    /// The identity service refuses.
    pub identity_fails: bool,
}

/// The control plane.
pub struct ControlPlane {
    /// What signs.
    pub authority: Authority,
    /// What it does.
    pub behaviour: watch::Sender<Behaviour>,
    /// Each signing request that came, with its token, in order.
    pub certified: watch::Sender<Vec<(Vec<u8>, Vec<u8>)>>,
    endpoints: Vec<Endpoint>,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// One message, then silence.
fn stream<T: Send + 'static>(message: T) -> Response<Answers<T>> {
    Response::new(Box::pin(once(Ok(message)).chain(pending())))
}

impl ControlPlane {
    /// One that knows these pods.
    ///
    /// # Errors
    /// There is no authority.
    pub fn new(endpoints: Vec<Endpoint>) -> anyhow::Result<Arc<Self>> {
        let behaviour = Behaviour {
            lifetime: Duration::from_secs(86_400),
            identity_fails: false,
        };
        let (behaviour, certified) = (watch::Sender::new(behaviour), watch::Sender::default());
        Ok(Arc::new(ControlPlane {
            authority: Authority::new()?,
            behaviour,
            certified,
            endpoints,
        }))
    }

    /// Serves everything on one listener: each service is known by its name. Must be called in a runtime.
    ///
    /// # Errors
    /// Those of the system.
    pub fn serve(self: &Arc<Self>, listener: TcpListener) -> anyhow::Result<()> {
        listener.set_nonblocking(true)?;
        let services = Services(Arc::clone(self));
        let server = Server::builder()
            .add_service(identity::identity_server::IdentityServer::new(
                services.clone(),
            ))
            .add_service(destination::destination_server::DestinationServer::new(
                services.clone(),
            ))
            .add_service(
                outbound::outbound_policies_server::OutboundPoliciesServer::new(services.clone()),
            )
            .add_service(
                inbound::inbound_server_policies_server::InboundServerPoliciesServer::new(services),
            );
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener.try_into()?);
        tokio::spawn(server.serve_with_incoming(incoming));
        Ok(())
    }

    fn service(&self, addr: SocketAddr) -> Option<&Endpoint> {
        self.endpoints
            .iter()
            .find(|one| addr.ip() == one.cluster_ip)
    }
}

#[derive(Clone)]
struct Services(Arc<ControlPlane>);

#[tonic::async_trait]
impl Identity for Services {
    async fn certify(
        &self,
        request: Request<identity::CertifyRequest>,
    ) -> Result<Response<identity::CertifyResponse>, Status> {
        let (request, behaviour) = (request.into_inner(), self.0.behaviour.borrow().clone());
        if behaviour.identity_fails {
            return Err(Status::unavailable("told to fail"));
        }
        let until = SystemTime::now() + behaviour.lifetime;
        let leaf = self
            .0
            .authority
            .certify(&request.certificate_signing_request, until);
        let leaf_certificate = leaf.map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.0
            .certified
            .send_modify(|all| all.push((request.certificate_signing_request, request.token)));
        let valid_until = Some(until.into());
        Ok(Response::new(identity::CertifyResponse {
            leaf_certificate,
            valid_until,
            ..Default::default()
        }))
    }
}

#[tonic::async_trait]
impl Destination for Services {
    type GetStream = Answers<destination::Update>;
    type GetProfileStream = Answers<destination::DestinationProfile>;

    async fn get(
        &self,
        request: Request<destination::GetDestination>,
    ) -> Result<Response<Self::GetStream>, Status> {
        let path = request.into_inner().path;
        let addr = path.parse().map_err(|_| Status::invalid_argument(path))?;
        let endpoint = self
            .0
            .service(addr)
            .ok_or_else(|| Status::not_found("no such service"))?;
        let set = destination::WeightedAddrSet {
            addrs: vec![weighted(endpoint, addr.port())],
            metric_labels: HashMap::new(),
        };
        Ok(stream(destination::Update {
            update: Some(destination::update::Update::Add(set)),
        }))
    }

    async fn get_profile(
        &self,
        request: Request<destination::GetDestination>,
    ) -> Result<Response<Self::GetProfileStream>, Status> {
        let path = request.into_inner().path;
        let addr: SocketAddr = path.parse().map_err(|_| Status::invalid_argument(path))?;
        let pod = self.0.endpoints.iter().find(|one| addr.ip() == one.ip);
        Ok(stream(destination::DestinationProfile {
            opaque_protocol: addr.port() == OPAQUE,
            endpoint: pod.map(|pod| weighted(pod, addr.port())),
            ..Default::default()
        }))
    }
}

fn weighted(endpoint: &Endpoint, port: u16) -> destination::WeightedAddr {
    use destination::protocol_hint::{H2, Opaque, OpaqueTransport, Protocol};
    use destination::tls_identity::{DnsLikeIdentity, Strategy};
    let protocol = if port == OPAQUE {
        Protocol::Opaque(Opaque {})
    } else {
        Protocol::H2(H2 {})
    };
    let name = || DnsLikeIdentity {
        name: endpoint.identity.clone(),
    };
    destination::WeightedAddr {
        addr: Some(net::TcpAddress::from(SocketAddr::from((endpoint.ip, port)))),
        weight: 1,
        tls_identity: Some(destination::TlsIdentity {
            strategy: Some(Strategy::DnsLikeIdentity(name())),
            server_name: Some(name()),
        }),
        protocol_hint: Some(destination::ProtocolHint {
            protocol: Some(protocol),
            opaque_transport: Some(OpaqueTransport {
                inbound_port: INBOUND,
            }),
        }),
        ..Default::default()
    }
}

fn named(name: &str) -> Option<Metadata> {
    Some(Metadata {
        kind: Some(metadata::Kind::Default(name.to_owned())),
    })
}

#[tonic::async_trait]
impl OutboundPolicies for Services {
    type WatchStream = Answers<outbound::OutboundPolicy>;

    async fn get(
        &self,
        request: Request<outbound::TrafficSpec>,
    ) -> Result<Response<outbound::OutboundPolicy>, Status> {
        Ok(Response::new(self.outbound(request.into_inner())?))
    }

    async fn watch(
        &self,
        request: Request<outbound::TrafficSpec>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Ok(stream(self.outbound(request.into_inner())?))
    }
}

impl Services {
    fn outbound(&self, spec: outbound::TrafficSpec) -> Result<outbound::OutboundPolicy, Status> {
        use outbound::proxy_protocol::{Detect, Http1, Http2, Kind, Opaque};
        let Some(outbound::traffic_spec::Target::Addr(addr)) = spec.target else {
            return Err(Status::invalid_argument("an address is wanted"));
        };
        let addr = SocketAddr::try_from(addr)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.0
            .service(addr)
            .ok_or_else(|| Status::not_found("no such service"))?;
        let opaque = Opaque {
            routes: vec![opaque_route(addr)],
        };
        let kind = if addr.port() == OPAQUE {
            Kind::Opaque(opaque)
        } else {
            Kind::Detect(Detect {
                timeout: Some(prost_types::Duration {
                    seconds: 10,
                    nanos: 0,
                }),
                opaque: Some(opaque),
                http1: Some(Http1 {
                    routes: vec![http_route(addr)],
                    failure_accrual: None,
                }),
                http2: Some(Http2 {
                    routes: vec![http_route(addr)],
                    failure_accrual: None,
                }),
            })
        };
        let protocol = Some(outbound::ProxyProtocol { kind: Some(kind) });
        Ok(outbound::OutboundPolicy {
            protocol,
            metadata: named("test"),
        })
    }
}

fn backend(addr: SocketAddr) -> outbound::Backend {
    use outbound::backend::balance_p2c::{Load, PeakEwma};
    use outbound::backend::endpoint_discovery::{DestinationGet, Kind as Discovery};
    use outbound::backend::{BalanceP2c, EndpointDiscovery, Kind};
    let duration = |millis| prost_types::Duration {
        seconds: 0,
        nanos: millis * 1_000_000,
    };
    let discovery = Discovery::Dst(DestinationGet {
        path: addr.to_string(),
    });
    let load = PeakEwma {
        default_rtt: Some(duration(30)),
        decay: Some(duration(999)),
    };
    outbound::Backend {
        metadata: named("service"),
        queue: Some(outbound::Queue {
            capacity: 100,
            failfast_timeout: Some(duration(999)),
        }),
        kind: Some(Kind::Balancer(BalanceP2c {
            discovery: Some(EndpointDiscovery {
                kind: Some(discovery),
            }),
            load: Some(Load::PeakEwma(load)),
        })),
    }
}

fn opaque_route(addr: SocketAddr) -> outbound::OpaqueRoute {
    use outbound::opaque_route::{Distribution, RouteBackend, Rule, distribution};
    let backends = vec![RouteBackend {
        backend: Some(backend(addr)),
        filters: Vec::new(),
    }];
    let kind = distribution::Kind::FirstAvailable(distribution::FirstAvailable { backends });
    let rule = Rule {
        backends: Some(Distribution { kind: Some(kind) }),
        filters: Vec::new(),
    };
    outbound::OpaqueRoute {
        metadata: named("opaque"),
        rules: vec![rule],
    }
}

fn http_route(addr: SocketAddr) -> outbound::HttpRoute {
    use outbound::http_route::{Distribution, RouteBackend, Rule, distribution};
    let backends = vec![RouteBackend {
        backend: Some(backend(addr)),
        ..Default::default()
    }];
    let kind = distribution::Kind::FirstAvailable(distribution::FirstAvailable { backends });
    let everything = matches::path_match::Kind::Prefix("/".to_owned());
    let everything = matches::PathMatch {
        kind: Some(everything),
    };
    let rule = Rule {
        matches: vec![matches::HttpRouteMatch {
            path: Some(everything),
            ..Default::default()
        }],
        backends: Some(Distribution { kind: Some(kind) }),
        ..Default::default()
    };
    outbound::HttpRoute {
        metadata: named("http"),
        hosts: Vec::new(),
        rules: vec![rule],
    }
}

#[tonic::async_trait]
impl InboundServerPolicies for Services {
    type WatchPortStream = Answers<inbound::Server>;

    async fn get_port(
        &self,
        request: Request<inbound::PortSpec>,
    ) -> Result<Response<inbound::Server>, Status> {
        Ok(Response::new(everybody(request.into_inner().port)))
    }

    async fn watch_port(
        &self,
        request: Request<inbound::PortSpec>,
    ) -> Result<Response<Self::WatchPortStream>, Status> {
        Ok(stream(everybody(request.into_inner().port)))
    }
}

/// A port that lets everybody in.
fn everybody(port: u32) -> inbound::Server {
    use inbound::proxy_protocol::{Detect, Kind, Opaque};
    let kind = if port == u32::from(OPAQUE) {
        Kind::Opaque(Opaque {})
    } else {
        let timeout = Some(prost_types::Duration {
            seconds: 10,
            nanos: 0,
        });
        Kind::Detect(Detect {
            timeout,
            ..Default::default()
        })
    };
    let permit = inbound::authn::Permit::Unauthenticated(inbound::authn::PermitUnauthenticated {});
    let everywhere = net::IpNetwork {
        ip: Some(Ipv4Addr::UNSPECIFIED.into()),
        prefix_len: 0,
    };
    let authz = inbound::Authz {
        networks: vec![inbound::Network {
            net: Some(everywhere),
            except: Vec::new(),
        }],
        authentication: Some(inbound::Authn {
            permit: Some(permit),
        }),
        metadata: named("everybody"),
        ..Default::default()
    };
    inbound::Server {
        protocol: Some(inbound::ProxyProtocol { kind: Some(kind) }),
        authorizations: vec![authz],
        labels: [("kind", "default"), ("name", "everybody")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
        ..Default::default()
    }
}
