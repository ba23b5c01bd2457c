//! Endpoint profiles: pods, host ports, external workloads and host names.

use linkerd2_proxy_api::destination::protocol_hint::Protocol;
use weft_cluster::Object;

use super::*;

fn objects(text: &str) -> Vec<Object> {
    manifests::parse(Path::new("test.yaml"), text).expect("valid")
}

/// What `GetProfile` answers to a question about these objects only.
fn among(documents: &[&str], settings: Settings, query: &ProfileQuery) -> DestinationProfile {
    let shared = Shared::new();
    for object in documents.iter().flat_map(|text| objects(text)) {
        assert_eq!(shared.apply(&object).invalid, []);
    }
    match Views::new(shared, settings, 100).once(query) {
        Profile::Known(known) => known.profile.clone(),
        other => panic!("{other:?}"),
    }
}

fn settings() -> Settings {
    Settings::new(MeshSettings::default())
}

fn of(documents: &[&str], target: ProfileTarget, port: u16) -> DestinationProfile {
    among(documents, settings(), &query(target, port))
}

fn inbound_port(profile: &DestinationProfile) -> Option<u32> {
    let hint = profile.endpoint.as_ref()?.protocol_hint.as_ref()?;
    hint.opaque_transport.as_ref().map(|t| t.inbound_port)
}

fn protocol(profile: &DestinationProfile) -> Option<Protocol> {
    let hint = profile.endpoint.as_ref()?.protocol_hint.as_ref()?;
    hint.protocol
}

const POD: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: p
  labels: {app: web, linkerd.io/control-plane-ns: linkerd}
  annotations: {config.linkerd.io/opaque-ports: 'raw', config.linkerd.io/skip-inbound-ports: '9999'}
spec:
  nodeName: n1
  serviceAccountName: web
  initContainers:
  - name: linkerd-proxy
    restartPolicy: Always
    env: [{name: LINKERD2_PROXY_INBOUND_LISTEN_ADDR, value: '0.0.0.0:4143'}]
  containers:
  - name: app
    ports:
    - {name: http, containerPort: 8080, hostPort: 7777}
    - {name: raw, containerPort: 9000, hostPort: 7000, hostIP: 192.168.1.1}
    - {name: dns, containerPort: 53, hostPort: 5353, protocol: UDP}
status:
  phase: Running
  podIP: 10.1.0.1
  hostIP: 192.168.1.1
  hostIPs: [{ip: 192.168.1.1}, {ip: 192.168.1.2}]
  conditions: [{type: Ready, status: 'False'}]
";

#[test]
fn d13_a_pod_counts_when_it_runs() {
    // Two pods that must find each other before they are ready.
    let profile = of(&[POD], ip("10.1.0.1"), 8080);
    assert!(
        profile
            .endpoint
            .as_ref()
            .expect("set")
            .tls_identity
            .is_some()
    );
    assert_eq!(inbound_port(&profile), Some(4143));
    for phase in ["Succeeded", "Failed", "Pending"] {
        let ended = POD.replace("phase: Running", &format!("phase: {phase}"));
        let profile = of(&[&ended], ip("10.1.0.1"), 8080);
        assert_eq!(profile.endpoint.expect("set").tls_identity, None, "{phase}");
    }
}

#[test]
fn a_pod_has_its_namespace_and_the_zone_of_its_node_in_its_labels() {
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: n1, labels: {topology.kubernetes.io/zone: a}}\n";
    let asked = ProfileQuery {
        zone: Some("a".into()),
        ..query(ip("10.1.0.1"), 8080)
    };
    let labels = among(&[POD, node], settings(), &asked)
        .endpoint
        .expect("set")
        .metric_labels;
    for (key, value) in [
        ("namespace", "default"),
        ("pod", "p"),
        ("serviceaccount", "web"),
        ("zone", "a"),
        ("zone_locality", "local"),
        ("control_plane_ns", "linkerd"),
    ] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
}

#[test]
fn d11_an_unmeshed_pod_on_an_opaque_port() {
    let unmeshed = POD
        .replace(", linkerd.io/control-plane-ns: linkerd", "")
        .replace("  annotations:", "  annotations: {}\n  ignored:");
    for port in [3306, 6379] {
        let profile = of(&[&unmeshed], ip("10.1.0.1"), port);
        assert!(profile.opaque_protocol, "{port}");
        let endpoint = profile.endpoint.expect("set");
        assert_eq!(
            (endpoint.tls_identity, endpoint.protocol_hint),
            (None, None)
        );
        assert!(
            of(&[], ip("10.1.0.99"), port).opaque_protocol,
            "nothing is known of it"
        );
    }
}

#[test]
fn skipped_ports_have_neither_identity_nor_hint() {
    let endpoint = of(&[POD], ip("10.1.0.1"), 9999).endpoint.expect("set");
    assert_eq!(
        (
            endpoint.tls_identity,
            endpoint.protocol_hint,
            endpoint.http2
        ),
        (None, None, None)
    );
}

#[test]
fn a_port_of_the_node_leads_to_the_pod() {
    let profile = of(&[POD], ip("192.168.1.2"), 7777);
    let endpoint = profile.endpoint.as_ref().expect("set");
    assert_eq!(
        endpoint.addr,
        Some(SocketAddr::from(([192, 168, 1, 2], 7777)).into()),
        "as it was dialled"
    );
    assert_eq!(endpoint.metric_labels["pod"], "p");
    assert!(endpoint.tls_identity.is_some() && protocol(&profile).is_some());
    assert_eq!(
        inbound_port(&profile),
        None,
        "port 4143 of the node leads nowhere"
    );
    // What is opaque or skipped goes by the pod's own port.
    assert!(of(&[POD], ip("192.168.1.1"), 7000).opaque_protocol);
    let moved = POD.replace("'9999'", "'8080'");
    let skipped = of(&[&moved], ip("192.168.1.2"), 7777)
        .endpoint
        .expect("set");
    assert_eq!(skipped.tls_identity, None);
    // Not on that address of the node, not TCP, not a port of the pod on the node, and not any more.
    let ended = POD.replace("phase: Running", "phase: Failed");
    for (text, host, port) in [
        (POD, "192.168.1.2", 7000),
        (POD, "192.168.1.1", 5353),
        (POD, "192.168.1.1", 8080),
        (&ended, "192.168.1.1", 7777),
    ] {
        let endpoint = of(&[text], ip(host), port).endpoint.expect("set");
        assert!(endpoint.metric_labels.is_empty(), "{host}:{port}");
    }
}

#[tokio::test]
async fn a_host_port_follows_its_pod() {
    let shared = Shared::new();
    let views = Views::new(Arc::clone(&shared), settings(), 100);
    let subscription = views
        .subscribe(query(ip("192.168.1.1"), 7777))
        .expect("room");
    let mut stream = ProfileStream::new(subscription).expect("known");
    let meshed =
        |profile: DestinationProfile| profile.endpoint.expect("set").tls_identity.is_some();
    assert!(!meshed(next(&mut stream).await));
    let pod = &objects(POD)[0];
    shared.apply(pod);
    assert!(meshed(next(&mut stream).await));
    shared.delete(&pod.reference());
    assert!(!meshed(next(&mut stream).await));
}

#[test]
fn an_external_workload_by_its_address() {
    let external = "
apiVersion: workload.linkerd.io/v1alpha1
kind: ExternalWorkload
metadata: {name: vm, namespace: edge}
spec:
  meshTls: {identity: vm.edge.example.com, serverName: vm.edge.example.com}
  workloadIPs: [{ip: 192.168.0.9}, {ip: 'fd00::9'}]
  ports: [{name: linkerd-proxy, port: 5143}]
";
    for address in ["192.168.0.9", "fd00::9"] {
        let profile = of(&[external], ip(address), 8080);
        assert_eq!(profile.fully_qualified_name, "");
        assert_eq!(
            (inbound_port(&profile), profile.opaque_protocol),
            (Some(5143), false)
        );
        let endpoint = profile.endpoint.expect("set");
        assert_eq!(endpoint.metric_labels["external_workload"], "vm");
        assert_eq!(endpoint.metric_labels["namespace"], "edge");
        let identity = endpoint.tls_identity.expect("meshed");
        assert!(
            format!("{identity:?}").contains("DnsLikeIdentity { name: \"vm.edge.example.com\" }")
        );
    }
    let opaque = of(&[external], ip("192.168.0.9"), 3306);
    assert!(opaque.opaque_protocol, "by the default list");
}

const HEADLESS: &str = "
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
ports: [{name: http, port: 9000}]
endpoints:
- {addresses: [10.1.0.1], hostname: db-0, conditions: {ready: false}, targetRef: {kind: Pod, name: p}}
- {addresses: [10.9.0.1], hostname: plain}
- {addresses: [10.9.0.2], hostname: gone, targetRef: {kind: Pod, name: nobody}}
- {addresses: [10.9.0.3], hostname: unready, conditions: {ready: false}}
";

#[test]
fn d07_host_names_of_a_headless_service() {
    let host = |name: &str| ProfileTarget::Hostname(Name::new("default", "db"), name.into());
    // Running is enough, as by address; opaque by the pod's annotation.
    let member = of(&[HEADLESS, POD], host("db-0"), 80);
    assert!(member.opaque_protocol);
    assert_eq!(
        protocol(&member),
        Some(Protocol::Opaque(Default::default()))
    );
    assert_eq!(
        member.endpoint,
        of(&[HEADLESS, POD], ip("10.1.0.1"), 9000)
            .endpoint
            .map(|mut endpoint| {
                endpoint
                    .metric_labels
                    .insert("zone_locality".to_owned(), "unknown".to_owned());
                endpoint
            })
    );
    let plain = of(&[HEADLESS, POD], host("plain"), 80)
        .endpoint
        .expect("set");
    assert_eq!(
        plain.addr,
        Some(SocketAddr::from(([10, 9, 0, 1], 9000)).into())
    );
    assert_eq!(plain.tls_identity, None);

    let shared = Shared::new();
    for object in [HEADLESS, POD].iter().flat_map(|text| objects(text)) {
        shared.apply(&object);
    }
    let views = Views::new(shared, settings(), 100);
    for (name, port) in [("gone", 80), ("unready", 80), ("db-9", 80), ("db-0", 81)] {
        assert_eq!(
            views.once(&query(host(name), port)),
            Profile::NoHost,
            "{name}:{port}"
        );
    }
}

#[test]
fn d01_a_host_name_with_addresses_of_both_families() {
    let six = "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-6, labels: {kubernetes.io/service-name: db}}
addressType: IPv6
ports: [{name: http, port: 9000}]
endpoints:
- {addresses: ['fd00::1'], hostname: db-0, conditions: {ready: false}, targetRef: {kind: Pod, name: p}}
";
    let host = || ProfileTarget::Hostname(Name::new("default", "db"), "db-0".into());
    for (ipv6, expected) in [(true, "[fd00::1]:9000"), (false, "10.1.0.1:9000")] {
        let mesh = MeshSettings {
            enable_ipv6: ipv6,
            ..MeshSettings::default()
        };
        for documents in [[HEADLESS, six, POD], [POD, six, HEADLESS]] {
            let profile = among(&documents, Settings::new(mesh.clone()), &query(host(), 80));
            let address = profile.endpoint.and_then(|e| e.addr).expect("set");
            let address = SocketAddr::try_from(address).expect("valid");
            assert_eq!(address.to_string(), expected);
        }
    }
}

#[test]
fn d09_an_external_name_has_an_empty_profile() {
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: out}\nspec: {type: ExternalName, externalName: example.org, ports: [{port: 80}]}\n";
    assert_eq!(
        of(&[service], name("out"), 80),
        DestinationProfile::default()
    );
}

#[test]
fn d18_objects_as_some_tools_write_them() {
    let text = "
apiVersion: v1
kind: Service
metadata: {name: web, annotations: null, labels: null, managedFields: [{manager: m, operation: Update}], unknown: 1}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}], unknown: [1]}
status: {}
";
    let profile = of(&[text], ip("10.96.0.10"), 80);
    assert_eq!(
        profile.fully_qualified_name,
        "web.default.svc.cluster.local"
    );
}
