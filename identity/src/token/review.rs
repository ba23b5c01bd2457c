//! Checks of tokens by the Kubernetes API: one TokenReview each (contract 2.5), at a limited rate and within a time limit.
//! Remembers nothing, so a token is refused as soon as the API refuses it; an API server remembers good ones for 10 s itself.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{AUDIENCE, MAX_TOKEN_BYTES, ServiceAccount, TokenError};
use crate::kubernetes::{ConnectError, connect, describe};
use crate::throttle::{NoRate, Rate, Throttle};

/// Reviews under way at once, each on a connection of its own. At 2 ms each that is far more than the rate allows; at a slow API
/// server it bounds what we add to its load.
const MAX_REVIEWS: usize = 64;
/// How long one check may take, with the wait for its turn.
const REVIEW_LIMIT: Duration = Duration::from_secs(5);

/// Why the check cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// The API, or our permissions there.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The rate.
    #[error("--kube-apiclient-qps, --kube-apiclient-burst: {0}")]
    Rate(#[from] NoRate),
}

/// Asks a Kubernetes API who a token belongs to.
pub struct TokenReviews {
    client: Client,
    throttle: Throttle,
    rate: Rate,
    places: Semaphore,
}

impl fmt::Debug for TokenReviews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenReviews")
            .field("rate", &self.rate)
            .finish_non_exhaustive()
    }
}

impl TokenReviews {
    /// By the API server of `kubeconfig`, or of the cluster this pod is in.
    ///
    /// # Errors
    /// It does not answer, or does not let this service create TokenReviews.
    pub async fn connect(kubeconfig: Option<&Path>, rate: Rate) -> Result<Self, ReviewError> {
        Ok(Self {
            throttle: Throttle::new(rate)?,
            rate,
            places: Semaphore::new(MAX_REVIEWS),
            client: connect(kubeconfig).await?,
        })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The service account that `token` proves now.
    pub async fn check(&self, token: &[u8]) -> Result<ServiceAccount, TokenError> {
        let token = printable(token)?;
        match timeout(REVIEW_LIMIT, self.reviewed(token)).await {
            Ok(checked) => checked,
            Err(_) => Err(TokenError::Unchecked(format!(
                "the Kubernetes API gave no TokenReview within {REVIEW_LIMIT:?}"
            ))),
        }
    }

    async fn reviewed(&self, token: &str) -> Result<ServiceAccount, TokenError> {
        let status = self.review(token, Some(AUDIENCE)).await?;
        if speaks_of_audiences(&status) {
            // Without token projection a pod has only the token for the API itself, which names no audience of ours (case I07).
            return account(self.review(token, None).await?);
        }
        // None at all means that the API checked by its own audience (TokenReviewStatus, field audiences).
        match &status.audiences {
            Some(other) if !other.is_empty() && !other.iter().any(|name| name == AUDIENCE) => {
                Err(TokenError::Refused(format!(
                    "its audience is {other:?}, expected \"{AUDIENCE}\""
                )))
            }
            _ => account(status),
        }
    }

    async fn review(
        &self,
        token: &str,
        audience: Option<&str>,
    ) -> Result<TokenReviewStatus, TokenError> {
        self.throttle.turn(REVIEW_LIMIT).await.map_err(|wait| {
            TokenError::Busy(format!(
                "the {} TokenReviews a second that are allowed here are taken for the next {:?}; raise \
                 --kube-apiclient-qps (identity.kubeAPI.clientQPS) if the API server can do more",
                self.rate.per_second, wait.0
            ))
        })?;
        let _place = self.places.acquire().await;
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                audiences: audience.map(|audience| vec![audience.to_owned()]),
            },
            ..Default::default()
        };
        let api = Api::<TokenReview>::all(self.client.clone());
        let params = PostParams::default();
        let mut answer = api.create(&params, &review).await;
        if matches!(&answer, Err(e) if never_answered(e)) {
            // An idle connection that the server closed just then is found out only by its use; a review changes nothing.
            answer = api.create(&params, &review).await;
        }
        match answer {
            Ok(review) => review.status.ok_or_else(|| {
                TokenError::Unchecked("the TokenReview came back without a status".to_owned())
            }),
            Err(e) => Err(TokenError::Unchecked(format!(
                "TokenReview failed: {}",
                describe(&e)
            ))),
        }
    }
}

fn never_answered(error: &kube::Error) -> bool {
    matches!(error, kube::Error::HyperError(_) | kube::Error::Service(_))
}

fn speaks_of_audiences(status: &TokenReviewStatus) -> bool {
    status
        .error
        .as_ref()
        .is_some_and(|error| error.contains("audience"))
}

/// A token without what no token has; files end in a newline more often than not.
fn printable(token: &[u8]) -> Result<&str, TokenError> {
    if token.len() > MAX_TOKEN_BYTES {
        return Err(TokenError::too_long(token.len()));
    }
    match std::str::from_utf8(token.trim_ascii()) {
        Ok(text) if !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic()) => Ok(text),
        _ => Err(TokenError::Malformed(
            "it is empty or has other than printable ASCII characters".to_owned(),
        )),
    }
}

fn account(status: TokenReviewStatus) -> Result<ServiceAccount, TokenError> {
    let refused = |why: String| Err(TokenError::Refused(why));
    if status.authenticated != Some(true) {
        let said = status.error.filter(|said| !said.is_empty());
        return refused(said.map_or_else(
            || "the Kubernetes API does not know it".to_owned(),
            |said| format!("the Kubernetes API says: {said}"),
        ));
    }
    let user = status.user.unwrap_or_default();
    let name = user.username.unwrap_or_default();
    let Some(account) = ServiceAccount::from_user_name(&name) else {
        return refused(format!(
            "\"{}\" is not a service account",
            name.escape_debug()
        ));
    };
    Ok(ServiceAccount {
        uid: user.uid,
        ..account
    })
}

#[cfg(test)]
mod tests;
