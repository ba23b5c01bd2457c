//! Owns reading all objects of a kind, page by page, as of one moment; does not follow changes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::Client;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    fetch::{self, FetchError},
    item::{self, Item},
};
use crate::objects::{Kind, Name, Object};

/// Objects of a page at first; a pod is about 10 kB of JSON.
const PAGE: u32 = 500;
/// Objects of a page at most.
const MAX_PAGE: u32 = 8_000;

/// All objects of a kind.
pub(super) struct Listed {
    pub(super) objects: Vec<Object>,
    /// Those that cannot be read.
    pub(super) unreadable: Vec<Name>,
    /// The moment, where a watch goes on.
    pub(super) resource_version: String,
}

#[derive(Deserialize)]
struct Page<'a> {
    metadata: ListMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

/// Reads all objects of a kind. The API server keeps the moment of a list for some minutes; where reading takes longer,
/// it starts over with larger pages.
pub(super) async fn list(client: &Client, path: &str, kind: Kind) -> Result<Listed, FetchError> {
    let mut size = PAGE;
    loop {
        match pages(client, path, kind, size).await {
            Err(FetchError::Gone) if size < MAX_PAGE => size *= 2,
            other => return other,
        }
    }
}

async fn pages(client: &Client, path: &str, kind: Kind, size: u32) -> Result<Listed, FetchError> {
    let mut listed = Listed {
        objects: Vec::new(),
        unreadable: Vec::new(),
        resource_version: String::new(),
    };
    let mut next = String::new();
    loop {
        let mut query = format!("{path}?limit={size}");
        if !next.is_empty() {
            query.push_str("&continue=");
            query.push_str(&encode(&next));
        }
        let text = fetch::get(client, &query, fetch::accept(kind, true)).await?;
        let page: Page<'_> = serde_json::from_slice(&text)
            .map_err(|error| FetchError::Answer(format!("not a list: {error}")))?;
        for text in page.items.into_iter().flatten() {
            match item::read(kind, text)? {
                Item::Object(object) => listed.objects.push(object),
                Item::Unreadable(name) => listed.unreadable.push(name),
            }
        }
        next = page.metadata.continue_.unwrap_or_default();
        if next.is_empty() {
            listed.resource_version = page.metadata.resource_version.unwrap_or_default();
            return match listed.resource_version.is_empty() {
                true => Err(FetchError::Answer(
                    "a list without resourceVersion".to_owned(),
                )),
                false => Ok(listed),
            };
        }
    }
}

/// Encodes a value of a query (RFC 3986, 2.3).
pub(super) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(byte.into());
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}
