//! The rules of contract 8.1 for which endpoints are announced, and to whom.

use weft_cluster::index::Invalid;

use super::*;

/// An endpoint on a node, in a zone, with a hint for that zone; empty texts are left out.
fn placed(address: &str, node: &str, zone: &str, hint: bool) -> String {
    let mut fields = vec![format!("addresses: ['{address}']")];
    if !node.is_empty() {
        fields.push(format!("nodeName: {node}"));
    }
    if !zone.is_empty() {
        fields.push(format!("zone: {zone}"));
    }
    if hint {
        fields.push(format!("hints: {{forZones: [{{name: {zone}}}]}}"));
    }
    format!("{{{}}}", fields.join(", "))
}

fn ask(views: &Views<EndpointsQuery>, zone: &str, node: Option<&str>) -> Vec<String> {
    addresses(&views.once(&EndpointsQuery {
        zone: Some(zone.into()).filter(|_| !zone.is_empty()),
        node: node.map(Into::into),
        ..query()
    }))
}

fn local_service() -> String {
    SERVICE.replace("spec: {", "spec: {internalTrafficPolicy: Local, ")
}

#[test]
fn traffic_that_stays_on_the_node() {
    let (shared, views) = views(settings());
    apply(&shared, &local_service());
    let endpoints = [
        placed("10.1.0.1", "n1", "a", false),
        placed("10.1.0.2", "n2", "a", false),
        placed("10.1.0.3", "", "a", false),
    ];
    apply(&shared, &slice("s", "IPv4", 80, &endpoints));
    assert_eq!(views.once(&query()), Endpoints::NodeNeeded);
    assert_eq!(ask(&views, "", Some("n1")), ["10.1.0.1:80"]);
    assert_eq!(ask(&views, "", Some("n2")), ["10.1.0.2:80"]);
    assert!(
        ask(&views, "", Some("n3")).is_empty(),
        "and no other instead"
    );
    assert!(
        ask(&views, "", Some("")).is_empty(),
        "a caller of unknown node"
    );
}

#[test]
fn a_stream_follows_internal_traffic_policy_both_ways() {
    let (shared, views) = views(settings());
    apply(&shared, SERVICE);
    let endpoints = [
        placed("10.1.0.1", "n1", "", false),
        placed("10.1.0.2", "n2", "", false),
    ];
    apply(&shared, &slice("s", "IPv4", 80, &endpoints));
    let mut streams = ["n1", "n2"].map(|node| {
        let stream = GetStream::new(&views, query(), node.into()).expect("a Service");
        (stream, Client::default())
    });
    let mut seen = || {
        streams.each_mut().map(|(stream, client)| {
            client.drain(stream);
            client
                .endpoints
                .keys()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        })
    };
    let both = || vec!["10.1.0.1:80".to_owned(), "10.1.0.2:80".to_owned()];
    assert_eq!(seen(), [both(), both()]);
    assert_eq!(views.len(), 1, "shared while nobody's node matters");
    apply(&shared, &local_service());
    assert_eq!(seen(), [both()[..1].to_vec(), both()[1..].to_vec()]);
    apply(&shared, SERVICE);
    assert_eq!(seen(), [both(), both()]);
}

#[test]
fn filters_come_in_the_order_host_name_node_zone_family() {
    let settings = Settings::new(MeshSettings {
        enable_ipv6: true,
        ..MeshSettings::default()
    });
    let (shared, views) = views(settings);
    apply(&shared, &local_service());
    for name in ["p1", "p2"] {
        apply(&shared, &pod(name, "", ""));
    }
    let target = |endpoint: String, pod: &str| {
        let fields = endpoint.strip_suffix('}').expect("a map");
        format!("{fields}, targetRef: {{kind: Pod, name: {pod}}}}}")
    };
    // On the node n1 every endpoint has a hint; elsewhere one has not, which does not count there.
    let four = [
        target(placed("10.1.0.1", "n1", "a", true), "p1"),
        target(placed("10.1.0.2", "n1", "b", true), "p2"),
        placed("10.1.0.3", "n2", "a", false),
    ];
    apply(&shared, &slice("four", "IPv4", 80, &four));
    assert_eq!(ask(&views, "a", Some("n1")), ["10.1.0.1:80"]);
    // The IPv6 twin is in another zone: the hints decide first, so the IPv4 address stays.
    let six = [target(placed("fd00::1", "n1", "b", true), "p1")];
    apply(&shared, &slice("six", "IPv6", 80, &six));
    assert_eq!(ask(&views, "a", Some("n1")), ["10.1.0.1:80"]);
    assert_eq!(
        ask(&views, "b", Some("n1")),
        ["10.1.0.2:80", "[fd00::1]:80"]
    );
    assert_eq!(
        ask(&views, "c", Some("n1")),
        ["10.1.0.2:80", "[fd00::1]:80"]
    );
}

#[test]
fn ready_serving_and_terminating() {
    let (shared, views) = views(settings());
    apply(&shared, SERVICE);
    let with = |last: u8, conditions: &str| {
        format!("{{addresses: [10.1.0.{last}], conditions: {{{conditions}}}}}")
    };
    let endpoints = [
        with(1, ""),
        with(2, "ready: true, serving: true, terminating: false"),
        with(3, "ready: false, serving: false, terminating: false"),
        with(4, "ready: false, serving: true, terminating: true"),
        // A Service that publishes addresses that are not ready.
        with(5, "ready: true, serving: false, terminating: true"),
    ];
    apply(&shared, &slice("s", "IPv4", 80, &endpoints));
    assert_eq!(
        addresses(&views.once(&query())),
        ["10.1.0.1:80", "10.1.0.2:80", "10.1.0.5:80"]
    );
}

#[test]
fn d03_an_address_that_moves_between_slices_does_not_flicker() {
    let (shared, views) = views(settings());
    apply(&shared, SERVICE);
    let (one, two) = (|| plain("10.1.0.1"), || plain("10.1.0.2"));
    apply(&shared, &slice("a", "IPv4", 80, &[one(), two()]));
    let (mut stream, mut client) = (open(&views), Client::default());
    client.drain(&mut stream);
    assert_eq!((client.messages, client.endpoints.len()), (1, 2));
    // In both slices for a moment.
    apply(&shared, &slice("b", "IPv4", 80, &[one()]));
    client.drain(&mut stream);
    apply(&shared, &slice("a", "IPv4", 80, &[two()]));
    client.drain(&mut stream);
    assert_eq!((client.messages, client.endpoints.len()), (1, 2));
    // From one to the other in one update.
    shared.update(|index| {
        let mut changed = index.apply(&objects(&slice("b", "IPv4", 80, &[])).remove(0));
        changed.merge(index.apply(&objects(&slice("a", "IPv4", 80, &[one(), two()])).remove(0)));
        changed
    });
    client.drain(&mut stream);
    assert_eq!((client.messages, client.endpoints.len()), (1, 2));
    // Not ready in one slice and ready in the other counts as ready.
    let unready = "{addresses: [10.1.0.1], hostname: h, conditions: {ready: false}}".to_owned();
    apply(&shared, &slice("a", "IPv4", 80, &[unready, two()]));
    apply(&shared, &slice("b", "IPv4", 80, &[one()]));
    client.drain(&mut stream);
    assert_eq!(client.endpoints.len(), 2);
}

#[test]
fn an_endpoint_whose_pod_is_not_known_is_left_out() {
    let (shared, views) = views(settings());
    apply(&shared, SERVICE);
    apply(
        &shared,
        &slice("a", "IPv4", 80, &[at("10.1.0.1", "p"), plain("10.1.0.2")]),
    );
    let (mut stream, mut client) = (open(&views), Client::default());
    client.drain(&mut stream);
    assert_eq!(client.endpoints.len(), 1, "the plain address only");
    let meshed = pod("p", MESHED, "");
    apply(&shared, &meshed);
    client.drain(&mut stream);
    let address = SocketAddr::from(([10, 1, 0, 1], 80));
    assert!(client.endpoints[&address].tls_identity.is_some());
    // The pod goes before its endpoint does: never announced again without its identity.
    let messages = client.messages;
    shared.delete(&objects(&meshed)[0].reference());
    client.drain(&mut stream);
    assert!(!client.endpoints.contains_key(&address));
    assert_eq!(client.messages, messages + 1);
}

#[test]
fn l03_a_replaced_set_comes_before_the_old_one_goes() {
    let (shared, views) = views(settings());
    apply(&shared, SERVICE);
    apply(
        &shared,
        &slice("blue", "IPv4", 80, &[plain("10.1.0.1"), plain("10.1.0.2")]),
    );
    let (mut stream, mut client) = (open(&views), Client::default());
    client.drain(&mut stream);
    let blue = objects(&slice("blue", "IPv4", 80, &[])).remove(0);
    let green = objects(&slice("green", "IPv4", 80, &[plain("10.1.1.1")])).remove(0);
    shared.update(|index| {
        let mut changed = index.apply(&blue);
        changed.merge(index.apply(&green));
        changed
    });
    let mut sizes = Vec::new();
    while let Some(message) = futures_util::FutureExt::now_or_never(stream.next()) {
        client.take(decoded(&message.expect("open")));
        sizes.push(client.endpoints.len());
    }
    assert_eq!(sizes, [3, 1], "never empty");
}

#[test]
fn d22_a_pod_that_is_made_again_under_its_name() {
    let (shared, views) = views(settings());
    apply(&shared, SERVICE);
    let (mut stream, mut client) = (open(&views), Client::default());
    for round in 0..100 {
        let address = format!("10.1.0.{round}");
        let meshed = objects(&pod("web-0", MESHED, "")).remove(0);
        shared.apply(&meshed);
        apply(&shared, &slice("a", "IPv4", 80, &[at(&address, "web-0")]));
        client.drain(&mut stream);
        let endpoints: Vec<_> = client.endpoints.iter().collect();
        let [(found, described)] = endpoints.as_slice() else {
            panic!("{round}: {endpoints:?}")
        };
        assert_eq!(found.ip().to_string(), address);
        assert!(described.tls_identity.is_some(), "{round}");
        // Half of the deletions are missed and noticed by the next list.
        if round % 2 == 0 {
            shared.delete(&meshed.reference());
        } else {
            shared.reset(weft_cluster::Kind::Pod, &[]);
        }
        client.drain(&mut stream);
        assert!(client.endpoints.is_empty(), "{round}");
    }
}

#[test]
fn d05_named_ports_of_the_service_and_of_the_pod() {
    // Case D06: the slice's port has the Service's name, whatever the container's is; and no name when it has none.
    let (shared, views) = views(settings());
    let service = "apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{port: 80, targetPort: app}]}
";
    apply(&shared, service);
    let unnamed = slice("a", "IPv4", 8080, &[plain("10.1.0.1")]).replace("name: http, ", "");
    apply(&shared, &unnamed);
    assert_eq!(addresses(&views.once(&query())), ["10.1.0.1:8080"]);
    let empty = slice("a", "IPv4", 8081, &[plain("10.1.0.1")]).replace("name: http", "name: ''");
    apply(&shared, &empty);
    assert_eq!(addresses(&views.once(&query())), ["10.1.0.1:8081"]);
    let udp = SERVICE.replace("port: 80, ", "port: 80, protocol: UDP, ");
    apply(&shared, &udp);
    assert!(
        addresses(&views.once(&query())).is_empty(),
        "UDP is not meshed"
    );
}

#[test]
fn d07_a_headless_service_and_its_host_names() {
    let (shared, views) = views(settings());
    let headless = SERVICE.replace("clusterIP: 10.96.0.10", "clusterIP: None");
    apply(&shared, &headless);
    for name in ["web-0", "web-1"] {
        apply(&shared, &pod(name, MESHED, ""));
    }
    let member = |last: u8, ready: bool| {
        format!(
            "{{addresses: [10.1.0.{last}], hostname: web-{last}, conditions: {{ready: {ready}}}, targetRef: {{kind: Pod, name: web-{last}}}}}"
        )
    };
    apply(
        &shared,
        &slice("a", "IPv4", 80, &[member(0, true), member(1, false)]),
    );
    let host = |name: &str| EndpointsQuery {
        hostname: Some(name.into()),
        ..query()
    };
    assert_eq!(addresses(&views.once(&query())), ["10.1.0.0:80"]);
    assert_eq!(addresses(&views.once(&host("web-0"))), ["10.1.0.0:80"]);
    assert!(
        addresses(&views.once(&host("web-1"))).is_empty(),
        "not ready"
    );
    assert!(addresses(&views.once(&host("web-2"))).is_empty());
}

#[test]
fn the_zone_of_the_node_counts_when_the_slice_has_none() {
    let (shared, views) = views(settings());
    apply(&shared, SERVICE);
    apply(
        &shared,
        "apiVersion: v1\nkind: Node\nmetadata: {name: n1, labels: {topology.kubernetes.io/zone: a}}\n",
    );
    apply(
        &shared,
        "apiVersion: v1\nkind: Node\nmetadata: {name: n2}\n",
    );
    let endpoints = [
        placed("10.1.0.1", "n1", "", false),
        placed("10.1.0.2", "n2", "", false),
        placed("10.1.0.3", "n2", "b", false),
    ];
    apply(&shared, &slice("s", "IPv4", 80, &endpoints));
    let from_a = views.once(&EndpointsQuery {
        zone: Some("a".into()),
        ..query()
    });
    let label = |endpoint: &Arc<WeightedAddr>, key: &str| {
        endpoint.metric_labels.get(key).cloned().unwrap_or_default()
    };
    let labels: Vec<_> = known(&from_a)
        .addresses
        .values()
        .map(|e| (label(e, "zone"), label(e, "zone_locality")))
        .collect();
    let expected = [("a", "local"), ("", ""), ("b", "remote")];
    assert_eq!(
        labels,
        expected.map(|(zone, l)| (zone.to_owned(), l.to_owned()))
    );
}

#[test]
fn owners_in_labels() {
    let owner = |kind: &str, name: &str, labels: &str| {
        let owners = format!(
            "ownerReferences: [{{apiVersion: v1, kind: {kind}, name: {name}, uid: u, controller: true}}], labels"
        );
        let text = pod("p", labels, "").replacen("labels", &owners, 1);
        let described = describe(&settings(), 8080, &[text]);
        let mut labels: Vec<_> = described
            .metric_labels
            .into_iter()
            .filter(|(key, _)| !["pod", "serviceaccount", "zone_locality"].contains(&&**key))
            .collect();
        labels.sort();
        labels
    };
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    };
    let hash = ", pod-template-hash: abc";
    assert_eq!(
        owner("ReplicaSet", "web-abc", hash),
        pairs(&[("deployment", "web"), ("pod_template_hash", "abc")])
    );
    assert_eq!(
        owner("ReplicaSet", "web", hash),
        pairs(&[("pod_template_hash", "abc"), ("replicaset", "web")])
    );
    assert_eq!(
        owner("StatefulSet", "web", ""),
        pairs(&[("statefulset", "web")])
    );
    assert_eq!(owner("Job", "web", ""), pairs(&[("k8s_job", "web")]));
}

#[test]
fn a_native_sidecar_says_its_ports_too() {
    let native = pod("p", MESHED, "")
        .replace("  containers:\n", "  initContainers:\n")
        .replace("  - {name: app,", "  containers:\n  - {name: app,")
        .replace("0.0.0.0:4143", "[::]:5143");
    let described = describe(&settings(), 8080, &[native]);
    let hint = described.protocol_hint.expect("meshed");
    assert_eq!(hint.opaque_transport.map(|t| t.inbound_port), Some(5143));
}

#[test]
fn d17_a_server_of_another_namespace_has_no_effect() {
    let server = |namespace: &str| {
        format!(
            "apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {{name: s, namespace: {namespace}}}
spec: {{podSelector: {{matchLabels: {{app: web}}}}, port: 8080, proxyProtocol: opaque}}
"
        )
    };
    let opaque = |namespace| {
        let described = describe(
            &settings(),
            8080,
            &[pod("p", MESHED, ""), server(namespace)],
        );
        let hint = described.protocol_hint.expect("meshed");
        format!("{:?}", hint.protocol) == "Some(Opaque(Opaque))"
    };
    assert!(opaque("default") && !opaque("other"));
}

#[test]
fn d19_opaque_ports_with_spaces_ranges_names_and_nonsense() {
    let opaque = |annotation: &str, port: u16| {
        let (shared, views) = views(settings());
        apply(&shared, SERVICE);
        apply(&shared, &slice("a", "IPv4", port, &[at("10.1.0.1", "p")]));
        let annotation = format!("config.linkerd.io/opaque-ports: '{annotation}'");
        // Parts that mean nothing are noted and do not take the others with them.
        shared.apply(&objects(&pod("p", MESHED, &annotation))[0]);
        let endpoints = views.once(&query());
        let described = known(&endpoints).addresses.values().next().expect("one");
        let hint = described.protocol_hint.expect("meshed");
        format!("{:?}", hint.protocol) == "Some(Opaque(Opaque))"
    };
    for (annotation, port, expected) in [
        ("3306, 4444", 4444, true),
        ("1-65535", 12_345, true),
        ("25,,587", 587, true),
        ("app", 8080, true),
        ("abc,5-3,70000,9000", 9000, true),
        ("abc", 3306, false),
        ("", 3306, false),
    ] {
        assert_eq!(opaque(annotation, port), expected, "{annotation:?} {port}");
    }
}

#[test]
fn what_multicluster_needs_is_refused_in_a_sentence() {
    let (shared, views) = views(settings());
    let refused = |text: &str| -> Invalid {
        let changed = shared.apply(&objects(text)[0]);
        changed.invalid.into_iter().next().expect("noted")
    };
    for (metadata, field) in [
        (
            "labels: {multicluster.linkerd.io/remote-discovery: east}",
            "metadata.labels[multicluster.linkerd.io/remote-discovery]",
        ),
        (
            "annotations: {multicluster.linkerd.io/remote-discovery: 'web@east'}",
            "metadata.annotations[multicluster.linkerd.io/remote-discovery]",
        ),
        (
            "annotations: {multicluster.linkerd.io/local-discovery: web}",
            "metadata.annotations[multicluster.linkerd.io/local-discovery]",
        ),
    ] {
        let text = SERVICE.replace("{name: web}", &format!("{{name: web, {metadata}}}"));
        assert_eq!(refused(&text).field, field);
        let status = GetStream::new(&views, query(), "".into())
            .err()
            .expect("refused");
        assert_eq!(status.code(), tonic::Code::Unimplemented);
        assert!(
            status
                .message()
                .starts_with("Service web.default stands for"),
            "{status}"
        );
    }
    let mirrored = slice("m", "IPv4", 80, &[plain("10.1.0.1")]).replace(
        "{name: m,",
        "{name: m, annotations: {mirror.linkerd.io/remote-svc-fq-name: web.default.svc.east},",
    );
    assert!(refused(&mirrored).refused);
}

const EXTERNAL: &str = "
apiVersion: workload.linkerd.io/v1beta1
kind: ExternalWorkload
metadata: {name: vm, labels: {app: web}, annotations: {config.linkerd.io/opaque-ports: 'raw'}}
spec:
  meshTLS: {identity: 'spiffe://root.local/vm', serverName: vm.example.com}
  workloadIPs: [{ip: 192.168.0.9}]
  ports: [{name: app, port: 9080}, {name: raw, port: 9081}, {name: linkerd-proxy, port: 5143}]
status: {conditions: [{type: Ready, status: 'True', lastTransitionTime: '2026-01-01T00:00:00Z', reason: r, message: m}]}
";

#[test]
fn d17_external_workloads_of_a_service_and_its_namespace() {
    let (shared, views) = views(settings());
    let selecting = SERVICE.replace("spec: {", "spec: {selector: {app: web}, ");
    apply(&shared, &selecting);
    apply(&shared, EXTERNAL);
    let endpoints = views.once(&query());
    assert_eq!(addresses(&endpoints), ["192.168.0.9:9080"]);
    let described = known(&endpoints).addresses.values().next().expect("one");
    let identity = described.tls_identity.clone().expect("meshed");
    assert_eq!(
        format!("{:?}", identity.strategy),
        "Some(UriLikeIdentity(UriLikeIdentity { uri: \"spiffe://root.local/vm\" }))"
    );
    assert_eq!(identity.server_name.expect("set").name, "vm.example.com");
    let hint = described.protocol_hint.expect("meshed");
    assert_eq!(format!("{:?}", hint.protocol), "Some(H2(H2))");
    assert_eq!(hint.opaque_transport.map(|t| t.inbound_port), Some(5143));
    assert_eq!(described.metric_labels["external_workload"], "vm");
    assert!(described.http2.is_some());

    // A slice that says the same changes nothing, and one of a workload that is not there adds nothing.
    let of = |name: &str| {
        format!("{{addresses: [192.168.0.9], targetRef: {{kind: ExternalWorkload, name: {name}}}}}")
    };
    apply(&shared, &slice("s", "IPv4", 9080, &[of("vm")]));
    assert_eq!(views.once(&query()), endpoints);
    apply(&shared, &slice("s", "IPv4", 9999, &[of("gone")]));
    assert_eq!(views.once(&query()), endpoints);
    shared.delete(&objects(&slice("s", "IPv4", 1, &[]))[0].reference());

    // Not ready, and of another namespace (case D17).
    apply(&shared, &EXTERNAL.replace("'True'", "'False'"));
    assert!(addresses(&views.once(&query())).is_empty());
    apply(
        &shared,
        &EXTERNAL.replace("{name: vm,", "{name: vm, namespace: other,"),
    );
    assert!(addresses(&views.once(&query())).is_empty());
}

#[test]
fn d11_external_workloads_by_port_and_without_a_proxy_port() {
    let describe = |text: &str, port: u16| {
        let (shared, views) = views(settings());
        let selecting = SERVICE.replace("spec: {", "spec: {selector: {app: web}, ");
        apply(
            &shared,
            &selecting.replace("targetPort: app", &format!("targetPort: {port}")),
        );
        apply(&shared, text);
        let endpoints = views.once(&query());
        let described = known(&endpoints).addresses.values().next().expect("one");
        let hint = described.protocol_hint.expect("meshed");
        (
            format!("{:?}", hint.protocol).starts_with("Some(Opaque"),
            hint.opaque_transport.map(|t| t.inbound_port),
        )
    };
    assert_eq!(
        describe(EXTERNAL, 9081),
        (true, Some(5143)),
        "by annotation"
    );
    assert_eq!(
        describe(EXTERNAL, 3306),
        (false, Some(5143)),
        "it replaces the default list"
    );
    let plain = EXTERNAL
        .replace(", annotations: {config.linkerd.io/opaque-ports: 'raw'}", "")
        .replace(", {name: linkerd-proxy, port: 5143}", "");
    assert_eq!(describe(&plain, 3306), (true, None), "the default list");
    assert_eq!(describe(&plain, 9080), (false, None));
    let server = "---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: s}
spec: {externalWorkloadSelector: {matchLabels: {app: web}}, port: app, proxyProtocol: opaque}
";
    assert_eq!(
        describe(&format!("{EXTERNAL}{server}"), 9080),
        (true, Some(5143)),
        "a Server"
    );
}
