//! Endpoints of Services: what is announced, in which order things may come, and what goes over the wire.

mod order;
mod rules;
mod sharing;

use std::{collections::BTreeMap, net::SocketAddr, path::Path};

use linkerd2_proxy_api::destination::{Update, WeightedAddr, update};
use prost::Message;
use weft_cluster::{MeshSettings, Object, Shared, manifests};

use super::*;

fn objects(text: &str) -> Vec<Object> {
    manifests::parse(Path::new("test.yaml"), text).expect("valid")
}

fn apply(shared: &Shared, text: &str) {
    for object in objects(text) {
        let changed = shared.apply(&object);
        assert_eq!(changed.invalid, [], "{text}");
    }
}

fn query() -> EndpointsQuery {
    EndpointsQuery {
        service: Name::new("default", "web"),
        port: 80,
        hostname: None,
        zone: None,
        node: None,
    }
}

fn settings() -> Settings {
    Settings::new(MeshSettings::default())
}

fn views(settings: Settings) -> (Arc<Shared>, Arc<Views<EndpointsQuery>>) {
    let shared = Shared::new();
    (Arc::clone(&shared), Views::new(shared, settings, 100))
}

fn known(endpoints: &Endpoints) -> &EndpointSet {
    match endpoints {
        Endpoints::Known(set) => set,
        other => panic!("{other:?}"),
    }
}

fn addresses(endpoints: &Endpoints) -> Vec<String> {
    known(endpoints)
        .addresses
        .keys()
        .map(ToString::to_string)
        .collect()
}

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, ports: [{name: http, port: 80, targetPort: app}, {name: admin, port: 81}]}
";

fn slice(name: &str, family: &str, port: u16, endpoints: &[String]) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}, labels: {{kubernetes.io/service-name: web}}}}
addressType: {family}
ports: [{{name: http, port: {port}}}]
endpoints: [{}]
",
        endpoints.join(", ")
    )
}

fn plain(address: &str) -> String {
    format!("{{addresses: ['{address}']}}")
}

fn at(address: &str, pod: &str) -> String {
    format!("{{addresses: ['{address}'], targetRef: {{kind: Pod, name: {pod}}}}}")
}

fn pod(name: &str, labels: &str, annotations: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: web{labels}}}, annotations: {{{annotations}}}}}
spec:
  serviceAccountName: web
  containers:
  - name: linkerd-proxy
    env: [{{name: LINKERD2_PROXY_INBOUND_LISTEN_ADDR, value: '0.0.0.0:4143'}}, {{name: LINKERD2_PROXY_ADMIN_LISTEN_ADDR, value: '0.0.0.0:4191'}}]
  - {{name: app, ports: [{{name: app, containerPort: 8080}}]}}
"
    )
}

const MESHED: &str = ", linkerd.io/control-plane-ns: linkerd";

fn describe(settings: &Settings, port: u16, documents: &[String]) -> WeightedAddr {
    let (shared, views) = views(settings.clone());
    apply(&shared, SERVICE);
    apply(&shared, &slice("a", "IPv4", port, &[at("10.1.0.1", "p")]));
    documents.iter().for_each(|text| apply(&shared, text));
    let endpoints = views.once(&query());
    WeightedAddr::clone(
        known(&endpoints)
            .addresses
            .values()
            .next()
            .expect("one endpoint"),
    )
}

#[test]
fn a_meshed_endpoint_has_all_its_fields() {
    let labels = format!("{MESHED}, pod-template-hash: abc");
    let described = describe(&settings(), 8080, &[pod("p", &labels, "")]);
    assert_eq!(
        described.addr,
        Some(SocketAddr::from(([10, 1, 0, 1], 8080)).into())
    );
    assert_eq!(described.weight, 10_000);
    let mut labels: Vec<_> = described
        .metric_labels
        .iter()
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    labels.sort();
    assert_eq!(
        labels,
        [
            "control_plane_ns=linkerd",
            "pod=p",
            "pod_template_hash=abc",
            "serviceaccount=web",
            "zone_locality=unknown",
        ]
    );
    let identity = described.tls_identity.expect("meshed");
    assert_eq!(
        identity.server_name.expect("set").name,
        "web.default.serviceaccount.identity.linkerd.cluster.local"
    );
    let keep_alive = described.http2.and_then(|h| h.keep_alive).expect("set");
    assert_eq!(
        (
            keep_alive.interval.map(|d| d.seconds),
            keep_alive.timeout.map(|d| d.seconds)
        ),
        (Some(10), Some(3))
    );
    assert!(keep_alive.while_idle);
    let hint = described.protocol_hint.expect("meshed");
    assert_eq!(format!("{:?}", hint.protocol), "Some(H2(H2))");
    assert_eq!(hint.opaque_transport.map(|t| t.inbound_port), Some(4143));
}

#[test]
fn hints_follow_pod_port_and_mode() {
    let hint = |settings: &Settings, port, documents: &[String]| {
        let described = describe(settings, port, documents);
        let hint = described.protocol_hint.unwrap_or_default();
        let protocol = match hint.protocol {
            None => "none",
            Some(linkerd2_proxy_api::destination::protocol_hint::Protocol::H2(_)) => "h2",
            Some(linkerd2_proxy_api::destination::protocol_hint::Protocol::Opaque(_)) => "opaque",
        };
        (
            protocol,
            hint.opaque_transport.map(|t| t.inbound_port),
            described.tls_identity.is_some(),
        )
    };
    let header = settings();
    let transparent = Settings {
        outbound_transport: crate::OutboundTransport::Transparent,
        ..settings()
    };
    let no_upgrade = Settings {
        enable_h2_upgrade: false,
        ..settings()
    };
    let server = "apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: s}
spec: {podSelector: {matchLabels: {app: web}}, port: app, proxyProtocol: opaque}
";
    let opaque = "config.linkerd.io/opaque-ports: '9000,app'";
    let skipped = "config.linkerd.io/skip-inbound-ports: '8080'";
    let foreign = ", linkerd.io/control-plane-ns: other";
    for (name, settings, port, documents, expected) in [
        (
            "meshed",
            &header,
            8080,
            vec![pod("p", MESHED, "")],
            ("h2", Some(4143), true),
        ),
        (
            "transparent",
            &transparent,
            8080,
            vec![pod("p", MESHED, "")],
            ("h2", None, true),
        ),
        (
            "transparent, opaque",
            &transparent,
            8080,
            vec![pod("p", MESHED, opaque)],
            ("opaque", Some(4143), true),
        ),
        (
            "no upgrade",
            &no_upgrade,
            8080,
            vec![pod("p", MESHED, "")],
            ("none", Some(4143), true),
        ),
        (
            "named opaque port",
            &header,
            8080,
            vec![pod("p", MESHED, opaque)],
            ("opaque", Some(4143), true),
        ),
        (
            "default opaque port",
            &header,
            3306,
            vec![pod("p", MESHED, "")],
            ("opaque", Some(4143), true),
        ),
        (
            "annotation replaces default",
            &header,
            3306,
            vec![pod("p", MESHED, opaque)],
            ("h2", Some(4143), true),
        ),
        (
            "opaque Server",
            &header,
            8080,
            vec![pod("p", MESHED, ""), server.to_owned()],
            ("opaque", Some(4143), true),
        ),
        (
            "admin port",
            &header,
            4191,
            vec![pod("p", MESHED, "")],
            ("h2", None, true),
        ),
        (
            "skipped port",
            &header,
            8080,
            vec![pod("p", MESHED, skipped)],
            ("none", None, false),
        ),
        (
            "not meshed",
            &header,
            8080,
            vec![pod("p", "", "")],
            ("none", None, false),
        ),
        (
            "foreign control plane",
            &header,
            8080,
            vec![pod("p", foreign, "")],
            ("h2", Some(4143), false),
        ),
    ] {
        assert_eq!(hint(settings, port, &documents), expected, "{name}");
    }
}

#[test]
fn ports_go_by_name_and_port_0_is_never_sent() {
    // Case D05: http is ready in one slice only, and its number differs between versions.
    let (shared, views) = views(settings());
    apply(&shared, SERVICE);
    apply(&shared, &slice("a", "IPv4", 8080, &[plain("10.1.0.1")]));
    apply(&shared, &slice("b", "IPv4", 9090, &[plain("10.1.0.2")]));
    let unready = slice("c", "IPv4", 1, &[plain("10.1.0.3")]).replace(
        "{name: http, port: 1}",
        "{name: http}, {name: admin, port: 81}",
    );
    apply(&shared, &unready);
    assert_eq!(
        addresses(&views.once(&query())),
        ["10.1.0.1:8080", "10.1.0.2:9090"]
    );
    assert_eq!(
        addresses(&views.once(&EndpointsQuery {
            port: 81,
            ..query()
        })),
        ["10.1.0.3:81"]
    );
    assert!(
        addresses(&views.once(&EndpointsQuery {
            port: 82,
            ..query()
        }))
        .is_empty()
    );
}

#[test]
fn only_ready_endpoints_and_their_host_names() {
    let (shared, views) = views(settings());
    apply(&shared, SERVICE);
    let endpoints = [
        "{addresses: [10.1.0.1], conditions: {ready: false}}".to_owned(),
        "{addresses: [10.1.0.2], conditions: {ready: true}, hostname: web-0}".to_owned(),
        "{addresses: [10.1.0.3], hostname: web-1}".to_owned(),
    ];
    apply(&shared, &slice("a", "IPv4", 80, &endpoints));
    assert_eq!(
        addresses(&views.once(&query())),
        ["10.1.0.2:80", "10.1.0.3:80"]
    );
    let one = EndpointsQuery {
        hostname: Some("web-1".into()),
        ..query()
    };
    assert_eq!(addresses(&views.once(&one)), ["10.1.0.3:80"]);
}

/// Case D02 asks for the family of the client's connection, or for the other one where the application does not listen. Here contract
/// 8.1 wins: what is asked for is a name, so the connection's family is not known, and of a pod with two addresses one is announced.
/// The address of a pod, or of a Service without endpoints, that a client dials keeps its family: nothing is chosen then.
#[test]
fn d02_of_both_families_of_a_pod_ipv6_is_announced_if_enabled() {
    let both = |ipv6| {
        let (shared, views) = views(Settings::new(MeshSettings {
            enable_ipv6: ipv6,
            ..MeshSettings::default()
        }));
        apply(&shared, SERVICE);
        for name in ["p1", "p2", "p3"] {
            apply(&shared, &pod(name, "", ""));
        }
        apply(
            &shared,
            &slice(
                "six",
                "IPv6",
                80,
                &[at("fd00::1", "p1"), at("fd00::2", "p2")],
            ),
        );
        apply(
            &shared,
            &slice(
                "four",
                "IPv4",
                80,
                &[at("10.1.0.1", "p1"), at("10.1.0.3", "p3")],
            ),
        );
        addresses(&views.once(&query()))
    };
    assert_eq!(both(true), ["10.1.0.3:80", "[fd00::1]:80", "[fd00::2]:80"]);
    assert_eq!(both(false), ["10.1.0.1:80", "10.1.0.3:80"]);
}

#[test]
fn zone_hints_count_only_if_all_have_them_and_never_leave_nothing() {
    let (shared, views) = views(settings());
    apply(&shared, SERVICE);
    let hinted = |address: &str, zone: &str| {
        format!("{{addresses: [{address}], zone: {zone}, hints: {{forZones: [{{name: {zone}}}]}}}}")
    };
    let in_zone = |zone: &str| {
        addresses(&views.once(&EndpointsQuery {
            zone: Some(zone.into()),
            ..query()
        }))
    };
    apply(
        &shared,
        &slice(
            "a",
            "IPv4",
            80,
            &[hinted("10.1.0.1", "a"), hinted("10.1.0.2", "b")],
        ),
    );
    assert_eq!(in_zone("a"), ["10.1.0.1:80"]);
    assert_eq!(
        in_zone("c"),
        ["10.1.0.1:80", "10.1.0.2:80"],
        "a zone without endpoints"
    );
    assert_eq!(
        addresses(&views.once(&query())).len(),
        2,
        "a caller of unknown zone"
    );
    // Case L09: the hints go, and traffic spreads again.
    apply(
        &shared,
        &slice(
            "a",
            "IPv4",
            80,
            &[
                hinted("10.1.0.1", "a"),
                "{addresses: [10.1.0.2], zone: b}".to_owned(),
            ],
        ),
    );
    assert_eq!(in_zone("a").len(), 2);
    let endpoints = views.once(&EndpointsQuery {
        zone: Some("a".into()),
        ..query()
    });
    let locality = |endpoint: &Arc<WeightedAddr>| endpoint.metric_labels["zone_locality"].clone();
    let localities: Vec<String> = known(&endpoints).addresses.values().map(locality).collect();
    assert_eq!(localities, ["local", "remote"]);
}

/// The message behind its length.
fn decoded(message: &Bytes) -> Update {
    let (header, message) = message.split_at(5);
    let length = u32::try_from(message.len()).expect("small").to_be_bytes();
    assert_eq!(header, [&[0], &length[..]].concat());
    Update::decode(message).expect("a message")
}

fn open(views: &Arc<Views<EndpointsQuery>>) -> GetStream {
    GetStream::new(views, query(), "".into()).expect("a Service")
}

/// A client as the protocol asks it to be.
#[derive(Default)]
struct Client {
    endpoints: BTreeMap<SocketAddr, WeightedAddr>,
    messages: usize,
}

impl Client {
    fn take(&mut self, update: Update) {
        self.messages += 1;
        match update.update.expect("set") {
            update::Update::Add(set) => {
                assert_eq!(set.metric_labels["service"], "web");
                for endpoint in set.addrs {
                    let address = SocketAddr::try_from(endpoint.addr.expect("set")).expect("valid");
                    self.endpoints.insert(address, endpoint);
                }
            }
            update::Update::Remove(set) => {
                for address in set.addrs {
                    let address = SocketAddr::try_from(address).expect("valid");
                    assert!(
                        self.endpoints.remove(&address).is_some(),
                        "{address} was not known"
                    );
                }
            }
            update::Update::NoEndpoints(_) => panic!("never sent"),
        }
    }

    /// Takes all that is there.
    fn drain(&mut self, stream: &mut GetStream) {
        while let Some(message) = futures_util::FutureExt::now_or_never(stream.next()) {
            self.take(decoded(&message.expect("streams do not fail")));
        }
    }
}

#[test]
fn one_add_then_differences_and_nothing_for_equal_updates() {
    let (shared, views) = views(settings());
    apply(&shared, SERVICE);
    for i in 1..=100 {
        apply(&shared, &pod(&format!("p{i}"), "", ""));
    }
    let mut stream = open(&views);
    let mut client = Client::default();
    client.drain(&mut stream);
    assert_eq!(client.messages, 0, "silent without endpoints");

    let many: Vec<String> = (1..=100)
        .map(|i| at(&format!("10.1.0.{i}"), &format!("p{i}")))
        .collect();
    apply(&shared, &slice("a", "IPv4", 80, &many));
    client.drain(&mut stream);
    assert_eq!((client.messages, client.endpoints.len()), (1, 100));

    // Equal updates, also in another order, and a change that does not touch an address (case L06).
    let reversed: Vec<String> = many.iter().rev().cloned().collect();
    apply(&shared, &slice("a", "IPv4", 80, &reversed));
    apply(&shared, &slice("b", "IPv4", 80, &many[..50]));
    client.drain(&mut stream);
    assert_eq!(client.messages, 1);
    // An address in two slices survives the removal of one (case D03).
    shared.delete(&objects(&slice("a", "IPv4", 80, &[]))[0].reference());
    client.drain(&mut stream);
    assert_eq!((client.messages, client.endpoints.len()), (2, 50));

    // Metadata of one pod: that address again.
    apply(&shared, &pod("p7", MESHED, ""));
    client.drain(&mut stream);
    assert_eq!((client.messages, client.endpoints.len()), (3, 50));
    assert!(
        client.endpoints[&SocketAddr::from(([10, 1, 0, 7], 80))]
            .tls_identity
            .is_some()
    );

    // Empty means empty (case L07), also when the Service goes and comes.
    shared.delete(&objects(SERVICE)[0].reference());
    client.drain(&mut stream);
    assert_eq!((client.messages, client.endpoints.len()), (4, 0));
    apply(&shared, SERVICE);
    client.drain(&mut stream);
    assert_eq!((client.messages, client.endpoints.len()), (5, 50));
    assert_eq!(views.len(), 1);
}

#[test]
fn a_slow_client_gets_the_newest_state_in_one_step() {
    let (shared, views) = views(settings());
    apply(&shared, SERVICE);
    let mut slow = open(&views);
    for round in 0..200 {
        let endpoints: Vec<String> = (0..20)
            .map(|i| plain(&format!("10.1.{}.{i}", round % 7)))
            .collect();
        apply(&shared, &slice("a", "IPv4", 80, &endpoints));
    }
    let mut client = Client::default();
    client.drain(&mut slow);
    assert_eq!((client.messages, client.endpoints.len()), (1, 20));
    // What a stream holds is the state it sent last and at most the messages of one change.
    assert!(slow.pending.0.is_empty());
    let Endpoints::Known(set) = views.once(&query()) else {
        panic!("known")
    };
    assert_eq!(*slow.sent, *set);
}

#[test]
fn large_sets_are_sent_in_parts() {
    let (shared, views) = views(settings());
    apply(&shared, SERVICE);
    let many: Vec<String> = (0..5_000)
        .map(|i| format!("{{addresses: [10.1.{}.{}]}}", i / 250, i % 250))
        .collect();
    apply(&shared, &slice("a", "IPv4", 80, &many));
    let mut stream = open(&views);
    let mut client = Client::default();
    client.drain(&mut stream);
    assert_eq!((client.messages, client.endpoints.len()), (3, 5_000));
}

#[test]
fn unchanged_endpoints_are_not_described_anew() {
    let (shared, views) = views(settings());
    apply(&shared, SERVICE);
    apply(&shared, &pod("p1", "", ""));
    apply(&shared, &pod("p2", "", ""));
    let mut subscription = views.subscribe(query()).expect("room");
    let both = [at("10.1.0.1", "p1"), at("10.1.0.2", "p2")];
    apply(&shared, &slice("a", "IPv4", 80, &both));
    let before = subscription.latest();
    apply(&shared, &pod("p2", MESHED, ""));
    let after = subscription.latest();
    let pairs: Vec<bool> = known(&before)
        .addresses
        .values()
        .zip(known(&after).addresses.values())
        .map(|(a, b)| Arc::ptr_eq(a, b))
        .collect();
    assert_eq!(pairs, [true, false]);
}
