//! Policy on a cluster: Servers and who may call them, also while that changes; probes; what webhooks and definitions refuse.

use anyhow::ensure;
use serde_json::{Value, json};
use weft_e2e::cluster::{App, SOON, Space, get, kubectl, on_cluster, until};

/// A Server for the port 8080 of an app, without any authorization.
fn server(app: &str) -> String {
    format!(
        "
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {{name: {app}}}
spec: {{podSelector: {{matchLabels: {{app: {app}}}}}, port: 8080, proxyProtocol: HTTP/1}}
---"
    )
}

/// An AuthorizationPolicy for a target by ServiceAccount.
fn allow(target: (&str, &str), account: &str) -> String {
    let (kind, name) = target;
    format!(
        "
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {{name: {name}-{account}}}
spec:
  targetRef: {{group: policy.linkerd.io, kind: {kind}, name: {name}}}
  requiredAuthenticationRefs: [{{kind: ServiceAccount, name: {account}}}]
---"
    )
}

/// Waits until a call from a client has a status; 0 is no answer.
async fn answers(space: &Space, client: &str, url: &str, status: u16) -> anyhow::Result<()> {
    until(&format!("{client} → {url}: {status}"), SOON, async || {
        let answer = space.curl(client, url).await?;
        if answer.status == status {
            return Ok(Some(()));
        }
        anyhow::bail!("{answer:?}")
    })
    .await
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn default_deny_and_an_authorization_by_service_account_change_live() {
    on_cluster("t-policy", async |space| {
        space
            .start(&[
                App::server("web", "http"),
                App::client("friend"),
                App::client("stranger"),
            ])
            .await?;
        for client in ["friend", "stranger"] {
            answers(space, client, "http://web/", 200).await?;
        }
        space.apply(&server("web")).await?;
        for client in ["friend", "stranger"] {
            answers(space, client, "http://web/", 403).await?;
        }
        space.apply(&allow(("Server", "web"), "friend")).await?;
        answers(space, "friend", "http://web/", 200).await?;
        ensure!(space.curl("stranger", "http://web/").await?.status == 403);
        // Not meshed, so nobody in particular.
        let pod = space.pod("web").await?;
        ensure!(get(&format!("{}:8080", pod.ip), "/").await?.status == 403);
        let denied = pod.metrics().await?.sum(
            "inbound_http_authz_deny_total",
            &[("srv_name", "web"), ("srv_kind", "server")],
        );
        ensure!(denied > 0.0, "no denial is counted");
        space
            .kubectl(&["delete", "authorizationpolicy", "web-friend"])
            .await?;
        answers(space, "friend", "http://web/", 403).await?;
        space
            .kubectl(&["delete", "servers.policy.linkerd.io", "web"])
            .await?;
        answers(space, "stranger", "http://web/", 200).await?;
        // The pod stayed ready all the time: the kubelet's probe is a TCP connection to the port.
        ensure!(space.pod("web").await?.restarts("app") == 0);
        Ok(())
    });
}

/// Probes of all forms that R01 names, in a namespace where nobody may connect.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn r01_r03_probes_pass_under_default_deny() {
    on_cluster("t-probes", async |space| {
        let web = |name: &str, probes: [Value; 3]| {
            let [startup, readiness, liveness] = probes;
            App::server(name, "http")
                .annotation("config.linkerd.io/default-inbound-policy", "deny")
                .pod(
                    "/containers/0/ports",
                    json!([{ "containerPort": 8080, "name": "web" }]),
                )
                .pod("/containers/0/startupProbe", startup)
                .pod("/containers/0/readinessProbe", readiness)
                .pod("/containers/0/livenessProbe", liveness)
        };
        let probe = |path: &str, port: Value| json!({ "httpGet": { "path": path, "port": port }, "periodSeconds": 1, "failureThreshold": 10 });
        space
            .start(&[
                web(
                    "query",
                    [
                        probe("/start%20up", json!("web")),
                        probe("/health?full=1", json!(8080)),
                        probe("/live", json!("web")),
                    ],
                ),
                web(
                    "relative",
                    [
                        probe("start", json!(8080)),
                        probe("health", json!("web")),
                        probe("/", json!(8080)),
                    ],
                ),
                App::client("client"),
            ])
            .await?;
        space.pause(5).await;
        for app in ["query", "relative"] {
            let pod = space.pod(app).await?;
            ensure!(pod.restarts("app") == 0, "{app} was started again");
        }
        // Whatever is no probe stays denied, and so is a probe's path with another method.
        let pod = space.pod("query").await?;
        let addr = format!("{}:8080", pod.ip);
        ensure!(get(&addr, "/health").await?.status == 200);
        ensure!(get(&addr, "/other").await?.status == 403);
        ensure!(get(&addr, "/health/more").await?.status == 403);
        let url = format!("http://{addr}/other");
        ensure!(space.curl("client", &url).await?.status == 403);
        Ok(())
    });
}

/// R02: an application that redirects a probe to the same path with a slash at its end, in a namespace where nobody may connect.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn r02_a_probe_that_is_redirected_to_the_path_with_a_slash() {
    on_cluster("t-slash", async |space| {
        let probe = |path: &str| json!({ "httpGet": { "path": path, "port": 8080 }, "periodSeconds": 1, "failureThreshold": 5 });
        space
            .start(&[App::server("web", "slash")
                .annotation("config.linkerd.io/default-inbound-policy", "deny")
                .pod("/containers/0/readinessProbe", probe("/health"))
                .pod("/containers/0/livenessProbe", probe("/health"))])
            .await?;
        space.pause(8).await;
        let pod = space.pod("web").await?;
        ensure!(
            pod.restarts("app") == 0,
            "the application was started again"
        );
        let addr = format!("{}:8080", pod.ip);
        ensure!(get(&addr, "/health").await?.status == 301);
        ensure!(get(&addr, "/health/").await?.status == 200);
        ensure!(get(&addr, "/health/more").await?.status == 403);
        ensure!(get(&addr, "/").await?.status == 403);
        Ok(())
    });
}

/// Each with a part of what must be said.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn r11_r14_what_cannot_work_is_refused_with_a_sentence() {
    on_cluster("t-refused", async |space| {
        let object = |api: &str, kind: &str, spec: &str| {
            format!("apiVersion: {api}\nkind: {kind}\nmetadata: {{name: x}}\nspec: {spec}\n")
        };
        let policy = |kind: &str, spec: &str| object("policy.linkerd.io/v1alpha1", kind, spec);
        for (bad, said) in [
            // Definitions.
            (
                object(
                    "policy.linkerd.io/v1beta3",
                    "Server",
                    "{podSelector: {}, port: 8080, proxyProtocol: HTTP/9}",
                ),
                "proxyProtocol",
            ),
            (
                object("policy.linkerd.io/v1beta3", "Server", "{port: 8080}"),
                "podSelector",
            ),
            (policy("MeshTLSAuthentication", "{}"), "identit"),
            // Webhooks.
            (
                policy("NetworkAuthentication", "{networks: [{cidr: 10.0.0.0/99}]}"),
                "10.0.0.0/99",
            ),
            (
                policy(
                    "AuthorizationPolicy",
                    "{targetRef: {group: policy.linkerd.io, kind: Server, name: w}, requiredAuthenticationRefs: [{kind: NetworkAuthentication, name: x}]}",
                ),
                "policy.linkerd.io",
            ),
            (
                policy(
                    "AuthorizationPolicy",
                    "{targetRef: {group: apps, kind: Deployment, name: w}, requiredAuthenticationRefs: []}",
                ),
                "the target is a Server",
            ),
            (
                object(
                    "linkerd.io/v1alpha2",
                    "ServiceProfile",
                    "{routes: [{name: a, condition: {}}]}",
                ),
                "condition",
            ),
        ] {
            let answer = space.refused(&bad).await?;
            ensure!(answer.contains(said), "{said:?} is not in {answer}");
        }
        // The message of R11 names the group that is missing; and what is right is taken.
        space
            .apply(&policy(
                "NetworkAuthentication",
                "{networks: [{cidr: 10.0.0.0/8, except: [10.0.1.0/24]}, {cidr: 'fd00::/8'}]}",
            ))
            .await?;
        space.apply(&server("web")).await?;
        space.apply(&allow(("Server", "web"), "friend")).await?;
        space
            .apply(&policy("MeshTLSAuthentication", "{identities: ['*']}"))
            .await?;
        Ok(())
    });
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn the_definitions_are_served() {
    on_cluster("t-crds", async |_| {
        for name in [
            "servers.policy.linkerd.io",
            "serverauthorizations.policy.linkerd.io",
            "authorizationpolicies.policy.linkerd.io",
            "meshtlsauthentications.policy.linkerd.io",
            "networkauthentications.policy.linkerd.io",
            "httproutes.policy.linkerd.io",
            "egressnetworks.policy.linkerd.io",
            "httplocalratelimitpolicies.policy.linkerd.io",
            "serviceprofiles.linkerd.io",
            "externalworkloads.workload.linkerd.io",
        ] {
            kubectl(&[
                "wait",
                "--for=condition=established",
                "--timeout=10s",
                "crd",
                name,
            ])
            .await?;
            // Structural: the API server found nothing wrong with the schemas.
            let wrong = "jsonpath={.status.conditions[?(@.type==\"NonStructuralSchema\")].message}";
            let wrong = kubectl(&["get", "crd", name, "-o", wrong]).await?;
            ensure!(wrong.is_empty(), "{name}: {wrong}");
        }
        Ok(())
    });
}

/// A condition of an object, as `STATUS REASON`, and its message; empty while there is none.
async fn condition(space: &Space, object: &[&str], kind: &str) -> anyhow::Result<(String, String)> {
    let object = space.json(object).await?;
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.into_iter().flatten().find(|c| c["type"] == kind);
    let Some(found) = found else {
        return Ok(Default::default());
    };
    ensure!(
        found["observedGeneration"] == object["metadata"]["generation"],
        "{found} is about another generation of {object}"
    );
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Ok((
        format!("{} {}", text("status"), text("reason")),
        text("message"),
    ))
}

/// Waits until an object has a condition, `STATUS REASON`, whose message names something.
async fn says(
    space: &Space,
    object: &[&str],
    kind: &str,
    wanted: &str,
    named: &str,
) -> anyhow::Result<()> {
    until(
        &format!("{object:?}: {kind} is {wanted}"),
        SOON,
        async || {
            let (condition, message) = condition(space, object, kind).await?;
            ensure!(
                condition == wanted && message.contains(named),
                "{condition} {message:?}"
            );
            Ok(Some(()))
        },
    )
    .await
}

const SERVERS: &str = "servers.policy.linkerd.io";

/// R05: the oldest Server of a port wins, whatever the names. R07: a policy outlives its Server.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn r05_r07_servers_that_overlap_and_that_come_back() {
    on_cluster("t-overlap", async |space| {
        space
            .start(&[App::server("web", "http"), App::client("friend")])
            .await?;
        space.apply(&server("web")).await?;
        space.apply(&allow(("Server", "web"), "friend")).await?;
        answers(space, "friend", "http://web/", 200).await?;
        ensure!(
            get(&format!("{}:8080", space.pod("web").await?.ip), "/")
                .await?
                .status
                == 403
        );
        // Creation times have seconds.
        space.pause(2).await;
        let younger = server("web").replace("name: web}", "name: a-younger}");
        space.apply(&younger).await?;
        let (winner, loser) = ([SERVERS, "web"], [SERVERS, "a-younger"]);
        let named = format!("Server {}/web", space.name);
        says(space, &loser, "Accepted", "False Conflicted", &named).await?;
        says(space, &winner, "Accepted", "True Accepted", "").await?;
        answers(space, "friend", "http://web/", 200).await?;
        space
            .kubectl(&["delete", "servers.policy.linkerd.io", "a-younger", "web"])
            .await?;
        let addr = format!("{}:8080", space.pod("web").await?.ip);
        until("nobody is asked who they are", SOON, async || {
            Ok((get(&addr, "/").await?.status == 200).then_some(()))
        })
        .await?;
        space.apply(&server("web")).await?;
        until("strangers are refused again", SOON, async || {
            Ok((get(&addr, "/").await?.status == 403).then_some(()))
        })
        .await?;
        answers(space, "friend", "http://web/", 200).await
    });
}

/// R06: selectors by expressions, as Kubernetes means them.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn r06_selectors_by_expressions() {
    on_cluster("t-selectors", async |space| {
        space
            .start(&[
                App::server("one", "http"),
                App::server("two", "http"),
                App::client("client"),
            ])
            .await?;
        for (operator, values, denied) in [
            ("In", "[one]", ["one"].as_slice()),
            ("NotIn", "[one, client]", &["two"]),
            ("Exists", "[]", &["one", "two"]),
        ] {
            let values = if values == "[]" {
                String::new()
            } else {
                format!(", values: {values}")
            };
            let server = format!(
                "
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {{name: some}}
spec:
  podSelector: {{matchExpressions: [{{key: app, operator: {operator}{values}}}]}}
  port: 8080
  accessPolicy: deny"
            );
            space.apply(&server).await?;
            for app in ["one", "two"] {
                let status = if denied.contains(&app) { 403 } else { 200 };
                answers(space, "client", &format!("http://{app}/"), status).await?;
            }
        }
        Ok(())
    });
}

/// R19: a reference that leads nowhere lets nobody in; audit lets them pass and counts it.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn r19_a_dangling_reference_denies_and_audit_does_not() {
    on_cluster("t-dangling", async |space| {
        space
            .start(&[App::server("web", "http"), App::client("friend")])
            .await?;
        space.apply(&server("web")).await?;
        let dangling = allow(("Server", "web"), "friend").replace(
            "{kind: ServiceAccount, name: friend}",
            "{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: nowhere}",
        );
        space.apply(&dangling).await?;
        answers(space, "friend", "http://web/", 403).await?;
        let (policy, web) = (["authorizationpolicy", "web-friend"], [SERVERS, "web"]);
        let missing = "False AuthenticationNotFound";
        says(space, &policy, "Accepted", "True Accepted", "").await?;
        says(space, &policy, "ResolvedRefs", missing, "nowhere").await?;
        says(space, &web, "ResolvedRefs", "True ResolvedRefs", "").await?;
        let nowhere = "
apiVersion: policy.linkerd.io/v1alpha1
kind: MeshTLSAuthentication
metadata: {name: nowhere}
spec: {identities: ['*']}";
        space.apply(nowhere).await?;
        answers(space, "friend", "http://web/", 200).await?;
        says(space, &policy, "ResolvedRefs", "True ResolvedRefs", "").await?;
        let elsewhere = dangling.replace("kind: Server, name: web}", "kind: Server, name: wbe}");
        space.apply(&elsewhere).await?;
        says(space, &policy, "Accepted", "False NoMatchingTarget", "wbe").await?;
        // A port by a name that no pod has.
        let named = server("typo").replace("port: 8080", "port: htpp");
        let named = named.replace("app: typo", "app: web");
        space.apply(&named).await?;
        let typo = [SERVERS, "typo"];
        says(space, &typo, "ResolvedRefs", "False PortNotFound", "htpp").await?;
        space.kubectl(&["delete", SERVERS, "typo"]).await?;
        let audit = server("web").replace(
            "proxyProtocol: HTTP/1",
            "proxyProtocol: HTTP/1, accessPolicy: audit",
        );
        space
            .kubectl(&["delete", "authorizationpolicy", "--all"])
            .await?;
        space.apply(&audit).await?;
        answers(space, "friend", "http://web/", 200).await
    });
}
