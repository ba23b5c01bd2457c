//! Both services over a real connection, fed by a directory of manifests as on one machine.

use std::{fs, sync::Arc, time::Duration};

use linkerd2_proxy_api::{
    inbound::PortSpec,
    outbound::{TrafficSpec, traffic_spec::Target},
};
use tokio::time::timeout;
use tonic::Code;
use weft_cluster::{ManifestSource, manifests::LocalMesh};

use crate::Running;

const OBJECTS: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-0, labels: {app: web}}
spec: {containers: [{name: app, ports: [{name: http, containerPort: 8080}]}]}
";
const DENY: &str = "
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web}
spec: {podSelector: {matchLabels: {app: web}}, port: http}
";
const EGRESS: &str = "
apiVersion: policy.linkerd.io/v1alpha1
kind: EgressNetwork
metadata: {name: out}
spec: {trafficPolicy: Deny}
";

#[tokio::test]
async fn policies_of_a_directory_follow_its_files() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("web.yaml"), OBJECTS).expect("written");
    let running = Running::start().await;
    let source = ManifestSource::new(
        directory.path().to_owned(),
        LocalMesh::new("linkerd"),
        Arc::clone(&running.shared),
    );
    assert_eq!(source.reload(), []);

    let mut inbound = running.inbound();
    let spec = |workload: &str, port| PortSpec {
        workload: workload.to_owned(),
        port,
    };
    for (workload, port, code) in [
        ("garbage", 80, Code::InvalidArgument),
        ("default:web-0", 0, Code::InvalidArgument),
        ("default:web-0", 70_000, Code::InvalidArgument),
        ("default:other", 80, Code::NotFound),
        (
            "{\"ns\":\"default\",\"external_workload\":\"vm\"}",
            80,
            Code::NotFound,
        ),
    ] {
        let status = inbound
            .get_port(spec(workload, port))
            .await
            .expect_err(workload);
        assert_eq!(status.code(), code, "{workload}");
    }
    let workload = "{\"ns\":\"default\", \"pod\":\"web-0\"}\n";
    let mut watch = inbound
        .watch_port(spec(workload, 8080))
        .await
        .expect("open")
        .into_inner();
    let first = watch.message().await.expect("open").expect("a message");
    assert_eq!(first.labels["name"], "all-unauthenticated");
    assert_eq!(
        inbound
            .get_port(spec("default:web-0", 8080))
            .await
            .expect("known")
            .into_inner(),
        first
    );

    fs::write(directory.path().join("deny.yaml"), DENY).expect("written");
    source.reload();
    let second = timeout(Duration::from_secs(5), watch.message())
        .await
        .expect("in time")
        .expect("open")
        .expect("a message");
    assert_eq!(
        (second.labels["name"].as_str(), second.authorizations.len()),
        ("web", 0)
    );

    let mut outbound = running.outbound();
    let to = |authority: &str| TrafficSpec {
        source_workload: "default:diagnostics".to_owned(),
        target: Some(Target::Authority(authority.to_owned())),
    };
    let long = outbound
        .get(to("web.default.svc.cluster.local:80"))
        .await
        .expect("known")
        .into_inner();
    assert_eq!(
        outbound
            .get(to("web.default.svc:80"))
            .await
            .expect("known")
            .into_inner(),
        long
    );
    assert_eq!(
        outbound
            .get(to("web.default.svc"))
            .await
            .expect("known")
            .into_inner(),
        long
    );
    let address = source.services()[0].cluster_ip.expect("given");
    let target = Some(Target::Addr(std::net::SocketAddr::new(address, 80).into()));
    let mut watch = outbound
        .watch(TrafficSpec {
            source_workload: String::new(),
            target,
        })
        .await
        .expect("open")
        .into_inner();
    assert_eq!(
        watch.message().await.expect("open").expect("a message"),
        long
    );
    for missing in [
        "web.default.svc.example.org:80",
        "none.default.svc:80",
        "web",
        "",
    ] {
        assert_eq!(
            outbound.get(to(missing)).await.expect_err(missing).code(),
            Code::NotFound
        );
    }
    let nothing = TrafficSpec {
        source_workload: String::new(),
        target: None,
    };
    assert_eq!(
        outbound.get(nothing).await.expect_err("no target").code(),
        Code::InvalidArgument
    );

    // Outside of the cluster a watch ends, without an error, when something else speaks for the address.
    let target = Some(Target::Addr(
        "93.184.216.34:443"
            .parse::<std::net::SocketAddr>()
            .expect("an address")
            .into(),
    ));
    let mut outside = outbound
        .watch(TrafficSpec {
            source_workload: workload.to_owned(),
            target,
        })
        .await
        .expect("open")
        .into_inner();
    outside.message().await.expect("open").expect("a message");
    fs::write(directory.path().join("egress.yaml"), EGRESS).expect("written");
    source.reload();
    let ended = timeout(Duration::from_secs(5), outside.message())
        .await
        .expect("in time");
    assert_eq!(ended.expect("no error"), None);

    running.shutdown.cancel();
    assert!(matches!(
        timeout(Duration::from_secs(5), watch.message())
            .await
            .expect("in time"),
        Ok(None)
    ));
    drop((inbound, outbound));
    running.stop().await;
}
