//! The proxies' metrics have the names and labels that dashboards and the command line ask for (contract 6.1, 6.3), each
//! series once (case T13).

use std::collections::BTreeSet;

use anyhow::ensure;
use weft_e2e::{Manifests, Node, Samples, mesh, peers};

/// What every HTTP series of the inbound side has, but for TLS.
const INBOUND: &str = "direction target_addr target_ip target_port srv_group srv_kind srv_name srv_port \
                       route_group route_kind route_name authz_group authz_kind authz_name";
const OUTBOUND: &str = "direction authority target_addr target_ip target_port tls server_id";
const PARENT_AND_BACKEND: &str = "parent_group parent_kind parent_namespace parent_name parent_port parent_section_name \
                                  backend_group backend_kind backend_namespace backend_name backend_port backend_section_name";
const CLIENT: &str = "client.demo.serviceaccount.identity.linkerd.cluster.local";
const WEB: &str = "web.demo.serviceaccount.identity.linkerd.cluster.local";

/// Traffic of every kind has passed: HTTP/1, HTTP/2, opaque, from outside, an error; the two proxies' pages.
async fn pages(net: &weft_e2e::Net) -> anyhow::Result<(Samples, Samples, Vec<Node>)> {
    let (web, client, outside) = (
        net.start("web").await?,
        net.start("client").await?,
        net.start("outside").await?,
    );
    peers::http(web.listen(8080).await?, "web");
    peers::banner(web.listen(3306).await?, "hello");
    client.curl(&["http://web/"]).await?;
    client.curl(&["http://web/?status=500"]).await?;
    client
        .curl(&["--http2-prior-knowledge", "http://web/"])
        .await?;
    client.connect("web:3306").await?.line().await?;
    // Refused: the Service has no such port.
    ensure!(client.curl(&["http://web:81/"]).await.is_err());
    outside
        .curl(&[&format!("http://{}:8080/", web.ip())])
        .await?;
    let out = [("direction", "outbound"), ("status_code", "200")];
    let client_page = client.metric("response_total", &out, 2.0).await?;
    let web_page = web
        .metric(
            "response_total",
            &[("direction", "inbound"), ("target_port", "8080")],
            4.0,
        )
        .await?;
    Ok((client_page, web_page, vec![web, client, outside]))
}

fn manifests() -> Manifests {
    Manifests::default()
        .service("web", &[(80, 8080), (3306, 3306)])
        .pod("web", &[8080, 3306])
        .pod("client", &[])
        .stranger("outside", &[])
}

/// The labels of the series are exactly these.
fn labels(
    page: &Samples,
    name: &str,
    which: &[(&str, &str)],
    wanted: &[&str],
) -> anyhow::Result<()> {
    let seen = page.label_names(name, which)?;
    let wanted: BTreeSet<&str> = wanted
        .iter()
        .flat_map(|names| names.split_whitespace())
        .collect();
    ensure!(seen == wanted, "{name} {which:?}: {seen:?}, not {wanted:?}");
    Ok(())
}

#[test]
fn outbound_series_have_the_labels_of_the_contract() {
    mesh(manifests(), async |net| {
        let (page, _, _nodes) = pages(net).await?;
        let out = [("direction", "outbound"), ("server_id", WEB)];
        let dst: Vec<String> = page
            .label_names("request_total", &out)?
            .into_iter()
            .filter(|name| name.starts_with("dst_"))
            .map(str::to_owned)
            .collect();
        for name in [
            "dst_namespace",
            "dst_service",
            "dst_pod",
            "dst_serviceaccount",
            "dst_control_plane_ns",
        ] {
            ensure!(
                dst.iter().any(|dst| dst == name),
                "{name} is missing in {dst:?}"
            );
        }
        let outbound = [OUTBOUND, &dst.join(" ")].join(" ");
        labels(&page, "request_total", &out, &[&outbound])?;
        let response = "status_code classification grpc_status error";
        labels(&page, "response_total", &out, &[&outbound, response])?;
        labels(
            &page,
            "response_latency_ms_bucket",
            &out,
            &[&outbound, "status_code le"],
        )?;
        labels(
            &page,
            "response_latency_ms_count",
            &out,
            &[&outbound, "status_code"],
        )?;
        let failure = [
            ("direction", "outbound"),
            ("status_code", "500"),
            ("classification", "failure"),
        ];
        assert_eq!(page.sum("response_total", &failure), 1.0);
        assert_eq!(
            page.sum(
                "request_total",
                &[("direction", "outbound"), ("tls", "true")]
            ),
            3.0
        );
        for name in [
            "tcp_open_total",
            "tcp_open_connections",
            "tcp_read_bytes_total",
            "tcp_write_bytes_total",
        ] {
            let to = [
                ("direction", "outbound"),
                ("peer", "dst"),
                ("server_id", WEB),
            ];
            labels(&page, name, &to, &[&outbound, "peer"])?;
            let from = [("direction", "outbound"), ("peer", "src")];
            labels(
                &page,
                name,
                &from,
                &["direction peer target_addr target_ip target_port tls no_tls_reason"],
            )?;
        }
        let closed = [("direction", "outbound"), ("peer", "src")];
        labels(
            &page,
            "tcp_close_total",
            &closed,
            &["direction peer target_addr target_ip target_port tls no_tls_reason errno"],
        )?;
        labels(
            &page,
            "outbound_tcp_errors_total",
            &[],
            &["target_addr target_ip target_port error"],
        )
    });
}

#[test]
fn inbound_series_have_the_labels_of_the_contract() {
    mesh(manifests(), async |net| {
        let (_, page, _nodes) = pages(net).await?;
        for (which, tls) in [
            (
                [("direction", "inbound"), ("client_id", CLIENT)],
                "tls client_id",
            ),
            (
                [
                    ("direction", "inbound"),
                    ("no_tls_reason", "no_tls_from_remote"),
                ],
                "tls no_tls_reason",
            ),
        ] {
            labels(&page, "request_total", &which, &[INBOUND, tls])?;
            labels(
                &page,
                "response_total",
                &which,
                &[INBOUND, tls, "status_code classification grpc_status error"],
            )?;
            labels(
                &page,
                "response_latency_ms_bucket",
                &which,
                &[INBOUND, tls, "status_code le"],
            )?;
            let source = "direction peer target_addr target_ip target_port srv_group srv_kind srv_name srv_port";
            labels(&page, "tcp_open_total", &which, &[source, tls])?;
        }
        let allow = INBOUND.replace("direction ", "");
        labels(
            &page,
            "inbound_http_authz_allow_total",
            &[("client_id", CLIENT)],
            &[&allow, "tls client_id"],
        )?;
        let tcp = "target_addr target_ip target_port srv_group srv_kind srv_name srv_port authz_group authz_kind authz_name";
        labels(
            &page,
            "inbound_tcp_authz_allow_total",
            &[("client_id", CLIENT)],
            &[tcp, "tls client_id"],
        )?;
        let app = [("direction", "inbound"), ("peer", "dst")];
        labels(
            &page,
            "tcp_open_total",
            &app,
            &["direction peer tls no_tls_reason"],
        )?;
        // The default objects are named after the default policy, with the kind `default`.
        let default = [
            ("srv_kind", "default"),
            ("srv_group", ""),
            ("route_kind", "default"),
            ("authz_kind", "default"),
        ];
        ensure!(page.sum("request_total", &default) >= 4.0);
        Ok(())
    });
}

#[test]
fn latency_has_the_buckets_of_the_contract() {
    mesh(manifests(), async |net| {
        let (page, _, _nodes) = pages(net).await?;
        let which = [("direction", "outbound"), ("status_code", "500")];
        let seen: Vec<&str> = page
            .find("response_latency_ms_bucket", &which)
            .filter_map(|s| s.labels.get("le"))
            .map(String::as_str)
            .collect();
        let wanted = "1 2 3 4 5 10 20 30 40 50 100 200 300 400 500 1000 2000 3000 4000 5000 10000 20000 30000 40000 50000 +Inf";
        assert_eq!(seen.join(" "), wanted);
        let counts: Vec<f64> = page
            .find("response_latency_ms_bucket", &which)
            .map(|sample| sample.value)
            .collect();
        ensure!(
            counts.is_sorted() && counts.last() == Some(&1.0),
            "buckets add up: {counts:?}"
        );
        Ok(())
    });
}

#[test]
fn balancers_have_the_series_of_the_contract() {
    mesh(manifests(), async |net| {
        let (page, _, _nodes) = pages(net).await?;
        for (kind, extra) in [("http", ""), ("tcp", "logical concrete")] {
            for (name, more) in [
                ("endpoints", "endpoint_state"),
                ("p2c_endpoints", ""),
                ("p2c_updates_total", "op"),
                ("queue_length", ""),
                ("queue_requests_total", ""),
                ("queue_latency_seconds_count", ""),
                ("queue_gate_open_total", ""),
                ("queue_gate_shut_total", ""),
                ("queue_gate_open_time_seconds", ""),
                ("queue_gate_shut_time_seconds", ""),
                ("queue_gate_timeout_seconds", ""),
            ] {
                let name = format!("outbound_{kind}_balancer_{name}");
                labels(
                    &page,
                    &name,
                    &[("backend_name", "web")],
                    &[PARENT_AND_BACKEND, more, extra],
                )?;
            }
        }
        let which = [
            ("endpoint_state", "ready"),
            ("backend_kind", "Service"),
            ("backend_port", "80"),
            ("parent_name", "web"),
        ];
        assert_eq!(page.sum("outbound_http_balancer_endpoints", &which), 1.0);
        assert_eq!(
            page.sum(
                "outbound_http_balancer_queue_requests_total",
                &[("backend_port", "80")]
            ),
            3.0
        );
        Ok(())
    });
}

#[test]
fn the_process_and_the_certificate_are_described() {
    mesh(manifests(), async |net| {
        let (page, _, _nodes) = pages(net).await?;
        for name in [
            "process_start_time_seconds",
            "process_cpu_seconds_total",
            "process_virtual_memory_bytes",
            "process_resident_memory_bytes",
            "process_open_fds",
            "process_max_fds",
            "process_threads",
            "control_identity_cert_expiration_timestamp_seconds",
            "control_identity_cert_refresh_timestamp_seconds",
            "control_identity_cert_refreshes_total",
        ] {
            ensure!(page.sum(name, &[]) > 0.0, "{name}");
        }
        assert_eq!(page.sum("proxy_build_info", &[]), 1.0);
        labels(
            &page,
            "proxy_build_info",
            &[],
            &["date git_sha profile vendor version"],
        )
    });
}

#[test]
fn t13_no_series_and_no_family_comes_twice() {
    mesh(manifests(), async |net| {
        let (client, web, _nodes) = pages(net).await?;
        for page in [client, web] {
            let mut seen = BTreeSet::new();
            for sample in page.all() {
                ensure!(
                    seen.insert(format!("{} {:?}", sample.name, sample.labels)),
                    "twice: {sample:?}"
                );
            }
            let (mut families, mut helps) = (BTreeSet::new(), BTreeSet::new());
            ensure!(
                page.types.iter().all(|(family, _)| families.insert(family)),
                "a TYPE comes twice"
            );
            ensure!(
                page.helps.iter().all(|family| helps.insert(family)),
                "a HELP comes twice"
            );
            // The samples of a family are together.
            let family = |name: &str| {
                let suffixes = ["_bucket", "_count", "_sum", "_total"];
                let bare = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
                bare.filter(|bare| families.iter().any(|f| f == bare))
                    .unwrap_or(name)
                    .to_owned()
            };
            let mut order: Vec<String> = page
                .all()
                .iter()
                .map(|sample| family(&sample.name))
                .collect();
            order.dedup();
            let distinct: BTreeSet<&String> = order.iter().collect();
            ensure!(
                distinct.len() == order.len(),
                "a family is split: {order:?}"
            );
            for name in &order {
                ensure!(families.iter().any(|f| *f == name), "{name} has no TYPE");
            }
        }
        Ok(())
    });
}
