//! Routes of both kinds on a cluster: weights, backends that come and go, statuses, and routes that are others' business.

use anyhow::ensure;
use serde_json::{Value, json};
use weft_e2e::cluster::{App, SOON, Space, kubectl, on_cluster, until};

/// A route of a kind, from the Service `web` to two others by weight.
fn split(api: &str) -> String {
    let group = if api.starts_with("policy") {
        "core"
    } else {
        "''"
    };
    format!(
        "
apiVersion: {api}
kind: HTTPRoute
metadata: {{name: split}}
spec:
  parentRefs: [{{group: {group}, kind: Service, name: web, port: 80}}]
  rules:
  - backendRefs: [{{name: old, port: 80, weight: 90}}, {{name: new, port: 80, weight: 10}}]
---"
    )
}

/// A condition of a route's status by our controller.
async fn condition(
    space: &Space,
    route: &str,
    kind: &str,
) -> anyhow::Result<Option<(String, String)>> {
    let object = space.json(&[route, "split"]).await?;
    let parents = object["status"]["parents"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    Ok(parents
        .iter()
        .filter(|parent| parent["controllerName"] == "linkerd.io/policy-controller")
        .filter_map(|parent| parent["conditions"].as_array())
        .flatten()
        .find(|condition| condition["type"] == kind)
        .map(|condition| {
            let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
            (text("status"), text("reason"))
        }))
}

async fn weights(space: &Space, api: &str, kind: &str) -> anyhow::Result<()> {
    let server = |name: &str| App::server(name, "http");
    space
        .start(&[
            server("web"),
            server("old"),
            server("new"),
            App::client("client"),
        ])
        .await?;
    space.apply(&split(api)).await?;
    until("the route is accepted", SOON, async || {
        let accepted = condition(space, kind, "Accepted").await?;
        let resolved = condition(space, kind, "ResolvedRefs").await?;
        let status = |condition: Option<(String, String)>| {
            condition.is_some_and(|(status, _)| status == "True")
        };
        Ok((status(accepted) && status(resolved)).then_some(()))
    })
    .await?;
    until("the route is in force", SOON, async || {
        let answer = space.curl("client", "http://web/").await?;
        Ok((!answer.body.contains("\"web-")).then_some(()))
    })
    .await?;
    let body = space
        .exec("client", &["curl", "-s", "http://web/[1-600]"])
        .await?;
    let count = |name: &str| body.matches(&format!("\"server\":\"{name}-")).count();
    let (old, new, web) = (count("old"), count("new"), count("web"));
    ensure!(old + new == 600 && web == 0, "{old} {new} {web} of 600");
    // Five standard deviations around 60 of 600.
    ensure!(
        (24..=96).contains(&new),
        "{new} of 600 requests by weight 10 of 100"
    );

    // A backend that is not there is said, and its share fails.
    space.kubectl(&["delete", "service", "new"]).await?;
    until("the missing backend is said", SOON, async || {
        let resolved = condition(space, kind, "ResolvedRefs").await?;
        Ok((resolved == Some(("False".to_owned(), "BackendNotFound".to_owned()))).then_some(()))
    })
    .await?;
    Ok(())
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn routes_of_the_gateway_api_split_by_weight_and_have_a_status() {
    on_cluster("t-weights", async |space| {
        weights(
            space,
            "gateway.networking.k8s.io/v1",
            "httproutes.gateway.networking.k8s.io",
        )
        .await
    });
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn routes_of_linkerd_split_by_weight_and_have_a_status() {
    on_cluster("t-weights-l5d", async |space| {
        weights(
            space,
            "policy.linkerd.io/v1beta3",
            "httproutes.policy.linkerd.io",
        )
        .await
    });
}

/// R09: a route with a filter that nobody here knows stops nothing, and is none of our business when it is another's. R10: what other
/// controllers wrote into a status stays.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn r09_r10_routes_of_others() {
    on_cluster("t-others", async |space| {
        space
            .start(&[
                App::server("web", "http"),
                App::server("new", "http"),
                App::client("client"),
            ])
            .await?;
        let gateway = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: theirs}
spec:
  parentRefs: [{name: gateway}]
  rules: [{filters: [{type: CORS, cors: {allowOrigins: ['https://example.org']}}], backendRefs: [{name: web, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: split}
spec:
  parentRefs: [{name: gateway}, {group: '', kind: Service, name: web, port: 80}]
  rules: [{backendRefs: [{name: new, port: 80}]}]";
        space.apply(gateway).await?;
        let status = json!({ "status": { "parents": [{
            "parentRef": { "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gateway" },
            "controllerName": "example.org/gateway",
            "conditions": [{ "type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "observedGeneration": 1,
                "lastTransitionTime": "2026-01-01T00:00:00Z" }],
        }] } });
        let routes = "httproutes.gateway.networking.k8s.io";
        for route in ["theirs", "split"] {
            space
                .kubectl(&[
                    "patch",
                    routes,
                    route,
                    "--subresource=status",
                    "--type=merge",
                    "-p",
                    &status.to_string(),
                ])
                .await?;
        }
        until("our condition", SOON, async || {
            let accepted = condition(space, routes, "Accepted").await?;
            Ok(accepted
                .is_some_and(|(status, _)| status == "True")
                .then_some(()))
        })
        .await?;
        until("the route is in force", SOON, async || {
            let answer = space.curl("client", "http://web/").await?;
            Ok(answer.body.contains("\"new-").then_some(()))
        })
        .await?;
        // Nothing is written any more once all is said: two rounds of ten seconds.
        let version = async |route: &str| {
            let object = space.json(&[routes, route]).await?;
            let controllers: Vec<Value> = object["status"]["parents"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|parent| parent["controllerName"].clone())
                .collect();
            anyhow::Ok((object["metadata"]["resourceVersion"].clone(), controllers))
        };
        space.pause(2).await;
        let before = (version("theirs").await?, version("split").await?);
        space.pause(21).await;
        let after = (version("theirs").await?, version("split").await?);
        ensure!(before == after, "{before:?} became {after:?}");
        ensure!(after.0.1 == [json!("example.org/gateway")], "{after:?}");
        ensure!(after.1.1.len() == 2, "{after:?}");
        Ok(())
    });
}

/// R15: a client in another namespace has the producer's route from its first request, and follows a backend that comes later.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn r15_routes_of_the_producer_for_other_namespaces() {
    on_cluster("t-producer", async |space| {
        let other = format!("{}-2", space.name);
        let there = Space::existing(&other);
        let object = weft_e2e::cluster::namespace(&other, &[("linkerd.io/inject", "enabled")]);
        weft_e2e::cluster::command("kubectl", &["apply", "-f", "-"], &object.to_string()).await?;
        space
            .start(&[App::server("web", "http"), App::server("new", "http")])
            .await?;
        // Without a port: for all of them.
        let route = split("policy.linkerd.io/v1beta3")
            .replace(", port: 80}]\n  rules", "}]\n  rules")
            .replace("{name: old, port: 80, weight: 90}, ", "");
        space.apply(&route).await?;
        until("the route is accepted", SOON, async || {
            let accepted = condition(space, "httproutes.policy.linkerd.io", "Accepted").await?;
            Ok(accepted
                .is_some_and(|(status, _)| status == "True")
                .then_some(()))
        })
        .await?;
        there.start(&[App::client("client")]).await?;
        let url = format!("http://web.{}/", space.name);
        let first = there.curl("client", &url).await?;
        ensure!(
            first.body.contains("\"new-"),
            "the first answer is {first:?}"
        );
        space
            .apply(&route.replace("name: new", "name: later"))
            .await?;
        until("the missing backend fails", SOON, async || {
            Ok((there.curl("client", &url).await?.status == 500).then_some(()))
        })
        .await?;
        space.start(&[App::server("later", "http")]).await?;
        until("the backend that came", SOON, async || {
            Ok(there
                .curl("client", &url)
                .await?
                .body
                .contains("\"later-")
                .then_some(()))
        })
        .await?;
        kubectl(&["delete", "namespace", &other, "--wait=false"]).await?;
        Ok(())
    });
}
