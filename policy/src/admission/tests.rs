//! What is admitted, what is admitted with a warning and what is refused, kind by kind, and that nothing panics.

mod routes;

use proptest::prelude::*;
use serde_json::json;
use weft_runtime::admission::GroupVersionKind;

use super::*;

enum Expected {
    Admitted,
    Warned(&'static str),
    Refused(&'static str),
}
use Expected::{Admitted, Refused, Warned};

fn request(object: Value) -> Request {
    let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    let api_version = text("apiVersion");
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    Request {
        uid: "u".to_owned(),
        kind: GroupVersionKind {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: text("kind"),
        },
        namespace: Some("ns".to_owned()),
        name: object["metadata"]["name"].as_str().map(str::to_owned),
        operation: "CREATE".to_owned(),
        object,
        ..Request::default()
    }
}

fn object(api_version: &str, kind: &str, spec: &str) -> Value {
    let spec: Value = serde_norway::from_str(spec).unwrap_or_else(|e| panic!("{spec}: {e}"));
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec})
}

fn check(request: &Request, expected: &Expected) {
    let answer = judge(request);
    let about = &request.object;
    match expected {
        Admitted => {
            assert_eq!(answer.refusal, None, "{about}");
            assert!(answer.warnings.is_empty(), "{about}: {:?}", answer.warnings);
        }
        Warned(part) => {
            assert_eq!(answer.refusal, None, "{about}");
            let warnings = answer.warnings.join("; ");
            assert!(warnings.contains(part), "{about}: {warnings}");
        }
        Refused(part) => {
            let reason = answer
                .refusal
                .unwrap_or_else(|| panic!("{about} is admitted, not refused for {part:?}"));
            assert!(reason.contains(part), "{about}: {reason}");
            assert!(
                reason.starts_with("spec") || reason.starts_with("metadata"),
                "no path: {reason}"
            );
        }
    }
}

/// Each specification with what becomes of it.
fn table(api_version: &str, kind: &str, rows: &[(&str, Expected)]) {
    for (spec, expected) in rows {
        check(&request(object(api_version, kind, spec)), expected);
    }
}

#[test]
fn servers() {
    table(
        "policy.linkerd.io/v1beta3",
        "Server",
        &[
            ("{podSelector: {}, port: 80}", Admitted),
            (
                "{podSelector: {matchLabels: {app: web}}, port: http, proxyProtocol: gRPC, accessPolicy: audit}",
                Admitted,
            ),
            ("{externalWorkloadSelector: {}, port: 80}", Admitted),
            ("{podSelector: {}}", Refused("spec: missing field `port`")),
            (
                "{podSelector: {}, port: 0}",
                Refused("spec.port: 0 is not a port"),
            ),
            ("{podSelector: {}, port: 70000}", Refused("spec.port")),
            (
                "{podSelector: {}, port: 80, proxyProtocol: http}",
                Refused("spec.proxyProtocol: unknown variant `http`"),
            ),
            (
                "{podSelector: {}, port: 80, accessPolicy: open}",
                Refused("spec.accessPolicy: unknown default policy \"open\""),
            ),
            (
                "{podSelector: {}, externalWorkloadSelector: {}, port: 80}",
                Refused("exactly one of podSelector"),
            ),
            ("{port: 80}", Refused("exactly one of podSelector")),
            (
                "{podSelector: {matchExpressions: [{key: a, operator: Near}]}, port: 80}",
                Refused("spec.podSelector.matchExpressions[0].operator"),
            ),
        ],
    );
}

#[test]
fn r11_authorization_policies() {
    table(
        "policy.linkerd.io/v1alpha1",
        "AuthorizationPolicy",
        &[
            (
                "{targetRef: {group: policy.linkerd.io, kind: Server, name: web}, requiredAuthenticationRefs: [
                    {group: policy.linkerd.io, kind: MeshTLSAuthentication, name: a},
                    {group: policy.linkerd.io, kind: NetworkAuthentication, name: b}]}",
                Admitted,
            ),
            ("{targetRef: {kind: Namespace, name: ns}, requiredAuthenticationRefs: [{kind: ServiceAccount, name: a}]}", Admitted),
            ("{targetRef: {group: core, kind: Namespace, name: ns}, requiredAuthenticationRefs: []}", Admitted),
            ("{targetRef: {kind: Namespace, name: other}, requiredAuthenticationRefs: []}", Refused("spec.targetRef.name")),
            (
                "{targetRef: {group: policy.linkerd.io, kind: Server, name: a, namespace: other}, requiredAuthenticationRefs: []}",
                Refused("spec.targetRef.namespace"),
            ),
            ("{targetRef: {kind: Server, name: a}, requiredAuthenticationRefs: []}", Refused("spec.targetRef: group \"\" with kind \"Server\": write group: policy.linkerd.io, kind: Server")),
            ("{targetRef: {kind: HTTPRoute, name: a}, requiredAuthenticationRefs: []}", Refused("or group: gateway.networking.k8s.io")),
            ("{targetRef: {group: apps, kind: Deployment, name: a}, requiredAuthenticationRefs: []}", Refused("none of Server, ")),
            (
                "{targetRef: {kind: Namespace, name: ns}, requiredAuthenticationRefs: [{kind: NetworkAuthentication, name: x}]}",
                Refused("spec.requiredAuthenticationRefs[0]: group \"\" with kind \"NetworkAuthentication\": write group: policy.linkerd.io, kind: NetworkAuthentication"),
            ),
            (
                "{targetRef: {kind: Namespace, name: ns}, requiredAuthenticationRefs: [{group: policy.linkerd.io, kind: networkauthentication, name: x}]}",
                Refused("kind: NetworkAuthentication"),
            ),
            (
                "{targetRef: {kind: Namespace, name: ns}, requiredAuthenticationRefs: [{group: x.org, kind: MeshTLSAuthentication, name: x}]}",
                Refused("write group: policy.linkerd.io"),
            ),
            (
                "{targetRef: {kind: Namespace, name: ns}, requiredAuthenticationRefs: [{kind: User, name: x}]}",
                Refused("none of MeshTLSAuthentication, NetworkAuthentication, ServiceAccount"),
            ),
            (
                "{targetRef: {kind: Namespace, name: ns}, requiredAuthenticationRefs: [
                    {group: policy.linkerd.io, kind: MeshTLSAuthentication, name: a}, {kind: ServiceAccount, name: b}]}",
                Refused("spec.requiredAuthenticationRefs: at most one"),
            ),
            (
                "{targetRef: {kind: Namespace, name: ns}, requiredAuthenticationRefs: [
                    {group: policy.linkerd.io, kind: NetworkAuthentication, name: a},
                    {group: policy.linkerd.io, kind: NetworkAuthentication, name: b}]}",
                Refused("at most one"),
            ),
            ("{targetRef: {kind: Namespace, name: ns}}", Refused("spec: missing field `requiredAuthenticationRefs`")),
        ],
    );
}

#[test]
fn mesh_tls_authentications() {
    table(
        "policy.linkerd.io/v1alpha1",
        "MeshTLSAuthentication",
        &[
            (
                "{identities: ['*', '*.ns.serviceaccount.identity.linkerd.cluster.local', 'spiffe://a.b/c']}",
                Admitted,
            ),
            (
                "{identityRefs: [{kind: ServiceAccount, name: a, namespace: other}, {kind: Namespace, name: b}]}",
                Admitted,
            ),
            ("{}", Refused("spec: needs identities or identityRefs")),
            ("{identities: []}", Refused("at least one")),
            (
                "{identities: [a], identityRefs: [{kind: ServiceAccount, name: a}]}",
                Refused("not both"),
            ),
            (
                "{identities: [a, 'b*']}",
                Refused("spec.identities[1]: \"b*\""),
            ),
            (
                "{identities: ['spiffe://a.b/c/']}",
                Refused("spec.identities[0]: \"spiffe://a.b/c/\" is not a SPIFFE ID"),
            ),
            (
                "{identityRefs: [{kind: Namespace, name: a, namespace: a}]}",
                Refused("spec.identityRefs[0].namespace"),
            ),
            (
                "{identityRefs: [{kind: Pod, name: a}]}",
                Refused("spec.identityRefs[0]"),
            ),
        ],
    );
}

#[test]
fn r14_network_authentications() {
    const GROUP: &str = "policy.linkerd.io/v1alpha1";
    let rows = [
        (
            "{networks: [{cidr: 10.0.0.0/8, except: [10.0.1.0/24, 10.1.1.1]}, {cidr: 'fd00::/8'}, {cidr: 10.0.0.5}]}",
            Admitted,
        ),
        (
            "{networks: [{cidr: '::ffff:0:0/96'}, {cidr: 10.0.0.5/8}]}",
            Admitted,
        ),
        ("{networks: []}", Refused("spec.networks: empty")),
        (
            "{networks: [{cidr: 10.0.0.0/33}]}",
            Refused("spec.networks[0].cidr"),
        ),
        (
            "{networks: [{cidr: 10.0.0.0/8}, {cidr: all}]}",
            Refused("spec.networks[1].cidr: \"all\""),
        ),
        (
            "{networks: [{cidr: 10.0.0.0/8, except: [192.168.0.0/16]}]}",
            Refused("spec.networks[0].except"),
        ),
        (
            "{networks: [{cidr: 10.0.0.0/8, except: ['fd00::/8']}]}",
            Refused("spec.networks[0].except"),
        ),
        (
            "{networks: [{cidr: 10.0.0.0/8, except: [x]}]}",
            Refused("spec.networks[0].except"),
        ),
        (
            "{networks: [{cidr: 10.0.0.0/8, except: [10.0.0.0/8]}]}",
            Refused("spec.networks[0].except[0]: 10.0.0.0/8 leaves nothing"),
        ),
        (
            "{networks: [{cidr: 10.0.0.0/8, except: [0.0.0.0/0]}]}",
            Refused("leaves nothing"),
        ),
    ];
    table(GROUP, "NetworkAuthentication", &rows);
    table(
        GROUP,
        "NetworkAuthentication",
        &[("{}", Refused("spec: missing field `networks`"))],
    );
    let egress = |spec: &str| spec.replacen('{', "{trafficPolicy: Deny, ", 1);
    for (spec, expected) in &rows {
        check(
            &request(object(GROUP, "EgressNetwork", &egress(spec))),
            expected,
        );
    }
    table(
        GROUP,
        "EgressNetwork",
        &[
            ("{trafficPolicy: Allow}", Admitted),
            (
                "{trafficPolicy: Maybe}",
                Refused("spec.trafficPolicy: unknown variant `Maybe`"),
            ),
            ("{}", Refused("missing field `trafficPolicy`")),
        ],
    );
}

#[test]
fn server_authorizations() {
    table(
        "policy.linkerd.io/v1beta1",
        "ServerAuthorization",
        &[
            (
                "{server: {name: web}, client: {unauthenticated: true, networks: [{cidr: 10.0.0.0/8}]}}",
                Admitted,
            ),
            (
                "{server: {selector: {}}, client: {meshTLS: {unauthenticatedTLS: true}}}",
                Admitted,
            ),
            (
                "{server: {name: web}, client: {meshTLS: {identities: ['*'], serviceAccounts: [{name: a}]}}}",
                Admitted,
            ),
            (
                "{server: {name: web}, client: {unauthenticated: true, meshTLS: {identities: ['*']}}}",
                Refused("spec.client: exactly one"),
            ),
            (
                "{server: {name: web}, client: {meshTLS: {unauthenticatedTLS: true, identities: ['*']}}}",
                Refused("spec.client.meshTLS"),
            ),
            (
                "{server: {name: web}, client: {meshTLS: {unauthenticatedTLS: true, serviceAccounts: [{name: a}]}}}",
                Refused("spec.client.meshTLS"),
            ),
            (
                "{server: {name: web}, client: {unauthenticated: true, networks: [{cidr: x}]}}",
                Refused("spec.client.networks[0].cidr"),
            ),
            (
                "{server: {name: web}, client: {unauthenticated: true, networks: []}}",
                Refused("spec.client.networks: empty"),
            ),
            (
                "{server: {}, client: {unauthenticated: true}}",
                Refused("spec.server: exactly one"),
            ),
        ],
    );
}

#[test]
fn rate_limits() {
    let of = |rest: &str| {
        format!("{{targetRef: {{group: policy.linkerd.io, kind: Server, name: web}}, {rest}}}")
    };
    for (rest, expected) in [
        (
            "total: {requestsPerSecond: 10}, identity: {requestsPerSecond: 10}",
            Warned("do not enforce them yet"),
        ),
        (
            "overrides: [{requestsPerSecond: 10, clientRefs: [{kind: ServiceAccount, name: a}]}]",
            Warned("do not enforce them yet"),
        ),
        (
            "total: {requestsPerSecond: 0}",
            Refused("spec.total.requestsPerSecond"),
        ),
        (
            "total: {requestsPerSecond: 10}, identity: {requestsPerSecond: 11}",
            Refused(
                "spec.identity.requestsPerSecond: 11 is more than spec.total.requestsPerSecond, 10",
            ),
        ),
        (
            "total: {requestsPerSecond: 10}, overrides: [{requestsPerSecond: 11, clientRefs: [{kind: ServiceAccount, name: a}]}]",
            Refused("spec.overrides[0].requestsPerSecond"),
        ),
        (
            "overrides: [{requestsPerSecond: 1, clientRefs: [{kind: User, name: a}]}]",
            Refused("spec.overrides[0].clientRefs[0]"),
        ),
        (
            "total: {requestsPerSecond: -1}",
            Refused("spec.total.requestsPerSecond"),
        ),
    ] {
        let spec = of(rest);
        check(
            &request(object(
                "policy.linkerd.io/v1alpha1",
                "HTTPLocalRateLimitPolicy",
                &spec,
            )),
            &expected,
        );
    }
    table(
        "policy.linkerd.io/v1alpha1",
        "HTTPLocalRateLimitPolicy",
        &[
            (
                "{targetRef: {kind: Server, name: web}}",
                Refused(
                    "spec.targetRef: group \"\" with kind \"Server\": write group: policy.linkerd.io",
                ),
            ),
            (
                "{targetRef: {group: core, kind: Service, name: web}}",
                Refused("spec.targetRef"),
            ),
            ("{}", Refused("missing field `targetRef`")),
        ],
    );
}

fn profile(name: &str, spec: &str) -> Request {
    let mut object = object("linkerd.io/v1alpha2", "ServiceProfile", spec);
    object["metadata"]["name"] = json!(name);
    request(object)
}

#[test]
fn service_profiles() {
    for (spec, expected) in [
        ("{}", Admitted),
        (
            "{routes: [{name: GET /, condition: {method: GET, pathRegex: '/.*'}, timeout: 1m30s, isRetryable: true,
               responseClasses: [{condition: {status: {min: 500, max: 599}}, isFailure: true}]}],
              retryBudget: {retryRatio: 0.2, minRetriesPerSecond: 10, ttl: 10s},
              dstOverrides: [{authority: 'a.b.svc.cluster.local:80', weight: 900m}], opaquePorts: ['80', '90-95']}",
            Admitted,
        ),
        ("{routes: [{name: a, condition: {any: [{method: GET}, {not: {all: [{pathRegex: /x}]}}]}}]}", Admitted),
        ("{route: []}", Refused("spec.route: there is no such field")),
        ("{routes: [{name: a, condition: {method: GET}, timeuot: 1s}]}", Refused("spec.routes[0].timeuot: there is no such field")),
        ("{routes: [{name: a, condition: {methd: GET}}]}", Refused("spec.routes[0].condition.methd: there is no such field")),
        ("{retryBudget: {retryRatio: 0.2, minRetriesPerSecond: 10, ttl: 10s, x: 1}}", Refused("spec.retryBudget.x: there is no such field")),
        ("{routes: [null]}", Refused("spec.routes[0]")),
        ("{routes: [{condition: {method: GET}}]}", Refused("spec.routes[0]: missing field `name`")),
        ("{routes: [{name: '', condition: {method: GET}}]}", Refused("spec.routes[0].name: empty")),
        ("{routes: [{name: a}]}", Refused("spec.routes[0]: missing field `condition`")),
        ("{routes: [{name: a, condition: {}}]}", Refused("spec.routes[0].condition: empty")),
        ("{routes: [{name: a, condition: {all: [{}]}}]}", Refused("spec.routes[0].condition.all[0]: empty")),
        ("{routes: [{name: a, condition: {pathRegex: '('}}]}", Refused("spec.routes[0].condition.pathRegex")),
        ("{routes: [{name: a, condition: {method: GET}, timeout: 5}]}", Refused("spec.routes[0].timeout")),
        ("{routes: [{name: a, condition: {method: GET}, timeout: '5'}]}", Refused("spec.routes[0].timeout")),
        (
            "{routes: [{name: a, condition: {method: GET}, responseClasses: [{condition: {status: {min: 99}}}]}]}",
            Refused("spec.routes[0].responseClasses[0].condition.status"),
        ),
        (
            "{routes: [{name: a, condition: {method: GET}, responseClasses: [{condition: {status: {min: 500, max: 400}}}]}]}",
            Refused("responseClasses[0].condition.status"),
        ),
        ("{routes: [{name: a, condition: {method: GET}, responseClasses: [{condition: {}}]}]}", Refused("responseClasses[0].condition: empty")),
        ("{retryBudget: {retryRatio: -1, minRetriesPerSecond: 10, ttl: 10s}}", Refused("spec.retryBudget.retryRatio")),
        ("{retryBudget: {retryRatio: 0.2, minRetriesPerSecond: 10}}", Refused("spec.retryBudget: missing field `ttl`")),
        ("{retryBudget: {retryRatio: 0.2, minRetriesPerSecond: 10, ttl: soon}}", Refused("spec.retryBudget.ttl")),
        ("{retryBudget: {retryRatio: 0.2, minRetriesPerSecond: -1, ttl: 1s}}", Refused("spec.retryBudget.minRetriesPerSecond")),
        ("{dstOverrides: [{authority: a.b, weight: heavy}]}", Refused("spec.dstOverrides[0].weight")),
        ("{opaquePorts: [x]}", Warned("spec.opaquePorts[0]")),
    ] {
        check(&profile("web.ns.svc.cluster.local", spec), &expected);
    }
    check(
        &profile("Web.ns", "{}"),
        &Refused("metadata.name: \"Web.ns\" is not"),
    );
    check(&profile("a..b", "{}"), &Refused("metadata.name"));
    check(&profile("", "{}"), &Refused("metadata.name"));
}

#[test]
fn unknown_kinds_are_refused_and_those_of_the_gateway_api_admitted_with_a_warning() {
    let answer = judge(&request(object("policy.linkerd.io/v9", "Server", "{}")));
    assert!(
        answer
            .refusal
            .unwrap()
            .starts_with("policy.linkerd.io/v9 Server is not known")
    );
    let answer = judge(&request(object("v1", "ConfigMap", "{}")));
    assert!(
        answer
            .refusal
            .unwrap()
            .starts_with("v1 ConfigMap is not known")
    );
    check(
        &request(object("gateway.networking.k8s.io/v9", "HTTPRoute", "{}")),
        &Warned("v9 HTTPRoute is not known"),
    );
}

#[test]
fn what_leaves_or_does_not_change_is_not_judged() {
    let bad = object("policy.linkerd.io/v1beta3", "Server", "{port: 80}");
    check(&request(bad.clone()), &Refused("spec"));
    let mut leaving = request(bad.clone());
    leaving.object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    leaving.operation = "UPDATE".to_owned();
    check(&leaving, &Admitted);
    let mut labelled = request(bad.clone());
    labelled.operation = "UPDATE".to_owned();
    labelled.old_object = bad.clone();
    labelled.object["metadata"]["labels"] = json!({"a": "b"});
    check(&labelled, &Admitted);
    labelled.object["spec"]["port"] = json!(81);
    check(&labelled, &Refused("spec"));
    let mut deleted = request(Value::Null);
    deleted.operation = "DELETE".to_owned();
    check(&deleted, &Admitted);
}

#[test]
fn the_namespace_may_stand_beside_the_object() {
    let spec = "{targetRef: {kind: Namespace, name: ns}, requiredAuthenticationRefs: []}";
    let mut given = request(object(
        "policy.linkerd.io/v1alpha1",
        "AuthorizationPolicy",
        spec,
    ));
    check(&given, &Admitted);
    given.object["metadata"]["namespace"] = json!("other");
    check(&given, &Refused("spec.targetRef.name"));
}

#[test]
fn verdicts_are_counted() {
    let registry = Registry::new(std::time::Duration::from_secs(60));
    let metrics = Metrics::register(&registry);
    let request = request(object("policy.linkerd.io/v1beta3", "Server", "{port: 80}"));
    metrics.count(&request, &judge(&request));
    let text = registry.encode();
    let line =
        "policy_admission_requests_total{kind=\"Server\",operation=\"CREATE\",allowed=\"false\"} 1";
    assert!(text.contains(line), "{text}");
}

fn any_json() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec![
        "spec",
        "metadata",
        "name",
        "namespace",
        "annotations",
        "port",
        "podSelector",
        "networks",
        "cidr",
        "except",
        "identities",
        "identityRefs",
        "targetRef",
        "group",
        "kind",
        "rules",
        "parentRefs",
        "backendRefs",
        "matches",
        "filters",
        "type",
        "path",
        "value",
        "routes",
        "condition",
        "all",
        "timeouts",
        "request",
        "weight",
        "overrides",
        "retry.linkerd.io/http",
        "policy.linkerd.io",
        "core",
        "Service",
        "Server",
        "EgressNetwork",
        "10.0.0.0/8",
        "*",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        words.clone().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 48, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(words.clone(), inner, 0..6).prop_map(|map| {
                Value::Object(map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_json_panics(kind in prop::sample::select(Kind::ALL.to_vec()), object in any_json(), spec in any_json()) {
        let api = kind.api();
        let mut request = Request {
            kind: GroupVersionKind {
                group: api.group.to_owned(),
                version: api.versions[0].to_owned(),
                kind: api.kind.to_owned(),
            },
            namespace: Some("ns".to_owned()),
            operation: "UPDATE".to_owned(),
            object,
            ..Request::default()
        };
        judge(&request);
        request.object = json!({"metadata": {"name": "x"}, "spec": spec});
        judge(&request);
    }
}
