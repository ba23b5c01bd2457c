//! Owns looking at pods of a test: their state, the metrics of their proxies, commands in them, and HTTP from this machine, which has a
//! route to pods and Services and is not meshed.

use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::{SOON, Space, until};
use crate::Samples;

/// Longest time of one HTTP request.
const LIMIT: Duration = Duration::from_secs(10);

/// What the demo's load says of itself; see `weft_cli::demo::apps::Count`.
pub use weft_cli::demo::apps::Count;

/// An HTTP answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: String,
}

/// GET from this machine to `HOST:PORT`.
///
/// # Errors
/// There is no answer in time.
pub async fn get(addr: &str, path: &str) -> anyhow::Result<Answer> {
    let exchange = async {
        let stream = TcpStream::connect(addr).await?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let request = http::Request::get(path)
            .header("host", addr)
            .body(Empty::<Bytes>::new())?;
        let answer = sender.send_request(request).await?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await?.to_bytes();
        connection.abort();
        anyhow::Ok(Answer {
            status,
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    };
    timeout(LIMIT, exchange)
        .await
        .with_context(|| format!("GET {addr}{path}: no answer within {LIMIT:?}"))?
        .with_context(|| format!("GET {addr}{path}"))
}

/// A pod as it was when it was asked for.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its address; empty before it has one.
    pub ip: String,
    /// All of it.
    pub object: Value,
}

impl Pod {
    fn new(object: Value) -> Self {
        let text = |pointer: &str| {
            let value = object.pointer(pointer).and_then(Value::as_str);
            value.unwrap_or_default().to_owned()
        };
        Pod {
            name: text("/metadata/name"),
            ip: text("/status/podIP"),
            object,
        }
    }

    /// Names of all containers, init containers first.
    pub fn containers(&self) -> Vec<&str> {
        ["/spec/initContainers", "/spec/containers"]
            .iter()
            .filter_map(|pointer| self.object.pointer(pointer)?.as_array())
            .flatten()
            .filter_map(|container| container["name"].as_str())
            .collect()
    }

    /// Whether it has a proxy.
    pub fn is_meshed(&self) -> bool {
        self.containers().contains(&"linkerd-proxy")
    }

    /// The status of a container.
    pub fn status(&self, container: &str) -> Option<&Value> {
        ["/status/initContainerStatuses", "/status/containerStatuses"]
            .iter()
            .filter_map(|pointer| self.object.pointer(pointer)?.as_array())
            .flatten()
            .find(|status| status["name"] == container)
    }

    /// What containerd calls a container.
    ///
    /// # Errors
    /// It does not run.
    pub fn container_id(&self, container: &str) -> anyhow::Result<String> {
        self.status(container)
            .and_then(|status| {
                status["containerID"]
                    .as_str()?
                    .strip_prefix("containerd://")
            })
            .map(str::to_owned)
            .with_context(|| format!("{} has no container {container}", self.name))
    }

    /// How often a container was started again.
    pub fn restarts(&self, container: &str) -> u64 {
        self.status(container)
            .and_then(|status| status["restartCount"].as_u64())
            .unwrap_or_default()
    }

    /// The metrics of its proxy.
    ///
    /// # Errors
    /// The admin port does not give them.
    pub async fn metrics(&self) -> anyhow::Result<Samples> {
        let answer = get(&format!("{}:4191", self.ip), "/metrics").await?;
        ensure!(answer.status == 200, "{}: {answer:?}", self.name);
        Samples::parse(&answer.body)
    }
}

impl Space {
    /// The pods of an [`super::App`] that are not ending.
    ///
    /// # Errors
    /// See [`super::command`].
    pub async fn pods(&self, app: &str) -> anyhow::Result<Vec<Pod>> {
        self.pods_by(&format!("app={app}")).await
    }

    /// The pods with a label that are not ending.
    ///
    /// # Errors
    /// See [`super::command`].
    pub async fn pods_by(&self, selector: &str) -> anyhow::Result<Vec<Pod>> {
        let list = self.json(&["pods", "-l", selector]).await?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        Ok(items
            .into_iter()
            .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
            .map(Pod::new)
            .collect())
    }

    /// The only pod of an [`super::App`].
    ///
    /// # Errors
    /// There is none, or several.
    pub async fn pod(&self, app: &str) -> anyhow::Result<Pod> {
        let mut pods = self.pods(app).await?;
        ensure!(pods.len() == 1, "{app} has {} pods", pods.len());
        pods.pop().context("there is one")
    }

    /// Runs a command in a pod of a Deployment; gives its output.
    ///
    /// # Errors
    /// It fails.
    pub async fn exec(&self, app: &str, command: &[&str]) -> anyhow::Result<String> {
        let target = format!("deployment/{app}");
        let args = ["exec", &target, "-c", "app", "--"];
        self.kubectl(&[&args, command].concat()).await
    }

    /// GET by curl from a pod of a Deployment; a connection that fails has the status 0.
    ///
    /// # Errors
    /// The pod cannot be reached.
    pub async fn curl(&self, app: &str, url: &str) -> anyhow::Result<Answer> {
        // The exit code of curl is in the status, so that kubectl's own failures are told apart.
        let shell =
            ": >/tmp/body; curl -s -m 10 -o /tmp/body -w '%{http_code}\\n' \"$0\"; cat /tmp/body";
        let output = self.exec(app, &["bash", "-c", shell, url]).await?;
        let (status, body) = output.split_once('\n').context("curl said nothing")?;
        Ok(Answer {
            status: status.parse()?,
            body: body.to_owned(),
        })
    }

    /// What a load counts now.
    ///
    /// # Errors
    /// Its pod says nothing.
    pub async fn count(&self, load: &str) -> anyhow::Result<Count> {
        let pod = self.pod(load).await?.name;
        let text = self
            .kubectl(&["logs", &pod, "-c", "app", "--tail=1"])
            .await?;
        serde_json::from_str(text.trim()).with_context(|| format!("{pod} says {text:?}"))
    }

    /// Waits until a load has had `more` further answers, and until it had any at all; none may have failed.
    ///
    /// # Errors
    /// One failed, or they do not come in time.
    pub async fn answered(&self, load: &str, more: u64) -> anyhow::Result<Count> {
        let first = until("a first count", SOON, async || {
            Ok(self.count(load).await.ok())
        })
        .await?;
        let last = until("more answers", SOON, async || {
            let now = self.count(load).await?;
            Ok((now.requests >= first.requests + more).then_some(now))
        })
        .await?;
        ensure!(
            last.failed == 0,
            "{} of {} requests failed: {:?}",
            last.failed,
            last.requests,
            last.reasons
        );
        Ok(last)
    }

    /// The address of a Service.
    ///
    /// # Errors
    /// See [`super::command`].
    pub async fn cluster_ip(&self, service: &str) -> anyhow::Result<String> {
        let path = "jsonpath={.spec.clusterIP}";
        self.kubectl(&["get", "service", service, "-o", path]).await
    }

    /// Waits, for what has no other sign.
    pub async fn pause(&self, seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
    }
}
