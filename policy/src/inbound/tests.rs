//! Inbound policy: selection, defaults, authorizations, routes; and that watched states are never stale.

mod grants;
mod rate_limit;
mod routes;

use std::path::Path;

use linkerd2_proxy_api::inbound::{Authz, authn, proxy_protocol::Kind as Protocol};
use proptest::prelude::*;
use weft_cluster::{MeshSettings, Object, Shared, Views, manifests};

use super::*;

fn objects(text: &str) -> Vec<Object> {
    manifests::parse(Path::new("test.yaml"), text).expect("valid")
}

fn views(settings: Settings, texts: &[&str]) -> (Arc<Shared>, Arc<Views<InboundQuery>>) {
    let shared = Shared::new();
    for object in texts.iter().flat_map(|text| objects(text)) {
        assert_eq!(shared.apply(&object).invalid, []);
    }
    (Arc::clone(&shared), Views::new(shared, settings, 100))
}

fn settings() -> Settings {
    let cluster_networks = vec!["10.0.0.0/8".parse().expect("a network")];
    Settings::new(MeshSettings {
        cluster_networks,
        ..MeshSettings::default()
    })
}

fn query(port: u16) -> InboundQuery {
    InboundQuery {
        workload: InboundWorkload::Pod(Name::new("default", "p")),
        port,
    }
}

fn ask(settings: Settings, port: u16, texts: &[&str]) -> api::Server {
    api::Server::clone(&views(settings, texts).1.once(&query(port)).expect("known"))
}

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {app: web, linkerd.io/control-plane-ns: linkerd}}
spec:
  containers:
  - name: app
    ports: [{name: http, containerPort: 8080}]
    livenessProbe: {httpGet: {path: '/live?x=1', port: http}}
    readinessProbe: {httpGet: {path: /ready, port: 8080}}
";

const SERVER: &str = "
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web, labels: {kind: http}}
spec: {podSelector: {matchLabels: {app: web}}, port: http, proxyProtocol: HTTP/1}
";

fn annotated(annotation: &str) -> String {
    POD.replace(
        "{name: p, ",
        &format!("{{name: p, annotations: {{{annotation}}}, "),
    )
}

fn label(labels: &std::collections::HashMap<String, String>) -> (String, String, String) {
    (
        labels["group"].clone(),
        labels["kind"].clone(),
        labels["name"].clone(),
    )
}

fn triple(group: &str, kind: &str, name: &str) -> (String, String, String) {
    (group.to_owned(), kind.to_owned(), name.to_owned())
}

/// Networks, and who: `*` anybody, `tls` anybody over TLS, otherwise names and `*.suffixes`.
fn show(authz: &Authz) -> (Vec<String>, Vec<String>) {
    let net = |n: &linkerd2_proxy_api::net::IpNetwork| {
        ipnet::IpNet::try_from(*n).expect("valid").to_string()
    };
    let networks = authz.networks.iter().map(|n| {
        let except: String = n.except.iter().map(|e| format!(" -{}", net(e))).collect();
        format!("{}{except}", net(n.net.as_ref().expect("set")))
    });
    let who = match authz
        .authentication
        .clone()
        .and_then(|a| a.permit)
        .expect("set")
    {
        authn::Permit::Unauthenticated(_) => vec!["*".to_owned()],
        authn::Permit::MeshTls(tls) => match tls.clients.expect("set") {
            authn::permit_mesh_tls::Clients::Unauthenticated(_) => vec!["tls".to_owned()],
            authn::permit_mesh_tls::Clients::Identities(ids) => {
                let names = ids.identities.into_iter().map(|i| i.name);
                names
                    .chain(
                        ids.suffixes
                            .into_iter()
                            .map(|s| format!("*.{}", s.parts.join("."))),
                    )
                    .collect()
            }
        },
    };
    (networks.collect(), who)
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

fn routes_of(server: &api::Server) -> &[api::HttpRoute] {
    match server
        .protocol
        .as_ref()
        .and_then(|p| p.kind.as_ref())
        .expect("set")
    {
        Protocol::Detect(d) => &d.http_routes,
        Protocol::Http1(h) => &h.routes,
        Protocol::Http2(h) => &h.routes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn default_policies() {
    let all = texts(&["0.0.0.0/0", "::/0"]);
    let cluster = texts(&["10.0.0.0/8"]);
    for (name, expected) in [
        ("all-unauthenticated", Some((all.clone(), "*"))),
        ("all-authenticated", Some((all.clone(), "*."))),
        ("cluster-unauthenticated", Some((cluster.clone(), "*"))),
        ("cluster-authenticated", Some((cluster, "*."))),
        ("audit", Some((all, "*"))),
        ("deny", None),
    ] {
        let by_flag = ask(
            Settings {
                default_policy: name.parse().expect("known"),
                ..settings()
            },
            8080,
            &[POD],
        );
        let by_annotation = ask(
            settings(),
            8080,
            &[&annotated(&format!(
                "config.linkerd.io/default-inbound-policy: {name}"
            ))],
        );
        assert_eq!(by_flag, by_annotation);
        assert_eq!(label(&by_flag.labels), triple("", "default", name));
        let shown: Vec<_> = by_flag.authorizations.iter().map(show).collect();
        assert_eq!(
            shown,
            expected
                .into_iter()
                .map(|(n, who)| (n, texts(&[who])))
                .collect::<Vec<_>>(),
            "{name}"
        );
        for authz in &by_flag.authorizations {
            assert_eq!(label(&authz.labels), triple("", "default", name));
            assert_eq!(authz.metadata, Some(wire::default_meta(name)));
        }
    }
}

#[test]
fn ports_without_a_server() {
    let server = ask(settings(), 8080, &[POD]);
    let Some(Protocol::Detect(detect)) = server.protocol.and_then(|p| p.kind) else {
        panic!("detected")
    };
    assert_eq!(detect.timeout.map(|t| t.seconds), Some(10));
    let opaque = ask(
        settings(),
        8080,
        &[&annotated("config.linkerd.io/opaque-ports: http")],
    );
    assert!(matches!(
        opaque.protocol.and_then(|p| p.kind),
        Some(Protocol::Opaque(_))
    ));
    let default_list = ask(settings(), 3306, &[POD]);
    assert!(matches!(
        default_list.protocol.and_then(|p| p.kind),
        Some(Protocol::Detect(_))
    ));
    let required = ask(
        settings(),
        8080,
        &[&annotated(
            "config.linkerd.io/proxy-require-identity-inbound-ports: '8080'",
        )],
    );
    assert_eq!(label(&required.labels).2, "all-authenticated");
}

#[test]
fn unknown_and_unmeshed_pods() {
    assert_eq!(views(settings(), &[]).1.once(&query(80)), None);
    let unmeshed = POD.replace(", linkerd.io/control-plane-ns: linkerd", "");
    assert_eq!(views(settings(), &[&unmeshed]).1.once(&query(80)), None);
}

#[test]
fn a_server_by_name_or_number_with_its_protocol() {
    for port in ["http", "8080", "'8080'"] {
        for (protocol, shown) in [
            ("unknown", "Detect"),
            ("HTTP/1", "Http1"),
            ("HTTP/2", "Http2"),
            ("gRPC", "Grpc"),
            ("opaque", "Opaque"),
            ("TLS", "Tls"),
        ] {
            let text = SERVER
                .replace("port: http", &format!("port: {port}"))
                .replace("HTTP/1", protocol);
            let server = ask(settings(), 8080, &[POD, &text]);
            assert_eq!(
                label(&server.labels),
                triple("policy.linkerd.io", "server", "web")
            );
            let kind = format!("{:?}", server.protocol.and_then(|p| p.kind).expect("set"));
            assert!(kind.starts_with(shown), "{protocol}: {kind}");
            assert_eq!(server.authorizations, [], "deny is the default of a Server");
        }
    }
    assert_eq!(
        label(&ask(settings(), 8081, &[POD, SERVER]).labels).1,
        "default",
        "another port"
    );
    let other = SERVER.replace("app: web", "app: other");
    assert_eq!(
        label(&ask(settings(), 8080, &[POD, &other]).labels).1,
        "default",
        "other pods"
    );
    let open = SERVER.replace("port: http", "port: http, accessPolicy: audit");
    assert_eq!(
        label(&ask(settings(), 8080, &[POD, &open]).authorizations[0].labels),
        triple("", "default", "audit")
    );
}

fn policy(name: &str, target: &str, required: &str) -> String {
    format!(
        "apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {{name: {name}}}
spec: {{targetRef: {target}, requiredAuthenticationRefs: [{required}]}}
"
    )
}

const AUTHENTICATIONS: &str = "
apiVersion: policy.linkerd.io/v1alpha1
kind: MeshTLSAuthentication
metadata: {name: clients, namespace: shared}
spec:
  identities: ['*', '*.foo.org', 'a.b']
---
apiVersion: policy.linkerd.io/v1alpha1
kind: MeshTLSAuthentication
metadata: {name: accounts}
spec:
  identityRefs:
  - {kind: ServiceAccount, name: api}
  - {kind: ServiceAccount, name: api, namespace: other}
  - {kind: Namespace, name: trusted}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: NetworkAuthentication
metadata: {name: nets}
spec: {networks: [{cidr: 10.1.0.0/16, except: [10.1.2.3]}, {cidr: 192.168.0.1}]}
";

const MESH_TLS: &str =
    "{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: clients, namespace: shared}";
const ACCOUNTS: &str = "{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: accounts}";
const NETS: &str = "{group: policy.linkerd.io, kind: NetworkAuthentication, name: nets}";
const TO_SERVER: &str = "{group: policy.linkerd.io, kind: Server, name: web}";

#[test]
fn authorization_policies() {
    let cluster = texts(&["10.0.0.0/8"]);
    let nets = texts(&["10.1.0.0/16 -10.1.2.3/32", "192.168.0.1/32"]);
    let sa =
        |name: &str, ns: &str| format!("{name}.{ns}.serviceaccount.identity.linkerd.cluster.local");
    for (target, required, expected) in [
        (
            TO_SERVER,
            String::new(),
            Some((cluster.clone(), texts(&["*"]))),
        ),
        (
            "{kind: Namespace, name: default}",
            String::new(),
            Some((cluster.clone(), texts(&["*"]))),
        ),
        (
            TO_SERVER,
            MESH_TLS.to_owned(),
            Some((cluster.clone(), texts(&["a.b", "*.", "*.foo.org"]))),
        ),
        (
            TO_SERVER,
            ACCOUNTS.to_owned(),
            Some((
                cluster.clone(),
                vec![
                    sa("api", "default"),
                    sa("api", "other"),
                    "*.trusted.serviceaccount.identity.linkerd.cluster.local".to_owned(),
                ],
            )),
        ),
        (
            TO_SERVER,
            "{kind: ServiceAccount, name: api}".to_owned(),
            Some((cluster.clone(), vec![sa("api", "default")])),
        ),
        (
            TO_SERVER,
            NETS.to_owned(),
            Some((nets.clone(), texts(&["*"]))),
        ),
        (
            TO_SERVER,
            format!("{NETS}, {MESH_TLS}"),
            Some((nets, texts(&["a.b", "*.", "*.foo.org"]))),
        ),
        // Something that does not exist cannot be fulfilled.
        (TO_SERVER, MESH_TLS.replace("clients", "missing"), None),
        (
            "{group: policy.linkerd.io, kind: Server, name: other}",
            String::new(),
            None,
        ),
    ] {
        let server = ask(
            settings(),
            8080,
            &[
                POD,
                SERVER,
                AUTHENTICATIONS,
                &policy("a", target, &required),
            ],
        );
        let shown: Vec<_> = server.authorizations.iter().map(show).collect();
        assert_eq!(
            shown,
            expected.into_iter().collect::<Vec<_>>(),
            "{target} {required}"
        );
        for authz in &server.authorizations {
            assert_eq!(
                label(&authz.labels),
                triple("policy.linkerd.io", "authorizationpolicy", "a")
            );
            let resource = wire::resource("policy.linkerd.io", "authorizationpolicy", "a");
            assert_eq!(authz.metadata, Some(wire::resource_meta(resource)));
        }
    }
}

#[test]
fn server_authorizations() {
    let cluster = texts(&["10.0.0.0/8"]);
    for (spec, expected) in [
        (
            "{server: {name: web}, client: {unauthenticated: true}}",
            Some((cluster.clone(), texts(&["*"]))),
        ),
        (
            "{server: {selector: {matchLabels: {kind: http}}}, client: {meshTLS: {unauthenticatedTLS: true}}}",
            Some((cluster, texts(&["tls"]))),
        ),
        (
            "{server: {name: web}, client: {networks: [{cidr: 10.9.0.0/16}], meshTLS: {identities: ['*.x'], serviceAccounts: [{name: api}]}}}",
            Some((
                texts(&["10.9.0.0/16"]),
                texts(&[
                    "api.default.serviceaccount.identity.linkerd.cluster.local",
                    "*.x",
                ]),
            )),
        ),
        (
            "{server: {selector: {matchExpressions: [{key: kind, operator: DoesNotExist}]}}, client: {unauthenticated: true}}",
            None,
        ),
    ] {
        let text = format!(
            "apiVersion: policy.linkerd.io/v1beta1\nkind: ServerAuthorization\nmetadata: {{name: a}}\nspec: {spec}\n"
        );
        let server = ask(settings(), 8080, &[POD, SERVER, &text]);
        let shown: Vec<_> = server.authorizations.iter().map(show).collect();
        assert_eq!(shown, expected.into_iter().collect::<Vec<_>>(), "{spec}");
    }
}

#[tokio::test]
async fn a_pod_that_goes_keeps_its_policy() {
    let (shared, views) = views(settings(), &[POD]);
    let mut stream =
        InboundStream::new(views.subscribe(query(8080)).expect("room")).expect("known");
    stream.next().await.expect("open");
    shared.delete(&objects(POD)[0].reference());
    let quiet =
        |stream: &mut InboundStream| futures_util::FutureExt::now_or_never(stream.next()).is_none();
    assert!(quiet(&mut stream));
    shared.apply(&objects(SERVER)[0]);
    assert!(quiet(&mut stream));
    shared.apply(&objects(POD)[0]);
    assert_eq!(label(&stream.next().await.expect("open").labels).2, "web");
}

/// Everything a port's policy can depend on; each object in two versions.
fn universe() -> Vec<[Object; 2]> {
    use routes::route;

    let pair = |a: &str, b: &str| [objects(a).remove(0), objects(b).remove(0)];
    let routes = [
        route("r", "2026-01-01T00:00:00Z", ""),
        route(
            "r",
            "2026-01-01T00:00:00Z",
            "matches: [{path: {value: /x}}]",
        ),
    ];
    let nets = objects(AUTHENTICATIONS).remove(2);
    let accounts = objects(AUTHENTICATIONS).remove(1);
    let older = SERVER
        .replace("name: web", "name: older")
        .replace("HTTP/1", "opaque");
    vec![
        pair(POD, &annotated("config.linkerd.io/opaque-ports: http")),
        pair(SERVER, &SERVER.replace("HTTP/1", "gRPC")),
        pair(&older, &older.replace("app: web", "app: other")),
        pair(
            &policy("a", TO_SERVER, ACCOUNTS),
            &policy("a", TO_SERVER, NETS),
        ),
        pair(
            &policy(
                "b",
                "{group: policy.linkerd.io, kind: HTTPRoute, name: r}",
                NETS,
            ),
            &policy("b", TO_SERVER, ""),
        ),
        pair(&routes[0], &routes[1]),
        [nets.clone(), nets],
        [accounts.clone(), accounts],
        pair(
            &routes::grpc_route("g", ""),
            &routes::grpc_route("g", "matches: [{method: {service: a.B}}]"),
        ),
        pair(&limit(10), &limit(20)),
    ]
}

fn limit(total: u32) -> String {
    format!(
        "apiVersion: policy.linkerd.io/v1alpha1\nkind: HTTPLocalRateLimitPolicy\nmetadata: {{name: l}}\n\
         spec: {{targetRef: {{group: policy.linkerd.io, kind: Server, name: web}}, total: {{requestsPerSecond: {total}}}}}\n"
    )
}

proptest! {
    /// A watched state is what somebody who asks now gets, whatever has changed in which order: no dependency is missed.
    #[test]
    fn watched_policies_are_never_stale(steps in prop::collection::vec((0..10usize, 0..3usize), 1..40)) {
        let (shared, views) = views(settings(), &[]);
        let mut watched = views.subscribe(query(8080)).expect("room");
        let universe = universe();
        for (object, what) in steps {
            match universe[object].get(what) {
                Some(version) => shared.apply(version),
                None => shared.delete(&universe[object][0].reference()),
            };
            prop_assert_eq!(watched.latest(), views.once(&query(8080)));
        }
    }
}
