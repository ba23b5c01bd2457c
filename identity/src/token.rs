//! Who is asking: checks of the token that comes with a request. One enum, so that a further way to check is one more variant.
//! Does not compare the token's account with the requested identity; the service does.

mod review;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::authority::unix_seconds;
use crate::roots::key_kind;

pub use review::{ReviewError, TokenReviews};

/// The audience of tokens for this service (contract 2.1).
pub const AUDIENCE: &str = "identity.l5d.io";
/// Tokens of Kubernetes are 1 to 2 KiB; more than this is no token.
pub const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// How far ahead of ours the clock that wrote `nbf` or `iat` may be. `exp` gets no such allowance.
const CLOCK_LEEWAY_SECONDS: i64 = 10;
const ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// No key or token file is larger than this.
const MAX_KEY_BYTES: usize = 64 * 1024;

/// A service account, as a token proves it. Both parts are as the token had them, not yet checked as DNS labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount {
    /// Namespace of the account.
    pub namespace: String,
    /// Name of the account.
    pub name: String,
    /// The UID of its object, if who proved it knows; Events need it to be found.
    pub uid: Option<String>,
}

impl ServiceAccount {
    /// Reads a user name of the form `system:serviceaccount:<namespace>:<name>` (contract 2.5).
    pub fn from_user_name(user: &str) -> Option<Self> {
        let (namespace, name) = user.strip_prefix(ACCOUNT_PREFIX)?.split_once(':')?;
        if namespace.is_empty() || name.is_empty() || name.contains(':') {
            return None;
        }
        Some(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: None,
        })
    }
}

/// Why a token was not accepted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TokenError {
    /// Not a token at all: gRPC `InvalidArgument`.
    #[error("token is malformed: {0}")]
    Malformed(String),
    /// A token that does not authenticate the caller: gRPC `FailedPrecondition`.
    #[error("token refused: {0}")]
    Refused(String),
    /// Nobody could say whose token it is: gRPC `Internal`.
    #[error("token not checked: {0}")]
    Unchecked(String),
    /// More tokens than may be checked: gRPC `ResourceExhausted`.
    #[error("token not checked: {0}")]
    Busy(String),
}

impl TokenError {
    fn too_long(bytes: usize) -> Self {
        Self::Malformed(format!("{bytes} bytes, at most {MAX_TOKEN_BYTES} are read"))
    }
}

/// How tokens are checked.
#[derive(Debug)]
#[non_exhaustive]
pub enum TokenCheck {
    /// By a public key of the local authority, for meshes without Kubernetes.
    Local(LocalTokens),
    /// By the API of a Kubernetes cluster.
    Kubernetes(TokenReviews),
}

impl TokenCheck {
    /// The service account that `token` proves at `now`.
    pub async fn check(&self, token: &[u8], now: SystemTime) -> Result<ServiceAccount, TokenError> {
        match self {
            Self::Local(local) => local.check(token, now),
            Self::Kubernetes(reviews) => reviews.check(token).await,
        }
    }
}

/// The claims of a projected Kubernetes ServiceAccount token, as far as they are used here.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Claims {
    pub iss: String,
    pub sub: String,
    #[serde(deserialize_with = "one_or_many")]
    pub aud: Vec<String>,
    pub exp: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbf: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iat: Option<i64>,
    #[serde(
        rename = "kubernetes.io",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub kubernetes: Option<Workload>,
}

/// The claim `kubernetes.io`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Workload {
    pub namespace: String,
    pub serviceaccount: Named,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Named>,
}

/// An object named by a claim.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Named {
    pub name: String,
}

/// RFC 7519 section 4.1.3: one string or a list of them.
fn one_or_many<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Audience {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Audience::deserialize(from)? {
        Audience::One(audience) => vec![audience],
        Audience::Many(audiences) => audiences,
    })
}

/// Why the key that checks tokens cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenKeyError {
    /// The file cannot be read.
    #[error("{}: cannot read the public key that checks tokens: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not the public half of an ECDSA P-256 key.
    #[error("{}: not a PEM \"PUBLIC KEY\" of type ECDSA P-256: {reason}; use the token.pub of the local authority", path.display())]
    Key {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// Checks JWTs of the Kubernetes ServiceAccount shape, ES256 by one local key.
pub struct LocalTokens {
    key: DecodingKey,
    issuer: String,
}

impl std::fmt::Debug for LocalTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalTokens")
            .field("issuer", &self.issuer)
            .finish_non_exhaustive()
    }
}

impl LocalTokens {
    /// Reads the public key (PEM) that [`crate::LocalAuthority`] writes as `token.pub`.
    pub fn load(path: &Path) -> Result<Self, TokenKeyError> {
        let pem = crate::reload::read_limited(path, MAX_KEY_BYTES).map_err(|source| {
            TokenKeyError::Read {
                path: path.to_owned(),
                source,
            }
        })?;
        Self::from_public_key(&pem).map_err(|reason| TokenKeyError::Key {
            path: path.to_owned(),
            reason,
        })
    }

    /// From the text of a PEM public key.
    pub(crate) fn from_public_key(pem: &[u8]) -> Result<Self, String> {
        // Not by `DecodingKey::from_ec_pem`: it also takes certificates and private keys, and then no token ever verifies.
        let der = SubjectPublicKeyInfoDer::from_pem_slice(pem).map_err(|e| e.to_string())?;
        let (_, parsed) = SubjectPublicKeyInfo::from_der(&der).map_err(|e| e.to_string())?;
        let found = key_kind(&parsed);
        if found != "ECDSA P-256" {
            return Err(format!("it is {found}"));
        }
        let key = DecodingKey::from_ec_der(&parsed.subject_public_key.data);
        Ok(Self {
            key,
            issuer: crate::local::TOKEN_ISSUER.to_owned(),
        })
    }

    /// The service account that `token` proves at `now`: signature, issuer, audience, times, and the two places that name the
    /// account must agree (case I07).
    pub fn check(&self, token: &[u8], now: SystemTime) -> Result<ServiceAccount, TokenError> {
        let claims = self.verified_claims(token)?;
        check_times(&claims, unix_seconds(now))?;
        if claims.iss != self.issuer {
            return refused(format!(
                "issued by \"{}\", expected \"{}\"",
                claims.iss.escape_debug(),
                self.issuer
            ));
        }
        if !claims.aud.iter().any(|audience| audience == AUDIENCE) {
            return refused(format!(
                "its audience is {:?}, expected \"{AUDIENCE}\"",
                claims.aud
            ));
        }
        let Some(account) = ServiceAccount::from_user_name(&claims.sub) else {
            return refused(format!(
                "\"{}\" is not a service account",
                claims.sub.escape_debug()
            ));
        };
        if let Some(workload) = &claims.kubernetes
            && (workload.namespace != account.namespace
                || workload.serviceaccount.name != account.name)
        {
            return refused(
                "its subject and its claim \"kubernetes.io\" name different service accounts"
                    .to_owned(),
            );
        }
        Ok(account)
    }

    fn verified_claims(&self, token: &[u8]) -> Result<Claims, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::too_long(token.len()));
        }
        // Files end in a newline more often than not.
        let token = token.trim_ascii();
        let mut signature_only = Validation::new(Algorithm::ES256);
        signature_only.required_spec_claims.clear();
        // Times and audience are checked afterwards, against a time that is an argument.
        signature_only.validate_exp = false;
        signature_only.validate_aud = false;
        match jsonwebtoken::decode::<Claims>(token, &self.key, &signature_only) {
            Ok(decoded) => Ok(decoded.claims),
            Err(e) => match e.kind() {
                ErrorKind::InvalidSignature => {
                    refused("its signature is not by the key of this authority".to_owned())
                }
                ErrorKind::InvalidAlgorithm => refused("its algorithm is not ES256".to_owned()),
                _ => Err(TokenError::Malformed(format!(
                    "not a JWT of the ServiceAccount shape ({e})"
                ))),
            },
        }
    }
}

fn check_times(claims: &Claims, now: i64) -> Result<(), TokenError> {
    if claims.exp <= now {
        return refused(format!(
            "expired {} seconds ago; the proxy must read its token file anew",
            now.abs_diff(claims.exp)
        ));
    }

    for (claim, at) in [("nbf", claims.nbf), ("iat", claims.iat)] {
        if let Some(at) = at
            && at > now.saturating_add(CLOCK_LEEWAY_SECONDS)
        {
            return refused(format!(
                "not valid for another {} seconds (claim {claim}); compare the clocks",
                at.abs_diff(now)
            ));
        }
    }
    Ok(())
}

fn refused<T>(why: String) -> Result<T, TokenError> {
    Err(TokenError::Refused(why))
}

#[cfg(test)]
mod tests;
