//! Certify (contract 2.2, 2.5): from a request to a certificate, and from each refusal to its gRPC code. Reads no file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use linkerd2_proxy_api::identity::identity_server::Identity as IdentityApi;
use linkerd2_proxy_api::identity::{CertifyRequest, CertifyResponse};
use tokio::sync::Semaphore;
use tonic::{Code, Request, Response, Status};
use weft_core::name::{IdentityError, workload_identity};

use crate::authority::{SignError, Terms, unix_seconds};
use crate::csr::{self, CsrError};
use crate::events::Events;
use crate::metrics::Metrics;
use crate::reload::IssuerFiles;
use crate::token::{TokenCheck, TokenError};

/// Requests that are worked on at the same time; further ones wait. Signing takes well under a millisecond, a token check by a
/// remote API may take seconds.
pub const MAX_IN_FLIGHT: usize = 256;
/// How long a request waits for its turn. A proxy's own patience is longer, so it hears the reason.
pub const MAX_WAIT: Duration = Duration::from_secs(5);
const MAX_IDENTITY_BYTES: usize = 253;

/// Why there is no certificate. Messages go to the caller; they name no secret.
#[derive(Debug, thiserror::Error)]
pub enum CertifyError {
    /// A field is empty.
    #[error("the request has no {0}")]
    Missing(&'static str),
    /// A field is longer than it can be.
    #[error("the requested identity has {0} bytes, at most {MAX_IDENTITY_BYTES} are allowed")]
    TooLong(usize),
    /// The CSR.
    #[error(transparent)]
    Csr(#[from] CsrError),
    /// The token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The token's account cannot be part of a name.
    #[error("the token's service account cannot be an identity: {0}")]
    Account(#[from] IdentityError),
    /// The token belongs to somebody else.
    #[error(
        "the token is of \"{proven}\", but \"{requested}\" was requested; a workload may only ask for its own service account"
    )]
    NotYours {
        /// What the caller asked for.
        requested: String,
        /// What the token proves.
        proven: String,
    },
    /// No usable issuer pair.
    #[error("{0}")]
    NoIssuer(String),
    /// The signature.
    #[error(transparent)]
    Sign(#[from] SignError),
    /// Too many requests at once.
    #[error(
        "{MAX_IN_FLIGHT} requests are being worked on and none ended within {MAX_WAIT:?}; try again"
    )]
    Busy,
}

impl CertifyError {
    /// The gRPC code of the table in contract 2.5. `ResourceExhausted` is ours: there is nothing like it in Linkerd.
    pub fn code(&self) -> Code {
        match self {
            Self::Missing(_) | Self::TooLong(_) => Code::InvalidArgument,
            Self::Csr(CsrError::Malformed(_)) | Self::Token(TokenError::Malformed(_)) => {
                Code::InvalidArgument
            }
            Self::Csr(CsrError::Rule(_)) | Self::Token(TokenError::Refused(_)) => {
                Code::FailedPrecondition
            }
            Self::Account(_) | Self::NotYours { .. } => Code::FailedPrecondition,
            Self::NoIssuer(_) | Self::Sign(SignError::Expired(_)) => Code::Unavailable,
            Self::Sign(SignError::Time(_) | SignError::Signature(_))
            | Self::Token(TokenError::Unchecked(_)) => Code::Internal,
            Self::Busy | Self::Token(TokenError::Busy(_)) => Code::ResourceExhausted,
        }
    }
}

/// Which names this authority gives, and for how long.
#[derive(Debug, Clone)]
pub struct Names {
    /// Last part of every name, for example `cluster.local`.
    pub trust_domain: String,
    /// Namespace of the control plane, the part before it.
    pub controller_namespace: String,
}

/// The Certify service.
pub struct Certifier {
    issuer: Arc<IssuerFiles>,
    tokens: TokenCheck,
    names: Names,
    terms: Terms,
    metrics: Arc<Metrics>,
    events: Events,
    /// Serial of the next certificate; counts from 1 in each process (contract 2.5).
    serial: AtomicU64,
    turns: Semaphore,
}

impl Certifier {
    /// With the first serial still to be given.
    pub(crate) fn new(
        issuer: Arc<IssuerFiles>,
        tokens: TokenCheck,
        names: Names,
        terms: Terms,
        metrics: Arc<Metrics>,
        events: Events,
    ) -> Self {
        Self {
            issuer,
            tokens,
            names,
            terms,
            metrics,
            events,
            serial: AtomicU64::new(1),
            turns: Semaphore::new(MAX_IN_FLIGHT),
        }
    }

    /// Checks the request, in the order of contract 2.5, and signs.
    pub async fn certify(
        &self,
        request: &CertifyRequest,
        now: SystemTime,
    ) -> Result<CertifyResponse, CertifyError> {
        let identity = request.identity.as_str();
        check_fields(request)?;
        let turn = tokio::time::timeout(MAX_WAIT, self.turns.acquire()).await;
        let _turn = turn.ok().and_then(Result::ok).ok_or(CertifyError::Busy)?;

        let csr = csr::check(&request.certificate_signing_request, identity)?;
        let started = Instant::now();
        let account = self.tokens.check(&request.token, now).await;
        self.metrics.token_checked(started.elapsed(), &account);
        let account = account?;
        let Names {
            trust_domain,
            controller_namespace,
        } = &self.names;
        let proven = workload_identity(
            &account.name,
            &account.namespace,
            controller_namespace,
            trust_domain,
        )?;
        if proven.as_str() != identity {
            return Err(CertifyError::NotYours {
                requested: identity.escape_debug().to_string(),
                proven: proven.to_string(),
            });
        }

        let issuer = self.issuer.current().map_err(CertifyError::NoIssuer)?;
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let signed = issuer.sign(&csr, serial, self.terms, now)?;
        let seconds = unix_seconds(signed.not_after);
        tracing::info!(
            identity,
            serial,
            not_after = seconds,
            "issued a certificate"
        );
        self.events.issued(account, identity, signed.not_after);
        Ok(CertifyResponse {
            leaf_certificate: signed.der,
            intermediate_certificates: issuer
                .intermediates()
                .iter()
                .map(|der| der.to_vec())
                .collect(),
            valid_until: Some(prost_types::Timestamp { seconds, nanos: 0 }),
        })
    }
}

fn check_fields(request: &CertifyRequest) -> Result<(), CertifyError> {
    if request.identity.is_empty() {
        return Err(CertifyError::Missing("identity"));
    }
    if request.identity.len() > MAX_IDENTITY_BYTES {
        return Err(CertifyError::TooLong(request.identity.len()));
    }
    if request.token.is_empty() {
        return Err(CertifyError::Missing("token"));
    }
    if request.certificate_signing_request.is_empty() {
        return Err(CertifyError::Missing("certificate signing request"));
    }
    Ok(())
}

/// What tonic serves: the certifier with the clock and the metrics around it.
pub(crate) struct IdentityService(pub(crate) Arc<Certifier>);

#[tonic::async_trait]
impl IdentityApi for IdentityService {
    async fn certify(
        &self,
        request: Request<CertifyRequest>,
    ) -> Result<Response<CertifyResponse>, Status> {
        let call = self.0.metrics.certify();
        let request = request.into_inner();
        let result = self.0.certify(&request, SystemTime::now()).await;
        call.answer(result.map_err(|e| {
            let code = e.code();
            tracing::warn!(identity = %request.identity.escape_debug(), ?code, reason = %e, "no certificate issued");
            Status::new(code, e.to_string())
        }))
    }
}

#[cfg(test)]
mod tests;
