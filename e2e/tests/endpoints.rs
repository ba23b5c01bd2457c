//! Which endpoints get requests while sets of endpoints, routes and applications change, and what happens without any.
//! Case ids are those of the list of real-world faults.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::time::{Instant, sleep, timeout};
use weft_e2e::replicas::{Load, all_answer, fetch, get, idle, replicas, server, slice, timed, web};
use weft_e2e::{Node, eventually, mesh, peers};

const SECOND: Duration = Duration::from_secs(1);
/// What "at once" means on a machine that does other things too.
const AT_ONCE: Duration = Duration::from_millis(500);

#[test]
fn endpoints_that_change_every_100_ms_under_load_fail_no_request() {
    mesh(web(4), async |net| {
        let client = net.start("client").await?;
        let nodes = replicas(net, 4).await?;
        net.apply("slice.yaml", &slice(&nodes, &[1, 2, 3, 4]))?;
        all_answer(&client, 4).await?;
        let load = Load::start(&client, "web:80", 6).await?;
        let sets: [&[usize]; 6] = [&[1], &[2, 3], &[4, 1, 2], &[3], &[4], &[1, 2, 3, 4]];
        let (started, mut round) = (Instant::now(), 0);
        while started.elapsed() < 10 * SECOND {
            net.apply("slice.yaml", &slice(&nodes, sets[round % sets.len()]))?;
            round += 1;
            sleep(Duration::from_millis(100)).await;
        }
        let counts = load
            .stop()
            .await
            .with_context(|| format!("after {round} changes"))?;
        ensure!(
            counts.len() == 5 && counts.values().all(|count| *count > 50),
            "{counts:?}"
        );
        let labels = [("backend_name", "web"), ("op", "Remove")];
        let removed = client
            .metrics()
            .await?
            .sum("outbound_http_balancer_p2c_updates_total", &labels);
        ensure!(
            removed > 20.0,
            "the changes have reached the proxy: {removed}"
        );
        idle(&[&client, &nodes[0]]).await
    });
}

#[test]
fn an_empty_set_of_endpoints_is_empty_and_other_services_are_left_alone() {
    // L07
    let other = web(2).service("other", &[(80, 8080)]).pod("other", &[8080]);
    mesh(other, async |net| {
        let (client, other) = (net.start("client").await?, net.start("other").await?);
        let nodes = replicas(net, 2).await?;
        peers::http(other.listen(8080).await?, "other");
        net.apply("slice.yaml", &slice(&nodes, &[1, 2]))?;
        all_answer(&client, 2).await?;
        let load = Load::start(&client, "other:80", 1).await?;
        let mut kept = client.connect("web:80").await?.patient(10 * SECOND);
        assert_eq!(fetch(&mut kept, "/").await?.head.status(), 200);
        net.apply("slice.yaml", &slice(&nodes, &[]))?;
        sleep(SECOND).await;
        assert_eq!(
            fetch(&mut kept, "/").await?.head.status(),
            504,
            "a connection from before"
        );
        let (status, took) = timed(&client, "web:80").await?;
        assert!(status == 504 && took < AT_ONCE, "{status} after {took:?}");
        let more = ["a", "b"].map(|name| {
            format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: demo}}\nspec: {{ports: [{{port: 1}}]}}")
        });
        net.apply("more.yaml", &more.join("\n---\n"))?;
        net.apply("slice.yaml", &slice(&nodes, &[2]))?;
        let back = Instant::now();
        let again = async || Ok((timed(&client, "web:80").await?.0 == 200).then_some(()));
        eventually("it is served again", 5 * SECOND, again).await?;
        ensure!(
            back.elapsed() < SECOND,
            "only {:?} after the endpoints",
            back.elapsed()
        );
        let counts = load.stop().await.context("requests to the other service")?;
        assert!(counts["other"] > 100, "{counts:?}");
        idle(&[&client, &nodes[0]]).await
    });
}

#[test]
fn without_endpoints_a_request_waits_3_s_and_the_next_fails_at_once() {
    mesh(web(1), async |net| {
        let (client, web) = (net.start("client").await?, net.start("web-1").await?);
        let mut wire = client.connect("web:80").await?.patient(10 * SECOND);
        let started = Instant::now();
        let answer = fetch(&mut wire, "/").await?;
        let took = started.elapsed();
        assert_eq!(answer.head.status(), 504, "{answer:?}");
        assert!(
            answer
                .head
                .field("l5d-proxy-error")
                .is_some_and(|why| why.contains("web.demo")),
            "{answer:?}"
        );
        ensure!(
            took > 2 * SECOND && took < 5 * SECOND,
            "failed after {took:?}"
        );
        for _ in 0..20 {
            let (status, took) = timed(&client, "web:80").await?;
            assert!(status == 504 && took < AT_ONCE, "{status} after {took:?}");
            sleep(Duration::from_millis(200)).await;
        }
        peers::http(web.listen(8080).await?, "web-1");
        let listens = Instant::now();
        let served = async || Ok((timed(&client, "web:80").await?.0 == 200).then_some(()));
        eventually("requests succeed", 5 * SECOND, served).await?;
        ensure!(
            listens.elapsed() < SECOND,
            "only {:?} after the endpoint came",
            listens.elapsed()
        );
        for _ in 0..50 {
            assert_eq!(timed(&client, "web:80").await?.0, 200);
        }
        idle(&[&client, &web]).await
    });
}

#[test]
fn a_request_that_waits_is_served_as_soon_as_an_endpoint_comes() {
    mesh(web(1), async |net| {
        let (client, web) = (net.start("client").await?, net.start("web-1").await?);
        let mut wire = client.connect("web:80").await?;
        wire.send(get("/")).await?;
        wire.silent(SECOND).await?;
        peers::http(web.listen(8080).await?, "web-1");
        let answer = timeout(SECOND, wire.message())
            .await
            .context("not within 1 s")??;
        assert_eq!(answer.head.status(), 200);
        Ok(())
    });
}

#[test]
fn l10_while_the_application_is_not_listening_requests_fail_fast_and_soon_succeed_afterwards() {
    mesh(web(1), async |net| {
        let (client, web) = (net.start("client").await?, net.start("web-1").await?);
        peers::http(web.listen(8081).await?, "another port");
        // An endpoint from now on, whatever the application does.
        drop(web.listen(8080).await?);
        net.apply("slice.yaml", &slice(std::slice::from_ref(&web), &[1]))?;
        let refused = async || Ok((timed(&client, "web:80").await?.0 == 502).then_some(()));
        eventually("the endpoint is known", 10 * SECOND, refused).await?;
        let closed = Instant::now();
        while closed.elapsed() < 4 * SECOND {
            let (status, took) = timed(&client, "web:80").await?;
            assert!(status == 502 && took < AT_ONCE, "{status} after {took:?}");
            sleep(Duration::from_millis(20)).await;
        }
        peers::http(web.listen(8080).await?, "web-1");
        let open = Instant::now();
        let served = async || Ok((timed(&client, "web:80").await?.0 == 200).then_some(()));
        eventually("requests succeed", 5 * SECOND, served).await?;
        ensure!(
            open.elapsed() < SECOND,
            "only {:?} after the port opened",
            open.elapsed()
        );
        for _ in 0..50 {
            assert_eq!(timed(&client, "web:80").await?.0, 200);
        }
        idle(&[&client, &web]).await
    });
}

fn weights(first: u32, second: u32) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: canary, namespace: demo}}
spec:
  parentRefs: [{{group: '', kind: Service, name: web, port: 80}}]
  rules:
  - backendRefs:
    - {{name: one, port: 80, weight: {first}}}
    - {{name: two, port: 80, weight: {second}}}"
    )
}

async fn shares(client: &Node, requests: u32) -> anyhow::Result<BTreeMap<String, u32>> {
    let (mut wire, mut counts) = (client.connect("web:80").await?, BTreeMap::new());
    for number in 0..requests {
        let answer = fetch(&mut wire, "/").await?;
        ensure!(answer.head.status() == 200, "request {number}: {answer:?}");
        *counts.entry(server(&answer)?).or_default() += 1;
    }
    Ok(counts)
}

#[test]
fn a_route_divides_requests_by_weight() {
    let services = web(0)
        .service("one", &[(80, 8080)])
        .service("two", &[(80, 8080)]);
    let all = services
        .pod("one", &[8080])
        .pod("two", &[8080])
        .yaml(&weights(90, 10));
    mesh(all, async |net| {
        let client = net.start("client").await?;
        let (one, two) = (net.start("one").await?, net.start("two").await?);
        peers::http(one.listen(8080).await?, "one");
        let ready = async || Ok((timed(&client, "one:80").await?.0 == 200).then_some(()));
        eventually("one backend is ready", 5 * SECOND, ready).await?;
        // L02: a backend without endpoints delays nobody, what is ready takes its share (contract 4.2).
        let started = Instant::now();
        let counts = shares(&client, 100).await?;
        assert_eq!(
            counts.into_iter().collect::<Vec<_>>(),
            [("one".to_owned(), 100)]
        );
        ensure!(
            started.elapsed() < 2 * SECOND,
            "100 requests took {:?}",
            started.elapsed()
        );
        peers::http(two.listen(8080).await?, "two");
        let used = async || Ok((shares(&client, 20).await?.len() == 2).then_some(()));
        eventually("the other backend is used", SECOND, used).await?;
        // 100 of 1000 with a standard deviation of 9.5.
        let share = shares(&client, 1000).await?["two"];
        ensure!(
            (55..=145).contains(&share),
            "{share} of 1000 by a weight of 10 %"
        );
        idle(&[&client, &one]).await
    });
}

#[test]
fn requests_that_wait_for_two_backends_take_the_one_that_comes_first() {
    let services = web(0)
        .service("one", &[(80, 8080)])
        .service("two", &[(80, 8080)]);
    let all = services
        .pod("one", &[8080])
        .pod("two", &[8080])
        .yaml(&weights(1, 1));
    mesh(all, async |net| {
        let (client, one) = (net.start("client").await?, net.start("one").await?);
        let mut wires = Vec::new();
        for _ in 0..8 {
            let mut wire = client.connect("web:80").await?;
            wire.send(get("/")).await?;
            wires.push(wire);
        }
        wires[0].silent(SECOND).await?;
        peers::http(one.listen(8080).await?, "one");
        for wire in &mut wires {
            let answer = timeout(SECOND, wire.message())
                .await
                .context("not within 1 s")??;
            assert_eq!(
                (answer.head.status(), server(&answer)?),
                (200, "one".to_owned())
            );
        }
        idle(&[&client, &one]).await
    });
}

#[test]
fn a_backend_that_does_not_exist_fails_its_share_and_no_more() {
    let all = web(0)
        .service("one", &[(80, 8080)])
        .pod("one", &[8080])
        .yaml(&weights(3, 1));
    mesh(all, async |net| {
        let (client, one) = (net.start("client").await?, net.start("one").await?);
        peers::http(one.listen(8080).await?, "one");
        let served = async || Ok((timed(&client, "one:80").await?.0 == 200).then_some(()));
        eventually("the backend is ready", 5 * SECOND, served).await?;
        let mut counts = BTreeMap::<u16, u32>::new();
        for _ in 0..400 {
            let (status, took) = timed(&client, "web:80").await?;
            assert!(took < AT_ONCE, "{status} after {took:?}");
            *counts.entry(status).or_default() += 1;
        }
        // 100 with a standard deviation of 8.7.
        let failed = counts.remove(&500).unwrap_or_default();
        ensure!(
            (60..=140).contains(&failed),
            "{failed} of 400 failed with 500"
        );
        assert_eq!(counts.into_keys().collect::<Vec<_>>(), [200]);
        Ok(())
    });
}

#[test]
fn a_route_changes_live() {
    let services = web(0)
        .service("one", &[(80, 8080)])
        .service("two", &[(80, 8080)]);
    mesh(
        services.pod("one", &[8080]).pod("two", &[8080]),
        async |net| {
            let client = net.start("client").await?;
            let (one, two) = (net.start("one").await?, net.start("two").await?);
            peers::http(one.listen(8080).await?, "one");
            peers::http(two.listen(8080).await?, "two");
            for (first, second, only) in [(1, 0, "one"), (0, 1, "two"), (1, 0, "one")] {
                net.apply("route.yaml", &weights(first, second))?;
                let changed = async || {
                    let mut wire = client.connect("web:80").await?.patient(10 * SECOND);
                    let answer = fetch(&mut wire, "/").await?;
                    Ok((answer.head.status() == 200 && server(&answer)? == only).then_some(()))
                };
                eventually("all goes to one", 10 * SECOND, changed).await?;
                let counts = shares(&client, 100).await?;
                assert_eq!(
                    counts.into_iter().collect::<Vec<_>>(),
                    [(only.to_owned(), 100)]
                );
            }
            idle(&[&client, &one, &two]).await
        },
    );
}
