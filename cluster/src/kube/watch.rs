//! Owns one watch of a kind: the stream of changes after a moment, from its request to its end. Does not start again.

use std::{borrow::Cow, time::Duration};

use bytes::BytesMut;
use http_body_util::BodyExt;
use kube::core::Status;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::{
    KubeSource,
    fetch::{self, FetchError},
    item::{self, Head, Item},
    list::encode,
};
use crate::objects::{Kind, Object, ObjectRef};

/// The API server is asked to end a watch after this time, so that watches spread over its replicas again.
const LIFETIME: Duration = Duration::from_secs(290);
/// Largest event, in bytes; etcd takes objects up to 1.5 MB.
const MAX_EVENT: usize = 16 << 20;

/// A change of one object.
#[derive(Debug, PartialEq)]
pub(super) enum Change {
    /// It is new or different.
    Applied(Box<Object>),
    /// It is gone.
    Deleted(ObjectRef),
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Follows a kind from `position`, which moves along, until the stream ends. Changes that come together are given
/// together; bookmarks give an empty list.
///
/// # Errors
/// The watch could not be opened, was cut, or the API server has said why it cannot go on.
pub(super) async fn watch(
    source: &KubeSource,
    path: &str,
    kind: Kind,
    position: &mut String,
    mut each: impl FnMut(Vec<Change>),
) -> Result<(), FetchError> {
    let query = format!(
        "{path}?watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={}",
        encode(position),
        LIFETIME.as_secs()
    );
    let mut body = fetch::open(&source.client, &query, fetch::accept(kind, false)).await?;
    let mut buffer = BytesMut::new();
    loop {
        let Ok(frame) = timeout(source.pace.silence, body.frame()).await else {
            return Err(FetchError::Timeout(source.pace.silence));
        };
        let Some(frame) = frame else {
            return Ok(());
        };
        let frame = frame.map_err(|error| FetchError::transport(&error))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        // Only what is new can hold the end of the line that was left over.
        let mut searched = buffer.len();
        buffer.extend_from_slice(&data);
        let mut changes = Vec::new();
        let (mut failed, mut whole) = (None, false);
        while let Some(end) = end_of_line(&buffer, searched) {
            let line = buffer.split_to(end + 1);
            searched = 0;
            match event(kind, &line, position) {
                Ok(change) => {
                    whole = true;
                    changes.extend(change);
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if whole {
            each(changes);
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if buffer.len() > MAX_EVENT {
            return Err(FetchError::Answer(format!(
                "an event of more than {MAX_EVENT} bytes"
            )));
        }
    }
}

fn end_of_line(buffer: &[u8], searched: usize) -> Option<usize> {
    let new = buffer.get(searched..)?;
    new.iter()
        .position(|byte| *byte == b'\n')
        .map(|at| searched + at)
}

/// Reads one line of a watch; `position` moves to the event.
pub(super) fn event(
    kind: Kind,
    line: &[u8],
    position: &mut String,
) -> Result<Option<Change>, FetchError> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let event: Event<'_> = serde_json::from_slice(line)
        .map_err(|error| FetchError::Answer(format!("not an event of a watch: {error}")))?;
    if event.kind == "ERROR" {
        let status: Status = serde_json::from_str(event.object.get())
            .map_err(|error| FetchError::Answer(format!("not a status: {error}")))?;
        return Err(FetchError::status(status));
    }
    let head = Head::read(event.object)?;
    let change = match &*event.kind {
        "ADDED" | "MODIFIED" => match item::read(kind, event.object)? {
            Item::Object(object) => Some(Change::Applied(Box::new(object))),
            Item::Unreadable(_) => None,
        },
        "DELETED" => Some(Change::Deleted(ObjectRef {
            kind,
            name: head.name(),
        })),
        "BOOKMARK" => None,
        other => {
            return Err(FetchError::Answer(format!(
                "an event of the unknown type {other:?}"
            )));
        }
    };
    let version = head.into_version();
    if !version.is_empty() {
        *position = version;
    }
    Ok(change)
}
