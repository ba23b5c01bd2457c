//! What discovery reads: which keys a change touches, and that nothing stays of what has gone.

use super::*;

const WORKLOAD: &str = "
apiVersion: workload.linkerd.io/v1beta1
kind: ExternalWorkload
metadata: {name: vm, labels: {app: web}}
spec:
  meshTLS: {identity: 'spiffe://root.local/vm', serverName: VM.example.com}
  workloadIPs: [{ip: 192.168.0.9}, {ip: nowhere}, {ip: 192.168.0.9}]
  ports: [{name: http, port: 8080}, {name: dns, port: 53, protocol: UDP}, {name: linkerd-proxy, port: 5143}]
";

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, annotations: {config.linkerd.io/opaque-ports: 'raw,9000-9002,nonsense'}}
spec:
  selector: {app: web}
  internalTrafficPolicy: Local
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80, targetPort: app}, {name: raw, port: 81, targetPort: 8081}, {name: same, port: 82}, {name: zero, port: 83, targetPort: 0}]
";

const SLICE: &str = "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.1.0.1], nodeName: n1, targetRef: {kind: Pod, name: p}}
- {addresses: [10.1.0.2], targetRef: {kind: ExternalWorkload, name: vm, namespace: edge}}
- {addresses: [10.1.0.3], conditions: {ready: false}}
- {addresses: [10.1.0.4], conditions: {ready: false}, hostname: web-4}
- {addresses: [10.1.0.5], targetRef: {kind: Node, name: n}}
";

#[test]
fn what_is_kept_of_a_service() {
    let mut index = Index::default();
    let changed = apply(&mut index, SERVICE);
    assert_eq!(
        changed
            .invalid
            .iter()
            .map(|i| &*i.field)
            .collect::<Vec<_>>(),
        ["metadata.annotations[config.linkerd.io/opaque-ports]"]
    );
    let reader = Reader::new(&index);
    let service = reader
        .service(&Name::new("default", "web"))
        .expect("stored");
    assert!(service.local_only && !service.multicluster && service.selector.is_some());
    let targets: Vec<_> = service.ports.iter().map(|p| p.target.clone()).collect();
    let number = PortRef::Number;
    assert_eq!(
        targets,
        [
            PortRef::Name("app".into()),
            number(8081),
            number(82),
            number(83)
        ]
    );
    let opaque = service.opaque_ports.as_ref().map(ToString::to_string);
    assert_eq!(opaque.as_deref(), Some("81,9000-9002"));
}

#[test]
fn what_is_kept_of_a_slice() {
    let mut index = Index::default();
    apply(&mut index, SLICE);
    let reader = Reader::new(&index);
    let slice = reader
        .slices(&Name::new("default", "web"))
        .next()
        .expect("stored");
    let kept: Vec<_> = slice
        .endpoints
        .iter()
        .map(|e| (e.address.to_string(), e.ready, e.target.clone()))
        .collect();
    let pod = EndpointTarget::Pod(Name::new("default", "p"));
    let workload = EndpointTarget::Workload(Name::new("edge", "vm"));
    assert_eq!(
        kept,
        [
            ("10.1.0.1".to_owned(), true, Some(pod)),
            ("10.1.0.2".to_owned(), true, Some(workload)),
            ("10.1.0.4".to_owned(), false, None),
            ("10.1.0.5".to_owned(), true, None),
        ]
    );
    assert_eq!(slice.endpoints[0].node.as_deref(), Some("n1"));
}

#[test]
fn keys_of_an_external_workload() {
    let mut index = Index::default();
    let changed = apply(&mut index, WORKLOAD);
    let address: IpAddr = [192, 168, 0, 9].into();
    let keys = HashSet::from([Key::Workloads("default".into()), Key::Address(address)]);
    assert_eq!(changed.keys, keys);
    assert_eq!(changed.invalid[0].field, "spec.workloadIPs[1].ip");
    let reader = Reader::new(&index);
    let workload = reader.workload_at(address).expect("stored");
    assert_eq!(reader.into_keys(), keys);
    assert_eq!(workload.ips, [address]);
    assert_eq!(
        (
            workload.inbound_port(),
            workload.port_named("http"),
            workload.port_named("dns")
        ),
        (Some(5143), Some(8080), None)
    );
    assert_eq!(
        (&*workload.server_name, workload.ready),
        ("vm.example.com", None)
    );
    assert!(apply(&mut index, WORKLOAD).keys.is_empty(), "an equal one");

    let waiting = WORKLOAD.to_owned() + "status: {conditions: []}\n";
    assert_eq!(apply(&mut index, &waiting).keys, keys);
    let name = Name::new("default", "vm");
    assert_eq!(
        Reader::new(&index).workload(&name).and_then(|w| w.ready),
        Some(false)
    );
    for (good, bad, field) in [
        (
            "spiffe://root.local/vm",
            "spiffe://",
            "spec.meshTLS.identity",
        ),
        ("VM.example.com", "spiffe://a/b", "spec.meshTLS.serverName"),
        ("VM.example.com", "''", "spec.meshTLS.serverName"),
    ] {
        let refused = apply(&mut index, &WORKLOAD.replace(good, bad));
        let named = refused
            .invalid
            .iter()
            .find(|i| i.refused)
            .map(|i| &*i.field);
        assert_eq!((named, refused.keys.is_empty()), (Some(field), true));
    }
}

#[test]
fn keys_of_a_host_port() {
    let pod = POD
        .replace("containerPort: 8080}", "containerPort: 8080, hostPort: 80}")
        .replace("podIP: 10.1.0.1,", "podIP: 10.1.0.1, hostIP: 192.168.1.1,");
    let mut index = Index::default();
    let host = SocketAddr::from(([192, 168, 1, 1], 80));
    assert!(apply(&mut index, &pod).keys.contains(&Key::HostPort(host)));
    let reader = Reader::new(&index);
    let found = reader
        .pod_at_host_port(host)
        .map(|(pod, port)| (&*pod.name.name, port));
    assert_eq!(found, Some(("p", 8080)));
    assert!(reader.into_keys().contains(&Key::HostPort(host)));
    let ended = pod.replace("Running", "Succeeded");
    assert!(
        apply(&mut index, &ended)
            .keys
            .contains(&Key::HostPort(host))
    );
    assert!(Reader::new(&index).pod_at_host_port(host).is_none());
}

#[test]
fn d14_nothing_stays_of_objects_that_have_gone() {
    let mut index = Index::default();
    let profile = "apiVersion: linkerd.io/v1alpha2\nkind: ServiceProfile\nmetadata: {name: web.default.svc.cluster.local}\nspec: {}\n";
    for number in 0..200u8 {
        for (text, name) in [
            (POD, "name: p\n"),
            (SERVICE, "name: web,"),
            (SLICE, "name: web-1,"),
            (WORKLOAD, "name: vm,"),
            (profile, "name: web."),
        ] {
            let (kept, end) = name.split_at(name.len() - 1);
            let other = text
                .replacen(name, &format!("{kept}{number}{end}"), 1)
                .replace("10.1.0.1", &format!("10.1.1.{number}"));
            let object = one(&other);
            assert!(!index.apply(&object).keys.is_empty(), "{other}");
            assert!(
                !index.delete(&object.reference()).keys.is_empty(),
                "{other}"
            );
        }
    }
    assert_eq!(format!("{index:?}"), format!("{:?}", Index::default()));
}
