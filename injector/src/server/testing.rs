//! An API server for tests: a store of objects by their paths, over real HTTP, with the status codes and the optimistic locking of a
//! real one. No watches, no schemas.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::TokioIo;
use kube::{Client, Config};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The store.
#[derive(Default)]
pub(super) struct Store {
    /// By path.
    pub objects: BTreeMap<String, Value>,
    /// Method and path of each request.
    pub requests: Vec<String>,
    /// Answer everything with this status.
    pub broken: Option<StatusCode>,
    version: u64,
}

/// A running API server.
#[derive(Clone)]
pub(super) struct FakeApi {
    pub store: Arc<Mutex<Store>>,
    pub client: Client,
}

impl FakeApi {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        let store = Arc::new(Mutex::new(Store::default()));
        tokio::spawn(serve(listener, Arc::clone(&store)));
        let client = Client::try_from(Config::new(uri.parse().unwrap())).unwrap();
        Self { store, client }
    }

    pub fn put(&self, path: &str, object: Value) {
        self.store.lock().write(path.to_owned(), object);
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.store.lock().objects.get(path).cloned()
    }

    pub fn namespace(&self, name: &str, annotations: Value) {
        let metadata = json!({ "name": name, "annotations": annotations });
        let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata });
        self.put(&format!("/api/v1/namespaces/{name}"), object);
    }

    /// Events of a namespace: reason, kind and name of the object, message.
    pub fn events(&self, namespace: &str) -> Vec<(String, String, String)> {
        let prefix = format!("/api/v1/namespaces/{namespace}/events/");
        let store = self.store.lock();
        let events = store
            .objects
            .iter()
            .filter(|(path, _)| path.starts_with(&prefix));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        events
            .map(|(_, event)| {
                let about = &event["involvedObject"];
                let about = format!("{}/{}", text(&about["kind"]), text(&about["name"]));
                (text(&event["reason"]), about, text(&event["message"]))
            })
            .collect()
    }

    /// Waits until an Event of this reason is there.
    pub async fn event(&self, namespace: &str, reason: &str) -> (String, String) {
        for _ in 0..500 {
            let found = self
                .events(namespace)
                .into_iter()
                .find(|event| event.0 == reason);
            if let Some((_, about, message)) = found {
                return (about, message);
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("no Event {reason}: {:?}", self.events(namespace));
    }
}

impl Store {
    fn write(&mut self, path: String, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path, object.clone());
        object
    }

    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> (StatusCode, Value) {
        self.requests.push(format!("{method} {path}"));
        if let Some(status) = self.broken {
            return failure(status, "broken");
        }
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        match *method {
            Method::GET => match self.objects.get(path) {
                Some(object) => (StatusCode::OK, object.clone()),
                None => failure(StatusCode::NOT_FOUND, "not found"),
            },
            Method::POST => self.create(path, body),
            Method::PUT => self.replace(path, body),
            Method::PATCH => self.patch(path, body),
            _ => failure(StatusCode::METHOD_NOT_ALLOWED, "no such method"),
        }
    }

    fn create(&mut self, path: &str, mut object: Value) -> (StatusCode, Value) {
        if let Some(prefix) = object["metadata"]["generateName"].as_str() {
            object["metadata"]["name"] = json!(format!("{prefix}{}", self.version));
        }
        let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
        if self.objects.contains_key(&path) {
            return failure(StatusCode::CONFLICT, "it exists");
        }
        (StatusCode::CREATED, self.write(path, object))
    }

    fn replace(&mut self, path: &str, object: Value) -> (StatusCode, Value) {
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        match self.objects.get(path) {
            None => failure(StatusCode::NOT_FOUND, "not found"),
            Some(old) if version(old) != version(&object) => {
                failure(StatusCode::CONFLICT, "it has changed")
            }
            Some(_) => (StatusCode::OK, self.write(path.to_owned(), object)),
        }
    }

    fn patch(&mut self, path: &str, patch: Value) -> (StatusCode, Value) {
        let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
        let Some(mut object) = self.objects.get(path).cloned() else {
            return failure(StatusCode::NOT_FOUND, "not found");
        };
        match json_patch::patch(&mut object, &patch) {
            Ok(()) => (StatusCode::OK, self.write(path.to_owned(), object)),
            Err(error) => failure(StatusCode::UNPROCESSABLE_ENTITY, &error.to_string()),
        }
    }
}

fn failure(code: StatusCode, message: &str) -> (StatusCode, Value) {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": message,
        "reason": code.canonical_reason().unwrap_or_default().replace(' ', ""), "code": code.as_u16(),
    });
    (code, status)
}

async fn serve(listener: TcpListener, store: Arc<Mutex<Store>>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let store = Arc::clone(&store);
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let store = Arc::clone(&store);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let (status, answer) = store.lock().answer(&parts.method, parts.uri.path(), &body);
                let answer = Response::builder()
                    .status(status)
                    .header("content-type", "application/json")
                    .body(Full::new(Bytes::from(answer.to_string())))
                    .unwrap();
                Ok::<_, Infallible>(answer)
            }
        });
        let served = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(served);
    }
}
