//! An API server for the tests of this crate: objects by path, resource versions, merge patches, conflicts, and faults on
//! demand; in memory for a paused clock, or over HTTP. Not part of the library.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use kube::{Client, Config};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// A change that somebody asked for.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) uri: Uri,
    pub(crate) body: Value,
    pub(crate) status: u16,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    version: u64,
    down: bool,
    slow: Duration,
    conflicts: usize,
    open: usize,
    most_open: usize,
    writes: Vec<Write>,
}

/// The API server.
#[derive(Default)]
pub(crate) struct FakeApi {
    state: Mutex<State>,
}

impl FakeApi {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Stores an object as somebody else would.
    pub(crate) fn put(&self, path: &str, object: Value) {
        self.state.lock().store(path, object);
    }

    pub(crate) fn find(&self, path: &str) -> Option<Value> {
        self.state.lock().objects.get(path).cloned()
    }

    /// From now on it cannot be reached, or can again.
    pub(crate) fn set_down(&self, down: bool) {
        self.state.lock().down = down;
    }

    /// From now on each answer takes so long.
    pub(crate) fn set_slow(&self, slow: Duration) {
        self.state.lock().slow = slow;
    }

    /// So many of the next changes fail, as if somebody else had been quicker.
    pub(crate) fn set_conflicts(&self, conflicts: usize) {
        self.state.lock().conflicts = conflicts;
    }

    pub(crate) fn writes(&self) -> Vec<Write> {
        self.state.lock().writes.clone()
    }

    /// How many requests were under way at a time, at most.
    pub(crate) fn most_open(&self) -> usize {
        self.state.lock().most_open
    }

    /// Says which collections a version of a group has, each with statuses.
    pub(crate) fn serve_kinds(&self, group_version: &str, plurals: &[&str]) {
        let names = plurals.iter();
        let names = names.flat_map(|plural| [plural.to_string(), format!("{plural}/status")]);
        let resources = names.map(|name| {
            json!({"name": name, "singularName": "", "namespaced": true, "kind": "X", "verbs": ["patch"]})
        });
        let list = json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version,
            "resources": resources.collect::<Vec<_>>()
        });
        self.put(&format!("/apis/{group_version}"), list);
    }

    /// A client without a network in between.
    pub(crate) fn client(self: &Arc<Self>) -> Client {
        let api = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let api = Arc::clone(&api);
            async move { api.answer(request).await }
        });
        Client::new(service, "default")
    }

    /// A client over real connections.
    pub(crate) async fn serve(self: &Arc<Self>) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let api = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let api = Arc::clone(&api);
                let service = hyper::service::service_fn(move |request| {
                    let api = Arc::clone(&api);
                    async move { api.answer(request).await }
                });
                let serving = hyper::server::conn::http1::Builder::new();
                // An error of the service ends the connection: that is how a server that is down looks.
                tokio::spawn(serving.serve_connection(TokioIo::new(stream), service));
            }
        });
        let config = Config::new(format!("http://{address}").parse().unwrap());
        Client::try_from(config).unwrap()
    }

    async fn answer<B>(&self, request: Request<B>) -> io::Result<Response<Full<Bytes>>>
    where
        B: hyper::body::Body<Data = Bytes>,
        B::Error: std::fmt::Debug,
    {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let slow = {
            let mut state = self.state.lock();
            state.open += 1;
            state.most_open = state.most_open.max(state.open);
            state.slow
        };
        if !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
        let mut state = self.state.lock();
        state.open -= 1;
        if state.down {
            return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
        }
        let (status, answer) = state.handle(&head.method, &head.uri, &body);
        let response = Response::builder()
            .status(status)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(answer.to_string())));
        Ok(response.unwrap())
    }
}

impl State {
    fn handle(&mut self, method: &Method, uri: &Uri, body: &[u8]) -> (u16, Value) {
        if method == Method::GET {
            return match self.objects.get(uri.path()) {
                Some(object) => (200, object.clone()),
                None => failure(404),
            };
        }
        let body: Value = serde_json::from_slice(body).unwrap();
        let (status, answer) = self.write(method, uri.path(), &body);
        self.writes.push(Write {
            uri: uri.clone(),
            body,
            status,
        });
        (status, answer)
    }

    fn write(&mut self, method: &Method, path: &str, body: &Value) -> (u16, Value) {
        if self.conflicts > 0 {
            self.conflicts -= 1;
            return failure(409);
        }
        if method == Method::POST {
            let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap());
            if self.objects.contains_key(&path) {
                return failure(409);
            }
            return (201, self.store(&path, body.clone()));
        }
        assert_eq!(method, Method::PATCH);
        let of_status = path.strip_suffix("/status");
        let path = of_status.unwrap_or(path);
        let Some(mut object) = self.objects.get(path).cloned() else {
            return failure(404);
        };
        let expected = &body["metadata"]["resourceVersion"];
        if !expected.is_null() && *expected != object["metadata"]["resourceVersion"] {
            return failure(409);
        }
        match of_status {
            Some(_) => merge(&mut object["status"], &body["status"]),
            None => merge(&mut object, body),
        }
        (200, self.store(path, object))
    }

    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path.to_owned(), object.clone());
        object
    }
}

/// RFC 7396.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        match value {
            Value::Null => drop(target.as_object_mut().unwrap().remove(key)),
            value => merge(&mut target[key], value),
        }
    }
}

fn failure(code: u16) -> (u16, Value) {
    let reason = match code {
        404 => "NotFound",
        _ => "Conflict",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": reason, "reason": reason,
        "code": code
    });
    (code, status)
}
