//! A Kubernetes API server for tests, as far as this service calls one: real HTTP/1 over real TLS on loopback, a kubeconfig for it,
//! and answers that a test chooses. Keeps what it was sent.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rcgen::{CertifiedIssuer, KeyPair};
use rustls::ServerConfig;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::{ca_params, csr_params, key};

/// The credential in the kubeconfig.
const BEARER: &str = "Bearer of-the-identity-service";

/// What a test wants a call to get.
pub(crate) enum Reply {
    /// A status and an object, after a while.
    Json(u16, Value, Duration),
    /// The connection ends without an answer.
    Cut,
}

pub(crate) fn ok(object: Value) -> Reply {
    Reply::Json(201, object, Duration::ZERO)
}

pub(crate) fn failure(code: u16, message: &str) -> Reply {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code,
    });
    Reply::Json(code, status, Duration::ZERO)
}

/// Authenticates the tokens `bound/NAMESPACE/NAME` for the audience that was asked for, and `legacy/NAMESPACE/NAME` for that of
/// the API only, in the words of a real API server.
pub(crate) fn review(sent: &Value) -> Value {
    let token = sent["spec"]["token"].as_str().unwrap_or_default();
    let asked = &sent["spec"]["audiences"];
    let parts: Vec<&str> = token.split('/').collect();
    let status = match (parts.as_slice(), asked.is_null()) {
        (["bound", namespace, name], false) => authenticated(namespace, name, asked.clone()),
        (["legacy", namespace, name], true) => {
            authenticated(namespace, name, json!(["https://kubernetes.default.svc"]))
        }
        (["bound" | "legacy", ..], _) => json!({"error":
            "[invalid bearer token, token audiences [\"a\"] is invalid for the target audiences [\"b\"]]"}),
        _ => {
            json!({"error": "[invalid bearer token, square/go-jose: error in cryptographic primitive]"})
        }
    };
    let mut answer = sent.clone();
    answer["status"] = status;
    answer
}

fn authenticated(namespace: &str, name: &str, audiences: Value) -> Value {
    json!({
        "authenticated": true,
        "audiences": audiences,
        "user": {
            "username": format!("system:serviceaccount:{namespace}:{name}"),
            "uid": format!("uid-of-{name}"),
            "groups": ["system:serviceaccounts"],
        },
    })
}

/// The answers of a usual cluster; TokenReviews take as long as they are said to.
pub(crate) fn cluster(review_takes: Duration) -> impl Fn(&str, &Value) -> Reply {
    move |path, sent| match path {
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" => {
            let asked = &sent["spec"]["resourceAttributes"];
            let mut answer = sent.clone();
            answer["status"] = json!({"allowed": asked["resource"] == "tokenreviews" && asked["verb"] == "create"
                && asked["group"] == "authentication.k8s.io"});
            ok(answer)
        }
        "/apis/authentication.k8s.io/v1/tokenreviews" => {
            Reply::Json(201, review(sent), review_takes)
        }
        path if path.ends_with("/events") => ok(sent.clone()),
        _ => failure(404, "the server could not find the requested resource"),
    }
}

type Answer = dyn Fn(&str, &Value) -> Reply + Send + Sync;

pub(crate) struct ApiServer {
    dir: TempDir,
    /// Paths and objects, in the order they came.
    calls: Arc<Mutex<Vec<(String, Value)>>>,
}

impl ApiServer {
    pub(crate) async fn start(
        answer: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let dir = tempfile::tempdir().expect("folder");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let port = listener.local_addr().expect("address").port();
        let ca =
            CertifiedIssuer::self_signed(ca_params("api"), key(&rcgen::PKCS_ECDSA_P256_SHA256))
                .expect("CA");
        std::fs::write(dir.path().join("ca.crt"), ca.pem()).expect("written");
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\ncontexts:\n- name: test\n  context: {{cluster: test, user: test}}\n\
             clusters:\n- name: test\n  cluster: {{server: \"https://127.0.0.1:{port}\", certificate-authority: ca.crt}}\n\
             users:\n- name: test\n  user: {{token: {}}}\n",
            BEARER.trim_start_matches("Bearer ")
        );
        std::fs::write(dir.path().join("config"), kubeconfig).expect("written");

        let calls = Arc::new(Mutex::new(Vec::new()));
        let acceptor = TlsAcceptor::from(Arc::new(server_config(&ca)));
        let (answer, seen): (Arc<Answer>, _) = (Arc::new(answer), calls.clone());
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("accepted");
                stream.set_nodelay(true).expect("set");
                tokio::spawn(serve(
                    acceptor.clone(),
                    stream,
                    answer.clone(),
                    seen.clone(),
                ));
            }
        });
        Self { dir, calls }
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("config")
    }

    /// What was sent to paths that end so.
    pub(crate) fn sent(&self, end: &str) -> Vec<(String, Value)> {
        let calls = self.calls.lock();
        calls
            .iter()
            .filter(|(path, _)| path.ends_with(end))
            .cloned()
            .collect()
    }
}

fn server_config(ca: &CertifiedIssuer<'static, KeyPair>) -> ServerConfig {
    let own = key(&rcgen::PKCS_ECDSA_P256_SHA256);
    let certificate = csr_params("127.0.0.1").signed_by(&own, ca).expect("signed");
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.serialize_der()));
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("certificate")
}

async fn serve(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    answer: Arc<Answer>,
    calls: Arc<Mutex<Vec<(String, Value)>>>,
) {
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let service = service_fn(move |request| respond(request, answer.clone(), calls.clone()));
    // A test that ends in the middle is no news.
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn respond(
    request: Request<Incoming>,
    answer: Arc<Answer>,
    calls: Arc<Mutex<Vec<(String, Value)>>>,
) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let path = request.uri().path().to_owned();
    let known = request
        .headers()
        .get("authorization")
        .is_some_and(|value| value == BEARER);
    let body = request
        .into_body()
        .collect()
        .await
        .map_err(std::io::Error::other)?;
    let sent: Value = serde_json::from_slice(&body.to_bytes())?;
    calls.lock().push((path.clone(), sent.clone()));
    let reply = match known {
        true => answer(&path, &sent),
        false => failure(401, "Unauthorized"),
    };
    match reply {
        Reply::Cut => Err(std::io::Error::other("cut")),
        Reply::Json(code, object, after) => {
            tokio::time::sleep(after).await;
            let mut response = Response::new(Full::from(object.to_string()));
            *response.status_mut() = StatusCode::from_u16(code).expect("a status");
            Ok(response)
        }
    }
}
