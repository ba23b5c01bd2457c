//! ServiceProfile objects: which one counts, and what it becomes.

use std::collections::HashMap;

use linkerd2_proxy_api::{
    destination::{
        HttpStatusRange, PathMatch, RequestMatch, ResponseMatch, WeightedDst, request_match,
        response_match,
    },
    http_types::{HttpMethod, http_method},
};
use weft_cluster::Object;

use super::*;

fn object(namespace: &str, spec: &str) -> Object {
    let text = format!(
        "apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata: {{name: web.default.svc.cluster.local, namespace: {namespace}}}
spec: {spec}
"
    );
    manifests::parse(Path::new("test.yaml"), &text)
        .expect("valid")
        .remove(0)
}

fn route_of(namespace: &str) -> Object {
    object(
        namespace,
        &format!("{{routes: [{{name: of-{namespace}, condition: {{method: GET}}}}]}}"),
    )
}

fn asked_from(namespace: Option<&str>) -> ProfileQuery {
    ProfileQuery {
        namespace: namespace.map(Into::into),
        ..query(ip("10.96.0.10"), 80)
    }
}

fn profile(views: &Views<ProfileQuery>, namespace: Option<&str>) -> DestinationProfile {
    match views.once(&asked_from(namespace)) {
        Profile::Known(known) => known.profile.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_clients_namespace_wins_over_the_services() {
    let (shared, views) = views();
    let route = |namespace: Option<&str>| {
        let profile = profile(&views, namespace);
        let labels = profile.routes.first().map(|r| r.metrics_labels.clone());
        labels.unwrap_or_default().remove("route")
    };
    assert_eq!(route(Some("client")), None);
    shared.apply(&route_of("default"));
    shared.apply(&route_of("client"));
    shared.apply(&route_of("third"));
    assert_eq!(route(Some("client")).as_deref(), Some("of-client"));
    assert_eq!(route(Some("other")).as_deref(), Some("of-default"));
    assert_eq!(route(None).as_deref(), Some("of-default"));
    let reference = |namespace| {
        let kind = profile(&views, Some(namespace))
            .profile_ref
            .and_then(|m| m.kind);
        let Some(meta::metadata::Kind::Resource(resource)) = kind else {
            panic!("a resource")
        };
        (
            resource.group,
            resource.kind,
            resource.namespace,
            resource.name,
        )
    };
    let name = "web.default.svc.cluster.local";
    assert_eq!(
        reference("client"),
        (
            "linkerd.io".into(),
            "ServiceProfile".into(),
            "client".into(),
            name.into()
        )
    );
    assert_eq!(reference("other").2, "default");
}

#[tokio::test]
async fn d21_a_profile_that_comes_and_goes_reaches_the_stream() {
    let (shared, views) = views();
    let subscription = views.subscribe(asked_from(Some("client"))).expect("room");
    let mut stream = ProfileStream::new(subscription).expect("known");
    let plain = next(&mut stream).await;
    assert!(plain.routes.is_empty() && plain.profile_ref.is_none());
    shared.apply(&route_of("default"));
    assert_eq!(next(&mut stream).await.routes.len(), 1);
    let mine = route_of("client");
    shared.apply(&mine);
    assert_eq!(
        next(&mut stream).await.routes[0].metrics_labels["route"],
        "of-client"
    );
    shared.delete(&mine.reference());
    assert_eq!(
        next(&mut stream).await.routes[0].metrics_labels["route"],
        "of-default"
    );
    shared.delete(&route_of("default").reference());
    assert_eq!(next(&mut stream).await, plain);
}

#[test]
fn routes_budget_and_overrides() {
    let (shared, views) = views();
    let spec = "
  routes:
  - name: books
    condition: {all: [{pathRegex: '/books/\\d+'}, {not: {method: DELETE}}]}
    isRetryable: true
    timeout: 250ms
    responseClasses:
    - {condition: {any: [{status: {min: 500, max: 504}}, {status: {max: 429}}]}, isFailure: true}
  - {name: custom, condition: {method: PURGE}}
  retryBudget: {retryRatio: 0.5, minRetriesPerSecond: 3, ttl: 30s}
  dstOverrides:
  - {authority: v2.default.svc.cluster.local, weight: 900m}
  - {authority: 'v1.default.svc.cluster.local:8080', weight: '0.1'}
  - {authority: elsewhere.example.com, weight: 1}
  opaquePorts: ['80']
";
    assert_eq!(shared.apply(&object("default", spec)).invalid, []);
    let profile = profile(&views, None);
    assert_eq!(
        profile.fully_qualified_name,
        "web.default.svc.cluster.local"
    );
    assert!(
        profile.opaque_protocol,
        "by the profile, the Service's annotation has only 81"
    );
    let budget = profile.retry_budget.expect("set");
    assert_eq!(
        (
            budget.retry_ratio,
            budget.min_retries_per_second,
            budget.ttl.map(|t| t.seconds)
        ),
        (0.5, 3, Some(30))
    );

    let matching = |m| RequestMatch { r#match: Some(m) };
    let method = |method| {
        matching(request_match::Match::Method(HttpMethod {
            r#type: Some(method),
        }))
    };
    let delete = method(http_method::Type::Registered(
        http_method::Registered::Delete.into(),
    ));
    let path = matching(request_match::Match::Path(PathMatch {
        regex: "/books/\\d+".into(),
    }));
    let not = matching(request_match::Match::Not(Box::new(delete)));
    let all = request_match::Seq {
        matches: vec![path, not],
    };
    let status = |min, max| ResponseMatch {
        r#match: Some(response_match::Match::Status(HttpStatusRange { min, max })),
    };
    let any = response_match::Seq {
        matches: vec![status(500, 504), status(429, 429)],
    };
    let [books, custom] = profile.routes.as_slice() else {
        panic!("two routes")
    };
    assert_eq!(
        books.condition,
        Some(matching(request_match::Match::All(all)))
    );
    assert_eq!(
        books.metrics_labels,
        HashMap::from([("route".into(), "books".into())])
    );
    assert_eq!(
        (books.is_retryable, books.timeout.map(|t| t.nanos)),
        (true, Some(250_000_000))
    );
    let class = books.response_classes.first().expect("one");
    let condition = ResponseMatch {
        r#match: Some(response_match::Match::Any(any)),
    };
    assert_eq!(
        (class.condition.as_ref(), class.is_failure),
        (Some(&condition), true)
    );
    let purge = method(http_method::Type::Unregistered("PURGE".into()));
    assert_eq!(
        (custom.condition.clone(), custom.timeout),
        (Some(purge), None)
    );

    let override_of = |dst: &WeightedDst| {
        let backend = dst
            .backend_ref
            .clone()
            .and_then(|m| m.kind)
            .map(|kind| match kind {
                meta::metadata::Kind::Resource(r) => {
                    (r.name, u16::try_from(r.port).expect("a port"))
                }
                meta::metadata::Kind::Default(name) => (name, 0),
            });
        (dst.authority.clone(), dst.weight, backend)
    };
    let overrides: Vec<_> = profile.dst_overrides.iter().map(override_of).collect();
    assert_eq!(
        overrides,
        [
            (
                "v2.default.svc.cluster.local:80".into(),
                9_000,
                Some(("v2".into(), 80))
            ),
            (
                "v1.default.svc.cluster.local:8080".into(),
                1_000,
                Some(("v1".into(), 8080))
            ),
            ("elsewhere.example.com:80".into(), 10_000, None),
        ]
    );
}

#[test]
fn a_profile_that_is_refused_leaves_the_last_good_one() {
    let (shared, views) = views();
    shared.apply(&route_of("default"));
    let changed = shared.apply(&object("default", "{routes: [{name: r, condition: {}}]}"));
    assert!(changed.invalid[0].refused);
    assert_eq!(
        profile(&views, None).routes[0].metrics_labels["route"],
        "of-default"
    );
}

#[test]
fn equal_profiles_share_the_bytes_of_their_message() {
    let (_, views) = views();
    let message = || {
        let mut subscription = views.subscribe(asked_from(None)).expect("room");
        let profile = subscription.latest();
        (message(&profile).expect("known"), subscription)
    };
    let (one, two) = (message(), message());
    assert_eq!(one.0.as_ptr(), two.0.as_ptr());
}
