//! Default policies, and what is read from the control plane.

use super::*;
use crate::http::headers;
use linkerd2_proxy_api::meta;
use std::net::IpAddr;
use weft_core::authorize::{ClientTls, authorize};

const POD: &str = "10.1.2.3";
const OUTSIDE: &str = "203.0.113.9";

fn allows(policy: &ServerPolicy, client: &str, tls: ClientTls<'_>) -> bool {
    let client: IpAddr = client.parse().unwrap();
    authorize(&policy.authorizations, client, tls).is_some()
}

#[test]
fn default_policies_allow_whom_their_names_say() {
    use DefaultPolicy as P;
    let cluster = ["10.0.0.0/8".parse().unwrap()];
    let id = Identity::parse("web.test.serviceaccount.identity.linkerd.cluster.local").unwrap();
    let meshed = ClientTls::Identified(&id);
    // Plain from the cluster, plain from outside, meshed from the cluster, meshed from outside.
    for (policy, expected) in [
        (P::AllUnauthenticated, [true, true, true, true]),
        (P::Audit, [true, true, true, true]),
        (P::AllAuthenticated, [false, false, true, true]),
        (P::ClusterUnauthenticated, [true, false, true, false]),
        (P::ClusterAuthenticated, [false, false, true, false]),
        (P::Deny, [false, false, false, false]),
    ] {
        let compiled = ServerPolicy::default(policy, &cluster, false);
        let found = [
            allows(&compiled, POD, ClientTls::Plain),
            allows(&compiled, OUTSIDE, ClientTls::Plain),
            allows(&compiled, POD, meshed),
            allows(&compiled, OUTSIDE, meshed),
        ];
        assert_eq!(found, expected, "{policy}");
        let anonymous = allows(&compiled, POD, ClientTls::Anonymous);
        assert_eq!(
            anonymous, expected[0],
            "TLS without a certificate, {policy}"
        );
        let loopback = allows(&compiled, "127.0.0.1", ClientTls::Plain);
        assert!(loopback, "the workload itself, {policy}");
    }
}

fn unauthenticated(name: &str) -> api::Authz {
    api::Authz {
        networks: vec![api::Network {
            net: Some("0.0.0.0/0".parse::<IpNet>().unwrap().into()),
            except: vec!["10.0.0.0/8".parse::<IpNet>().unwrap().into()],
        }],
        authentication: Some(api::Authn {
            permit: Some(api::authn::Permit::Unauthenticated(
                api::authn::PermitUnauthenticated {},
            )),
        }),
        metadata: Some(meta::Metadata {
            kind: Some(meta::metadata::Kind::Default(name.into())),
        }),
        ..Default::default()
    }
}

fn server(kind: Option<api::proxy_protocol::Kind>) -> api::Server {
    api::Server {
        protocol: Some(api::ProxyProtocol { kind }),
        authorizations: vec![unauthenticated("server")],
        labels: [
            ("kind".to_owned(), "server".to_owned()),
            ("name".into(), "web".into()),
        ]
        .into(),
        ..Default::default()
    }
}

#[test]
fn a_route_allows_its_own_clients_and_the_servers() {
    let route = api::HttpRoute {
        metadata: unauthenticated("probe").metadata,
        authorizations: vec![unauthenticated("route")],
        rules: vec![api::http_route::Rule::default()],
        ..Default::default()
    };
    let http = api::proxy_protocol::Http1 {
        routes: vec![route],
        ..Default::default()
    };
    let policy = ServerPolicy::read(server(Some(api::proxy_protocol::Kind::Http1(http))));
    assert_eq!(policy.protocol, Protocol::Http1);
    assert_eq!(&*policy.server.name, "web");
    let request = http::Request::get("/").body(()).unwrap();
    let (access, _) = policy.find(&headers::view(&request)).unwrap();
    let names: Vec<&str> = access
        .authorizations
        .iter()
        .map(|a| &*a.meta.name)
        .collect();
    assert_eq!(names, ["route", "server", "localhost"]);
    assert!(
        !allows(&policy, POD, ClientTls::Plain),
        "the network's exception"
    );
    assert!(allows(&policy, OUTSIDE, ClientTls::Plain));
}

#[test]
fn without_routes_there_is_one_for_everything() {
    let detect = api::proxy_protocol::Detect::default();
    let policy = ServerPolicy::read(server(Some(api::proxy_protocol::Kind::Detect(detect))));
    let request = http::Request::put("/x?y").body(()).unwrap();
    let (access, _) = policy.find(&headers::view(&request)).unwrap();
    assert_eq!(&*access.route.name, "default");
}

#[test]
fn what_is_not_understood_lets_nobody_in() {
    let mut unreadable = server(Some(api::proxy_protocol::Kind::Opaque(
        api::proxy_protocol::Opaque {},
    )));
    unreadable.authorizations.push(api::Authz::default());
    for message in [server(None), unreadable] {
        let policy = ServerPolicy::read(message);
        assert!(matches!(policy.protocol, Protocol::Invalid(_)));
        assert!(!allows(&policy, OUTSIDE, ClientTls::Plain));
    }
}
