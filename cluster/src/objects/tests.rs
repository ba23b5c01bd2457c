//! Kinds by their names, and the kinds that are not in `crd`'s samples.

use serde_json::{Value, json};

use super::*;

#[test]
fn every_kind_is_found_by_each_of_its_versions() {
    for kind in Kind::ALL {
        let api = kind.api();
        for version in api.versions {
            let api_version = match api.group {
                "" => (*version).to_owned(),
                group => format!("{group}/{version}"),
            };
            assert_eq!(Kind::of(&api_version, api.kind), Some(kind));
        }
        assert_eq!(Kind::of(&format!("{}/v0", api.group), api.kind), None);
        assert_eq!(
            Kind::of(&format!("example.org/{}", api.versions[0]), api.kind),
            None
        );
    }
    assert_eq!(Kind::of("v1", "ConfigMap"), None);
    assert_eq!(Kind::of("/v1", "Pod"), Some(Kind::Pod));
}

fn read(kind: Kind, value: Value) -> Object {
    Object::deserialize(kind, value).expect("readable")
}

fn metadata() -> Value {
    json!({"name": "web", "namespace": "shop"})
}

#[test]
fn routes_of_the_gateway_api() {
    let parents = json!([{"group": "", "kind": "Service", "name": "web", "port": 80}]);
    let backends = json!([{"name": "web-v2", "port": 80, "weight": 3}]);
    let grpc = json!({"metadata": metadata(), "spec": {
        "parentRefs": parents, "hostnames": ["web"],
        "rules": [{
            "name": "one", "sessionPersistence": {"type": "Cookie"},
            "matches": [{"method": {"type": "Exact", "service": "shop.Web", "method": "Get"}, "headers": [{"name": "a", "value": "b"}]}],
            "filters": [{"type": "ExtensionRef", "extensionRef": {"kind": "X"}}],
            "backendRefs": backends,
        }],
    }});
    let Object::GrpcRoute(route) = read(Kind::GrpcRoute, grpc) else {
        panic!("a GRPCRoute");
    };
    let rule = &route.spec.rules[0];
    let method = rule.matches[0].method.as_ref().expect("a method");
    assert_eq!(method.service.as_deref(), Some("shop.Web"));
    assert_eq!(method.method.as_deref(), Some("Get"));
    assert_eq!(rule.filters[0].kind, "ExtensionRef");
    assert_eq!(rule.backend_refs[0].weight, Some(3));

    let stream = json!({"metadata": metadata(), "spec": {"parentRefs": parents, "hostnames": ["a.example"], "rules": [{"backendRefs": backends}]}});
    let Object::TlsRoute(route) = read(Kind::TlsRoute, stream.clone()) else {
        panic!("a TLSRoute");
    };
    assert_eq!(route.spec.hostnames, ["a.example"]);
    assert_eq!(route.spec.rules[0].backend_refs[0].name, "web-v2");
    let Object::TcpRoute(route) = read(Kind::TcpRoute, stream) else {
        panic!("a TCPRoute");
    };
    assert_eq!(route.spec.parent_refs[0].port, Some(80));
    // Only GRPCRoutes may have no definition at all.
    read(Kind::GrpcRoute, json!({"metadata": metadata()}));
    Object::deserialize(Kind::TcpRoute, json!({"metadata": metadata()})).expect_err("no spec");
}

#[test]
fn of_a_pod_only_what_counts_is_read() {
    let pod = json!({
        "metadata": metadata(),
        "spec": {
            "volumes": "anything", "nodeName": "n", "hostNetwork": true,
            "containers": [{
                "name": "app", "resources": 7, "env": [{"name": "A", "valueFrom": {"fieldRef": {}}}],
                "ports": [{"containerPort": 8080, "hostPort": 80, "hostIP": "192.0.2.1"}],
                "livenessProbe": {"httpGet": {"path": "/live", "port": "http"}},
                "startupProbe": {"exec": {"command": ["true"]}},
            }],
        },
        "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "hostIPs": [{"ip": "192.0.2.1"}], "containerStatuses": 7},
    });
    let Object::Pod(pod) = read(Kind::Pod, pod) else {
        panic!("a pod");
    };
    let spec = pod.spec.expect("a spec");
    let container = &spec.containers[0];
    assert_eq!(container.env.as_deref().expect("variables")[0].value, None);
    assert_eq!(
        container.ports.as_deref().expect("ports")[0].host_port,
        Some(80)
    );
    let live = container.liveness_probe.as_ref().expect("a probe");
    assert_eq!(
        live.http_get.as_ref().expect("HTTP").path.as_deref(),
        Some("/live")
    );
    assert_eq!(
        container.startup_probe.as_ref().expect("a probe").http_get,
        None
    );
    let status = pod.status.expect("a status");
    assert_eq!(status.pod_ips.expect("addresses")[0].ip, "10.0.0.1");
    assert_eq!(status.host_ips.expect("addresses")[0].ip, "192.0.2.1");
}

#[test]
fn the_older_spelling_of_an_external_workload() {
    let workload = json!({"metadata": metadata(), "spec": {"meshTls": {"identity": "a", "serverName": "b"}, "workloadIPs": [{"ip": "192.0.2.1"}]}});
    let Object::ExternalWorkload(workload) = read(Kind::ExternalWorkload, workload) else {
        panic!("an ExternalWorkload");
    };
    assert_eq!(workload.spec.mesh_tls.identity, "a");
    assert_eq!(workload.spec.workload_ips[0].ip, "192.0.2.1");
}
