//! Owns `Balancer`: the live set of a service's endpoints, the choice among those that are ready
//! (p2c, peak-EWMA), waiting when none is, and failfast. Does not talk to the control plane.

use super::Context;
use super::endpoint::{Endpoint, LoadSettings, Metadata};
use crate::connect::ConnectError;
use crate::error::Error;
use crate::http::body::Body;
use crate::http::client::SendError;
use crate::metrics::balancer::BalancerSeries;
use crate::stream::Stream;
use http::{Request, Response};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use weft_core::balance;

/// What is balanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Traffic {
    /// Requests.
    Http,
    /// Connections.
    Tcp,
}

/// Spreads requests or connections over the endpoints of one service.
pub struct Balancer {
    /// The service, for messages and metrics: `web.default.svc.cluster.local:80`.
    name: Arc<str>,
    traffic: Traffic,
    load: LoadSettings,
    context: Arc<Context>,
    set: Mutex<Set>,
    /// Told whenever an endpoint becomes ready.
    changed: Notify,
    waiting: AtomicUsize,
    failfast: Duration,
    capacity: usize,
    metrics: BalancerSeries,
}

#[derive(Default)]
struct Set {
    all: HashMap<SocketAddr, Arc<Endpoint>>,
    /// Those of `all` that may be picked.
    ready: Vec<Arc<Endpoint>>,
    /// Nobody was ready for so long that requests are refused at once.
    shut: bool,
}

impl Balancer {
    /// A balancer that knows no endpoints yet.
    pub fn new(
        context: Arc<Context>,
        name: Arc<str>,
        traffic: Traffic,
        load: LoadSettings,
        metrics: BalancerSeries,
    ) -> Arc<Self> {
        let queue = match traffic {
            Traffic::Http => context.settings.side.http,
            Traffic::Tcp => context.settings.tcp,
        };
        Arc::new(Self {
            name,
            traffic,
            load,
            set: Mutex::default(),
            changed: Notify::new(),
            waiting: AtomicUsize::new(0),
            failfast: queue.failfast_timeout,
            capacity: queue.capacity,
            metrics,
            context,
        })
    }

    /// Whether a request would find an endpoint at once.
    pub fn is_ready(&self) -> bool {
        !self.set.lock().ready.is_empty()
    }

    /// Waits until a request would find an endpoint; `false` if there is none in time (failfast).
    pub async fn ready(&self) -> bool {
        let deadline = Instant::now() + self.failfast;
        self.pick(deadline, &mut true).await.is_ok()
    }

    /// Sends a request to an endpoint, and to another one if the first cannot be reached.
    ///
    /// # Errors
    /// Failfast, load shed, or what the endpoint's connection made of it.
    pub async fn send(
        self: &Arc<Self>,
        mut request: Box<Request<Body>>,
        started: std::time::Instant,
    ) -> Result<Response<Body>, Error> {
        self.metrics.requests.inc();
        let deadline = Instant::now() + self.failfast;
        let mut waited = false;
        loop {
            let endpoint = self.pick(deadline, &mut waited).await?;
            let pending = Pending::start(&endpoint);
            match endpoint.send(request, Some(pending), started).await {
                Ok(response) => return Ok(response),
                Err(SendError::Failed(error)) => return Err(error),
                Err(SendError::Unsent(unsent, error)) => {
                    self.unreachable(&endpoint, &error);
                    if Instant::now() >= deadline {
                        return Err(Error::Connect(error));
                    }
                    request = unsent;
                }
            }
        }
    }

    /// Connects to an endpoint, and to another one if the first cannot be reached. The value
    /// beside the stream counts the connection as in flight.
    ///
    /// # Errors
    /// Failfast or load shed.
    pub async fn connect(self: &Arc<Self>) -> Result<(Stream, Pending), Error> {
        self.metrics.requests.inc();
        let deadline = Instant::now() + self.failfast;
        let mut waited = false;
        loop {
            let endpoint = self.pick(deadline, &mut waited).await?;
            let mut pending = Pending::start(&endpoint);
            match endpoint.connector.connect(None).await {
                Ok(stream) => {
                    pending.sample();
                    return Ok((stream, pending));
                }
                Err(error) => {
                    self.unreachable(&endpoint, &error);
                    if Instant::now() >= deadline {
                        return Err(Error::Connect(Arc::new(error)));
                    }
                }
            }
        }
    }

    /// Chooses an endpoint, waiting for one until `deadline`.
    async fn pick(&self, deadline: Instant, waited: &mut bool) -> Result<Arc<Endpoint>, Error> {
        if let Some(endpoint) = self.choose() {
            if !std::mem::replace(waited, true) {
                self.metrics.wait.observe(0.0);
            }
            return Ok(endpoint);
        }
        let _place = self.queue()?;
        let from = Instant::now();
        let picked = self.wait(deadline).await;
        if !std::mem::replace(waited, true) {
            self.metrics.wait.observe(from.elapsed().as_secs_f64());
        }
        picked
    }

    async fn wait(&self, deadline: Instant) -> Result<Arc<Endpoint>, Error> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(endpoint) = self.choose() {
                return Ok(endpoint);
            }
            let shut = self.set.lock().shut;
            if shut || tokio::time::timeout_at(deadline, changed).await.is_err() {
                self.shut();
                return Err(Error::FailFast {
                    backend: self.name.clone(),
                    limit: self.failfast,
                });
            }
        }
    }

    fn choose(&self) -> Option<Arc<Endpoint>> {
        let now = std::time::Instant::now();
        let set = self.set.lock();
        let ready = &set.ready;
        let index = balance::choose(ready.len(), self.context.random(), |i| match ready.get(i) {
            Some(endpoint) => endpoint
                .load
                .lock()
                .load(endpoint.in_flight.load(Ordering::Relaxed), now),
            None => f64::INFINITY,
        })?;
        ready.get(index).cloned()
    }

    fn queue(&self) -> Result<Place<'_>, Error> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.capacity {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::LoadShed {
                what: self.name.clone(),
                limit: self.capacity,
            });
        }
        self.metrics.waiting.inc();
        Ok(Place(self))
    }

    fn shut(&self) {
        let mut set = self.set.lock();
        if set.ready.is_empty() && !std::mem::replace(&mut set.shut, true) {
            self.metrics.gate(false);
            tracing::warn!(backend = %self.name, "no endpoint is ready: failing requests at once");
        }
    }

    /// Replaces all endpoints.
    pub fn reset(&self, endpoints: Vec<(SocketAddr, Metadata)>) {
        self.metrics.reset.inc();
        let keep: HashMap<SocketAddr, ()> = endpoints.iter().map(|(a, _)| (*a, ())).collect();
        self.change(|set| set.all.retain(|addr, _| keep.contains_key(addr)));
        self.put(endpoints);
    }

    /// Adds endpoints, or changes what is known of them.
    pub fn add(&self, endpoints: Vec<(SocketAddr, Metadata)>) {
        self.metrics.added.inc();
        self.put(endpoints);
    }

    /// Removes endpoints; they get no new request.
    pub fn remove(&self, addrs: &[SocketAddr]) {
        self.metrics.removed.inc();
        self.change(|set| {
            for addr in addrs {
                set.all.remove(addr);
            }
        });
    }

    fn put(&self, endpoints: Vec<(SocketAddr, Metadata)>) {
        self.change(|set| {
            for (addr, metadata) in endpoints {
                if set.all.get(&addr).is_some_and(|e| e.metadata == metadata) {
                    continue;
                }
                let endpoint = Arc::new(Endpoint::new(
                    &self.context,
                    &self.name,
                    addr,
                    metadata,
                    self.load,
                ));
                set.ready.push(endpoint.clone());
                set.all.insert(addr, endpoint);
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut Set)) {
        let mut set = self.set.lock();
        change(&mut set);
        let Set { all, ready, shut } = &mut *set;
        ready.retain(|e| all.get(&e.addr).is_some_and(|now| Arc::ptr_eq(now, e)));
        if !ready.is_empty() && std::mem::take(shut) {
            self.metrics.gate(true);
        }
        self.metrics.endpoints(ready.len(), all.len());
        drop(set);
        self.changed.notify_waiters();
    }

    /// Takes an endpoint out of the choice until it can be reached again.
    fn unreachable(self: &Arc<Self>, endpoint: &Arc<Endpoint>, error: &ConnectError) {
        let mut out = false;
        self.change(|set| {
            let before = set.ready.len();
            set.ready.retain(|e| !Arc::ptr_eq(e, endpoint));
            out = set.ready.len() < before;
        });
        // Only whoever took it out brings it back.
        if !out {
            return;
        }
        tracing::info!(backend = %self.name, endpoint = %endpoint.addr, %error, "endpoint is not reachable");
        let balancer = Arc::downgrade(self);
        let lost = Arc::downgrade(endpoint);
        let backoff = self.context.settings.side.connect.backoff;
        let http = self.traffic == Traffic::Http;
        tokio::spawn(async move {
            for attempt in 0u32.. {
                let random = match balancer.upgrade() {
                    Some(balancer) => balancer.context.random(),
                    None => return,
                };
                tokio::time::sleep(backoff.delay(attempt, random)).await;
                // Nobody dials an address that discovery has removed (case L01).
                let Some(endpoint) = lost.upgrade() else {
                    return;
                };
                if endpoint.warm(http).await.is_ok() {
                    if let Some(balancer) = balancer.upgrade() {
                        balancer.reachable(&endpoint);
                    }
                    return;
                }
            }
        });
    }

    fn reachable(&self, endpoint: &Arc<Endpoint>) {
        self.change(|set| {
            let current = set.all.get(&endpoint.addr);
            if current.is_some_and(|e| Arc::ptr_eq(e, endpoint)) {
                set.ready.push(endpoint.clone());
            }
        });
    }
}

/// A place in the queue of requests that wait.
struct Place<'b>(&'b Balancer);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        self.0.metrics.waiting.dec();
    }
}

/// A request or connection that an endpoint is busy with.
pub struct Pending {
    endpoint: Arc<Endpoint>,
    started: std::time::Instant,
    sampled: bool,
}

impl Pending {
    fn start(endpoint: &Arc<Endpoint>) -> Self {
        endpoint.in_flight.fetch_add(1, Ordering::Relaxed);
        Self {
            endpoint: endpoint.clone(),
            started: std::time::Instant::now(),
            sampled: false,
        }
    }

    /// From here on the endpoint has the request, and its time runs.
    pub fn begin(&mut self) {
        self.started = std::time::Instant::now();
    }

    /// The endpoint has answered: takes the time it needed into its estimate.
    pub fn sample(&mut self) {
        if !std::mem::replace(&mut self.sampled, true) {
            let now = std::time::Instant::now();
            let mut load = self.endpoint.load.lock();
            load.record(now.duration_since(self.started), now);
        }
    }
}

impl Drop for Pending {
    /// An exchange that ended without an answer counts only if it took longer than expected:
    /// failing fast must not make an endpoint look good.
    fn drop(&mut self) {
        self.endpoint.in_flight.fetch_sub(1, Ordering::Relaxed);
        if !self.sampled {
            let now = std::time::Instant::now();
            let took = now.duration_since(self.started);
            let mut load = self.endpoint.load.lock();
            if took > load.estimate(now) {
                load.record(took, now);
            }
        }
    }
}

#[cfg(test)]
mod tests;
