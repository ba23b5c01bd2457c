//! Owns how the API server is reached: from within a pod, or by a kubeconfig file. Makes no request.

use std::path::{Path, PathBuf};

use http::{HeaderValue, header::USER_AGENT};
use kube::{
    Client, Config,
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use thiserror::Error;

/// Why there is no client for the API server.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// Not in a pod, or in one without the token of its service account.
    #[error(
        "no API server is known ({0}): run in a pod that has a service account token, or name a kubeconfig file"
    )]
    InCluster(#[source] InClusterError),
    /// The file cannot be read, or names what it does not have.
    #[error("cannot use the kubeconfig {}: {reason}", file.display())]
    Kubeconfig {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        #[source]
        reason: Box<KubeconfigError>,
    },
    /// The certificates, the key or the proxy of the configuration cannot be used.
    #[error("cannot set up the client for the API server: {0}")]
    Client(#[source] Box<kube::Error>),
}

/// A client for the API server that a kubeconfig file names, or of the cluster whose pod this is. Tokens and
/// certificates of pods are read again when they change.
///
/// # Errors
/// The configuration cannot be used. Whether the API server answers is not known yet.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    let mut config = match kubeconfig {
        None => Config::incluster().map_err(ConnectError::InCluster)?,
        Some(file) => {
            let failed = |reason| ConnectError::Kubeconfig {
                file: file.to_owned(),
                reason: Box::new(reason),
            };
            let read = Kubeconfig::read_from(file).map_err(failed)?;
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                .await
                .map_err(failed)?
        }
    };
    let agent = concat!("weft/", env!("CARGO_PKG_VERSION"));
    config
        .headers
        .push((USER_AGENT, HeaderValue::from_static(agent)));
    Client::try_from(config).map_err(|error| ConnectError::Client(Box::new(error)))
}
