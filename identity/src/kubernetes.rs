//! The Kubernetes API as this service uses it: whether it may review tokens at all, and its errors in words. Reviews are the work
//! of `token::review`, Events that of `events`.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::time::timeout;

/// How long the API may take to say what we may do.
const PERMISSION_LIMIT: Duration = Duration::from_secs(10);

/// Why tokens cannot be reviewed by a Kubernetes API.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no client for one.
    #[error("{0}; for a mesh without Kubernetes give --token-public-key FILE")]
    NoClient(#[from] weft_cluster::kube::ConnectError),
    /// The API was asked for our permissions and gave none.
    #[error("the Kubernetes API did not say whether this service may review tokens: {0}")]
    Unknown(String),
    /// The permission is missing.
    #[error(
        "the Kubernetes API does not allow this service account to create tokenreviews.authentication.k8s.io{0}, and without that no \
         caller can be authenticated; bind a ClusterRole with that verb to it, as the chart does"
    )]
    Forbidden(String),
}

/// A client of the API server of `kubeconfig`, or of the pod's own cluster, that may create TokenReviews.
pub(crate) async fn connect(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    let client = weft_cluster::kube::connect(kubeconfig).await?;
    may_review(client.clone()).await?;
    Ok(client)
}

/// Asked at the start (contract 2.5): otherwise every workload would find out at its next renewal.
async fn may_review(client: Client) -> Result<(), ConnectError> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some("authentication.k8s.io".to_owned()),
                version: Some("v1".to_owned()),
                resource: Some("tokenreviews".to_owned()),
                verb: Some("create".to_owned()),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    };
    let api = Api::<SelfSubjectAccessReview>::all(client);
    let params = PostParams::default();
    let answer = match timeout(PERMISSION_LIMIT, api.create(&params, &review)).await {
        Ok(Ok(answer)) => answer.status.unwrap_or_default(),
        Ok(Err(e)) => return Err(ConnectError::Unknown(describe(&e))),
        Err(_) => {
            let reason = format!("no answer within {PERMISSION_LIMIT:?}");
            return Err(ConnectError::Unknown(reason));
        }
    };
    if answer.allowed {
        return Ok(());
    }
    let said = answer.reason.or(answer.evaluation_error);
    let reason = said.map_or_else(String::new, |said| format!(" ({said})"));
    Err(ConnectError::Forbidden(reason))
}

/// What went wrong with a call, down to its cause, without the object that was sent: it may hold a token.
pub(crate) fn describe(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return format!("{} (HTTP status {})", status.message, status.code);
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.ends_with(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}
