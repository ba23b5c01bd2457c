//! Owns peers that answer by themselves, for tests in which the peer is not the point: as a task of a test, or as the
//! process `weft-peer` where something must be killed or loaded.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::http2::{Server2, read_body};
use crate::wire::{Listener, Message, Wire};

/// Serves HTTP/1 and HTTP/2 (prior knowledge): answers with a JSON document of what came.
///
/// The query controls the answer: `status=503`, `delay=100` (milliseconds), `bytes=1000` (a body of so many instead),
/// `close` (HTTP/1: closes without a word after the answer).
pub fn http(listener: Listener, name: &str) {
    slow_http(listener, name, Duration::ZERO);
}

/// [`http`] that takes so long for each request.
pub fn slow_http(listener: Listener, name: &str, delay: Duration) {
    let name = name.to_owned();
    listener.serve(move |wire| {
        let who = Who {
            name: name.clone(),
            delay,
        };
        http_connection(wire, who)
    });
}

/// Who answers.
#[derive(Clone)]
struct Who {
    name: String,
    delay: Duration,
}

async fn http_connection(wire: Wire, who: Who) -> anyhow::Result<()> {
    if wire.begins_with(b"PRI * HTTP/2").await? {
        return http2_connection(wire, who).await;
    }
    let mut wire = wire.patient(Duration::from_secs(600));
    loop {
        let message = wire.message().await?;
        let target = message
            .head
            .first
            .split(' ')
            .nth(1)
            .unwrap_or_default()
            .to_owned();
        let (status, body) = reply(&target, &who, describe(&message)).await;
        let close = knob(&target, "close").is_some();
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        // A response to HEAD has no body, whatever it says of its length.
        let body = if message.head.first.starts_with("HEAD ") {
            ""
        } else {
            &body
        };
        wire.send(head + body).await?;
        if close {
            return Ok(());
        }
    }
}

fn describe(message: &Message) -> Value {
    json!({ "first": message.head.first, "fields": message.head.fields, "body": message.text() })
}

async fn http2_connection(wire: Wire, who: Who) -> anyhow::Result<()> {
    let mut server = Server2::start(wire)
        .await?
        .patient(Duration::from_secs(600));
    loop {
        let (request, mut respond) = server.accept().await?;
        let who = who.clone();
        tokio::spawn(async move {
            let (head, body) = request.into_parts();
            let fields: Vec<(&str, String)> = head
                .headers
                .iter()
                .map(|(name, value)| {
                    (
                        name.as_str(),
                        String::from_utf8_lossy(value.as_bytes()).into_owned(),
                    )
                })
                .collect();
            let body = read_body(body).await?.0;
            let first = format!("{} {} HTTP/2", head.method, head.uri);
            let seen =
                json!({ "first": first, "fields": fields, "body": String::from_utf8_lossy(&body) });
            let (status, body) = reply(&head.uri.to_string(), &who, seen).await;
            let response = Response::builder()
                .status(status)
                .header("content-length", body.len())
                .body(())?;
            let mut stream = respond.send_response(response, false)?;
            stream.send_data(Bytes::from(body), true)?;
            anyhow::Ok(())
        });
    }
}

/// Value of a knob in the query of a target.
fn knob<'a>(target: &'a str, name: &str) -> Option<&'a str> {
    let pairs = target.split_once('?')?.1.split('&');
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .find(|(n, _)| *n == name)
        .map(|(_, value)| value)
}

async fn reply(target: &str, who: &Who, mut seen: Value) -> (u16, String) {
    let number =
        |knob: Option<&str>, default| knob.and_then(|text| text.parse().ok()).unwrap_or(default);
    sleep(who.delay + Duration::from_millis(number(knob(target, "delay"), 0))).await;
    let status = number(knob(target, "status"), 200);
    let item = target.strip_prefix("/item/").and_then(|id| id.parse().ok());
    let body = match (knob(target, "bytes"), item) {
        (Some(bytes), _) => "x".repeat(bytes.parse().unwrap_or_default()),
        // What the demo's load asks for, and checks.
        (None, Some(id)) => weft_cli::demo::apps::items::value_of(id),
        (None, None) => {
            seen["server"] = who.name.as_str().into();
            seen.to_string()
        }
    };
    (u16::try_from(status).unwrap_or(200), body)
}

/// Redirects each path to the same with a slash at its end, as many applications do; HTTP/1, one request a connection.
pub fn slash(listener: Listener) {
    listener.serve(|wire| async move {
        let mut wire = wire.patient(Duration::from_secs(600));
        let message = wire.message().await?;
        let path = message.head.first.split(' ').nth(1).unwrap_or_default();
        let (status, location) = match path.ends_with('/') {
            true => (200, String::new()),
            false => (301, format!("location: {path}/\r\n")),
        };
        let head = format!("HTTP/1.1 {status} X\r\n{location}connection: close\r\n");
        wire.send(head + "content-length: 0\r\n\r\n").await
    });
}

/// Greets with a line before the client has said a word, then echoes lines.
pub fn banner(listener: Listener, text: &str) {
    let text = format!("{text}\n");
    listener.serve(move |wire| {
        let text = text.clone();
        async move {
            let mut wire = wire.patient(Duration::from_secs(600));
            wire.send(text).await?;
            loop {
                let line = wire.line().await?;
                wire.send(format!("{line}\n")).await?;
            }
        }
    });
}

/// Echoes bytes; when the client has finished, says how many there were and ends.
pub fn echo(listener: Listener) {
    listener.serve(|wire| async move {
        let mut wire = wire.patient(Duration::from_secs(600));
        let mut count = 0;
        loop {
            let bytes = wire.some().await?;
            if bytes.is_empty() {
                wire.send(format!("bytes: {count}\n")).await?;
                return wire.finish().await;
            }
            count += bytes.len();
            wire.send(bytes).await?;
        }
    });
}
