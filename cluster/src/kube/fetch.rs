//! Owns single requests to the API server: their limits in time and size, what can go wrong with them, and which version
//! of a kind is served. Does not know lists and watches.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{Request, header::ACCEPT};
use http_body_util::BodyExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, APIResourceList};
use kube::{Client, client::Body, core::Status};
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::time::timeout;

use crate::objects::Kind;

/// The API server itself gives up after a minute.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(70);
/// Largest body that is not a stream, in bytes.
const MAX_BODY: usize = 128 << 20;
/// Largest text of an error that is kept, in bytes.
const MAX_ERROR: usize = 64 << 10;

/// Why the API server could not be asked, or did not say what was asked.
#[derive(Clone, Debug, Error)]
pub(super) enum FetchError {
    /// 404, or a group or version that is not served.
    #[error("the API server does not serve it")]
    Absent,
    /// The same of a kind that the mesh cannot do without: its name in full.
    #[error(
        "{0} is not installed in this cluster; install or upgrade the chart linkerd-crds, which has it"
    )]
    Missing(String),
    /// 410: the history that was asked for is gone.
    #[error("the resource version is too old")]
    Gone,
    /// Any other status.
    #[error("{code}: {message}{}", remedy(*code))]
    Status {
        /// HTTP status.
        code: u16,
        /// The API server's words.
        message: String,
    },
    /// The request could not be sent, or its answer not be read.
    #[error("{0}")]
    Transport(Arc<str>),
    /// Nothing came in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The answer is not what it should be.
    #[error("unexpected answer: {0}")]
    Answer(String),
}

fn remedy(code: u16) -> &'static str {
    match code {
        401 => "; is the token of the service account valid?",
        403 => "; the service account needs list and watch of this kind in all namespaces",
        _ => "",
    }
}

impl FetchError {
    pub(super) fn transport(error: &(dyn std::error::Error + 'static)) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let more = error.to_string();
            if !text.contains(&more) {
                text = format!("{text}: {more}");
            }
            cause = error.source();
        }
        Self::Transport(text.into())
    }

    pub(super) fn status(status: Status) -> Self {
        match status.code {
            404 => Self::Absent,
            410 => Self::Gone,
            code => Self::Status {
                code,
                message: match status.message.is_empty() {
                    true => status.reason,
                    false => status.message,
                },
            },
        }
    }
}

/// The address of all objects of a kind.
pub(super) fn path(kind: Kind, version: &str) -> String {
    let api = kind.api();
    match api.group {
        "" => format!("/api/{version}/{}", api.plural),
        group => format!("/apis/{group}/{version}/{}", api.plural),
    }
}

/// What is asked for. Of a node only its labels are read, and nodes are large and change often.
pub(super) fn accept(kind: Kind, list: bool) -> &'static str {
    match (kind, list) {
        (Kind::Node, true) => {
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
        }
        (Kind::Node, false) => {
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
        }
        _ => "application/json",
    }
}

/// Sends a GET and gives the body of a good answer.
pub(super) async fn open(client: &Client, path: &str, accept: &str) -> Result<Body, FetchError> {
    let request = Request::get(path)
        .header(ACCEPT, accept)
        .body(Body::empty())
        .map_err(|error| FetchError::Answer(error.to_string()))?;
    let answer = timeout(ANSWER_TIMEOUT, client.send(request)).await;
    let answer = answer
        .map_err(|_| FetchError::Timeout(ANSWER_TIMEOUT))?
        .map_err(|error| FetchError::transport(&error))?;
    let code = answer.status().as_u16();
    if answer.status().is_success() {
        return Ok(answer.into_body());
    }
    let text = read(answer.into_body(), MAX_ERROR)
        .await
        .unwrap_or_default();
    let mut status = serde_json::from_slice(&text).unwrap_or_else(|_| Status {
        message: String::from_utf8_lossy(&text).chars().take(200).collect(),
        ..Status::default()
    });
    status.code = code;
    Err(FetchError::status(status))
}

/// Sends a GET and gives the whole answer.
pub(super) async fn get(client: &Client, path: &str, accept: &str) -> Result<Bytes, FetchError> {
    let body = open(client, path, accept).await?;
    let read = timeout(ANSWER_TIMEOUT, read(body, MAX_BODY)).await;
    read.map_err(|_| FetchError::Timeout(ANSWER_TIMEOUT))?
}

async fn read(mut body: Body, max: usize) -> Result<Bytes, FetchError> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| FetchError::transport(&error))?;
        if let Ok(data) = frame.into_data() {
            if whole.len() + data.len() > max {
                return Err(FetchError::Answer(format!("more than {max} bytes")));
            }
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole.freeze())
}

async fn get_json<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T, FetchError> {
    let text = get(client, path, "application/json").await?;
    serde_json::from_slice(&text).map_err(|error| FetchError::Answer(error.to_string()))
}

/// Whether a kind comes with Kubernetes, so that its absence is a fault of the address and not of the cluster.
pub(super) fn built_in(kind: Kind) -> bool {
    matches!(kind.api().group, "" | "discovery.k8s.io")
}

/// Whether a cluster may lack a kind: those of the Gateway API are another project's. Our own are needed, since without its
/// Servers a port would be open.
pub(super) fn optional(kind: Kind) -> bool {
    kind.api().group == "gateway.networking.k8s.io"
}

/// The first of our versions that the API server serves.
pub(super) async fn served_version(
    client: &Client,
    kind: Kind,
) -> Result<&'static str, FetchError> {
    let api = kind.api();
    let &[preferred, ..] = api.versions else {
        return Err(FetchError::Absent);
    };
    if built_in(kind) {
        return Ok(preferred);
    }
    let group: APIGroup = get_json(client, &format!("/apis/{}", api.group)).await?;
    for &version in api.versions {
        if !group
            .versions
            .iter()
            .any(|served| served.version == version)
        {
            continue;
        }
        let path = format!("/apis/{}/{version}", api.group);
        let resources: APIResourceList = get_json(client, &path).await?;
        if resources.resources.iter().any(|r| r.name == api.plural) {
            return Ok(version);
        }
    }
    Err(FetchError::Absent)
}
