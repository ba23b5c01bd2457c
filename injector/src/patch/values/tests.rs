//! Tests of what is read from values, and of what is refused.

use super::*;

#[test]
fn j11_missing_unknown_and_null_values_have_defaults() {
    for yaml in [
        "",
        "{}",
        "# only a comment\n",
        "proxy:\n",
        "proxy: {image: null, ports: {inbound: }}\nproxyInit: {}\nfuture: {section: [1, {a: b}]}\n",
        // Sections of older charts.
        "global: {}\nproxyInit: {image: {name: registry.example.org/linkerd/proxy-init, version: v2.2.4}}\nproxy: {cores: 2, isGateway: false, saMountPath: null}\n",
    ] {
        let values = Values::from_yaml(yaml).expect(yaml);
        assert_eq!(values.proxy.ports.inbound, 4143, "{yaml}");
        assert_eq!(values.proxy.image.name, "weft.test/weft", "{yaml}");
        assert!(values.proxy.native_sidecar && values.proxy.wait, "{yaml}");
        assert_eq!(values.trust_domain(), "cluster.local", "{yaml}");
    }
}

#[test]
fn numbers_and_off_may_stand_for_texts() {
    let values = Values::from_yaml(
        "proxy: {logHTTPHeaders: off, resources: {cpu: {limit: 1, request: 0.5}}, opaquePorts: 25}\n\
         proxyInit: {ignoreInboundPorts: 4567}\nlinkerdVersion: 1.0",
    )
    .unwrap();
    assert_eq!(values.proxy.log_http_headers, "off");
    assert_eq!(values.proxy.resources.cpu.limit, "1");
    assert_eq!(values.proxy.resources.cpu.request, "0.5");
    assert_eq!(values.proxy.opaque_ports, "25");
    assert_eq!(values.proxy_init.ignore_inbound_ports, "4567");
    assert_eq!(values.linkerd_version, "1.0");
}

#[test]
fn a_wrong_type_is_named_by_its_path() {
    let error = Values::from_yaml("proxy: {ports: {inbound: [1]}}").unwrap_err();
    assert!(error.to_string().contains("proxy.ports.inbound"), "{error}");
    let error = Values::from_yaml("a: [").unwrap_err();
    assert!(error.to_string().contains("not YAML"), "{error}");
}

/// Our defaults are those of the chart, but for the resources, which only the chart sets.
#[test]
fn the_values_of_the_chart() {
    let chart = "../charts/linkerd-control-plane/values.yaml";
    let chart = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(chart);
    let text = std::fs::read_to_string(chart).unwrap();
    let mut values = Values::from_yaml(&text).unwrap();
    assert_eq!(values.proxy.resources.cpu.request, "10m");
    values.proxy.resources = Resources::default();
    values.proxy_init.resources = None;
    // What is rendered if neither this nor the older `cores` is given.
    assert_eq!(values.proxy.runtime.workers.minimum.take(), Some(1));
    let delay = &mut values.proxy.startup_probe.initial_delay_seconds;
    *delay = delay.filter(|seconds| *seconds > 0);
    assert_eq!(format!("{values:#?}"), format!("{:#?}", Values::default()));
}
