//! Owns a service `web` of several replicas for tests of what becomes of requests while replicas and parts of the mesh
//! come, go and fail: the manifests, requests that are timed, and load. Lets nothing fail itself.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::http2::Client2;
use crate::manifests::Manifests;
use crate::net::Net;
use crate::node::Node;
use crate::wire::{Message, Wire};
use crate::{eventually, peers};

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A GET request of `web`.
pub fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: web\r\n\r\n")
}

/// Sends a GET request and waits for its answer.
///
/// # Errors
/// None comes.
pub async fn fetch(wire: &mut Wire, path: &str) -> anyhow::Result<Message> {
    wire.send(get(path)).await?;
    wire.message().await
}

/// The status of a GET request on a connection of its own, and how long it took.
///
/// # Errors
/// No answer comes within 10 s.
pub async fn timed(from: &Node, to: &str) -> anyhow::Result<(u16, Duration)> {
    let started = Instant::now();
    let mut wire = from.connect(to).await?.patient(PATIENCE);
    let answer = fetch(&mut wire, "/").await?;
    Ok((answer.head.status(), started.elapsed()))
}

/// `client`, Service `web`, and so many replicas: `web-1` and on.
pub fn web(replicas: u32) -> Manifests {
    let start = Manifests::default()
        .service("web", &[(80, 8080)])
        .pod("client", &[]);
    (1..=replicas).fold(start, |manifests, number| {
        manifests.pod(&format!("web-{number}"), &[8080])
    })
}

/// Starts so many replicas, each an HTTP server that says its name.
///
/// # Errors
/// Those of the mesh.
pub async fn replicas(net: &Net, count: u32) -> anyhow::Result<Vec<Node>> {
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
///
/// # Errors
/// One does not within 10 s, or a request fails.
pub async fn all_answer(client: &Node, count: usize) -> anyhow::Result<()> {
    let mut seen = BTreeMap::new();
    eventually("all replicas answer", PATIENCE, async || {
        let mut wire = client.connect("web:80").await?;
        *seen
            .entry(server(&fetch(&mut wire, "/").await?)?)
            .or_insert(0) += 1;
        Ok((seen.len() == count).then_some(()))
    })
    .await
}

/// Which replica answered.
///
/// # Errors
/// The answer is no replica's.
pub fn server(message: &Message) -> anyhow::Result<String> {
    let seen: serde_json::Value =
        serde_json::from_slice(&message.body).with_context(|| message.text())?;
    Ok(seen["server"]
        .as_str()
        .context("the server says its name")?
        .to_owned())
}

/// Requests all the time, HTTP/1 on some connections and HTTP/2 on one.
pub struct Load {
    tasks: JoinSet<anyhow::Result<BTreeMap<String, u32>>>,
    stop: watch::Sender<bool>,
}

impl Load {
    /// Begins, with so many connections of HTTP/1.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn start(client: &Node, to: &str, connections: u32) -> anyhow::Result<Self> {
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
        let (http2, stopped) = (
            Client2::start(client.connect(to).await?).await?,
            stop.subscribe(),
        );
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

    /// Ends it; how many requests each replica answered.
    ///
    /// # Errors
    /// A request failed.
    pub async fn stop(mut self) -> anyhow::Result<BTreeMap<String, u32>> {
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
///
/// # Errors
/// One uses more than 2 % of a processor.
pub async fn idle(nodes: &[&Node]) -> anyhow::Result<()> {
    const TIME: Duration = Duration::from_secs(2);
    let mut before = Vec::new();
    for node in nodes {
        before.push(node.proxy_cpu().await?);
    }
    sleep(TIME).await;
    for (node, before) in nodes.iter().zip(before) {
        let used = node.proxy_cpu().await?.saturating_sub(before);
        // Of 10 ms each is what the kernel counts.
        ensure!(
            used <= TIME / 50,
            "the idle proxy of {} used {used:?} in {TIME:?}",
            node.ip()
        );
    }
    Ok(())
}

/// An EndpointSlice of `web` with these of its replicas, by number from 1. With it, only these are endpoints.
pub fn slice(nodes: &[Node], numbers: &[usize]) -> String {
    let endpoint = |number: &usize| {
        let ip = nodes[number - 1].ip();
        format!(
            "{{addresses: [{ip}], targetRef: {{kind: Pod, name: web-{number}, namespace: demo}}}}"
        )
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
