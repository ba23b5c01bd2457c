//! ServiceProfiles: what is read, what is refused, and where.

use std::path::Path;

use super::*;
use crate::{
    index::{Index, Key, Reader},
    manifests,
};

const PROFILE: &str = "
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata: {name: web.shop.svc.cluster.local, namespace: shop}
spec:
";

fn apply(spec: &str) -> (Index, crate::Changed) {
    let text = format!("{PROFILE}  {}\n", spec.replace('\n', "\n  "));
    let object = manifests::parse(Path::new("test.yaml"), &text)
        .expect("valid")
        .remove(0);
    let mut index = Index::default();
    let changed = index.apply(&object);
    (index, changed)
}

fn name() -> Name {
    Name::new("shop", "web.shop.svc.cluster.local")
}

#[test]
fn everything_of_a_profile_is_read() {
    let (index, changed) = apply(
        "routes:
- name: GET /a
  condition: {method: GET, pathRegex: '/a/[^/]*'}
  isRetryable: true
  timeout: 1.5s
  responseClasses:
  - {condition: {status: {min: 500, max: 599}}, isFailure: true}
  - {condition: {not: {status: {min: 404}}}}
- name: other
  condition: {any: [{not: {method: GET}}, {all: [{pathRegex: /b}, {pathRegex: /c}]}]}
  timeout: soon
retryBudget: {retryRatio: 0.5, minRetriesPerSecond: 3, ttl: 15s}
dstOverrides: [{authority: a.shop.svc.cluster.local, weight: 900m}, {authority: 'b:8080', weight: 1}]
opaquePorts: ['3306', 9000-9002, nonsense]",
    );
    assert_eq!(changed.keys, [Key::Profile(name())].into());
    let fields: Vec<_> = changed
        .invalid
        .iter()
        .map(|i| (i.field.as_str(), i.refused))
        .collect();
    assert_eq!(
        fields,
        [
            ("spec.routes[1].timeout", false),
            ("spec.opaquePorts[2]", false)
        ]
    );
    let profile = Reader::new(&index)
        .service_profile(&name())
        .expect("stored");
    let path = |text: &str| RequestCondition::Path(text.to_owned());
    let get = || RequestCondition::Method("GET".to_owned());
    let [first, second] = profile.routes.as_slice() else {
        panic!("two routes")
    };
    assert_eq!(
        first.condition,
        RequestCondition::All(vec![get(), path("/a/[^/]*")])
    );
    assert_eq!(
        (first.retryable, first.timeout),
        (true, Some(Duration::from_millis(1_500)))
    );
    let not_404 = ResponseCondition::Not(Box::new(ResponseCondition::Status(404, 404)));
    let classes: Vec<_> = first
        .classes
        .iter()
        .map(|c| (&c.condition, c.failure))
        .collect();
    assert_eq!(
        classes,
        [
            (&ResponseCondition::Status(500, 599), true),
            (&not_404, false)
        ]
    );
    assert_eq!(
        second.condition,
        RequestCondition::Any(vec![
            RequestCondition::Not(Box::new(get())),
            RequestCondition::All(vec![path("/b"), path("/c")]),
        ])
    );
    assert_eq!((second.retryable, second.timeout), (false, None));
    let budget = profile.retry_budget.expect("set");
    assert_eq!(
        (budget.ratio, budget.min_per_second, budget.ttl),
        (0.5, 3, Duration::from_secs(15))
    );
    let weights: Vec<_> = profile.overrides.iter().map(|o| o.weight).collect();
    assert_eq!(weights, [9_000, 10_000]);
    assert_eq!(profile.opaque_ports.to_string(), "3306,9000-9002");
}

#[test]
fn what_nobody_can_mean_is_refused_and_named() {
    let deep = format!(
        "routes: [{{name: r, condition: {}{{method: GET}}{}}}]",
        "{not: ".repeat(MAX_DEPTH),
        "}".repeat(MAX_DEPTH)
    );
    let field = format!("spec.routes[0].condition{}", ".not".repeat(MAX_DEPTH));
    for (spec, field) in [
        (
            "routes: [{name: r, condition: {}}]",
            "spec.routes[0].condition",
        ),
        (
            "routes: [{name: r, condition: {method: 'G T'}}]",
            "spec.routes[0].condition.method",
        ),
        (
            "routes: [{name: r, condition: {all: [{pathRegex: '('}]}}]",
            "spec.routes[0].condition.all[0].pathRegex",
        ),
        (
            "routes: [{name: r, condition: {method: GET}, responseClasses: [{condition: {status: {min: 600}}}]}]",
            "spec.routes[0].responseClasses[0].condition.status",
        ),
        (
            "routes: [{name: r, condition: {method: GET}, responseClasses: [{condition: {}}]}]",
            "spec.routes[0].responseClasses[0].condition",
        ),
        (
            "retryBudget: {retryRatio: -1, minRetriesPerSecond: 1, ttl: 10s}",
            "spec.retryBudget.retryRatio",
        ),
        (
            "retryBudget: {retryRatio: 1, minRetriesPerSecond: 1, ttl: 2m}",
            "spec.retryBudget.ttl",
        ),
        (
            "dstOverrides: [{authority: 'a b', weight: 1}]",
            "spec.dstOverrides[0].authority",
        ),
        (
            "dstOverrides: [{authority: a, weight: much}]",
            "spec.dstOverrides[0].weight",
        ),
        (&deep, &field),
    ] {
        let (index, changed) = apply(spec);
        assert_eq!(
            changed
                .invalid
                .first()
                .map(|i| (i.field.as_str(), i.refused)),
            Some((field, true)),
            "{spec}"
        );
        assert!(changed.keys.is_empty() && Reader::new(&index).service_profile(&name()).is_none());
    }
}
