//! Who is let in: networks that are given and absent, names that no certificate carries, external workloads; and that no
//! authorization comes from nowhere.

use super::routes::{grpc_route, route};
use super::*;

#[test]
fn absent_networks_are_the_cluster_and_none_is_nobody() {
    let authz = |networks: &str| {
        format!(
            "apiVersion: policy.linkerd.io/v1beta1\nkind: ServerAuthorization\nmetadata: {{name: a}}\n\
             spec: {{server: {{name: web}}, client: {{{networks}unauthenticated: true}}}}\n"
        )
    };
    let cluster: &[&str] = &["10.0.0.0/8"];
    for (given, expected) in [("", cluster), ("networks: [], ", &[])] {
        let server = ask(settings(), 8080, &[POD, SERVER, &authz(given)]);
        assert_eq!(
            show(&server.authorizations[0]).0,
            texts(expected),
            "{given}"
        );
    }
    let nets = "apiVersion: policy.linkerd.io/v1alpha1\nkind: NetworkAuthentication\nmetadata: {name: nets}\nspec: {networks: []}\n";
    let server = ask(
        settings(),
        8080,
        &[POD, SERVER, nets, &policy("a", TO_SERVER, NETS)],
    );
    assert_eq!(show(&server.authorizations[0]).0, texts(&[]));
}

#[test]
fn a_suffix_with_a_final_dot_is_the_same_suffix() {
    let with = |name: &str| {
        let text = AUTHENTICATIONS.replace("'*.foo.org', 'a.b'", &format!("'{name}'"));
        let all = [POD, SERVER, &text, &policy("a", TO_SERVER, MESH_TLS)];
        show(&ask(settings(), 8080, &all).authorizations[0]).1
    };
    assert_eq!(with("*.foo.org."), with("*.foo.org"));
}

const EXTERNAL: &str = "
apiVersion: workload.linkerd.io/v1beta1
kind: ExternalWorkload
metadata: {name: vm, labels: {app: web}, annotations: {config.linkerd.io/opaque-ports: '9000'}}
spec:
  meshTLS: {identity: 'spiffe://root/vm', serverName: vm.example.org}
  ports: [{name: http, port: 8080}]
  workloadIPs: [{ip: 192.168.1.1}]
";

#[test]
fn external_workloads_have_servers_of_their_own() {
    let ask = |port: u16, all: &[&str]| {
        let query = InboundQuery {
            workload: InboundWorkload::External(Name::new("default", "vm")),
            port,
        };
        views(settings(), all)
            .1
            .once(&query)
            .map(|server| label(&server.labels))
    };
    let server = SERVER.replace("podSelector", "externalWorkloadSelector");
    let default = Some(triple("", "default", "all-unauthenticated"));
    assert_eq!(ask(8080, &[]), None);
    assert_eq!(
        ask(8080, &[EXTERNAL, SERVER]),
        default,
        "that Server is for pods"
    );
    assert_eq!(
        ask(8080, &[EXTERNAL, &server]),
        Some(triple("policy.linkerd.io", "server", "web"))
    );
    assert_eq!(ask(8081, &[EXTERNAL, &server]), default);
    assert_eq!(
        label(&super::ask(settings(), 8080, &[POD, &server]).labels).1,
        "default",
        "and this one is not"
    );
}

#[test]
fn d17_a_server_has_no_effect_outside_of_its_namespace() {
    let elsewhere = SERVER.replace("{name: web,", "{name: web, namespace: other,");
    let server = ask(settings(), 8080, &[POD, &elsewhere]);
    assert_eq!(label(&server.labels).1, "default");
}

#[test]
fn r05_of_two_servers_the_oldest_wins_in_whatever_order_they_come() {
    let young = SERVER.replace(
        "{name: web,",
        "{name: a, creationTimestamp: '2026-02-01T00:00:00Z',",
    );
    let old = SERVER
        .replace(
            "{name: web,",
            "{name: b, creationTimestamp: '2026-01-01T00:00:00Z',",
        )
        .replace("HTTP/1", "opaque");
    for order in [[&young, &old], [&old, &young]] {
        let server = ask(settings(), 8080, &[POD, order[0], order[1]]);
        assert_eq!(label(&server.labels).2, "b");
    }
}

#[test]
fn r07_a_server_that_comes_again_has_its_authorizations() {
    let (shared, views) = views(
        settings(),
        &[POD, SERVER, AUTHENTICATIONS, &policy("a", TO_SERVER, NETS)],
    );
    let before = views.once(&query(8080));
    shared.delete(&objects(SERVER)[0].reference());
    assert_ne!(views.once(&query(8080)), before);
    shared.apply(&objects(SERVER)[0]);
    assert_eq!(views.once(&query(8080)), before);
}

/// Objects of which a policy may be made; some are broken.
fn pool() -> Vec<String> {
    let server_authz = |server: &str| {
        format!(
            "apiVersion: policy.linkerd.io/v1beta1\nkind: ServerAuthorization\nmetadata: {{name: sa}}\n\
             spec: {{server: {server}, client: {{unauthenticated: true}}}}\n"
        )
    };
    let to_route = "{group: policy.linkerd.io, kind: HTTPRoute, name: r}";
    let to_grpc = "{group: gateway.networking.k8s.io, kind: GRPCRoute, name: g}";
    let here = "{kind: Namespace, name: default}";
    vec![
        SERVER.to_owned(),
        SERVER.replace("HTTP/1", "gRPC"),
        SERVER.replace("HTTP/1", "opaque"),
        SERVER.replace("port: http", "port: http, accessPolicy: audit"),
        SERVER.replace("port: http", "port: http, accessPolicy: all-authenticated"),
        SERVER
            .replace("name: web", "name: other")
            .replace("port: http", "port: 8080"),
        AUTHENTICATIONS.to_owned(),
        AUTHENTICATIONS
            .replace("'a.b'", "'no name'")
            .replace("10.1.0.0/16", "10.1.0.0/33"),
        policy("a", TO_SERVER, NETS),
        policy("a", TO_SERVER, &format!("{NETS}, {MESH_TLS}")),
        policy("b", here, ACCOUNTS),
        policy("c", to_route, ""),
        policy("c", to_grpc, MESH_TLS),
        policy(
            "d",
            "{group: policy.linkerd.io, kind: Server, name: absent}",
            "",
        ),
        policy("e", TO_SERVER, "{kind: ServiceAccount, name: 'no account'}"),
        server_authz("{name: web}"),
        server_authz("{selector: {matchLabels: {kind: http}}}"),
        server_authz(
            "{selector: {matchExpressions: [{key: kind, operator: NotIn, values: [http]}]}}",
        ),
        route("r", "2026-01-01T00:00:00Z", ""),
        grpc_route("g", "matches: [{method: {service: a.B}}]"),
        annotated("config.linkerd.io/default-inbound-policy: deny"),
        annotated("config.linkerd.io/default-inbound-policy: cluster-authenticated"),
        POD.to_owned(),
    ]
}

fn all_authorizations(server: &api::Server) -> Vec<Authz> {
    let mut all = server.authorizations.clone();
    match server.protocol.as_ref().and_then(|p| p.kind.as_ref()) {
        Some(Protocol::Grpc(g)) => {
            all.extend(g.routes.iter().flat_map(|r| r.authorizations.clone()))
        }
        Some(Protocol::Detect(d)) => {
            all.extend(d.http_routes.iter().flat_map(|r| r.authorizations.clone()));
        }
        Some(Protocol::Http1(h)) => {
            all.extend(h.routes.iter().flat_map(|r| r.authorizations.clone()))
        }
        Some(Protocol::Http2(h)) => {
            all.extend(h.routes.iter().flat_map(|r| r.authorizations.clone()))
        }
        Some(Protocol::Opaque(_) | Protocol::Tls(_)) => {}
        None => panic!("no protocol"),
    }
    all
}

proptest! {
    /// Whatever objects there are, nothing panics, and each authorization is of an object that is there, of the access
    /// policy of the port's Server, of the default policy of a port without one, or of the pod's probes.
    #[test]
    fn no_authorization_comes_from_nowhere(chosen in prop::collection::vec(0..23usize, 0..12)) {
        let pool = pool();
        let shared = Shared::new();
        for object in objects(POD).iter().chain(chosen.iter().flat_map(|i| objects(&pool[*i])).collect::<Vec<_>>().iter()) {
            shared.apply(object);
        }
        let views = Views::new(Arc::clone(&shared), settings(), 100);
        let server = views.once(&query(8080)).expect("the pod is meshed");
        let by_default = label(&server.labels).1 == "default";
        shared.read(|index| {
            let reader = Reader::new(index);
            let namespace: Arc<str> = "default".into();
            let policies = reader.authorizations(&namespace);
            let older = reader.server_authorizations(&namespace);
            let access = reader.server(&Name::new("default", &server.labels["name"])).map(|s| s.access_policy);
            for authz in all_authorizations(&server) {
                let (group, kind, name) = label(&authz.labels);
                let granted = match (group.as_str(), kind.as_str()) {
                    ("policy.linkerd.io", "authorizationpolicy") => policies.iter().any(|p| *p.name.name == *name),
                    ("policy.linkerd.io", "serverauthorization") => older.iter().any(|p| *p.name.name == *name),
                    ("", "default") if name == "probe" => true,
                    ("", "default") if by_default => name == server.labels["name"],
                    ("", "default") => access.is_some_and(|policy| policy.as_str() == name),
                    _ => false,
                };
                prop_assert!(granted, "{authz:?}");
                prop_assert!(name != "deny");
                if by_default {
                    prop_assert_eq!(kind, "default", "objects grant at Servers only");
                }
            }
            Ok(())
        })?;
    }
}
