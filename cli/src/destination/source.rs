//! Where the objects of `weft destination` come from: an API server, or a directory of manifests. Which of them, and their
//! start; both are in `weft_cluster`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use kube::Client;
use tokio_util::sync::CancellationToken;
use weft_cluster::manifests::LocalMesh;
use weft_cluster::{
    KubeSource, ManifestSource, Shared,
    kube::{Metrics, connect},
};
use weft_runtime::metrics::Registry;

/// The flags of the source. Without any the API server is that of the cluster whose pod this is.
#[derive(Args, Clone, Debug)]
pub struct SourceArgs {
    /// Kubeconfig file of a cluster; the cluster of this pod if it is not given.
    #[arg(long, conflicts_with = "manifests")]
    kubeconfig: Option<PathBuf>,
    /// Directory of Kubernetes manifests (*.yaml, *.yml, *.json) instead of a cluster; it is watched.
    #[arg(long)]
    manifests: Option<PathBuf>,
    /// The manifests are a dump of a cluster: give no ClusterIPs, make no endpoints, mark no pods as meshed.
    #[arg(long, requires = "manifests")]
    as_written: bool,
}

/// A source that fills the index.
#[derive(Clone)]
pub enum Source {
    /// A directory, which has been read.
    Manifests(Arc<ManifestSource>),
    /// An API server, which has not been asked yet.
    Kubernetes(Client, Arc<KubeSource>),
}

impl SourceArgs {
    /// Whether objects come from a directory.
    pub fn is_local(&self) -> bool {
        self.manifests.is_some()
    }

    /// Opens the source; a directory is read once.
    ///
    /// # Errors
    /// There is no usable configuration for an API server, and no directory is named.
    pub async fn open(
        &self,
        control_namespace: &str,
        shared: Arc<Shared>,
        registry: &Registry,
    ) -> Result<Source> {
        let Some(directory) = &self.manifests else {
            let client = connect(self.kubeconfig.as_deref()).await.context(
                "cannot reach a cluster (--kubeconfig), and no directory is given (--manifests)",
            )?;
            let metrics = Metrics::register(registry);
            let source = KubeSource::new(client.clone(), shared, metrics);
            return Ok(Source::Kubernetes(client, source));
        };
        let local = match self.as_written {
            true => LocalMesh::nothing(),
            false => LocalMesh::new(control_namespace),
        };
        let source = ManifestSource::new(directory.clone(), local, shared);
        let loading = Arc::clone(&source);
        tokio::task::spawn_blocking(move || loading.reload())
            .await
            .context("cannot read the manifests")?;
        Ok(Source::Manifests(source))
    }
}

impl Source {
    /// The client of the cluster, if it is one.
    pub fn client(&self) -> Option<Client> {
        match self {
            Self::Manifests(_) => None,
            Self::Kubernetes(client, _) => Some(client.clone()),
        }
    }

    /// Whether the index has all objects.
    ///
    /// # Errors
    /// What is missing, and why.
    pub fn ready(&self) -> Result<(), String> {
        match self {
            // It was read when it was opened.
            Self::Manifests(_) => Ok(()),
            Self::Kubernetes(_, source) => source.ready(),
        }
    }

    /// Keeps the index up to date until the shutdown.
    pub async fn run(self, shutdown: CancellationToken) {
        match self {
            Self::Manifests(source) => source.watch(shutdown).await,
            Self::Kubernetes(_, source) => source.run(shutdown).await,
        }
    }
}
