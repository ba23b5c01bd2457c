//! Traffic while parts of the mesh fail, end or change: what may fail does so alone and at once, and nothing else does.
//! Case ids are those of the list of real-world faults.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sys::signal::{Signal, kill};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use weft_e2e::{Client2, Head, Listener, Manifests, Message, Net, Node, Wire, eventually, mesh, peers};

const SECOND: Duration = Duration::from_secs(1);
/// What "at once" means on a machine that does other things too.
const AT_ONCE: Duration = Duration::from_millis(500);
/// Neither HTTP nor TLS, and long enough to tell.
const PING: &[u8] = b"\0no protocol at all";

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: web\r\n\r\n")
}

async fn fetch(wire: &mut Wire, path: &str) -> anyhow::Result<Message> {
    wire.send(get(path)).await?;
    wire.message().await
}

/// The status on a connection of its own, and how long it took.
async fn timed(from: &Node, to: &str) -> anyhow::Result<(u16, Duration)> {
    let started = Instant::now();
    let mut wire = from.connect(to).await?.patient(10 * SECOND);
    let answer = fetch(&mut wire, "/").await?;
    Ok((answer.head.status(), started.elapsed()))
}

/// A client of `web` and so many replicas.
fn manifests(replicas: u32) -> Manifests {
    let start = Manifests::default().service("web", &[(80, 8080)]).pod("client", &[]);
    (1..=replicas).fold(start, |manifests, number| manifests.pod(&format!("web-{number}"), &[8080]))
}

async fn replicas(net: &Net, count: u32) -> anyhow::Result<Vec<Node>> {
    let mut nodes = Vec::new();
    for number in 1..=count {
        let name = format!("web-{number}");
        let node = net.start(&name).await?;
        peers::http(node.listen(8080).await?, &name);
        nodes.push(node);
    }
    Ok(nodes)
}

/// Waits until each of so many replicas has answered.
async fn all_answer(client: &Node, count: usize) -> anyhow::Result<()> {
    let mut seen = BTreeMap::new();
    eventually("all replicas answer", 10 * SECOND, async || {
        let mut wire = client.connect("web:80").await?;
        *seen.entry(server(&fetch(&mut wire, "/").await?)?).or_insert(0) += 1;
        Ok((seen.len() == count).then_some(()))
    })
    .await
}

/// Which replica answered.
fn server(message: &Message) -> anyhow::Result<String> {
    let seen: serde_json::Value = serde_json::from_slice(&message.body).with_context(|| message.text())?;
    Ok(seen["server"].as_str().context("the server says its name")?.to_owned())
}

/// Requests all the time, HTTP/1 on some connections and HTTP/2 on one.
struct Load {
    tasks: JoinSet<anyhow::Result<BTreeMap<String, u32>>>,
    stop: watch::Sender<bool>,
}

impl Load {
    async fn start(client: &Node, to: &str, connections: u32) -> anyhow::Result<Self> {
        let (mut tasks, stop) = (JoinSet::new(), watch::Sender::new(false));
        for _ in 0..connections {
            let (mut wire, stopped) = (client.connect(to).await?, stop.subscribe());
            tasks.spawn(async move {
                let mut counts = BTreeMap::new();
                while !*stopped.borrow() {
                    let answer = fetch(&mut wire, "/").await?;
                    ensure!(answer.head.status() == 200, "{answer:?}");
                    *counts.entry(server(&answer)?).or_default() += 1;
                    sleep(Duration::from_millis(2)).await;
                }
                Ok(counts)
            });
        }
        let (http2, stopped) = (Client2::start(client.connect(to).await?).await?, stop.subscribe());
        tasks.spawn(async move {
            let mut counts = BTreeMap::new();
            while !*stopped.borrow() {
                let answer = http2.get("http://web/").await.context("HTTP/2")?;
                ensure!(answer.status() == 200, "HTTP/2: {answer:?}");
                *counts.entry("by HTTP/2".to_owned()).or_default() += 1;
                sleep(Duration::from_millis(2)).await;
            }
            Ok(counts)
        });
        Ok(Load { tasks, stop })
    }

    /// Ends it; how many requests each server answered. An error if any request failed.
    async fn stop(mut self) -> anyhow::Result<BTreeMap<String, u32>> {
        self.stop.send_replace(true);
        let mut sum = BTreeMap::new();
        while let Some(counts) = self.tasks.join_next().await {
            for (server, count) in counts?? {
                *sum.entry(server).or_default() += count;
            }
        }
        Ok(sum)
    }
}

/// T18: after whatever has happened, proxies that have nothing to do do nothing.
async fn idle(nodes: &[&Node]) -> anyhow::Result<()> {
    const TIME: Duration = Duration::from_secs(2);
    let mut before = Vec::new();
    for node in nodes {
        before.push(node.proxy_cpu().await?);
    }
    sleep(TIME).await;
    for (node, before) in nodes.iter().zip(before) {
        let used = node.proxy_cpu().await?.saturating_sub(before);
        // Of 10 ms each is what the kernel counts.
        ensure!(used <= TIME / 50, "the idle proxy of {} used {used:?} in {TIME:?}", node.ip());
    }
    Ok(())
}

/// An EndpointSlice of `web` with these of its replicas, by number from 1.
fn endpoints(nodes: &[Node], numbers: &[usize]) -> String {
    let endpoint = |number: &usize| {
        let ip = nodes[number - 1].ip();
        format!("{{addresses: [{ip}], targetRef: {{kind: Pod, name: web-{number}, namespace: demo}}}}")
    };
    let list: Vec<String> = numbers.iter().map(endpoint).collect();
    format!(
        "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-x, namespace: demo, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
endpoints: [{}]
ports: [{{name: p80, port: 8080}}]",
        list.join(", ")
    )
}

const DENY: &str = "
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web, namespace: demo}
spec: {podSelector: {matchLabels: {app: web}}, port: 8080}";

#[test]
fn a_control_plane_that_is_killed_and_comes_back_fails_no_request() {
    mesh(manifests(2), async |net| {
        let client = net.start("client").await?;
        let nodes = replicas(net, 2).await?;
        all_answer(&client, 2).await?;
        let load = Load::start(&client, "web:80", 4).await?;
        // For longer than the proxies keep what nobody uses: it is started again each second, and killed again.
        let (away, mut killed) = (Instant::now(), 0);
        while away.elapsed() < 7 * SECOND {
            if let Some(pid) = net.control_pid()? {
                kill(pid, Signal::SIGKILL)?;
                killed += 1;
            }
            sleep(Duration::from_millis(20)).await;
            let (status, took) = timed(&client, "web:80").await?;
            assert!(status == 200 && took < SECOND, "{status} after {took:?} without control plane");
        }
        ensure!(killed >= 3, "killed {killed} times");
        let counts = load.stop().await.context("requests while the control plane was away")?;
        assert_eq!(counts.len(), 3, "{counts:?}");
        // And it is heard again.
        let load = Load::start(&client, "web:80", 2).await?;
        eventually("the control plane is back", 5 * SECOND, async || net.control_pid()).await?;
        sleep(SECOND).await;
        load.stop().await.context("requests while the control plane came back")?;
        net.apply("deny.yaml", DENY)?;
        let denied = async || Ok((timed(&client, "web:80").await?.0 == 403).then_some(()));
        eventually("a policy that is new is in force", 15 * SECOND, denied).await?;
        net.remove("deny.yaml")?;
        let allowed = async || Ok((timed(&client, "web:80").await?.0 == 200).then_some(()));
        eventually("it is gone again", 5 * SECOND, allowed).await?;
        idle(&[&client, &nodes[0]]).await
    });
}

#[test]
fn endpoints_that_change_every_100_ms_under_load_fail_no_request() {
    mesh(manifests(4), async |net| {
        let client = net.start("client").await?;
        let nodes = replicas(net, 4).await?;
        net.apply("slice.yaml", &endpoints(&nodes, &[1, 2, 3, 4]))?;
        all_answer(&client, 4).await?;
        let load = Load::start(&client, "web:80", 6).await?;
        let sets: [&[usize]; 6] = [&[1], &[2, 3], &[4, 1, 2], &[3], &[4], &[1, 2, 3, 4]];
        let (started, mut round) = (Instant::now(), 0);
        while started.elapsed() < 10 * SECOND {
            net.apply("slice.yaml", &endpoints(&nodes, sets[round % sets.len()]))?;
            round += 1;
            sleep(Duration::from_millis(100)).await;
        }
        let counts = load.stop().await.with_context(|| format!("after {round} changes"))?;
        ensure!(counts.len() == 5 && counts.values().all(|count| *count > 50), "{counts:?}");
        let labels = [("backend_name", "web"), ("op", "Remove")];
        let removed = client.metrics().await?.sum("outbound_http_balancer_p2c_updates_total", &labels);
        ensure!(removed > 20.0, "the changes have reached the proxy: {removed}");
        idle(&[&client, &nodes[0]]).await
    });
}

#[test]
fn an_empty_set_of_endpoints_is_empty_and_other_services_are_left_alone() {
    // L07
    let other = manifests(2).service("other", &[(80, 8080)]).pod("other", &[8080]);
    mesh(other, async |net| {
        let (client, other) = (net.start("client").await?, net.start("other").await?);
        let nodes = replicas(net, 2).await?;
        peers::http(other.listen(8080).await?, "other");
        net.apply("slice.yaml", &endpoints(&nodes, &[1, 2]))?;
        all_answer(&client, 2).await?;
        let load = Load::start(&client, "other:80", 1).await?;
        let mut kept = client.connect("web:80").await?.patient(10 * SECOND);
        assert_eq!(fetch(&mut kept, "/").await?.head.status(), 200);
        net.apply("slice.yaml", &endpoints(&nodes, &[]))?;
        sleep(SECOND).await;
        assert_eq!(fetch(&mut kept, "/").await?.head.status(), 504, "a connection from before");
        let (status, took) = timed(&client, "web:80").await?;
        assert!(status == 504 && took < AT_ONCE, "{status} after {took:?}");
        let more = ["a", "b"].map(|name| {
            format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: demo}}\nspec: {{ports: [{{port: 1}}]}}")
        });
        net.apply("more.yaml", &more.join("\n---\n"))?;
        net.apply("slice.yaml", &endpoints(&nodes, &[2]))?;
        let back = Instant::now();
        let again = async || Ok((timed(&client, "web:80").await?.0 == 200).then_some(()));
        eventually("it is served again", 5 * SECOND, again).await?;
        ensure!(back.elapsed() < SECOND, "only {:?} after the endpoints", back.elapsed());
        let counts = load.stop().await.context("requests to the other service")?;
        assert!(counts["other"] > 100, "{counts:?}");
        idle(&[&client, &nodes[0]]).await
    });
}

/// Waits for a request at one of two replicas; which, and its connection.
async fn arrives(listeners: &[Listener; 2]) -> anyhow::Result<(usize, Wire, Head)> {
    let (at, mut wire) = tokio::select! {
        wire = listeners[0].accept() => (0, wire?),
        wire = listeners[1].accept() => (1, wire?),
    };
    let head = wire.head().await?;
    Ok((at, wire, head))
}

#[test]
fn a_servers_proxy_that_is_killed_fails_the_request_it_had_and_no_other() {
    mesh(manifests(2), async |net| {
        let client = net.start("client").await?;
        let nodes = [net.start("web-1").await?, net.start("web-2").await?];
        let listeners = [nodes[0].listen(8080).await?, nodes[1].listen(8080).await?];
        sleep(SECOND / 2).await;
        // One request at each: the balancer prefers whoever has none.
        let mut first = client.connect("web:80").await?;
        first.send(get("/first")).await?;
        let (at, _lost, _) = arrives(&listeners).await?;
        let mut second = client.connect("web:80").await?;
        second.send(get("/second")).await?;
        let (other, mut kept, _) = arrives(&listeners).await?;
        assert_ne!(at, other, "both requests are at one replica");

        nodes[at].signal_proxy(Signal::SIGKILL).await?;
        let failed = first.message().await?;
        assert_eq!(failed.head.status(), 502, "{failed:?}");
        assert!(failed.head.field("l5d-proxy-error").is_some());
        second.silent(SECOND / 5).await.context("the other request goes on")?;
        kept.send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok").await?;
        drop(kept);
        assert_eq!(second.message().await?.head.status(), 200);

        let [one, two] = listeners;
        peers::http(one, "web-1");
        peers::http(two, "web-2");
        for number in 0..50 {
            let (status, took) = timed(&client, "web:80").await?;
            assert!(status == 200 && took < SECOND, "{status} after {took:?}, request {number}");
        }
        all_answer(&client, 2).await.context("its proxy has been started again")?;
        idle(&[&client, &nodes[other]]).await
    });
}

#[test]
fn an_application_that_is_killed_under_weft_run_leaves_the_endpoints() {
    mesh(manifests(2), async |net| {
        let client = net.start("client").await?;
        let mut runs = Vec::new();
        for name in ["web-1", "web-2"] {
            runs.push(net.weft_run(name, &["http", "8080", name])?);
        }
        all_answer(&client, 2).await?;
        let mut flying = client.connect("web:80").await?.patient(10 * SECOND);
        flying.send(get("/?delay=5000")).await?;
        sleep(SECOND / 5).await;
        let children = runs[0].children()?;
        ensure!(children.len() == 1, "{children:?}");
        kill(children[0], Signal::SIGKILL)?;
        sleep(SECOND).await;
        for _ in 0..50 {
            let mut wire = client.connect("web:80").await?;
            let answer = fetch(&mut wire, "/").await?;
            assert_eq!((answer.head.status(), server(&answer)?), (200, "web-2".to_owned()));
        }
        let answer = flying.message().await?.head.status();
        assert!(matches!(answer, 200 | 502), "{answer}");
        let output = runs.remove(0).output(10 * SECOND).await?;
        assert_eq!(output.code, Some(137), "{output:?}");
        Ok(())
    });
}

#[test]
fn t14_a_proxy_that_drains_finishes_what_it_has_and_takes_new_connections() {
    let more = manifests(1).service("client", &[(80, 8080)]).stranger("stranger", &[]);
    let more = more.service("tcp", &[(80, 9000)]).pod("tcp", &[9000]);
    mesh(more, async |net| {
        let (client, tcp, stranger) =
            (net.start("client").await?, net.start("tcp").await?, net.start("stranger").await?);
        let web = net.start("web-1").await?;
        peers::http(web.listen(8080).await?, "web-1");
        peers::echo(tcp.listen(9000).await?);
        all_answer(&client, 1).await?;
        let addr = format!("{}:8080", web.ip());
        // Under way: a slow request by HTTP/1, one by HTTP/2, and a connection of the application that stays.
        let mut slow = client.connect("web:80").await?;
        slow.send(get("/?delay=2500")).await?;
        let http2 = Client2::start(client.connect("web:80").await?).await?;
        let slow2 = tokio::spawn(async move { http2.get("http://web/?delay=2500").await });
        let mut held = web.connect("tcp:80").await?;
        held.send(PING).await?;
        held.exactly(PING.len()).await?;
        let mut frames = Frames::start(stranger.connect(&addr).await?).await?;
        sleep(SECOND / 2).await;

        let (pid, told) = (web.proxy_pid().await?, Instant::now());
        web.signal_proxy(Signal::SIGTERM).await?;
        frames.goaway().await?;
        while told.elapsed() < 3 * SECOND {
            assert_eq!(timed(&client, "web:80").await?.0, 200, "(b) from the mesh");
            assert_eq!(timed(&stranger, &addr).await?.0, 200, "(b) from outside");
            let mut out = web.connect("tcp:80").await?;
            out.send(PING).await?;
            assert_eq!(out.exactly(PING.len()).await.context("(a) to the mesh")?, PING);
            sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(slow.message().await?.head.status(), 200);
        assert_eq!(slow2.await??.status(), 200);
        held.send(PING).await?;
        assert_eq!(held.exactly(PING.len()).await?, PING, "what was there before goes on");
        // (c) The grace period of a workload is 5 s.
        let ended = async || Ok((!std::path::Path::new(&format!("/proc/{pid}")).exists()).then_some(()));
        eventually("the proxy has ended", 10 * SECOND, ended).await?;
        let took = told.elapsed();
        ensure!(took > 4 * SECOND && took < 7 * SECOND, "ended after {took:?}");
        idle(&[&client, &tcp]).await
    });
}

/// A client's HTTP/2 connection, of which only kinds of frames are looked at.
struct Frames(Wire);

impl Frames {
    async fn start(mut wire: Wire) -> anyhow::Result<Self> {
        // Preface and empty SETTINGS.
        wire.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await?;
        Ok(Frames(wire))
    }

    async fn goaway(&mut self) -> anyhow::Result<()> {
        loop {
            let head = self.0.exactly(9).await.context("no GOAWAY comes")?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            self.0.exactly(length as usize).await?;
            if head[3] == 7 {
                return Ok(());
            }
        }
    }
}

#[test]
fn a_proxy_without_connections_ends_at_once() {
    mesh(manifests(1), async |net| {
        let client = net.start("client").await?;
        let (pid, told) = (client.proxy_pid().await?, Instant::now());
        client.signal_proxy(Signal::SIGTERM).await?;
        let ended = async || Ok((!std::path::Path::new(&format!("/proc/{pid}")).exists()).then_some(()));
        eventually("the proxy has ended", 5 * SECOND, ended).await?;
        ensure!(told.elapsed() < SECOND, "only after {:?}", told.elapsed());
        Ok(())
    });
}

#[test]
fn without_endpoints_a_request_waits_3_s_and_the_next_fails_at_once() {
    mesh(manifests(1), async |net| {
        let (client, web) = (net.start("client").await?, net.start("web-1").await?);
        let mut wire = client.connect("web:80").await?.patient(10 * SECOND);
        let started = Instant::now();
        let answer = fetch(&mut wire, "/").await?;
        let took = started.elapsed();
        assert_eq!(answer.head.status(), 504, "{answer:?}");
        assert!(answer.head.field("l5d-proxy-error").is_some_and(|why| why.contains("web.demo")), "{answer:?}");
        ensure!(took > 2 * SECOND && took < 5 * SECOND, "failed after {took:?}");
        for _ in 0..20 {
            let (status, took) = timed(&client, "web:80").await?;
            assert!(status == 504 && took < AT_ONCE, "{status} after {took:?}");
            sleep(Duration::from_millis(200)).await;
        }
        peers::http(web.listen(8080).await?, "web-1");
        let listens = Instant::now();
        let served = async || Ok((timed(&client, "web:80").await?.0 == 200).then_some(()));
        eventually("requests succeed", 5 * SECOND, served).await?;
        ensure!(listens.elapsed() < SECOND, "only {:?} after the endpoint came", listens.elapsed());
        for _ in 0..50 {
            assert_eq!(timed(&client, "web:80").await?.0, 200);
        }
        idle(&[&client, &web]).await
    });
}

#[test]
fn a_request_that_waits_is_served_as_soon_as_an_endpoint_comes() {
    mesh(manifests(1), async |net| {
        let (client, web) = (net.start("client").await?, net.start("web-1").await?);
        let mut wire = client.connect("web:80").await?;
        wire.send(get("/")).await?;
        wire.silent(SECOND).await?;
        peers::http(web.listen(8080).await?, "web-1");
        let answer = timeout(SECOND, wire.message()).await.context("not within 1 s")??;
        assert_eq!(answer.head.status(), 200);
        Ok(())
    });
}

#[test]
fn l10_while_the_application_is_not_listening_requests_fail_fast_and_soon_succeed_afterwards() {
    mesh(manifests(1), async |net| {
        let (client, web) = (net.start("client").await?, net.start("web-1").await?);
        peers::http(web.listen(8081).await?, "another port");
        // An endpoint from now on, whatever the application does.
        drop(web.listen(8080).await?);
        net.apply("slice.yaml", &endpoints(std::slice::from_ref(&web), &[1]))?;
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
        ensure!(open.elapsed() < SECOND, "only {:?} after the port opened", open.elapsed());
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
    let services = manifests(0).service("one", &[(80, 8080)]).service("two", &[(80, 8080)]);
    let all = services.pod("one", &[8080]).pod("two", &[8080]).yaml(&weights(90, 10));
    mesh(all, async |net| {
        let client = net.start("client").await?;
        let (one, two) = (net.start("one").await?, net.start("two").await?);
        peers::http(one.listen(8080).await?, "one");
        // L02: a backend without endpoints delays nobody, what is ready takes its share (contract 4.2).
        let started = Instant::now();
        let counts = shares(&client, 100).await?;
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), [("one".to_owned(), 100)]);
        ensure!(started.elapsed() < 2 * SECOND, "100 requests took {:?}", started.elapsed());
        peers::http(two.listen(8080).await?, "two");
        let used = async || Ok((shares(&client, 20).await?.len() == 2).then_some(()));
        eventually("the other backend is used", SECOND, used).await?;
        // 100 of 1000 with a standard deviation of 9.5.
        let share = shares(&client, 1000).await?["two"];
        ensure!((55..=145).contains(&share), "{share} of 1000 by a weight of 10 %");
        idle(&[&client, &one]).await
    });
}

#[test]
fn a_route_changes_live() {
    let services = manifests(0).service("one", &[(80, 8080)]).service("two", &[(80, 8080)]);
    mesh(services.pod("one", &[8080]).pod("two", &[8080]), async |net| {
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
            assert_eq!(counts.into_iter().collect::<Vec<_>>(), [(only.to_owned(), 100)]);
        }
        idle(&[&client, &one, &two]).await
    });
}
