//! Completing manifests: ClusterIPs, slices, marks of injection.

use std::path::Path;

use super::*;
use crate::manifests;

const SHOP: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports:
  - {name: http, port: 80, targetPort: app}
  - {name: fixed, port: 81, targetPort: 8081}
  - {name: same, port: 82}
  - {name: dns, port: 53, protocol: UDP}
---
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: fixed}
spec: {clusterIP: 10.96.7.7, ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-0, labels: {app: web}}
spec:
  hostname: web-0
  subdomain: headless
  containers: [{name: app, ports: [{name: app, containerPort: 8080}]}]
status: {podIP: 10.1.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, labels: {app: web}}
spec:
  containers: [{name: main}]
  initContainers: [{name: sidecar, ports: [{name: app, containerPort: 9090}]}]
";

fn objects(text: &str) -> Vec<Object> {
    manifests::parse(Path::new("shop.yaml"), text).expect("valid")
}

fn completed(text: &str, assigned: &mut Assigned) -> BTreeMap<ObjectRef, Object> {
    complete(objects(text), &LocalMesh::new("linkerd"), assigned)
}

/// Service, ports, and addresses with whether they are ready.
type Shown = (String, Vec<(String, i32)>, Vec<(String, bool)>);

/// Each slice of a set.
fn slices(objects: &BTreeMap<ObjectRef, Object>) -> Vec<Shown> {
    let slices = objects.values().filter_map(|o| {
        if let Object::EndpointSlice(s) = o {
            Some(s)
        } else {
            None
        }
    });
    let read = slices.map(|slice| {
        let labels = slice.metadata.labels.clone().unwrap_or_default();
        let ports = slice.ports.iter().flatten();
        (
            labels[index::SERVICE_NAME_LABEL].clone(),
            ports
                .map(|p| {
                    (
                        p.name.clone().unwrap_or_default(),
                        p.port.unwrap_or_default(),
                    )
                })
                .collect(),
            slice
                .endpoints
                .iter()
                .map(|e| {
                    (
                        e.addresses[0].clone(),
                        e.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true),
                    )
                })
                .collect(),
        )
    });
    read.collect()
}

#[test]
fn services_get_slices_of_pods_that_have_addresses() {
    let mut assigned = Assigned::default();
    let ports = |http: i32| {
        vec![
            ("http".to_owned(), http),
            ("fixed".to_owned(), 8081),
            ("same".to_owned(), 82),
        ]
    };
    let one = vec![("10.1.0.1".to_owned(), true)];
    let unnamed = vec![(String::new(), 80)];
    let web = ("web".to_owned(), ports(8080), one.clone());
    assert_eq!(
        slices(&completed(SHOP, &mut assigned)),
        [("headless".to_owned(), unnamed, one), web.clone()]
    );

    // A pod with another number under the same name is in a slice of its own (cases D05, D06).
    assigned
        .pod_ips
        .insert(Name::new("default", "web-1"), IpAddr::from([10, 1, 0, 2]));
    let found = slices(&completed(SHOP, &mut assigned));
    assert_eq!(found.len(), 3);
    assert_eq!(found[1], web);
    assert_eq!(
        found[2],
        (
            "web".to_owned(),
            ports(9090),
            vec![("10.1.0.2".to_owned(), true)]
        )
    );
}

#[test]
fn pods_that_end_or_are_not_ready_are_not_announced_as_ready() {
    for (status, expected) in [
        (
            "{podIP: 10.1.0.1, conditions: [{type: Ready, status: 'False'}]}",
            Some(false),
        ),
        (
            "{podIP: 10.1.0.1, conditions: [{type: Ready, status: 'True'}]}",
            Some(true),
        ),
        ("{podIP: 10.1.0.1, phase: Succeeded}", None),
        ("{podIP: 10.1.0.1, phase: Failed}", None),
        ("{}", None),
    ] {
        let text = SHOP.replace("{podIP: 10.1.0.1}", status);
        let found = slices(&completed(&text, &mut Assigned::default()));
        let ready = found.iter().find(|s| s.0 == "web").map(|s| s.2[0].1);
        assert_eq!(ready, expected, "{status}");
    }
    let going = SHOP.replace(
        "{name: web-0,",
        "{name: web-0, deletionTimestamp: '2026-01-01T00:00:00Z',",
    );
    assert!(!slices(&completed(&going, &mut Assigned::default()))[0].2[0].1);
}

#[test]
fn a_service_with_slices_of_its_own_gets_none() {
    let own = "
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: own, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 1}]
endpoints: [{addresses: [10.9.9.9]}]
";
    let found = slices(&completed(
        &format!("{SHOP}{own}"),
        &mut Assigned::default(),
    ));
    let web: Vec<_> = found.iter().filter(|s| s.0 == "web").collect();
    assert_eq!(web.len(), 1);
    assert_eq!(web[0].2[0].0, "10.9.9.9");
}

#[test]
fn cluster_ips_are_given_by_name_and_never_change() {
    let mut assigned = Assigned::default();
    let ip = |objects: &BTreeMap<ObjectRef, Object>, name: &str| {
        services(objects)
            .into_iter()
            .find(|s| &*s.name.name == name)
            .and_then(|s| s.cluster_ip)
    };
    let first = completed(SHOP, &mut assigned);
    let web = ip(&first, "web").expect("given");
    assert!(
        LocalMesh::new("linkerd")
            .cluster_ips
            .expect("set")
            .contains(&match web {
                IpAddr::V4(ip) => ip,
                IpAddr::V6(_) => panic!("{web}"),
            })
    );
    assert_eq!(ip(&first, "headless"), None);
    assert_eq!(ip(&first, "fixed"), Some(IpAddr::from([10, 96, 7, 7])));
    // The same in another process, and with other Services about.
    assert_eq!(
        ip(&completed(SHOP, &mut Assigned::default()), "web"),
        Some(web)
    );

    // A network with two addresses: both are given, none twice, and a third Service gets none.
    let three: Vec<String> = ["c", "b", "a"]
        .map(|n| format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {n}}}\n"))
        .into();
    let mut options = LocalMesh::new("linkerd");
    options.cluster_ips = Some("10.96.0.0/30".parse().expect("a network"));
    let mut assigned = Assigned::default();
    let two = complete(objects(&three[..2].join("---\n")), &options, &mut assigned);
    let (b, c) = (ip(&two, "b").expect("given"), ip(&two, "c").expect("given"));
    assert_ne!(b, c);
    let all = complete(objects(&three.join("---\n")), &options, &mut assigned);
    assert_eq!(
        (ip(&all, "b"), ip(&all, "c"), ip(&all, "a")),
        (Some(b), Some(c), None)
    );
}

#[test]
fn pods_are_marked_as_the_injector_would() {
    let objects = completed(SHOP, &mut Assigned::default());
    let pods: Vec<_> = pods(&objects);
    assert_eq!(pods.len(), 2);
    assert_eq!(pods[0].labels[index::CONTROL_NAMESPACE_LABEL], "linkerd");
    assert_eq!(pods[0].service_account, "default");
    assert_eq!(pods[0].ports, [("app".to_owned(), 8080)]);
    assert_eq!(
        (pods[0].ip, pods[1].ip),
        (Some(IpAddr::from([10, 1, 0, 1])), None)
    );

    let untouched = complete(
        super::tests::objects(SHOP),
        &LocalMesh::nothing(),
        &mut Assigned::default(),
    );
    assert_eq!(untouched.len(), 5);
    assert!(
        super::pods(&untouched)
            .iter()
            .all(|pod| !pod.labels.contains_key(index::CONTROL_NAMESPACE_LABEL))
    );
}

#[test]
fn a_pod_that_does_not_want_to_is_not_in_the_mesh() {
    let text = "
apiVersion: v1
kind: Pod
metadata: {name: outside, annotations: {linkerd.io/inject: disabled}}
spec: {containers: [{name: app}]}
";
    for object in completed(text, &mut Assigned::default()).into_values() {
        let Object::Pod(pod) = object else { continue };
        assert_eq!(pod.metadata.labels, None);
        assert_eq!(pod.spec.map(|spec| spec.containers.len()), Some(1));
    }
}
