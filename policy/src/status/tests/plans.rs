//! Objects in, conditions out; and that what is written is left alone afterwards.

use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::status::plan::plan;

const BASE: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: ns}
spec: {clusterIPs: [10.0.0.1], clusterIP: 10.0.0.1, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: ns}
spec: {clusterIP: None, clusterIPs: [None], ports: [{port: 80}]}
---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web, namespace: ns}
spec: {podSelector: {}, port: 80}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: EgressNetwork
metadata: {name: out, namespace: ns}
spec: {trafficPolicy: Allow}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: EgressNetwork
metadata: {name: inside, namespace: ns}
spec: {trafficPolicy: Allow, networks: [{cidr: 10.1.0.0/16}]}
";

fn documents(yaml: &str) -> Vec<Value> {
    let mut documents: Vec<Value> = yaml
        .split("\n---")
        .map(value)
        .filter(|v| !v.is_null())
        .collect();
    for (n, document) in documents.iter_mut().enumerate() {
        document["metadata"]["resourceVersion"] = json!(n.to_string());
    }
    documents
}

fn indexed(documents: &[Value]) -> Index {
    let mut index = Index::default();
    for document in documents {
        let changed = index.apply(&object(document));
        assert_eq!(changed.invalid, [], "{document}");
    }
    index
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn planned(documents: &[Value], second: i64) -> Vec<StatusPatch> {
    plan(&indexed(documents), &MeshSettings::default(), at(second))
}

fn conditions(list: &Value) -> String {
    let each = list.as_array().unwrap().iter();
    let text = |c: &Value, field: &str| c[field].as_str().unwrap().to_owned();
    let each = each.map(|c| {
        format!(
            "{}={} {}",
            text(c, "type"),
            text(c, "status"),
            text(c, "reason")
        )
    });
    each.collect::<Vec<_>>().join(", ")
}

/// What our entries say, one line for each parent.
fn entries(status: &Value) -> Vec<String> {
    let parents = status["parents"].as_array().unwrap().iter();
    let ours = parents.filter(|p| p["controllerName"] == "linkerd.io/policy-controller");
    let line = |p: &Value| {
        let r = &p["parentRef"];
        let port = r
            .get("port")
            .map(|port| format!(":{port}"))
            .unwrap_or_default();
        let text = |field: &str| r[field].as_str().unwrap().to_owned();
        let name = format!(
            "{}/{} {}/{}{port}",
            text("group"),
            text("kind"),
            text("namespace"),
            text("name")
        );
        format!("{name}: {}", conditions(&p["conditions"]))
    };
    ours.map(line).collect()
}

/// The status that is planned for a route with this specification, besides the objects of `BASE` and more.
fn route(kind: &str, spec: &str, more: &str) -> Vec<String> {
    let version = if matches!(kind, "TLSRoute" | "TCPRoute") {
        "v1alpha2"
    } else {
        "v1"
    };
    let yaml = format!(
        "{BASE}{more}\n---\napiVersion: {GATEWAY}/{version}\nkind: {kind}\nmetadata: {{name: r, namespace: ns}}\nspec: {{{spec}}}\n"
    );
    let patches = planned(&documents(&yaml), 1000);
    let found = patches.iter().find(|p| p.object.name.name.as_ref() == "r");
    found
        .map(|patch| entries(&patch.status))
        .unwrap_or_default()
}

#[test]
fn parents_and_backends() {
    const OK: &str = "Accepted=True Accepted, ResolvedRefs=True ResolvedRefs";
    let service = |rest: &str| {
        format!(
            "parentRefs: [{{group: core, kind: Service, name: web, port: 80}}], rules: [{{{rest}}}]"
        )
    };
    for (spec, expected) in [
        (service(""), format!("core/Service ns/web:80: {OK}")),
        (
            "parentRefs: [{group: '', kind: Service, name: web}], rules: [{}]".to_owned(),
            format!("core/Service ns/web: {OK}"),
        ),
        (
            "parentRefs: [{group: core, kind: Service, name: headless}], rules: [{}]".to_owned(),
            "core/Service ns/headless: Accepted=False NoMatchingParent, ResolvedRefs=True ResolvedRefs".to_owned(),
        ),
        (
            "parentRefs: [{group: core, kind: Service, name: gone, namespace: other}], rules: [{}]".to_owned(),
            "core/Service other/gone: Accepted=False NoMatchingParent, ResolvedRefs=True ResolvedRefs".to_owned(),
        ),
        (
            "parentRefs: [{group: policy.linkerd.io, kind: EgressNetwork, name: out, port: 443}], rules: [{}]".to_owned(),
            format!("policy.linkerd.io/EgressNetwork ns/out:443: {OK}"),
        ),
        (
            "parentRefs: [{group: policy.linkerd.io, kind: EgressNetwork, name: inside, port: 443}], rules: [{}]".to_owned(),
            "policy.linkerd.io/EgressNetwork ns/inside:443: Accepted=False NoMatchingParent, ResolvedRefs=True ResolvedRefs".to_owned(),
        ),
        (
            "parentRefs: [{group: policy.linkerd.io, kind: EgressNetwork, name: gone, port: 443}], rules: [{}]".to_owned(),
            "policy.linkerd.io/EgressNetwork ns/gone:443: Accepted=False NoMatchingParent, ResolvedRefs=True ResolvedRefs".to_owned(),
        ),
        (service("backendRefs: [{name: web, port: 80}]"), format!("core/Service ns/web:80: {OK}")),
        (
            service("backendRefs: [{name: web, port: 80}, {name: gone, port: 80}]"),
            "core/Service ns/web:80: Accepted=True Accepted, ResolvedRefs=False BackendNotFound".to_owned(),
        ),
        (
            service("backendRefs: [{group: x.org, kind: Bucket, name: b}]"),
            "core/Service ns/web:80: Accepted=True Accepted, ResolvedRefs=False InvalidKind".to_owned(),
        ),
    ] {
        for kind in ["HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute"] {
            assert_eq!(route(kind, &spec, "").join("; "), expected, "{kind} {spec}");
        }
    }
    let egress = "parentRefs: [{group: policy.linkerd.io, kind: EgressNetwork, name: out, port: 443}], \
                  rules: [{backendRefs: [{group: policy.linkerd.io, kind: EgressNetwork, name: out}]}]";
    assert_eq!(
        route("TCPRoute", egress, ""),
        [format!("policy.linkerd.io/EgressNetwork ns/out:443: {OK}")]
    );
}

#[test]
fn servers_as_parents() {
    let spec = |name: &str| {
        format!(
            "parentRefs: [{{group: policy.linkerd.io, kind: Server, name: {name}}}], rules: [{{}}]"
        )
    };
    for kind in ["HTTPRoute", "GRPCRoute"] {
        assert_eq!(
            route(kind, &spec("web"), ""),
            ["policy.linkerd.io/Server ns/web: Accepted=True Accepted"]
        );
        assert_eq!(
            route(kind, &spec("gone"), ""),
            ["policy.linkerd.io/Server ns/gone: Accepted=False NoMatchingParent"]
        );
    }
    for kind in ["TLSRoute", "TCPRoute"] {
        assert_eq!(
            route(kind, &spec("web"), ""),
            ["policy.linkerd.io/Server ns/web: Accepted=False NoMatchingParent"]
        );
    }
}

#[test]
fn of_two_kinds_at_one_parent_the_higher_one_counts() {
    let spec = "parentRefs: [{group: core, kind: Service, name: web, port: 80}], rules: [{}]";
    let ranks = ["GRPCRoute", "HTTPRoute", "TLSRoute", "TCPRoute"];
    for (own, kind) in ranks.iter().enumerate() {
        for (rank, other) in ranks.iter().enumerate().filter(|(rank, _)| *rank != own) {
            let version = if rank > 1 { "v1alpha2" } else { "v1" };
            let other = format!(
                "\n---\napiVersion: {GATEWAY}/{version}\nkind: {other}\nmetadata: {{name: other, namespace: ns}}\nspec: {{{spec}}}\n"
            );
            let accepted = route(kind, spec, &other)
                .join("")
                .contains("Accepted=True Accepted,");
            assert_eq!(accepted, own < rank, "{kind} {other}");
            if !accepted {
                assert!(
                    route(kind, spec, &other)
                        .join("")
                        .contains("Accepted=False RouteReasonConflicted")
                );
            }
            let elsewhere = other.replace("port: 80", "port: 81");
            assert!(
                route(kind, spec, &elsewhere)
                    .join("")
                    .contains("Accepted=True Accepted,")
            );
        }
    }
}

#[test]
fn egress_networks_and_rate_limits() {
    let limit = |name: &str, server: &str, created: &str| {
        format!(
            "\n---\napiVersion: policy.linkerd.io/v1alpha1\nkind: HTTPLocalRateLimitPolicy\n\
             metadata: {{name: {name}, namespace: ns, creationTimestamp: '{created}'}}\n\
             spec: {{targetRef: {{group: policy.linkerd.io, kind: Server, name: {server}}}, total: {{requestsPerSecond: 1}}}}\n"
        )
    };
    let yaml = [
        BASE.to_owned(),
        limit("young", "web", "2026-01-02T00:00:00Z"),
        limit("z-old", "web", "2026-01-01T00:00:00Z"),
        limit("lost", "gone", "2026-01-01T00:00:00Z"),
    ];
    let patches = planned(&documents(&yaml.concat()), 1000);
    let said: Vec<String> = patches
        .iter()
        .map(|p| format!("{}: {}", p.object.name, conditions(&p.status["conditions"])))
        .collect();
    assert_eq!(
        said,
        [
            "ns/web: Accepted=True Accepted, ResolvedRefs=False NoMatchingWorkload",
            "ns/inside: Accepted=False EgressReasonNetworkOverlap",
            "ns/out: Accepted=True Accepted",
            "ns/lost: Accepted=False NoMatchingTarget",
            "ns/young: Accepted=False RateLimitReasonAlreadyExists",
            "ns/z-old: Accepted=True Accepted",
        ]
    );
    let young = &patches[4].status;
    assert_eq!(
        young["targetRef"],
        json!({"group": "policy.linkerd.io", "kind": "Server", "name": "web"})
    );
    assert!(
        young["conditions"][0]["message"]
            .as_str()
            .unwrap()
            .contains("ns/z-old"),
        "names the winner"
    );
}

fn server(name: &str, created: &str, spec: &str) -> String {
    format!(
        "\n---\napiVersion: policy.linkerd.io/v1beta3\nkind: Server\n\
         metadata: {{name: {name}, namespace: ns, creationTimestamp: '2026-01-0{created}T00:00:00Z'}}\nspec: {{{spec}}}\n"
    )
}

fn pod(name: &str, tier: &str) -> String {
    format!(
        "\n---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: ns, labels: {{app: web, tier: {tier}}}}}\n\
         spec: {{containers: [{{name: app, ports: [{{name: http, containerPort: 8080}}, {{name: admin, containerPort: 9000}}]}}]}}\n"
    )
}

const MACHINE: &str = "
---
apiVersion: workload.linkerd.io/v1beta1
kind: ExternalWorkload
metadata: {name: m, namespace: ns, labels: {app: web}}
spec: {meshTLS: {identity: m.example.org, serverName: m.example.org}, workloadIPs: [{ip: 10.9.0.1}], ports: [{name: http, port: 8080}]}
";

/// What is said of an object by name: its conditions, and their messages.
fn said(documents: &[Value], name: &str) -> (String, String) {
    let patches = planned(documents, 1000);
    let found = patches.iter().find(|p| p.object.name.name.as_ref() == name);
    let list = &found.expect("a patch").status["conditions"];
    let messages = list.as_array().unwrap().iter();
    let messages = messages.map(|c| c["message"].as_str().unwrap()).collect();
    (conditions(list), messages)
}

#[test]
fn r05_the_server_that_loses_a_port_names_the_winner() {
    const WEB: &str = "podSelector: {matchLabels: {app: web}}";
    const OK: &str = "Accepted=True Accepted, ResolvedRefs=True ResolvedRefs";
    const LOST: &str = "Accepted=False Conflicted, ResolvedRefs=True ResolvedRefs";
    let (front, back) = (pod("p1", "front"), pod("p2", "back"));
    let old = server("old", "1", &format!("{WEB}, port: 8080"));
    for (young, expected, named) in [
        (
            format!("{WEB}, port: http"),
            LOST,
            "(port 8080: Server ns/old): this Server has no effect",
        ),
        (
            "podSelector: {}, port: 8080".to_owned(),
            LOST,
            "has no effect",
        ),
        (
            "podSelector: {matchLabels: {tier: back}}, port: 8080".to_owned(),
            LOST,
            "has no effect",
        ),
        (format!("{WEB}, port: admin"), OK, ""),
        (
            "externalWorkloadSelector: {}, port: 8080".to_owned(),
            OK,
            "",
        ),
    ] {
        // In whatever order they come, and whatever their names.
        for name in ["a", "z"] {
            let young = server(name, "2", &young);
            for yaml in [
                [&old, &young, &front, &back, MACHINE].concat(),
                [MACHINE, &front, &back, &young, &old].concat(),
            ] {
                let documents = documents(yaml.trim_start_matches("\n---"));
                let (conditions, message) = said(&documents, name);
                assert_eq!(conditions, expected, "{young}");
                assert!(message.contains(named), "{message}");
                assert_eq!(said(&documents, "old").0, OK);
            }
        }
    }
    // Of the same age the first by name wins; and where both are for one pod, the loser may have others.
    let one = server(
        "one",
        "1",
        "podSelector: {matchLabels: {tier: front}}, port: 8080",
    );
    let two = server("two", "1", &format!("{WEB}, port: 8080"));
    let yaml = [two, one, front, back].concat();
    let documents = documents(yaml.trim_start_matches("\n---"));
    assert_eq!(said(&documents, "one").0, OK);
    let (conditions, message) = said(&documents, "two");
    assert_eq!(conditions, LOST);
    assert!(
        message.contains("Server ns/one") && message.contains("other workloads only"),
        "{message}"
    );
}

#[test]
fn r19_a_port_that_no_workload_has_is_said() {
    let spec = |selector: &str, port: &str| format!("{selector}, port: {port}");
    for (spec, expected, named) in [
        (
            spec("podSelector: {}", "http"),
            "ResolvedRefs=True ResolvedRefs",
            "",
        ),
        (
            spec("podSelector: {}", "9999"),
            "ResolvedRefs=True ResolvedRefs",
            "",
        ),
        (
            spec("externalWorkloadSelector: {}", "http"),
            "ResolvedRefs=True ResolvedRefs",
            "",
        ),
        (
            spec("podSelector: {}", "htpp"),
            "ResolvedRefs=False PortNotFound",
            "no selected workload has a port named \"htpp\": there are admin, http",
        ),
        (
            spec("podSelector: {matchLabels: {app: wbe}}", "http"),
            "ResolvedRefs=False NoMatchingWorkload",
            "matches nothing",
        ),
    ] {
        let yaml = [&server("s", "1", &spec), &pod("p", "front"), MACHINE].concat();
        let documents = documents(yaml.trim_start_matches("\n---"));
        let (conditions, message) = said(&documents, "s");
        assert_eq!(conditions, format!("Accepted=True Accepted, {expected}"));
        assert!(message.contains(named), "{message}");
    }
}

#[test]
fn r19_a_policy_names_what_is_missing() {
    let policy = |target: &str, required: &str| {
        format!(
            "{BASE}\n---\napiVersion: policy.linkerd.io/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {{name: a, namespace: ns}}\n\
             spec: {{targetRef: {{{target}}}, requiredAuthenticationRefs: [{required}]}}\n\
             ---\napiVersion: policy.linkerd.io/v1alpha1\nkind: MeshTLSAuthentication\nmetadata: {{name: friends, namespace: other}}\n\
             spec: {{identities: ['*']}}\n"
        )
    };
    let server = |name: &str| format!("group: policy.linkerd.io, kind: Server, name: {name}");
    let mesh = |name: &str| {
        format!(
            "{{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: {name}, namespace: other}}"
        )
    };
    let nets = "{group: policy.linkerd.io, kind: NetworkAuthentication, name: nets}";
    const MISSING: &str = "Accepted=True Accepted, ResolvedRefs=False AuthenticationNotFound";
    for (target, required, expected, named) in [
        (
            server("web"),
            mesh("friends"),
            "Accepted=True Accepted, ResolvedRefs=True ResolvedRefs",
            "",
        ),
        (
            "kind: Namespace, name: ns".to_owned(),
            String::new(),
            "Accepted=True Accepted, ResolvedRefs=True ResolvedRefs",
            "",
        ),
        (
            server("wbe"),
            "{kind: ServiceAccount, name: whoever}".to_owned(),
            "Accepted=False NoMatchingTarget, ResolvedRefs=True ResolvedRefs",
            "Server ns/wbe does not exist",
        ),
        (
            format!("group: {GATEWAY}, kind: HTTPRoute, name: r"),
            String::new(),
            "Accepted=False NoMatchingTarget, ResolvedRefs=True ResolvedRefs",
            "ns/r does not exist",
        ),
        (
            server("web"),
            mesh("freinds"),
            MISSING,
            "MeshTLSAuthentication other/freinds does not exist",
        ),
        (
            server("web"),
            format!("{}, {nets}", mesh("freinds")),
            MISSING,
            "MeshTLSAuthentication other/freinds, NetworkAuthentication ns/nets do",
        ),
    ] {
        let (conditions, message) = said(&documents(&policy(&target, &required)), "a");
        assert_eq!(conditions, expected, "{target} {required}");
        assert!(message.contains(named), "{message}");
    }
}

/// The generation is written even when nothing else changes, so that a reader knows what the conditions are about.
#[test]
fn conditions_name_the_generation_they_are_about() {
    let mut documents = documents(&format!("{BASE}{SHARED}"));
    for document in &mut documents {
        document["metadata"]["generation"] = json!(4);
    }
    let observed = |patches: &[StatusPatch]| {
        let text = serde_json::to_string(&patches.iter().map(|p| &p.status).collect::<Vec<_>>());
        text.unwrap().matches("\"observedGeneration\":").count()
    };
    let patches = planned(&documents, 1000);
    // Two of the Server, one of each EgressNetwork, and those of the route: two of the Service, one of the Server.
    assert_eq!((patches.len(), observed(&patches)), (4, 7));
    written(&mut documents, &patches);
    assert_eq!(planned(&documents, 2000), [], "steady");
    let route = documents.last_mut().unwrap();
    route["metadata"]["generation"] = json!(5);
    let [patch] = planned(&documents, 3000).try_into().unwrap();
    let condition = &patch.status["parents"][1]["conditions"][0];
    assert_eq!(condition["observedGeneration"], 5);
    assert_eq!(
        condition["lastTransitionTime"], "1970-01-01T00:16:40Z",
        "that of the first pass"
    );
}

/// Does what the API server would do with the patches.
fn written(documents: &mut [Value], patches: &[StatusPatch]) {
    for patch in patches {
        let of = |d: &&mut Value| {
            let object = object(d);
            object.reference() == patch.object
        };
        let document = documents.iter_mut().find(of).unwrap();
        for (field, value) in patch.status.as_object().unwrap() {
            document["status"][field] = value.clone();
        }
    }
}

const SHARED: &str = "
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r, namespace: ns}
spec:
  parentRefs:
  - {name: gateway}
  - {group: core, kind: Service, name: web, port: 80}
  - {group: core, kind: Service, name: web, port: 80, sectionName: again}
  - {group: policy.linkerd.io, kind: Server, name: web}
status:
  parents:
  - parentRef: {name: gateway}
    controllerName: example.org/other
    conditions: [{type: Accepted, status: 'True', reason: Accepted, message: '', lastTransitionTime: '2020-01-01T00:00:00Z'}]
";

#[test]
fn r10_entries_of_others_stay_and_their_order_does_not_matter() {
    let mut documents = documents(&format!("{BASE}{SHARED}"));
    let patches = planned(&documents, 1000);
    let route = patches
        .iter()
        .find(|p| p.object.name.name.as_ref() == "r")
        .unwrap();
    let parents = route.status["parents"].as_array().unwrap();
    assert_eq!(parents.len(), 3);
    assert_eq!(
        parents[0],
        value(SHARED.trim_start_matches("\n---"))["status"]["parents"][0]
    );
    assert_eq!(route.resource_version, "5");
    written(&mut documents, &patches);
    assert_eq!(planned(&documents, 2000), [], "steady");
    let route = documents.last_mut().unwrap();
    route["status"]["parents"].as_array_mut().unwrap().reverse();
    for parent in route["status"]["parents"].as_array_mut().unwrap() {
        parent["conditions"].as_array_mut().unwrap().reverse();
    }
    assert_eq!(planned(&documents, 2000), [], "in another order");
}

#[test]
fn r10_routes_of_others_are_left_alone() {
    let theirs = SHARED
        .replace("group: core, kind: Service", "kind: Gateway")
        .replace("group: policy.linkerd.io, kind: Server", "kind: Gateway");
    let patches = planned(&documents(&format!("{BASE}{theirs}")), 1000);
    assert!(patches.iter().all(|p| p.object.name.name.as_ref() != "r"));
}

#[test]
fn our_entry_goes_with_the_parent() {
    let mut documents = documents(&format!("{BASE}{SHARED}"));
    let patches = planned(&documents, 1000);
    written(&mut documents, &patches);
    documents.last_mut().unwrap()["spec"]["parentRefs"] = json!([{"name": "gateway"}]);
    let [patch] = planned(&documents, 2000).try_into().unwrap();
    let parents = patch.status["parents"].as_array().unwrap();
    assert_eq!(
        (parents.len(), &parents[0]["controllerName"]),
        (1, &json!("example.org/other"))
    );
}

#[test]
fn the_time_of_a_condition_is_that_of_its_change() {
    let mut documents = documents(&format!("{BASE}{SHARED}"));
    let patches = planned(&documents, 1000);
    written(&mut documents, &patches);
    documents.remove(0);
    let [patch] = planned(&documents, 2000).try_into().unwrap();
    let service = &patch.status["parents"][1]["conditions"];
    assert_eq!(
        conditions(service),
        "Accepted=False NoMatchingParent, ResolvedRefs=True ResolvedRefs"
    );
    assert_eq!(service[0]["lastTransitionTime"], "1970-01-01T00:33:20Z");
    assert_eq!(
        service[1]["lastTransitionTime"], "1970-01-01T00:16:40Z",
        "did not change"
    );
}

#[test]
fn objects_of_no_api_server_have_no_status() {
    let index = indexed(&[value(SHARED.trim_start_matches("\n---"))]);
    assert_eq!(plan(&index, &MeshSettings::default(), at(0)), []);
}

proptest! {
    #[test]
    fn what_is_written_is_left_alone(choice in prop::collection::vec(
        (0..4_usize, 0..6_usize, 0..3_usize, prop::option::of(79..82_u16), 0..4_usize), 0..12,
    )) {
        let mut yaml = BASE.to_owned();
        for (n, (kind, parent, namespace, port, backend)) in choice.into_iter().enumerate() {
            let (kind, version) = [("GRPCRoute", "v1"), ("HTTPRoute", "v1"), ("TLSRoute", "v1alpha2"), ("TCPRoute", "v1alpha2")][kind];
            let parent = ["group: core, kind: Service, name: web", "group: core, kind: Service, name: headless",
                "group: policy.linkerd.io, kind: Server, name: web", "group: policy.linkerd.io, kind: EgressNetwork, name: out",
                "group: policy.linkerd.io, kind: EgressNetwork, name: inside", "name: gateway"][parent];
            let namespace = ["", ", namespace: ns", ", namespace: other"][namespace];
            let port = port.map(|port| format!(", port: {port}")).unwrap_or_default();
            let backend = ["", "{name: web, port: 80}", "{name: gone, port: 80}", "{group: x, kind: Y, name: z}"][backend];
            yaml += &format!("\n---\napiVersion: {GATEWAY}/{version}\nkind: {kind}\nmetadata: {{name: r{n}, namespace: ns}}\n\
                spec: {{parentRefs: [{{{parent}{namespace}{port}}}], rules: [{{backendRefs: [{backend}]}}]}}\n");
        }
        let mut documents = documents(&yaml);
        let patches = planned(&documents, 1000);
        written(&mut documents, &patches);
        prop_assert_eq!(planned(&documents, 2000), []);
    }
}
