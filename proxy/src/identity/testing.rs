//! A certificate authority and an identity service for tests, over any pipe. Not part of the program.
#![allow(clippy::unwrap_used)] // A panic is how a test fails.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper_util::rt::{TokioExecutor, TokioIo};
use linkerd2_proxy_api::identity::identity_server::{Identity as Service, IdentityServer};
use linkerd2_proxy_api::identity::{CertifyRequest, CertifyResponse};
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tonic::{Request, Response, Status};
use weft_core::name::Identity;
use weft_tls::{KeyAndCsr, Store, TrustAnchors, load_or_create};

/// A root that signs leaves itself.
pub(crate) struct Authority {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    /// A leaf for the names and the key of the request, valid for a day around now.
    pub(crate) fn sign(&self, csr_der: &[u8]) -> Vec<u8> {
        let mut request = CertificateSigningRequestParams::from_der(&csr_der.into()).unwrap();
        let day = Duration::from_secs(86_400);
        request.params.not_before = (SystemTime::now() - day).into();
        request.params.not_after = (SystemTime::now() + day).into();
        request.signed_by(&self.issuer).unwrap().der().to_vec()
    }

    pub(crate) fn empty_store(&self, name: &str) -> (Store, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let id = Identity::parse(name).unwrap();
        let KeyAndCsr { key, csr_der } = load_or_create(dir.path(), &id, name).unwrap();
        let anchors = TrustAnchors::from_pem(&self.pem).unwrap();
        (Store::new(anchors, id, name.to_owned(), key), csr_der)
    }

    /// A store of `name` with a certificate that counts as valid for `life`.
    pub(crate) fn store(&self, name: &str, life: Duration) -> Store {
        let (store, csr_der) = self.empty_store(name);
        store
            .install(self.sign(&csr_der), vec![], SystemTime::now() + life)
            .unwrap();
        store
    }
}

/// What the service does with one call.
pub(crate) enum Answer {
    Sign { valid_until: SystemTime },
    Say(Box<CertifyResponse>),
    Refuse(Status),
    Hang,
}

/// One call as the service saw it.
pub(crate) struct Call {
    pub at: Instant,
    pub token: Vec<u8>,
    pub identity: String,
    pub authority: Option<String>,
}

/// An identity service that follows a script and then refuses.
#[derive(Clone)]
pub(crate) struct Fake {
    pub authority: Arc<Authority>,
    pub script: Arc<Mutex<VecDeque<Answer>>>,
    pub calls: Arc<Mutex<Vec<Call>>>,
}

impl Fake {
    pub(crate) fn new(authority: Arc<Authority>, script: Vec<Answer>) -> Self {
        let script = Arc::new(Mutex::new(script.into()));
        Self {
            authority,
            script,
            calls: Arc::default(),
        }
    }

    /// Serves HTTP/2 on one connection until it ends.
    pub(crate) async fn serve<IO>(self, io: IO)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let service = hyper::service::service_fn(move |mut request: http::Request<_>| {
            let authority = request.uri().authority().map(ToString::to_string);
            request.extensions_mut().insert(authority);
            let mut server = IdentityServer::new(self.clone());
            async move { tower::Service::call(&mut server, request).await }
        });
        let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = http2.serve_connection(TokioIo::new(io), service).await;
    }
}

#[tonic::async_trait]
impl Service for Fake {
    async fn certify(
        &self,
        request: Request<CertifyRequest>,
    ) -> Result<Response<CertifyResponse>, Status> {
        let authority = request
            .extensions()
            .get::<Option<String>>()
            .cloned()
            .flatten();
        let CertifyRequest {
            identity,
            token,
            certificate_signing_request,
        } = request.into_inner();
        self.calls.lock().push(Call {
            at: Instant::now(),
            token,
            identity,
            authority,
        });
        let answer = self.script.lock().pop_front();
        match answer {
            Some(Answer::Sign { valid_until }) => Ok(Response::new(CertifyResponse {
                leaf_certificate: self.authority.sign(&certificate_signing_request),
                intermediate_certificates: vec![],
                valid_until: Some(valid_until.into()),
            })),
            Some(Answer::Say(response)) => Ok(Response::new(*response)),
            Some(Answer::Refuse(status)) => Err(status),
            Some(Answer::Hang) => std::future::pending().await,
            None => Err(Status::unavailable("the script is over")),
        }
    }
}
