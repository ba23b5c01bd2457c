//! Which routes, EgressNetworks and rate limits are accepted, and with which reasons (contract 8.2).

use std::path::Path;

use weft_cluster::{Index, Object, manifests};

use super::*;

const WEB: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}\n";
const SERVER: &str = "apiVersion: policy.linkerd.io/v1beta3\nkind: Server\nmetadata: {name: web}\nspec: {podSelector: {}, port: 80}\n";
const EGRESS: &str = "apiVersion: policy.linkerd.io/v1alpha1\nkind: EgressNetwork\nmetadata: {name: web}\nspec: {trafficPolicy: Allow}\n";

fn objects(text: &str) -> Vec<Object> {
    manifests::parse(Path::new("test.yaml"), text).expect("valid")
}

fn index(texts: &[&str]) -> Index {
    let mut index = Index::default();
    for object in texts.iter().flat_map(|text| objects(text)) {
        assert_eq!(index.apply(&object).invalid, []);
    }
    index
}

fn object(kind: &str, name: &str, parent: &str, rule: &str) -> String {
    let version = if kind == "TCPRoute" { "v1alpha2" } else { "v1" };
    format!(
        "apiVersion: gateway.networking.k8s.io/{version}\nkind: {kind}\nmetadata: {{{name}}}\nspec: {{parentRefs: [{parent}], rules: [{{{rule}}}]}}\n"
    )
}

fn reason(verdict: Result<(), Refusal>) -> &'static str {
    verdict.err().map_or("", |refusal| refusal.reason)
}

/// The reasons why the last of these objects, a route, is not accepted and its backends are not found.
fn verdicts(texts: &[&str]) -> (&'static str, &'static str) {
    let index = index(texts);
    let reader = Reader::new(&index);
    let object = objects(texts.last().expect("a route")).remove(0);
    let found = reader.route(object.kind(), &object.name()).expect("stored");
    let parent = found.parents.first().expect("one");
    (
        reason(route(&reader, &MeshSettings::default(), found, parent)),
        reason(backends(&reader, found, parent)),
    )
}

const SERVICE: &str = "{group: core, kind: Service, name: web}";
const TO_SERVER: &str = "{group: policy.linkerd.io, kind: Server, name: web}";
const TO_EGRESS: &str = "{group: policy.linkerd.io, kind: EgressNetwork, name: web}";

#[test]
fn parents() {
    let http = |parent: &str| object("HTTPRoute", "name: r", parent, "");
    let headless = WEB.replace("10.96.0.10", "None");
    let overlapping = EGRESS.replace("Allow", "Allow, networks: [{cidr: 10.1.0.0/16}]");
    let elsewhere = object(
        "HTTPRoute",
        "name: r, namespace: shop",
        "{group: policy.linkerd.io, kind: Server, name: web, namespace: default}",
        "",
    );
    let consumer = object(
        "HTTPRoute",
        "name: r, namespace: shop",
        "{group: '', kind: Service, name: web, namespace: default}",
        "",
    );
    for (texts, expected) in [
        (vec![WEB, &http(SERVICE)], ""),
        (vec![WEB, &consumer], ""),
        (vec![&http(SERVICE)], NO_MATCHING_PARENT),
        (vec![&headless, &http(SERVICE)], NO_MATCHING_PARENT),
        (vec![SERVER, &http(TO_SERVER)], ""),
        (vec![WEB, &http(TO_SERVER)], NO_MATCHING_PARENT),
        (vec![SERVER, &elsewhere], NO_MATCHING_PARENT),
        (
            vec![SERVER, &object("TCPRoute", "name: t", TO_SERVER, "")],
            NO_MATCHING_PARENT,
        ),
        (vec![EGRESS, &http(TO_EGRESS)], ""),
        (vec![&http(TO_EGRESS)], NO_MATCHING_PARENT),
        (vec![&overlapping, &http(TO_EGRESS)], NO_MATCHING_PARENT),
    ] {
        assert_eq!(verdicts(&texts).0, expected, "{texts:?}");
    }
    let index = index(&[&headless, &http(SERVICE)]);
    let reader = Reader::new(&index);
    let found = reader
        .route(Kind::GatewayHttpRoute, &Name::new("default", "r"))
        .expect("stored");
    let refusal =
        route(&reader, &MeshSettings::default(), found, &found.parents[0]).expect_err("headless");
    assert_eq!(refusal.message, "parent service must have a ClusterIP");
}

#[test]
fn a_route_of_a_higher_kind_at_the_same_parent_conflicts() {
    let kinds = ["GRPCRoute", "HTTPRoute", "TLSRoute", "TCPRoute"];
    for (parent, owner) in [(SERVICE, WEB), (TO_EGRESS, EGRESS)] {
        for (rank, kind) in kinds.iter().enumerate() {
            for (other_rank, other) in kinds.iter().enumerate() {
                let texts = [
                    owner,
                    &object(other, "name: other", parent, ""),
                    &object(kind, "name: r", parent, ""),
                ];
                let expected = if other_rank < rank { CONFLICTED } else { "" };
                assert_eq!(
                    verdicts(&texts).0,
                    expected,
                    "{kind} with {other} at {parent}"
                );
            }
        }
    }
    let at_80 = "{group: core, kind: Service, name: web, port: 80}";
    let grpc_at_80 = object("GRPCRoute", "name: g", at_80, "");
    assert_eq!(
        verdicts(&[
            WEB,
            &grpc_at_80,
            &object("HTTPRoute", "name: r", SERVICE, "")
        ])
        .0,
        "",
        "another reference"
    );
    assert_eq!(
        verdicts(&[WEB, &grpc_at_80, &object("HTTPRoute", "name: r", at_80, "")]).0,
        CONFLICTED
    );
}

#[test]
fn a_consumer_displaces_its_own_routes_only() {
    let theirs = "{group: core, kind: Service, name: web, namespace: default}";
    let consumer = object("GRPCRoute", "name: g, namespace: shop", theirs, "");
    let http = |namespace: &str| {
        object(
            "HTTPRoute",
            &format!("name: r, namespace: {namespace}"),
            theirs,
            "",
        )
    };
    for (namespace, expected) in [("default", ""), ("other", ""), ("shop", CONFLICTED)] {
        assert_eq!(
            verdicts(&[WEB, &consumer, &http(namespace)]).0,
            expected,
            "{namespace}"
        );
    }
}

#[test]
fn backends_of_routes() {
    let with = |parent: &str, refs: &str| {
        object(
            "HTTPRoute",
            "name: r",
            parent,
            &format!("backendRefs: [{refs}]"),
        )
    };
    let egress = "{group: policy.linkerd.io, kind: EgressNetwork, name: web}";
    for (parent, refs, expected) in [
        (SERVICE, "", ""),
        (SERVICE, "{name: web, port: 80}", ""),
        (
            SERVICE,
            "{name: web, port: 80}, {name: missing, port: 80}",
            BACKEND_NOT_FOUND,
        ),
        (SERVICE, "{name: web}", BACKEND_NOT_FOUND),
        (
            SERVICE,
            "{name: web, namespace: other, port: 80}",
            BACKEND_NOT_FOUND,
        ),
        (
            SERVICE,
            "{name: missing, port: 80}, {kind: Bucket, group: s3, name: b}",
            INVALID_KIND,
        ),
        (SERVICE, egress, INVALID_KIND),
        (TO_EGRESS, egress, ""),
        (
            TO_EGRESS,
            "{group: policy.linkerd.io, kind: EgressNetwork, name: missing}",
            BACKEND_NOT_FOUND,
        ),
    ] {
        assert_eq!(
            verdicts(&[WEB, EGRESS, &with(parent, refs)]).1,
            expected,
            "{parent} {refs}"
        );
    }
}

#[test]
fn networks_of_the_cluster_are_not_egress() {
    for (networks, expected) in [
        ("", ""),
        (", networks: [{cidr: 93.0.0.0/8}]", ""),
        (
            ", networks: [{cidr: 10.1.0.0/16}]",
            "EgressReasonNetworkOverlap",
        ),
        (
            ", networks: [{cidr: 0.0.0.0/0}]",
            "EgressReasonNetworkOverlap",
        ),
        (
            ", networks: [{cidr: 0.0.0.0/0, except: [10.0.0.0/8, 100.64.0.0/10, 192.168.0.0/16]}]",
            "EgressReasonNetworkOverlap",
        ),
        (
            ", networks: [{cidr: 0.0.0.0/0, except: [10.0.0.0/9, 10.128.0.0/9, 100.64.0.0/10, 172.16.0.0/12, 192.168.0.0/16]}]",
            "",
        ),
        (", networks: [{cidr: '::/0', except: ['fd00::/8']}]", ""),
        (
            ", networks: [{cidr: 'fd00:1::/32'}]",
            "EgressReasonNetworkOverlap",
        ),
    ] {
        let index = index(&[&EGRESS.replace("Allow", &format!("Allow{networks}"))]);
        let reader = Reader::new(&index);
        let network = reader
            .egress_network(&Name::new("default", "web"))
            .expect("stored");
        assert_eq!(
            reason(egress_network(&MeshSettings::default(), network)),
            expected,
            "{networks}"
        );
    }
}

#[test]
fn one_rate_limit_per_server() {
    let limit = |name: &str, created: &str| {
        format!(
            "apiVersion: policy.linkerd.io/v1alpha1\nkind: HTTPLocalRateLimitPolicy\nmetadata: {{name: {name}, creationTimestamp: '2026-01-{created}T00:00:00Z'}}\n\
             spec: {{targetRef: {{group: policy.linkerd.io, kind: Server, name: web}}, total: {{requestsPerSecond: 1}}}}\n"
        )
    };
    let verdict = |texts: &[&str], name: &str| {
        let index = index(texts);
        let reader = Reader::new(&index);
        let limit = reader
            .rate_limit(&Name::new("default", name))
            .expect("stored");
        reason(rate_limit(&reader, limit))
    };
    let (a, b) = (limit("a", "02"), limit("b", "01"));
    assert_eq!(verdict(&[&a], "a"), "NoMatchingTarget");
    assert_eq!(verdict(&[SERVER, &a], "a"), "");
    assert_eq!(
        verdict(&[SERVER, &a, &b], "a"),
        "RateLimitReasonAlreadyExists"
    );
    assert_eq!(verdict(&[SERVER, &a, &b], "b"), "");
}
