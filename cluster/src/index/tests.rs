//! The index: what is refused, and which keys a change touches.

mod discovery;

use std::path::Path;

use super::*;
use crate::manifests;

fn objects(text: &str) -> Vec<Object> {
    manifests::parse(Path::new("test.yaml"), text).expect("valid")
}

fn one(text: &str) -> Object {
    objects(text).remove(0)
}

fn apply(index: &mut Index, text: &str) -> Changed {
    let mut changed = Changed::default();
    for object in objects(text) {
        changed.merge(index.apply(&object));
    }
    changed
}

const POD: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: p
  labels: {app: web, linkerd.io/control-plane-ns: linkerd, pod-template-hash: abc}
  annotations:
    config.linkerd.io/opaque-ports: 'http, 9000-9002, nonsense'
    config.linkerd.io/default-inbound-policy: everybody
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-abc, uid: u, controller: true}]
spec:
  serviceAccountName: web
  containers:
  - name: app
    ports: [{name: http, containerPort: 8080}, {name: dns, containerPort: 53, protocol: UDP}]
    livenessProbe: {httpGet: {path: '/live?full=1', port: http}}
    readinessProbe: {httpGet: {port: 8081}}
  initContainers:
  - name: linkerd-proxy
    env: [{name: LINKERD2_PROXY_INBOUND_LISTEN_ADDR, value: '[::]:4143'}, {name: LINKERD2_PROXY_ADMIN_LISTEN_ADDR, value: '0.0.0.0:4191'}]
status: {podIP: 10.1.0.1, podIPs: [{ip: 10.1.0.1}, {ip: 'fd00::1'}], phase: Running}
";

#[test]
fn what_is_kept_of_a_pod() {
    let mut index = Index::default();
    let changed = apply(&mut index, POD);
    let reader = Reader::new(&index);
    let pod = reader.pod(&Name::new("default", "p")).expect("stored");
    assert_eq!(pod.owner, Some(("deployment".to_owned(), "web".to_owned())));
    assert_eq!(pod.ips.len(), 2);
    assert_eq!(
        (pod.proxy.inbound, pod.proxy.admin, pod.proxy.control),
        (Some(4143), Some(4191), None)
    );
    assert_eq!(
        pod.opaque_ports
            .as_ref()
            .map(ToString::to_string)
            .as_deref(),
        Some("8080,9000-9002")
    );
    assert_eq!(pod.probes[&8080].iter().collect::<Vec<_>>(), ["/live"]);
    assert_eq!(pod.probes[&8081].iter().collect::<Vec<_>>(), ["/"]);
    assert_eq!(pod.ports.len(), 1, "UDP ports are not meshed");
    let fields: Vec<_> = changed
        .invalid
        .iter()
        .map(|i| (i.field.as_str(), i.refused))
        .collect();
    assert_eq!(
        fields,
        [
            (
                "metadata.annotations[config.linkerd.io/opaque-ports]",
                false
            ),
            (
                "metadata.annotations[config.linkerd.io/default-inbound-policy]",
                false
            ),
        ]
    );
}

/// The kubelet only sees that the probe fails: whoever looks for the reason finds it in the log of the controller.
#[test]
fn r03_a_probe_by_https_is_named_where_strangers_are_kept_out() {
    let noted = |policy: &str, more: &str| {
        let pod = POD
            .replace("'http, 9000-9002, nonsense'", "'9000'")
            .replace(
                "default-inbound-policy: everybody",
                &format!("default-inbound-policy: {policy}{more}"),
            )
            .replace("{port: 8081}", "{port: 8081, scheme: HTTPS}");
        let mut index = Index::default();
        let changed = apply(&mut index, &pod);
        let reader = Reader::new(&index);
        let pod = reader.pod(&Name::new("default", "p")).expect("stored");
        assert!(!pod.probes.contains_key(&8081));
        let texts = changed.invalid.iter().map(ToString::to_string);
        texts.collect::<Vec<_>>().join("\n")
    };
    for policy in ["deny", "all-authenticated", "cluster-authenticated"] {
        let text = noted(policy, "");
        assert!(
            text.starts_with("Pod default/p: spec.containers[app].readinessProbe.httpGet.scheme: ")
                && text.contains("port 8081"),
            "{text}"
        );
    }
    assert_eq!(noted("all-unauthenticated", ""), "");
    let skipped = "\n    config.linkerd.io/skip-inbound-ports: '8081'";
    assert_eq!(noted("deny", skipped), "", "the proxy does not see it");
}

#[test]
fn the_generation_of_a_status_is_that_of_the_facts() {
    let server = |generation: u32, port: &str, status: &str| {
        format!(
            "apiVersion: policy.linkerd.io/v1beta3\nkind: Server\n\
             metadata: {{name: s, generation: {generation}, resourceVersion: 'v{generation}'}}\n\
             spec: {{podSelector: {{}}, port: {port}}}\n{status}"
        )
    };
    let mut index = Index::default();
    let seen = |index: &Index| {
        let (_, status) = index.statuses().next().expect("one");
        (status.resource_version.clone(), status.generation)
    };
    apply(&mut index, &server(1, "80", ""));
    assert_eq!(seen(&index), (Some("v1".to_owned()), Some(1)));
    assert_eq!(apply(&mut index, &server(2, "0", "")).invalid.len(), 1);
    assert_eq!(seen(&index), (Some("v2".to_owned()), Some(1)));
    // Whatever others write there, the Server stays one.
    let status = "status: {conditions: [{type: example.org/Seen, status: 'True'}]}";
    assert_eq!(apply(&mut index, &server(3, "81", status)).invalid, []);
    assert_eq!(seen(&index), (Some("v3".to_owned()), Some(3)));
}

#[test]
fn keys_of_a_change() {
    let mut index = Index::default();
    let pod = Key::Pod(Name::new("default", "p"));
    let (old, new) = (
        Key::Address([10, 1, 0, 1].into()),
        Key::Address([10, 1, 0, 2].into()),
    );
    let six = Key::Address("fd00::1".parse().expect("an address"));
    assert_eq!(
        apply(&mut index, POD).keys,
        HashSet::from([pod.clone(), old.clone(), six.clone()])
    );
    assert!(
        apply(&mut index, POD).keys.is_empty(),
        "an equal object changes nothing"
    );
    let moved = apply(&mut index, &POD.replace("10.1.0.1", "10.1.0.2"));
    assert_eq!(
        moved.keys,
        HashSet::from([pod.clone(), old.clone(), new.clone(), six.clone()])
    );
    assert!(Reader::new(&index).pod_at([10, 1, 0, 1].into()).is_none());
    let ended = apply(
        &mut index,
        &POD.replace("10.1.0.1", "10.1.0.2")
            .replace("Running", "Succeeded"),
    );
    assert!(ended.keys.contains(&new));
    assert!(
        Reader::new(&index).pod_at([10, 1, 0, 2].into()).is_none(),
        "its address may be another pod's by now"
    );
    let reference = one(POD).reference();
    assert!(index.delete(&reference).keys.contains(&pod));
    assert!(index.delete(&reference).keys.is_empty());
}

#[test]
fn reset_removes_what_is_not_there_any_more() {
    let mut index = Index::default();
    let service = |name: &str| {
        one(&format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n"
        ))
    };
    index.reset(Kind::Service, &[service("a"), service("b")]);
    let changed = index.reset(Kind::Service, &[service("b"), service("c"), one(POD)]);
    assert_eq!(
        changed.keys,
        ["a", "c"]
            .map(|n| Key::Service(Name::new("default", n)))
            .into()
    );
    assert!(
        Reader::new(&index)
            .pod(&Name::new("default", "p"))
            .is_none(),
        "another kind is not touched"
    );
}

#[test]
fn a_refused_object_names_its_field_and_leaves_the_last_version() {
    let server = |port: &str, rest: &str| {
        format!(
            "apiVersion: policy.linkerd.io/v1beta3\nkind: Server\nmetadata: {{name: s}}\nspec: {{podSelector: {{}}, port: {port}{rest}}}\n"
        )
    };
    let mut index = Index::default();
    apply(&mut index, &server("80", ""));
    for (text, field) in [
        (server("0", ""), "spec.port"),
        (server("80", ", accessPolicy: maybe"), "spec.accessPolicy"),
        (server("80", ", externalWorkloadSelector: {}"), "spec"),
    ] {
        let changed = apply(&mut index, &text);
        assert!(changed.keys.is_empty(), "{text}");
        assert_eq!(
            (
                changed.invalid[0].field.as_str(),
                changed.invalid[0].refused
            ),
            (field, true),
            "{text}"
        );
        let shown = changed.invalid[0].to_string();
        assert!(
            shown.starts_with("Server default/s: ") && shown.contains("last good version"),
            "{shown}"
        );
    }
    assert!(
        Reader::new(&index)
            .server(&Name::new("default", "s"))
            .is_some()
    );
}

#[test]
fn routes_with_anything_unusable_are_refused() {
    let route = |rule: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: r}}
spec: {{parentRefs: [{{group: '', kind: Service, name: web}}], rules: [{{{rule}}}]}}
"
        )
    };
    for (rule, field) in [
        (
            "matches: [{path: {type: RegularExpression, value: '('}}]",
            "spec.rules[0].matches[0].path.value",
        ),
        (
            "matches: [{path: {value: noslash}}]",
            "spec.rules[0].matches[0].path.value",
        ),
        (
            "matches: [{method: 'G ET'}]",
            "spec.rules[0].matches[0].method",
        ),
        (
            "matches: [{headers: [{name: 'a b', value: x}]}]",
            "spec.rules[0].matches[0].headers[0]",
        ),
        (
            "matches: [{queryParams: [{value: x}]}]",
            "spec.rules[0].matches[0].queryParams[0].name",
        ),
        (
            "filters: [{type: RequestMirror}]",
            "spec.rules[0].filters[0].type",
        ),
        (
            "filters: [{type: RequestHeaderModifier}]",
            "spec.rules[0].filters[0]",
        ),
        (
            "filters: [{type: RequestHeaderModifier, requestHeaderModifier: {remove: ['a b']}}]",
            "spec.rules[0].filters[0]",
        ),
        (
            "filters: [{type: RequestRedirect, requestRedirect: {statusCode: 200}}]",
            "spec.rules[0].filters[0].requestRedirect.statusCode",
        ),
        (
            "timeouts: {request: 1.5s}",
            "spec.rules[0].timeouts.request",
        ),
    ] {
        let changed = Index::default().apply(&one(&route(rule)));
        assert!(changed.keys.is_empty(), "{rule}");
        assert_eq!(
            changed.invalid.first().map(|i| i.field.as_str()),
            Some(field),
            "{rule}"
        );
    }
    let hosts = route("").replace("rules:", "hostnames: [10.0.0.1], rules:");
    assert_eq!(
        Index::default().apply(&one(&hosts)).invalid[0].field,
        "spec.hostnames[0]"
    );
    let annotated = route("").replace(
        "{name: r}",
        "{name: r, annotations: {timeout.linkerd.io/request: 1.5s}}",
    );
    assert_eq!(
        Index::default().apply(&one(&annotated)).invalid[0].field,
        "metadata.annotations[timeout.linkerd.io/request]"
    );
}

#[test]
fn authorizations_that_nobody_can_mean_are_refused() {
    let policy = |spec: &str| {
        format!(
            "apiVersion: policy.linkerd.io/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {{name: a}}\nspec: {spec}\n"
        )
    };
    let network = "{group: policy.linkerd.io, kind: NetworkAuthentication, name: n}";
    for (spec, field) in [
        ("{targetRef: {kind: Namespace, name: other}, requiredAuthenticationRefs: []}".to_owned(), "spec.targetRef.name"),
        ("{targetRef: {kind: Pod, name: p}, requiredAuthenticationRefs: []}".to_owned(), "spec.targetRef"),
        (
            format!("{{targetRef: {{kind: Namespace, name: default}}, requiredAuthenticationRefs: [{network}, {network}]}}"),
            "spec.requiredAuthenticationRefs",
        ),
        (
            "{targetRef: {kind: Namespace, name: default}, requiredAuthenticationRefs: [{kind: Secret, name: s}]}".to_owned(),
            "spec.requiredAuthenticationRefs[0]",
        ),
    ] {
        let changed = Index::default().apply(&one(&policy(&spec)));
        assert_eq!(changed.invalid.first().map(|i| i.field.as_str()), Some(field), "{spec}");
    }
    let networks = "apiVersion: policy.linkerd.io/v1alpha1\nkind: NetworkAuthentication\nmetadata: {name: n}\nspec: {networks: [{cidr: 10.0.0.0/8, except: [11.0.0.0/8]}]}\n";
    assert_eq!(
        Index::default().apply(&one(networks)).invalid[0].field,
        "spec.networks[0].except"
    );
}

#[test]
fn of_two_servers_the_older_wins_then_the_name() {
    let server = |name: &str, created: &str| {
        format!(
            "apiVersion: policy.linkerd.io/v1beta3\nkind: Server\nmetadata: {{name: {name}{created}}}\nspec: {{podSelector: {{matchLabels: {{app: web}}}}, port: http}}\n"
        )
    };
    let mut index = Index::default();
    let young = ", creationTimestamp: '2026-02-01T00:00:00Z'";
    let old = ", creationTimestamp: '2026-01-01T00:00:00Z'";
    apply(
        &mut index,
        &[
            POD.to_owned(),
            server("a", young),
            server("c", old),
            server("b", old),
        ]
        .join("---\n"),
    );
    let reader = Reader::new(&index);
    let pod = reader.pod(&Name::new("default", "p")).expect("stored");
    assert_eq!(
        reader.server_of(pod, 8080).map(|s| &*s.name.name),
        Some("b")
    );
    assert_eq!(reader.server_of(pod, 8081), None);
}
