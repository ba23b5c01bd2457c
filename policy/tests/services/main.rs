//! Both services of policy over real connections.

use std::{sync::Arc, time::Duration};

use linkerd2_proxy_api::{
    inbound::inbound_server_policies_client::InboundServerPoliciesClient,
    outbound::outbound_policies_client::OutboundPoliciesClient,
};
use tokio::{net::TcpListener, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use weft_cluster::{MeshSettings, Shared};
use weft_policy::{Settings, serve_on};
use weft_runtime::grpc;

mod directory;
mod half_filled;

/// The services, served and connected to.
struct Running {
    shared: Arc<Shared>,
    channel: Channel,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    /// On a port of its own, with an index that is empty and not filled.
    async fn start() -> Self {
        let shared = Shared::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        let shutdown = CancellationToken::new();
        let serving = serve_on(
            listener,
            Settings::new(MeshSettings::default()),
            Arc::clone(&shared),
            grpc::Metrics::default(),
            shutdown.clone(),
        );
        let task = tokio::spawn(async { serving.await.expect("served") });
        let channel = Channel::from_shared(address).expect("an address");
        Self {
            shared,
            channel: channel.connect().await.expect("connected"),
            shutdown,
            task,
        }
    }

    fn inbound(&self) -> InboundServerPoliciesClient<Channel> {
        InboundServerPoliciesClient::new(self.channel.clone())
    }

    fn outbound(&self) -> OutboundPoliciesClient<Channel> {
        OutboundPoliciesClient::new(self.channel.clone())
    }

    async fn stop(self) {
        self.shutdown.cancel();
        drop(self.channel);
        let ended = timeout(Duration::from_secs(8), self.task).await;
        ended.expect("in time").expect("served");
    }
}
