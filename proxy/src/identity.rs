//! The Certify loop: asks the identity service for a certificate, has it checked and published, and asks again in time.
//! Makes no key and judges no certificate (`weft_tls` does); a failing identity service never disturbs a valid one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use linkerd2_proxy_api::identity::identity_client::IdentityClient;
use linkerd2_proxy_api::identity::{CertifyRequest, CertifyResponse};
use parking_lot::Mutex;
use tokio::time::{Instant, interval, sleep, timeout_at};
use tonic::Status;
use tonic::transport::Channel;
use weft_core::backoff::ExponentialBackoff;
use weft_tls::{InstallError, Store};

use crate::control::{random, stream::reason};

mod metrics;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use metrics::CertificateMetrics;

/// How long one renewal may take, in which an unreachable service is tried again (contract 1.2: failfast of 30 s).
const ATTEMPT_LIMIT: Duration = Duration::from_secs(30);
/// How often the log says that the proxy cannot start without its first certificate (contract 2.2).
const REMINDER: Duration = Duration::from_secs(15);
/// How often a sleeping loop looks at the wall clock, which moves on while a suspended machine's timers do not.
const CLOCK_CHECK: Duration = Duration::from_secs(30);

/// Bounds of the time between two renewals (`IDENTITY_{MIN,MAX}_REFRESH`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refresh {
    /// The least, 10 s unless configured.
    pub min: Duration,
    /// The most, 24 h unless configured.
    pub max: Duration,
}

impl Refresh {
    /// When to ask again, with `remaining` of the current certificate's life left (contract 2.2).
    ///
    /// 70 % of what is left, within the bounds; so after a failure the next try is due earlier each time. Without a
    /// valid certificate (`None` or zero) it is the minimum.
    pub fn delay(&self, remaining: Option<Duration>) -> Duration {
        // By integers: a float factor fails on durations near the maximum.
        let share = remaining.unwrap_or_default() / 10 * 7;
        share.min(self.max).max(self.min)
    }
}

/// Everything the loop needs.
pub struct Certifier {
    /// Where the certificate goes.
    pub store: Store,
    /// The signing request, the same for each renewal (contract 2.1).
    pub csr_der: Vec<u8>,
    /// The service-account token, read anew for each renewal since the kubelet rotates it.
    pub token_file: PathBuf,
    /// Bounds of the renewal time.
    pub refresh: Refresh,
    /// The wait between tries while the service cannot be reached.
    pub backoff: ExponentialBackoff,
    /// Makes a fresh channel to the identity service, one for each renewal (contract 2.2).
    pub channel: Box<dyn Fn() -> Channel + Send + Sync>,
    /// Where outcomes are counted.
    pub metrics: CertificateMetrics,
    /// The wall clock.
    pub now: Arc<dyn Fn() -> SystemTime + Send + Sync>,
}

/// Why a renewal failed.
#[derive(Debug, thiserror::Error)]
pub enum CertifyError {
    /// The token cannot be read.
    #[error(
        "cannot read the service-account token {path}: {source}; check the token volume and its file mode"
    )]
    Token {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The token file is there, but empty.
    #[error("the service-account token {0} is empty; check the token volume")]
    EmptyToken(PathBuf),
    /// The service could not be reached.
    #[error("cannot reach the identity service: {0}")]
    Unreachable(String),
    /// The service answered with an error.
    #[error("the identity service refused to certify {id}: {code:?}: {message}")]
    Refused {
        /// Our identity.
        id: String,
        /// The gRPC code.
        code: tonic::Code,
        /// What the service said.
        message: String,
    },
    /// No answer in time.
    #[error("the identity service did not answer within {0:?}")]
    Timeout(Duration),
    /// The answer does not say until when the certificate is valid.
    #[error("the identity service sent a certificate without a usable valid_until; discarded")]
    ValidUntil,
    /// The certificate was not acceptable.
    #[error(transparent)]
    Install(#[from] InstallError),
}

impl Certifier {
    /// Renews for ever. Run it as a task of its own; [`Store::ready`] tells when the first certificate is there.
    pub async fn run(self) {
        let failure = Mutex::new(String::from("no answer yet"));
        tokio::join!(self.renew(&failure), self.remind(&failure));
    }

    async fn renew(&self, failure: &Mutex<String>) {
        loop {
            match self.attempt().await {
                Ok(expires) => {
                    let id = self.store.id();
                    tracing::info!(%id, valid = ?self.remaining().unwrap_or_default(), "certified");
                    self.metrics.succeeded((self.now)(), expires);
                }
                Err(error) => {
                    tracing::warn!(%error, valid = ?self.remaining().unwrap_or_default(),
                        "could not renew the certificate");
                    *failure.lock() = error.to_string();
                    self.metrics.failed();
                }
            }
            self.pause(self.refresh.delay(self.remaining())).await;
        }
    }

    async fn remind(&self, failure: &Mutex<String>) {
        let mut reminder = interval(REMINDER);
        reminder.tick().await;
        loop {
            tokio::select! {
                () = self.store.ready() => return,
                _ = reminder.tick() => {
                    let reason = failure.lock().clone();
                    tracing::warn!(id = %self.store.id(), reason,
                        "no certificate yet; the proxy does not accept connections");
                }
            }
        }
    }

    /// One renewal. An unreachable service is tried again, since at the start of a cluster it is merely late.
    async fn attempt(&self) -> Result<SystemTime, CertifyError> {
        let deadline = Instant::now() + ATTEMPT_LIMIT;
        // One connection per renewal, so that a new pod or a new address of the service is found.
        let mut client = IdentityClient::new((self.channel)());
        let mut tries = 0;
        loop {
            let error = match timeout_at(deadline, self.certify(&mut client)).await {
                Ok(Err(error @ CertifyError::Unreachable(_))) => error,
                Ok(outcome) => return outcome,
                Err(_) => return Err(CertifyError::Timeout(ATTEMPT_LIMIT)),
            };
            let delay = self.backoff.delay(tries, random());
            if delay >= deadline.saturating_duration_since(Instant::now()) {
                return Err(error);
            }
            sleep(delay).await;
            tries += 1;
        }
    }

    async fn certify(
        &self,
        client: &mut IdentityClient<Channel>,
    ) -> Result<SystemTime, CertifyError> {
        let request = CertifyRequest {
            identity: self.store.server_name().to_owned(),
            token: self.token().await?,
            certificate_signing_request: self.csr_der.clone(),
        };
        let response = client
            .certify(request)
            .await
            .map_err(|status| self.failed(&status))?;
        let CertifyResponse {
            leaf_certificate,
            intermediate_certificates,
            valid_until,
        } = response.into_inner();
        let valid_until = valid_until
            .and_then(|timestamp| SystemTime::try_from(timestamp).ok())
            .ok_or(CertifyError::ValidUntil)?;
        self.store
            .install(leaf_certificate, intermediate_certificates, valid_until)?;
        let expires = self.store.current().map(|current| current.expires);
        Ok(expires.unwrap_or(valid_until))
    }

    async fn token(&self) -> Result<Vec<u8>, CertifyError> {
        let path = &self.token_file;
        match tokio::fs::read(path).await {
            Ok(token) if token.trim_ascii().is_empty() => {
                Err(CertifyError::EmptyToken(path.clone()))
            }
            Ok(token) => Ok(token),
            Err(source) => Err(CertifyError::Token {
                path: path.clone(),
                source,
            }),
        }
    }

    /// A status made here, for want of a connection, has a cause; one that the service sent has none.
    fn failed(&self, status: &Status) -> CertifyError {
        match std::error::Error::source(status) {
            Some(_) => CertifyError::Unreachable(reason(status)),
            None => CertifyError::Refused {
                id: self.store.id().to_string(),
                code: status.code(),
                message: status.message().to_owned(),
            },
        }
    }

    fn remaining(&self) -> Option<Duration> {
        self.store
            .current()?
            .expires
            .duration_since((self.now)())
            .ok()
    }

    /// Sleeps for `delay` of the timers' or of the wall clock, whichever is over first.
    async fn pause(&self, delay: Duration) {
        let (timer, wall) = (Instant::now(), (self.now)());
        loop {
            let passed = (self.now)().duration_since(wall).unwrap_or_default();
            match delay.checked_sub(passed.max(timer.elapsed())) {
                None | Some(Duration::ZERO) => return,
                Some(left) => sleep(left.min(CLOCK_CHECK)).await,
            }
        }
    }
}
