//! Injection as the kubelet sees it: which pods get a proxy, that they start, run and end as they would without one (cases J).

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use weft_e2e::cluster::{App, Pod, SOON, Space, TOOLS, alone, kubectl, on_cluster, until};

/// A Job that runs a shell line.
fn job(name: &str, line: &str, spec: Value) -> String {
    let mut job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": { "name": name },
        "spec": {
            "backoffLimit": 0,
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 5,
                    "containers": [{ "name": "app", "image": TOOLS, "command": ["bash", "-c", line] }],
                },
            },
        },
    });
    merge(&mut job["spec"], spec);
    job.to_string()
}

fn merge(base: &mut Value, more: Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, more) => *base = more,
    }
}

/// Waits for the end of a Job: `Complete` or `Failed`.
async fn ends(space: &Space, job: &str, how: &str) -> anyhow::Result<()> {
    let (condition, job) = (format!("--for=condition={how}"), format!("job/{job}"));
    space
        .kubectl(&["wait", &condition, &job, "--timeout=60s"])
        .await
        .map(drop)
}

async fn reasons(space: &Space, object: &str) -> anyhow::Result<Vec<(String, String)>> {
    let list = space.json(&["events"]).await?;
    let events = list["items"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(events
        .iter()
        .filter(|event| event["involvedObject"]["name"] == object)
        .map(|event| (text(&event["reason"]), text(&event["message"])))
        .collect())
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn pods_are_meshed_by_namespace_or_by_pod_and_unmeshed_again() {
    on_cluster("i-inject", async |space| {
        let client = App::client;
        space
            .start(&[
                client("by-namespace"),
                client("not").annotation("linkerd.io/inject", "disabled"),
            ])
            .await?;
        let meshed = space.pod("by-namespace").await?;
        ensure!(meshed.is_meshed(), "{:?}", meshed.containers());
        ensure!(
            meshed.containers()[..2] == ["linkerd-init", "linkerd-proxy"],
            "{:?}",
            meshed.containers()
        );
        ensure!(!space.pod("not").await?.is_meshed());
        // J07: said on the owner.
        until("the Events of the Deployments", SOON, async || {
            let injected = reasons(space, "by-namespace").await?;
            let skipped = reasons(space, "not").await?;
            let has =
                |list: &[(String, String)], reason: &str| list.iter().any(|(r, _)| r == reason);
            Ok((has(&injected, "Injected") && has(&skipped, "InjectionSkipped")).then_some(()))
        })
        .await?;

        kubectl(&[
            "annotate",
            "namespace",
            &space.name,
            "--overwrite",
            "linkerd.io/inject=disabled",
        ])
        .await?;
        // The injector asks for the namespace at each request.
        space
            .start(&[
                client("by-pod").annotation("linkerd.io/inject", "enabled"),
                client("neither"),
            ])
            .await?;
        ensure!(space.pod("by-pod").await?.is_meshed());
        ensure!(!space.pod("neither").await?.is_meshed());
        // Uninject: the annotation is off, and a restart is without the proxy.
        space.restart("by-namespace").await?;
        ensure!(!space.pod("by-namespace").await?.is_meshed());
        Ok(())
    });
}

/// What cannot be meshed is left alone, and said (J07, J06).
#[test]
#[ignore = "needs a cluster: make e2e"]
fn j06_j07_unusual_pods() {
    on_cluster("i-unusual", async |space| {
        space
            .start(&[
                App::client("host").pod("/hostNetwork", json!(true)),
                App::client("no-token").pod("/automountServiceAccountToken", json!(false)),
                App::client("shared").pod("/shareProcessNamespace", json!(true)),
            ])
            .await?;
        ensure!(!space.pod("host").await?.is_meshed());
        until("the Event about the host's network", SOON, async || {
            let said = reasons(space, "host").await?;
            Ok(said
                .iter()
                .any(|(reason, text)| reason == "InjectionSkipped" && text.contains("host"))
                .then_some(()))
        })
        .await?;
        // The token of the mesh is a volume of its own.
        for app in ["no-token", "shared"] {
            ensure!(space.pod(app).await?.is_meshed(), "{app}");
        }
        // An owner of a kind that nobody knows; only a generated name.
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "generateName": "orphan-", "labels": { "app": "orphan" },
                "ownerReferences": [{ "apiVersion": "x.example/v1", "kind": "Foo", "name": "foo", "uid": "8b2bdf0c-0000-4000-8000-000000000000" }],
            },
            "spec": { "terminationGracePeriodSeconds": 1, "containers": [{ "name": "app", "image": TOOLS }] },
        });
        weft_e2e::cluster::command(
            "kubectl",
            &["create", "-n", &space.name, "-f", "-"],
            &pod.to_string(),
        )
        .await?;
        // The garbage collector may remove it, since its owner is not there; what counts is what was created.
        let pods = space.pods("orphan").await?;
        ensure!(pods.iter().all(Pod::is_meshed), "not meshed");
        Ok(())
    });
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn j01_jobs_end_as_without_a_proxy() {
    on_cluster("i-jobs", async |space| {
        space.start(&[App::server("web", "http")]).await?;
        let call = "curl -sf -m 5 -o /dev/null http://web/";
        space.apply(&job("good", call, json!({}))).await?;
        space
            .apply(&job("bad", &format!("{call}; exit 1"), json!({})))
            .await?;
        space
            .apply(&job(
                "three",
                call,
                json!({ "parallelism": 3, "completions": 3 }),
            ))
            .await?;
        let again =
            json!({ "backoffLimit": 1, "template": { "spec": { "restartPolicy": "OnFailure" } } });
        space.apply(&job("again", "exit 1", again)).await?;
        let short = json!({ "activeDeadlineSeconds": 8 });
        space
            .apply(&job("short", "exec sleep infinity", short))
            .await?;
        for name in ["good", "three"] {
            ends(space, name, "complete").await?;
        }
        for name in ["bad", "again", "short"] {
            ends(space, name, "failed").await?;
        }
        let pods = space.pods("good").await?;
        let pod = pods.first().context("the pod of the Job")?;
        ensure!(pod.is_meshed());
        // The proxy ends by itself, and well.
        let code = pod
            .status("linkerd-proxy")
            .map(|s| &s["state"]["terminated"]["exitCode"]);
        ensure!(code == Some(&json!(0)), "the proxy's exit code: {code:?}");

        let cron = json!({
            "apiVersion": "batch/v1", "kind": "CronJob", "metadata": { "name": "cron" },
            "spec": { "schedule": "0 0 1 1 *", "jobTemplate": { "spec": { "template": { "spec": {
                "restartPolicy": "Never", "containers": [{ "name": "app", "image": TOOLS, "command": ["bash", "-c", call] }],
            } } } } },
        });
        space.apply(&cron.to_string()).await?;
        space
            .kubectl(&["create", "job", "by-cron", "--from=cronjob/cron"])
            .await?;
        ends(space, "by-cron", "complete").await
    });
}

/// J02: the proxy is before the init containers of the user, in whichever order they are. J03: an application that calls at once and
/// gives up is answered.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn j02_j03_the_network_is_there_from_the_first_moment() {
    on_cluster("i-first", async |space| {
        space.start(&[App::server("web", "http")]).await?;
        let call = "curl -sf -m 5 -o /dev/null http://web/";
        let init = json!({ "template": { "spec": { "initContainers": [
            { "name": "one", "image": TOOLS, "command": ["bash", "-c", call] },
            { "name": "two", "image": TOOLS, "command": ["bash", "-c", call] },
        ] } } });
        space.apply(&job("init", call, init)).await?;
        let classic = json!({ "template": { "metadata": { "annotations": {
            "config.linkerd.io/proxy-enable-native-sidecar": "false",
            "config.linkerd.io/proxy-admin-shutdown": "enabled",
        } } } });
        // Without a native sidecar the Job ends the proxy itself (J18).
        let line = format!(
            "{call}; code=$?; curl -sf -X POST -o /dev/null http://localhost:4191/shutdown; exit $code"
        );
        space.apply(&job("classic", &line, classic)).await?;
        ends(space, "init", "complete").await?;
        ends(space, "classic", "complete").await?;
        let pods = space.pods("classic").await?;
        let first = pods.first().context("the pod of the Job")?;
        ensure!(
            first.containers()[..2] == ["linkerd-init", "linkerd-proxy"]
                && first.containers().len() == 3,
            "{:?}",
            first.containers()
        );
        // All of it was meshed.
        let web = space.pod("web").await?.metrics().await?;
        let came = web.sum(
            "request_total",
            &[("direction", "inbound"), ("tls", "true")],
        );
        ensure!(came >= 4.0, "{came} requests of 4");
        Ok(())
    });
}

/// J03: without an identity service the application waits, and starts by itself when there is one again.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn j03_the_application_waits_until_its_proxy_has_a_certificate() {
    alone("i-waits", async |space| {
        space.start(&[App::server("web", "http")]).await?;
        let scale = |count: &'static str| async move {
            let replicas = format!("--replicas={count}");
            kubectl(&[
                "-n",
                "linkerd",
                "scale",
                "deployment/linkerd-identity",
                &replicas,
            ])
            .await
        };
        scale("0").await?;
        let result = async {
            // It goes on serving while it ends.
            let identity = "--selector=linkerd.io/control-plane-component=identity";
            kubectl(&[
                "-n",
                "linkerd",
                "wait",
                "--for=delete",
                "--timeout=60s",
                "pod",
                identity,
            ])
            .await?;
            let call = "curl -sf -m 5 -o /dev/null http://web/";
            space.apply(&job("waits", call, json!({}))).await?;
            let started = until("the proxy of the pod", SOON, async || {
                let pods = space.pods("waits").await?;
                let pod = pods.into_iter().next();
                let running = |pod: &Pod| {
                    pod.status("linkerd-proxy")
                        .is_some_and(|status| status["state"]["running"].is_object())
                };
                Ok(pod.filter(running))
            })
            .await?;
            space.pause(10).await;
            let pods = space.pods("waits").await?;
            let pod = pods.first().context("the pod of the Job")?;
            ensure!(pod.name == started.name, "another pod: it was given up");
            let waits = pod
                .status("app")
                .is_none_or(|status| status["state"]["waiting"].is_object());
            ensure!(
                waits,
                "the application has started: {:?}",
                pod.status("app")
            );
            Ok(())
        }
        .await;
        scale("1").await?;
        result?;
        ends(space, "waits", "complete").await
    });
}

/// J18: a sidecar that the kubelet does not end, in a pod without a program that could, is ended by its own.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn j18_the_program_in_the_proxys_container_ends_it() {
    on_cluster("i-shutdown", async |space| {
        let classic = |shutdown: &str| {
            json!({ "template": { "metadata": { "annotations": {
                "config.linkerd.io/proxy-enable-native-sidecar": "false",
                "config.linkerd.io/proxy-admin-shutdown": shutdown,
            } } } })
        };
        space
            .apply(&job("ends", "exit 0", classic("enabled")))
            .await?;
        space
            .apply(&job("stays", "exit 0", classic("disabled")))
            .await?;
        let done = async |name: &str| {
            until("the end of the application", SOON, async || {
                let pods = space.pods(name).await?;
                let pod = pods.into_iter().next();
                let ended = |pod: &Pod| {
                    pod.status("app")
                        .is_some_and(|status| status["state"]["terminated"].is_object())
                };
                Ok(pod.filter(ended))
            })
            .await
        };
        let shutdown = async |pod: &Pod| {
            let command = [
                "exec",
                &pod.name,
                "-c",
                "linkerd-proxy",
                "--",
                "/usr/bin/weft",
                "shutdown",
            ];
            space.kubectl(&command).await
        };
        shutdown(&done("ends").await?).await?;
        ends(space, "ends", "complete").await?;
        let Err(refused) = shutdown(&done("stays").await?).await else {
            anyhow::bail!("a proxy was ended that does not allow it");
        };
        ensure!(
            format!("{refused:#}").contains("proxy-admin-shutdown: enabled"),
            "{refused:#}"
        );
        Ok(())
    });
}

/// J13: the user of the proxy is the namespace's to say, and the rules follow.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn j13_the_namespace_says_which_user_the_proxy_has() {
    on_cluster("i-user", async |space| {
        let user = "config.linkerd.io/proxy-uid=1000810001";
        kubectl(&["annotate", "namespace", &space.name, user]).await?;
        space
            .start(&[App::server("web", "http"), App::client("client")])
            .await?;
        ensure!(space.curl("client", "http://web/").await?.status == 200);
        let pod = space.pod("web").await?;
        let proxy = pod.object["spec"]["initContainers"]
            .as_array()
            .and_then(|list| list.iter().find(|c| c["name"] == "linkerd-proxy"))
            .context("a proxy")?;
        ensure!(
            proxy["securityContext"]["runAsUser"] == 1_000_810_001,
            "{proxy}"
        );
        let came = pod.metrics().await?.sum(
            "request_total",
            &[("direction", "inbound"), ("tls", "true")],
        );
        ensure!(came == 1.0, "{came} requests of 1");
        Ok(())
    });
}

/// J05, J10: values that are no values are ignored, and unusual ones arrive as they are.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn j05_j10_annotations() {
    on_cluster("i-annotations", async |space| {
        let level = "warn,linkerd[name=\"a\\b\"]=debug";
        let bad = App::client("bad")
            .annotation("config.linkerd.io/proxy-cpu-limit", "200mm")
            .annotation("config.linkerd.io/inbound-port", "99999")
            .annotation("config.linkerd.io/shutdown-grace-period", "5 parsecs")
            .annotation("config.linkerd.io/unknown", "x");
        let good = App::client("good")
            .annotation("config.linkerd.io/proxy-log-level", level)
            .annotation("config.linkerd.io/proxy-cpu-request", "15m")
            .annotation("config.linkerd.io/proxy-memory-limit", "100Mi")
            .annotation(
                "config.linkerd.io/proxy-additional-env",
                r#"[{"name":"A","value":"$(_pod_ns) \n ü $$(X)"}]"#,
            );
        space.start(&[bad, good]).await?;
        ensure!(space.pod("bad").await?.is_meshed());
        until("an Event about the bad annotations", SOON, async || {
            let said = reasons(space, "bad").await?;
            let all: String = said.iter().map(|(_, text)| text.as_str()).collect();
            Ok((all.contains("proxy-cpu-limit") && all.contains("inbound-port")).then_some(()))
        })
        .await?;
        let pod = space.pod("good").await?;
        let proxy = pod.object["spec"]["initContainers"]
            .as_array()
            .and_then(|list| list.iter().find(|c| c["name"] == "linkerd-proxy"))
            .context("a proxy")?
            .clone();
        let value = |name: &str| {
            let list = proxy["env"].as_array().cloned().unwrap_or_default();
            list.iter()
                .find(|v| v["name"] == name)
                .map(|v| v["value"].clone())
        };
        let log = value("LINKERD2_PROXY_LOG").unwrap_or_default();
        ensure!(
            log.as_str().is_some_and(|log| log.starts_with(level)),
            "{log}"
        );
        ensure!(
            value("A") == Some(json!("$(_pod_ns) \n ü $$(X)")),
            "{:?}",
            value("A")
        );
        ensure!(
            proxy["resources"]["requests"]["cpu"] == "15m"
                && proxy["resources"]["limits"]["memory"] == "100Mi"
        );
        Ok(())
    });
}

/// D19: what stands at the namespace is passed on to Services and pods.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn d19_opaque_ports_of_a_service() {
    on_cluster("i-services", async |space| {
        let opaque = "config.linkerd.io/opaque-ports";
        kubectl(&[
            "annotate",
            "namespace",
            &space.name,
            &format!("{opaque}=3306, 8080-8090"),
        ])
        .await?;
        space
            .start(&[App::server("web", "http"), App::client("client")])
            .await?;
        let service = space.json(&["service", "web"]).await?;
        ensure!(
            service["metadata"]["annotations"][opaque] == "3306, 8080-8090",
            "{}",
            service["metadata"]
        );
        // Bytes, for both proxies.
        ensure!(space.curl("client", "http://web/").await?.status == 200);
        let web = space.pod("web").await?.metrics().await?;
        let of = |family: &str| web.sum(family, &[("direction", "inbound"), ("tls", "true")]);
        ensure!(
            of("request_total") == 0.0 && of("tcp_open_total") > 0.0,
            "requests were seen"
        );
        Ok(())
    });
}

/// J17: an ephemeral container is meshed as the rest of its pod, and the webhook lets it be.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn j17_debug_containers() {
    on_cluster("i-debug", async |space| {
        space
            .start(&[App::server("web", "http"), App::client("client")])
            .await?;
        let pod = space.pod("client").await?.name;
        let image = format!("--image={TOOLS}");
        space
            .kubectl(&[
                "debug",
                &pod,
                &image,
                "--container=look",
                "--profile=general",
                "--",
                "curl",
                "-sf",
                "-m",
                "5",
                "http://web/",
            ])
            .await?;
        until("the debug container's answer", SOON, async || {
            let said = space.kubectl(&["logs", &pod, "-c", "look"]).await?;
            Ok(said.contains("\"web-").then_some(()))
        })
        .await?;
        let web = space.pod("web").await?.metrics().await?;
        ensure!(
            web.sum(
                "request_total",
                &[("direction", "inbound"), ("tls", "true")]
            ) == 1.0
        );
        Ok(())
    });
}

/// The proxy and the application's containers fit the Pod Security level "restricted" but for the init container's two capabilities,
/// which "privileged" allows; with a CNI plugin there is no such container (J13).
#[test]
#[ignore = "needs a cluster: make e2e"]
fn j13_only_the_init_container_needs_more_than_restricted() {
    on_cluster("i-restricted", async |space| {
        kubectl(&[
            "label",
            "namespace",
            &space.name,
            "pod-security.kubernetes.io/warn=restricted",
        ])
        .await?;
        let context = json!({
            "allowPrivilegeEscalation": false, "runAsNonRoot": true, "runAsUser": 1000,
            "capabilities": { "drop": ["ALL"] }, "seccompProfile": { "type": "RuntimeDefault" },
        });
        let client = App::client("client").pod("/containers/0/securityContext", context);
        space.start(&[client]).await?;
        let pod = space.pod("client").await?;
        let name = pod.name.clone();
        let mut object = pod.object.clone();
        object["metadata"] = json!({ "name": format!("{name}-2"), "labels": { "linkerd.io/control-plane-component": "none" } });
        object["status"] = Value::Null;
        // As it was injected, created again past the webhook, only to hear what Pod Security says of it.
        let args = ["create", "--dry-run=server", "-n", &space.name, "-f", "-"];
        kubectl(&[
            "label",
            "namespace",
            &space.name,
            "pod-security.kubernetes.io/enforce=restricted",
            "--overwrite",
        ])
        .await?;
        let said = match weft_e2e::cluster::command("kubectl", &args, &object.to_string()).await {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        };
        ensure!(
            said.contains("linkerd-init") && said.contains("NET_ADMIN"),
            "{said}"
        );
        ensure!(
            !said.contains("linkerd-proxy\""),
            "the proxy violates the level: {said}"
        );
        let list = object["spec"]["initContainers"]
            .as_array_mut()
            .context("init containers")?;
        list.retain(|container| container["name"] != "linkerd-init");
        weft_e2e::cluster::command("kubectl", &args, &object.to_string()).await?;
        Ok(())
    });
}
