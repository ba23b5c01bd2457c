//! Owns `Ports`: for each inbound port its policy, watched while it is in use (contract 3.1).
//! Does not enforce it.

use super::policy::ServerPolicy;
use crate::control::stream::{self, Event, Watch};
use crate::error::Error;
use crate::settings;
use linkerd2_proxy_api::inbound::PortSpec;
use linkerd2_proxy_api::inbound::inbound_server_policies_client::InboundServerPoliciesClient;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;
use tonic::transport::Channel;
use weft_core::name::PortSet;

/// Ports watched at the same time that no setting names: a scan of all ports must not open a
/// stream for each.
const MAX_UNNAMED_PORTS: usize = 512;

/// Knows the policies of ports.
pub struct Ports {
    client: InboundServerPoliciesClient<Channel>,
    settings: settings::Policy,
    /// Ports that are opaque until policy says otherwise.
    opaque: PortSet,
    watch: Watch,
    entries: Arc<Mutex<HashMap<u16, Arc<Entry>>>>,
}

struct Entry {
    policy: watch::Receiver<Arc<ServerPolicy>>,
    /// Watched from the start and never forgotten.
    pinned: bool,
    last_used: Mutex<Instant>,
    _watch: AbortOnDropHandle<()>,
}

/// A port in use; its policy stays up to date.
pub struct Port {
    entry: Arc<Entry>,
    changes: Mutex<watch::Receiver<Arc<ServerPolicy>>>,
}

impl Drop for Port {
    fn drop(&mut self) {
        *self.entry.last_used.lock() = Instant::now();
    }
}

impl Port {
    /// The policy now.
    pub fn policy(&self) -> Arc<ServerPolicy> {
        self.entry.policy.borrow().clone()
    }

    /// Resolves when the policy has changed since the last call, or since the port was taken.
    pub async fn changed(&self) {
        let mut changes = self.changes.lock().clone();
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        *self.changes.lock() = changes;
    }
}

impl Ports {
    /// Watches `pinned` from now on; other ports when they are used, until `idle` after that.
    pub fn new(
        client: InboundServerPoliciesClient<Channel>,
        settings: settings::Policy,
        opaque: PortSet,
        pinned: impl IntoIterator<Item = u16>,
        idle: Duration,
        watch: Watch,
    ) -> Self {
        let this = Self {
            client,
            settings,
            opaque,
            watch,
            entries: Arc::default(),
        };
        for port in pinned {
            let entry = this.start(port, true);
            this.entries.lock().insert(port, entry);
        }
        tokio::spawn(forget(Arc::downgrade(&this.entries), idle));
        this
    }

    /// The policy of a port.
    ///
    /// # Errors
    /// Load shed, when too many ports are in use that no setting names.
    pub fn port(&self, port: u16) -> Result<Port, Error> {
        let entry = self.entry(port)?;
        Ok(Port {
            changes: Mutex::new(entry.policy.clone()),
            entry,
        })
    }

    fn entry(&self, port: u16) -> Result<Arc<Entry>, Error> {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get(&port) {
            return Ok(entry.clone());
        }
        let unnamed = entries.values().filter(|e| !e.pinned).count();
        if unnamed >= MAX_UNNAMED_PORTS {
            expire(&mut entries, Duration::ZERO);
        }
        if entries.values().filter(|e| !e.pinned).count() >= MAX_UNNAMED_PORTS {
            return Err(Error::LoadShed {
                what: "inbound ports in use".into(),
                limit: MAX_UNNAMED_PORTS,
            });
        }
        let entry = self.start(port, false);
        entries.insert(port, entry.clone());
        Ok(entry)
    }

    fn start(&self, port: u16, pinned: bool) -> Arc<Entry> {
        let default = ServerPolicy::default(
            self.settings.default,
            &self.settings.cluster_networks,
            self.opaque.contains(port),
        );
        let (tx, policy) = watch::channel(Arc::new(default));
        let client = self.client.clone();
        let query = PortSpec {
            workload: self.settings.workload.clone(),
            port: u32::from(port),
        };
        let watch = Watch {
            what: format!("policy of inbound port {port}"),
            terminal: &[Code::InvalidArgument, Code::FailedPrecondition],
            ..self.watch.clone()
        };
        let task = tokio::spawn(async move {
            let mut before = None;
            let open = || {
                let (mut client, query) = (client.clone(), query.clone());
                stream::opening(async move { client.watch_port(query).await })
            };
            let status = stream::watch(&watch, open, |event| {
                if let Event::Message(server) = event
                    && before.as_ref() != Some(&server)
                {
                    before = Some(server.clone());
                    tx.send_replace(Arc::new(ServerPolicy::read(server)));
                }
            })
            .await;
            tracing::error!(watch = %watch.what, code = ?status.code(), error = status.message(),
                "the control plane refuses: what was known stays in force");
            // The entry stays, with what it knows.
            std::future::pending::<()>().await;
        });
        Arc::new(Entry {
            policy,
            pinned,
            last_used: Mutex::new(Instant::now()),
            _watch: AbortOnDropHandle::new(task),
        })
    }
}

async fn forget(entries: Weak<Mutex<HashMap<u16, Arc<Entry>>>>, idle: Duration) {
    let period = (idle / 4).clamp(Duration::from_millis(100), Duration::from_secs(5));
    loop {
        tokio::time::sleep(period).await;
        match entries.upgrade() {
            Some(entries) => expire(&mut entries.lock(), idle),
            None => return,
        }
    }
}

fn expire(entries: &mut HashMap<u16, Arc<Entry>>, idle: Duration) {
    let now = Instant::now();
    entries.retain(|_, entry| {
        entry.pinned
            || Arc::strong_count(entry) > 1
            || now.duration_since(*entry.last_used.lock()) < idle
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const IDLE: Duration = Duration::from_secs(90);

    fn ports() -> Ports {
        Ports::new(
            InboundServerPoliciesClient::new(testing::dead_channel()),
            testing::settings(&[("INBOUND_DEFAULT_POLICY", "deny")]).policy,
            [25].into_iter().collect(),
            [8080],
            IDLE,
            testing::watch(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_control_plane_the_default_policy_holds() {
        let ports = ports();
        let policy = ports.port(8080).unwrap().policy();
        assert_eq!(&*policy.server.name, "deny");
        let opaque = ports.port(25).unwrap().policy();
        assert_eq!(opaque.protocol, super::super::policy::Protocol::Opaque);
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_is_forgotten_after_its_last_use_but_not_one_that_settings_name() {
        let ports = ports();
        let used = ports.port(9000).unwrap();
        drop(ports.port(9001).unwrap());
        let known = |port| ports.entries.lock().contains_key(&port);
        tokio::time::sleep(IDLE - Duration::from_secs(1)).await;
        assert!(known(9001));
        tokio::time::sleep(Duration::from_secs(7)).await;
        assert!(!known(9001));
        assert!(known(9000), "it is in use");
        assert!(known(8080), "a setting names it");
        drop(used);
        tokio::time::sleep(IDLE + Duration::from_secs(6)).await;
        assert!(!known(9000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_scan_of_all_ports_does_not_open_a_stream_for_each() {
        let ports = ports();
        let held: Vec<_> = (10_000..).map_while(|p| ports.port(p).ok()).collect();
        assert_eq!(held.len(), MAX_UNNAMED_PORTS);
        assert!(ports.port(8080).is_ok());
        drop(held);
        assert!(ports.port(9999).is_ok(), "unused ports make room");
    }
}
