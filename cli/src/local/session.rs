//! Owns one client of the mesh host: takes its requests in turn and ends its workload when the client has gone.

use std::sync::Arc;

use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc;

use super::control_process::State;
use super::host::{Claim, Host};
use super::protocol::{self, Reply, Request};
use super::workload::{Happening, Workload};
use super::{admin, facts};

/// Requests read ahead; clients wait for each answer, so that more than one is never there.
const AHEAD: usize = 4;

/// A client.
pub struct Session {
    host: Arc<Host>,
    workload: Option<(Workload, Claim)>,
}

impl Session {
    /// A client that has asked for nothing yet.
    pub fn new(host: Arc<Host>) -> Self {
        Session {
            host,
            workload: None,
        }
    }

    /// Serves until the client has gone, then ends its workload.
    pub async fn run(mut self, stream: UnixStream) {
        let (from, mut to) = stream.into_split();
        let (sender, mut requests) = mpsc::channel(AHEAD);
        // Read by a task of its own, since a line must not be left half read.
        let reader = tokio::spawn(async move {
            let mut from = BufReader::new(from);
            while let Ok(Some(request)) = protocol::read(&mut from).await {
                if sender.send(request).await.is_err() {
                    return;
                }
            }
        });
        self.serve(&mut requests, &mut to).await;
        reader.abort();
        self.end().await;
    }

    async fn serve(&mut self, requests: &mut mpsc::Receiver<Request>, to: &mut OwnedWriteHalf) {
        let mut control = self.host.control.watch();
        loop {
            let reply = tokio::select! {
                request = requests.recv() => match request {
                    None => return,
                    Some(Request::Start { namespace, workload }) => {
                        // A client that goes away meanwhile takes the start with it.
                        tokio::select! {
                            reply = self.start(&namespace, &workload) => reply,
                            _ = requests.recv() => return,
                        }
                    }
                    Some(request) => self.answer(request).await,
                },
                Ok(()) = control.changed() => {
                    let state = control.borrow_and_update().clone();
                    self.refresh_hosts(&state);
                    continue;
                }
                happening = look_after(&mut self.workload) => match (happening, &self.workload) {
                    (Happening::Listens, Some((workload, claim))) => {
                        claim.announce(workload.started().ip);
                        continue;
                    }
                    (Happening::Tell(reply), Some((workload, _))) => {
                        self.host.note(workload.started());
                        reply
                    }
                    (_, None) => continue,
                },
            };
            if protocol::write(to, &reply).await.is_err() {
                return;
            }
        }
    }

    async fn start(&mut self, namespace: &str, name: &str) -> Reply {
        if self.workload.is_some() {
            return Reply::Failed {
                error: "this connection has its workload already".to_owned(),
            };
        }
        match self.host.start(namespace, name).await {
            Ok((workload, claim)) => {
                let reply = Reply::Started(workload.started().clone());
                self.workload = Some((workload, claim));
                reply
            }
            Err(error) => Reply::Failed {
                error: error.to_string(),
            },
        }
    }

    async fn answer(&mut self, request: Request) -> Reply {
        match request {
            Request::Leave => {
                if let Some((_, claim)) = &self.workload {
                    claim.withdraw();
                }
                Reply::Left
            }
            Request::Stop => {
                self.end().await;
                Reply::Stopped
            }
            Request::List => Reply::Running {
                workloads: self.host.list(),
            },
            Request::Fetch {
                namespace,
                workload,
                path,
            } => self.fetch(&namespace, &workload, &path).await,
            Request::Start { .. } => Reply::Failed {
                error: "one request at a time".to_owned(),
            },
        }
    }

    async fn fetch(&self, namespace: &str, name: &str, path: &str) -> Reply {
        let Some(net) = self.host.network(namespace, name) else {
            return Reply::Failed {
                error: format!("no workload `{name}` runs in namespace `{namespace}` of this mesh"),
            };
        };
        match admin::fetch(net, path).await {
            Ok(page) => Reply::Page {
                status: page.status,
                body: page.body,
            },
            Err(error) => Reply::Failed {
                error: error.to_string(),
            },
        }
    }

    fn refresh_hosts(&self, state: &State) {
        let Some((workload, _)) = &self.workload else {
            return;
        };
        let started = workload.started();
        let text = facts::hosts(
            &state.seen,
            &started.namespace,
            &started.workload,
            started.ip,
        );
        if let Err(error) = workload.set_hosts(&text) {
            tracing::warn!(workload = started.workload, %error, "cannot write its /etc/hosts");
        }
    }

    async fn end(&mut self) {
        if let Some((workload, claim)) = self.workload.take() {
            // Others must stop sending before the proxy stops taking.
            claim.withdraw();
            workload.end().await;
        }
    }
}

/// Never returns when there is nothing to look after.
async fn look_after(workload: &mut Option<(Workload, Claim)>) -> Happening {
    match workload {
        Some((workload, _)) => match workload.look_after().await {
            Ok(happening) => happening,
            Err(error) => Happening::Tell(Reply::Failed {
                error: error.to_string(),
            }),
        },
        None => std::future::pending().await,
    }
}
