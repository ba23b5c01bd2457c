//! The current certificate of this workload and the TLS configurations made from it. Checks what it is given before it
//! publishes it; does not ask for certificates and does not renew them.

use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::{ArcSwap, ArcSwapOption};
use rustls::client::Resumption;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ServerConfig};
use rustls_pki_types::{CertificateDer, UnixTime};
use tokio::sync::watch;
use weft_core::name::Identity;

use crate::anchors::TrustAnchors;
use crate::key::PrivateKey;
use crate::names::{self, DerError};
use crate::parameters::{TRANSPORT_ALPN, VERSIONS, provider};
use crate::verify::ChainVerifier;

/// The identity of this workload, its anchors and its newest certificate. Clones share one state.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    id: Identity,
    server_name: String,
    key: PrivateKey,
    trust: ArcSwap<Trust>,
    current: ArcSwapOption<Credentials>,
    /// Held while `trust` and `current` change together.
    publishing: Mutex<()>,
    certified: watch::Sender<bool>,
}

/// What follows from the anchors alone.
pub(crate) struct Trust {
    chain: Arc<ChainVerifier>,
    clients: Arc<dyn ClientCertVerifier>,
    anonymous: Arc<ClientConfig>,
}

/// One certificate, ready for use in both roles. Connections keep the one they began with.
#[derive(Debug)]
pub struct Credentials {
    /// When the certificate ends: what the issuer said, or its own validity if that is earlier.
    pub expires: SystemTime,
    certified: CertifiedKey,
    server: Arc<ServerConfig>,
    direct_server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    direct_client: Arc<ClientConfig>,
}

/// Why a certificate was not published. The one before it, if any, stays in use.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The leaf is not a certificate.
    #[error("the issued leaf is {0}")]
    Leaf(#[from] DerError),
    /// It is somebody else's.
    #[error(
        "the issued certificate names {found:?}, not {expected}; check service account and trust domain on both sides"
    )]
    WrongIdentity {
        /// Our identity.
        expected: Identity,
        /// What the leaf says.
        found: Vec<String>,
    },
    /// It belongs to another key.
    #[error("the issued certificate for {0} does not belong to our key")]
    WrongKey(Identity),
    /// It has ended already.
    #[error(
        "the issued certificate for {0} has ended; check the clocks of this machine and of the identity service"
    )]
    Ended(Identity),
    /// Its chain does not verify.
    #[error(
        "the certificate for {id} does not verify: {reason}; check that one of our trust anchors signed its issuer"
    )]
    Chain {
        /// Our identity.
        id: Identity,
        /// What the verifier said.
        reason: rustls::Error,
    },
}

impl Store {
    /// A store without a certificate yet. `server_name` is the SNI by which peers ask for us (contract 3.1).
    pub fn new(anchors: TrustAnchors, id: Identity, server_name: String, key: PrivateKey) -> Self {
        let shared = Shared {
            id,
            server_name,
            key,
            trust: ArcSwap::from_pointee(Trust::new(&anchors)),
            current: ArcSwapOption::empty(),
            publishing: Mutex::new(()),
            certified: watch::Sender::new(false),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Our identity.
    pub fn id(&self) -> &Identity {
        &self.shared.id
    }

    /// The SNI that means us.
    pub fn server_name(&self) -> &str {
        &self.shared.server_name
    }

    /// The newest certificate, or `None` before the first. Look it up per connection, do not keep it.
    pub fn current(&self) -> Option<Arc<Credentials>> {
        self.shared.current.load_full()
    }

    /// Returns once there has been a certificate.
    pub async fn ready(&self) {
        let mut certified = self.shared.certified.subscribe();
        // The sender lives as long as `self`, so the wait ends only by success.
        let _ = certified.wait_for(|certified| *certified).await;
    }

    /// The configuration for calls made without a certificate, such as the first call to the identity service.
    pub fn anonymous_client(&self) -> Arc<ClientConfig> {
        self.shared.trust.load().anonymous.clone()
    }

    /// Checks an issued certificate and makes it the current one (contract 2.2).
    ///
    /// The chain must verify to our anchors in both roles, name our identity, belong to our key and be valid now.
    pub fn install(
        &self,
        leaf_der: Vec<u8>,
        intermediates_der: Vec<Vec<u8>>,
        valid_until: SystemTime,
    ) -> Result<(), InstallError> {
        let id = &self.shared.id;
        let now = SystemTime::now();
        let leaf = names::Certificate::from_der(&leaf_der)?;
        if !leaf.is(id) {
            return Err(InstallError::WrongIdentity {
                expected: id.clone(),
                found: leaf.found(),
            });
        }
        let expires = valid_until.min(leaf.not_after);
        if expires <= now {
            return Err(InstallError::Ended(id.clone()));
        }
        let _publishing = self.shared.publishing.lock();
        let chain: Vec<CertificateDer<'static>> = std::iter::once(leaf_der)
            .chain(intermediates_der)
            .map(CertificateDer::from)
            .collect();
        let trust = self.shared.trust.load_full();
        trust
            .verify_own(&chain)
            .map_err(|reason| InstallError::Chain {
                id: id.clone(),
                reason,
            })?;
        let certified = CertifiedKey::new(chain, self.shared.key.signer());
        certified
            .keys_match()
            .map_err(|_| InstallError::WrongKey(id.clone()))?;
        let credentials = Credentials::new(&trust, certified, expires);
        self.shared.current.store(Some(Arc::new(credentials)));
        self.shared.certified.send_replace(true);
        Ok(())
    }

    /// Trusts another set of anchors from the next handshake on, without a restart (case I05).
    ///
    /// Refused, and nothing changed, if our own certificate would no longer verify: then a root is about to be removed
    /// that is still in use. The order is: add the new root, renew every certificate, remove the old root.
    pub fn replace_anchors(&self, anchors: &TrustAnchors) -> Result<(), InstallError> {
        let trust = Trust::new(anchors);
        let _publishing = self.shared.publishing.lock();
        if let Some(current) = self.current() {
            trust
                .verify_own(&current.certified.cert)
                .map_err(|reason| InstallError::Chain {
                    id: self.id().clone(),
                    reason,
                })?;
            let credentials = Credentials::new(&trust, current.certified.clone(), current.expires);
            self.shared.current.store(Some(Arc::new(credentials)));
        }
        self.shared.trust.store(Arc::new(trust));
        Ok(())
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("id", &self.shared.id)
            .field("server_name", &self.shared.server_name)
            .field(
                "expires",
                &self.current().map(|credentials| credentials.expires),
            )
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// The configuration with which we accept: `direct` for port 4143 itself, ordinary for redirected ports.
    pub fn server(&self, direct: bool) -> &Arc<ServerConfig> {
        if direct {
            &self.direct_server
        } else {
            &self.server
        }
    }

    /// The configuration with which we connect: `direct` for an endpoint that expects the transport header.
    pub fn client(&self, direct: bool) -> &Arc<ClientConfig> {
        if direct {
            &self.direct_client
        } else {
            &self.client
        }
    }

    pub(crate) fn new(trust: &Trust, certified: CertifiedKey, expires: SystemTime) -> Self {
        let resolver = Arc::new(SingleCertAndKey::from(certified.clone()));
        let server = server_config(trust, resolver.clone());
        let client = client_config(&trust.chain, Some(resolver));
        let mut direct_server = server.clone();
        direct_server.alpn_protocols = vec![TRANSPORT_ALPN.to_vec()];
        let mut direct_client = client.clone();
        direct_client.alpn_protocols = vec![TRANSPORT_ALPN.to_vec()];
        Self {
            expires,
            certified,
            server: Arc::new(server),
            direct_server: Arc::new(direct_server),
            client: Arc::new(client),
            direct_client: Arc::new(direct_client),
        }
    }
}

impl Trust {
    pub(crate) fn new(anchors: &TrustAnchors) -> Self {
        let chain = Arc::new(ChainVerifier::new(anchors.roots()));
        // No hints: clients of the mesh have one certificate, and a list of roots would only lengthen the handshake
        // and mislead a client whose root is about to be added.
        let clients = WebPkiClientVerifier::builder_with_provider(anchors.roots(), provider())
            .allow_unauthenticated()
            .clear_root_hint_subjects()
            .build()
            .expect("fails only without roots, and TrustAnchors is never empty");
        let anonymous = Arc::new(client_config(&chain, None));
        Self {
            chain,
            clients,
            anonymous,
        }
    }

    fn verify_own(&self, chain: &[CertificateDer<'static>]) -> Result<(), rustls::Error> {
        let now = UnixTime::now();
        let (leaf, intermediates) = chain.split_first().expect("the caller put the leaf first");
        self.chain.verify_chain(leaf, intermediates, now)?;
        self.clients.verify_client_cert(leaf, intermediates, now)?;
        Ok(())
    }
}

fn server_config(trust: &Trust, certified: Arc<SingleCertAndKey>) -> ServerConfig {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)
        .expect("the suites are those of TLS 1.3")
        .with_client_cert_verifier(trust.clients.clone())
        .with_cert_resolver(certified);
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.enable_secret_extraction = true;
    config
}

fn client_config(
    chain: &Arc<ChainVerifier>,
    certified: Option<Arc<SingleCertAndKey>>,
) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)
        .expect("the suites are those of TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(chain.clone());
    let mut config = match certified {
        Some(certified) => builder.with_client_cert_resolver(certified),
        None => builder.with_no_client_auth(),
    };
    config.resumption = Resumption::disabled();
    config.enable_secret_extraction = true;
    config
}

#[cfg(test)]
mod tests;
