//! Routes of all kinds, in both groups: ours are judged, those of other controllers are not.

use super::*;

const GATEWAY_V1: &str = "gateway.networking.k8s.io/v1";
const SERVICE: &str = "parentRefs: [{group: core, kind: Service, name: web, port: 80}]";

fn route(api_version: &str, kind: &str, rest: &str) -> Request {
    request(object(api_version, kind, &format!("{{{SERVICE}, {rest}}}")))
}

#[test]
fn http_routes_of_both_groups() {
    for (rest, expected) in [
        ("rules: []", Admitted),
        (
            "hostnames: [a.example], rules: [{matches: [{path: {type: PathPrefix, value: /a}}]}]",
            Admitted,
        ),
        (
            "rules: [{matches: [{path: {type: RegularExpression, value: '/a.*'}}]}]",
            Admitted,
        ),
        (
            "rules: [{matches: [{path: {type: PathPrefix, value: a}}]}]",
            Refused("spec.rules[0].matches[0].path"),
        ),
        (
            "rules: [{}, {matches: [{path: {type: Exact, value: a}}]}]",
            Refused("spec.rules[1].matches[0].path"),
        ),
        (
            "rules: [{matches: [{path: {type: RegularExpression, value: '('}}]}]",
            Refused("spec.rules[0].matches[0].path"),
        ),
        (
            "rules: [{matches: [{headers: [{name: a, type: RegularExpression, value: '['}]}]}]",
            Refused("spec.rules[0].matches[0].headers"),
        ),
        (
            "rules: [{timeouts: {request: soon}}]",
            Refused("spec.rules[0].timeouts.request"),
        ),
        (
            "rules: [{timeouts: {request: -1s}}]",
            Refused("spec.rules[0].timeouts.request"),
        ),
        (
            "rules: [{filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: 'a b', value: c}]}}]}]",
            Refused("spec.rules[0].filters[0]"),
        ),
        (
            "rules: [{filters: [{type: RequestRedirect, requestRedirect: {statusCode: 200}}]}]",
            Refused("statusCode"),
        ),
    ] {
        for version in ["policy.linkerd.io/v1beta3", GATEWAY_V1] {
            check(&route(version, "HTTPRoute", rest), &expected);
        }
    }
}

#[test]
fn time_limits_of_attempts() {
    for (timeouts, expected) in [
        ("{request: 1s, backendRequest: 500ms}", Admitted),
        ("{request: 1s, backendRequest: 1s}", Admitted),
        ("{request: 0s, backendRequest: 1s}", Admitted),
        ("{backendRequest: 1s}", Admitted),
        (
            "{request: 1s, backendRequest: 2s}",
            Refused("spec.rules[0].timeouts.backendRequest: 2s is more than timeouts.request"),
        ),
        (
            "{backendRequest: -2s}",
            Refused("spec.rules[0].timeouts.backendRequest: \"-2s\" is not a duration"),
        ),
    ] {
        let rest = format!("rules: [{{timeouts: {timeouts}}}]");
        check(
            &route("policy.linkerd.io/v1beta3", "HTTPRoute", &rest),
            &expected,
        );
    }
}

#[test]
fn backends_of_the_gateway_api_need_a_port() {
    for kind in ["HTTPRoute", "GRPCRoute"] {
        for (backend, expected) in [
            ("{name: a, port: 80}", Admitted),
            (
                "{name: a}",
                Refused("spec.rules[0].backendRefs[0].port: missing"),
            ),
            (
                "{group: core, kind: Service, name: a}",
                Refused("spec.rules[0].backendRefs[0].port"),
            ),
            (
                "{group: policy.linkerd.io, kind: EgressNetwork, name: a}",
                Admitted,
            ),
        ] {
            let rest = format!("rules: [{{backendRefs: [{backend}]}}]");
            check(&route(GATEWAY_V1, kind, &rest), &expected);
        }
    }
    let rest = "rules: [{backendRefs: [{name: a}]}]";
    check(
        &route("policy.linkerd.io/v1beta3", "HTTPRoute", rest),
        &Admitted,
    );
}

#[test]
fn routes_of_connections_have_one_rule() {
    for kind in ["TLSRoute", "TCPRoute"] {
        let version = "gateway.networking.k8s.io/v1alpha2";
        check(
            &route(
                version,
                kind,
                "rules: [{backendRefs: [{name: a, port: 80}]}]",
            ),
            &Admitted,
        );
        for rest in ["rules: []", "rules: [{}, {}]"] {
            check(&route(version, kind, rest), &Refused("spec.rules: "));
        }
    }
}

#[test]
fn an_egress_network_as_a_parent_needs_a_port() {
    let kinds = [
        ("policy.linkerd.io/v1beta3", "HTTPRoute"),
        (GATEWAY_V1, "HTTPRoute"),
        (GATEWAY_V1, "GRPCRoute"),
        ("gateway.networking.k8s.io/v1alpha2", "TLSRoute"),
        ("gateway.networking.k8s.io/v1alpha2", "TCPRoute"),
    ];
    for (version, kind) in kinds {
        let spec = "{parentRefs: [{group: policy.linkerd.io, kind: EgressNetwork, name: all}], rules: [{}]}";
        let expected = Refused("spec.parentRefs[0].port: missing");
        check(&request(object(version, kind, spec)), &expected);
        let spec = spec.replace("name: all", "name: all, port: 443");
        check(&request(object(version, kind, &spec)), &Admitted);
    }
}

fn annotated(api_version: &str, kind: &str, annotations: Value) -> Request {
    let mut request = route(api_version, kind, "rules: [{}]");
    request.object["metadata"]["annotations"] = annotations;
    request
}

#[test]
fn annotations_of_routes_are_read() {
    for version in ["policy.linkerd.io/v1beta3", GATEWAY_V1] {
        for (name, value, expected) in [
            ("timeout.linkerd.io/request", "10s", Admitted),
            (
                "timeout.linkerd.io/request",
                "1.5s",
                Refused("metadata.annotations[timeout.linkerd.io/request]"),
            ),
            (
                "timeout.linkerd.io/response",
                "-1s",
                Refused("timeout.linkerd.io/response"),
            ),
            (
                "timeout.linkerd.io/idle",
                "10",
                Refused("timeout.linkerd.io/idle"),
            ),
            ("retry.linkerd.io/http", "5xx,429", Admitted),
            (
                "retry.linkerd.io/http",
                "often",
                Refused("metadata.annotations[retry.linkerd.io/http]: \"often\""),
            ),
            (
                "retry.linkerd.io/limit",
                "many",
                Refused("retry.linkerd.io/limit"),
            ),
            (
                "retry.linkerd.io/timeout",
                "x",
                Refused("retry.linkerd.io/timeout"),
            ),
        ] {
            check(
                &annotated(version, "HTTPRoute", json!({name: value})),
                &expected,
            );
        }
    }
    let grpc = |value: &str| {
        annotated(
            GATEWAY_V1,
            "GRPCRoute",
            json!({"retry.linkerd.io/grpc": value}),
        )
    };
    check(&grpc("cancelled,unavailable"), &Admitted);
    check(&grpc("5xx"), &Refused("retry.linkerd.io/grpc"));
}

#[test]
fn r09_routes_of_other_controllers_are_not_judged() {
    let cors = "rules: [{filters: [{type: CORS, cors: {allowOrigins: ['*']}}], matches: [{path: {type: Exact, value: a}}]}]";
    let theirs = format!("{{parentRefs: [{{name: gateway}}], {cors}}}");
    check(
        &request(object(GATEWAY_V1, "HTTPRoute", &theirs)),
        &Admitted,
    );
    // A shape from the future, whoever it is for.
    check(
        &request(object(GATEWAY_V1, "HTTPRoute", "{rules: {a: b}}")),
        &Warned("spec.rules: invalid type"),
    );
    // Ours with a filter that we do not have: admitted, and the author hears about it.
    let ours = "rules: [{filters: [{type: CORS, cors: {}}]}]";
    check(
        &route(GATEWAY_V1, "HTTPRoute", ours),
        &Warned("spec.rules[0].filters[0].type: filter \"CORS\" is not supported"),
    );
    check(
        &route("policy.linkerd.io/v1beta3", "HTTPRoute", ours),
        &Refused("spec.rules[0].filters[0].type"),
    );
}

#[test]
fn a_parent_with_the_wrong_group_is_pointed_out() {
    for (kind, group) in [("Service", "core"), ("Server", "policy.linkerd.io")] {
        let spec = format!("{{parentRefs: [{{kind: {kind}, name: web}}]}}");
        let warning = format!("spec.parentRefs[0].group: without group: {group}");
        let answer = judge(&request(object(GATEWAY_V1, "HTTPRoute", &spec)));
        assert_eq!(answer.refusal, None);
        assert!(
            answer.warnings.iter().any(|w| w.starts_with(&warning)),
            "{answer:?}"
        );
    }
}
