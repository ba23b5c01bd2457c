//! Keeps a server-streaming watch of the control plane alive: opens it, bounds it in time, opens it again.
//! Does not know what the messages mean; the caller applies them, and keeps what it knew while the stream is down.

use std::pin::Pin;

use futures_util::{Stream, StreamExt};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Response, Status, Streaming};
use weft_core::backoff::ExponentialBackoff;

use super::random;
use crate::settings::StreamLimits;

#[cfg(test)]
mod tests;

/// How a watch is kept.
#[derive(Clone, Debug)]
pub struct Watch {
    /// What is watched, for the log: `profile of 10.0.0.1:80`.
    pub what: String,
    /// Limits of each stream: first message, silence between messages, altogether; see
    /// [`crate::settings::Control::stream_limits`].
    pub limits: StreamLimits,
    /// The wait between streams. It starts afresh after a stream that brought a message or was cut by a limit.
    pub backoff: ExponentialBackoff,
    /// Answers after which asking again is of no use, such as `InvalidArgument` (contract 3.1, 4.1).
    pub terminal: &'static [Code],
}

/// What the caller of [`watch`] is told.
#[derive(Debug)]
pub enum Event<M> {
    /// A stream begins: what its messages say replaces what earlier streams said (contract 4.1).
    Opened,
    /// The next message.
    Message(M),
}

/// Messages of one stream.
pub type Messages<M> = Pin<Box<dyn Stream<Item = Result<M, Status>> + Send>>;

/// A stream about to be opened; [`opening`] makes it from a call of a generated client.
pub type Opening<M> = Pin<Box<dyn Future<Output = Result<Messages<M>, Status>> + Send>>;

/// The call of a generated client as [`watch`] wants it.
pub fn opening<M: Send + 'static>(
    call: impl Future<Output = Result<Response<Streaming<M>>, Status>> + Send + 'static,
) -> Opening<M> {
    Box::pin(async move { Ok(call.await?.into_inner().boxed()) })
}

/// Why one stream ended.
enum Ended {
    /// The server or the connection ended it.
    Failed(Status),
    /// One of our limits did.
    Limit(&'static str),
}

/// Calls `open` again and again and `on` with what comes, until the server gives one of the terminal answers, which is
/// returned. To stop earlier, drop the future. `on` must not block: it stores the newest state and returns.
pub async fn watch<M>(
    config: &Watch,
    mut open: impl FnMut() -> Opening<M>,
    mut on: impl FnMut(Event<M>),
) -> Status {
    let mut failures = 0;
    loop {
        let mut messages = 0_u64;
        let ended = run(&config.limits, open(), |event| {
            messages += u64::from(matches!(event, Event::Message(_)));
            on(event);
        })
        .await;
        if messages > 0 {
            failures = 0;
        }
        let delay = match ended {
            Ended::Failed(status) if config.terminal.contains(&status.code()) => return status,
            Ended::Failed(status) => {
                let delay = config.backoff.delay(failures, random());
                failures = failures.saturating_add(1);
                tracing::warn!(watch = %config.what, code = ?status.code(), error = %reason(&status),
                    ?delay, "the control plane ended a watch; opening it again");
                delay
            }
            Ended::Limit(limit) => {
                failures = 0;
                tracing::debug!(watch = %config.what, limit, "opening a watch again");
                config.backoff.delay(0, random())
            }
        };
        sleep(delay).await;
    }
}

async fn run<M>(limits: &StreamLimits, opening: Opening<M>, mut on: impl FnMut(Event<M>)) -> Ended {
    let start = Instant::now();
    let end = limits
        .lifetime
        .and_then(|lifetime| start.checked_add(lifetime));
    // A server may hold back the response headers until it has a message, so the first limit covers both.
    let (mut next, mut limit) = earlier(
        limits
            .initial
            .and_then(|initial| start.checked_add(initial)),
        end,
        "initial",
    );
    let mut messages = match within(next, opening).await {
        Some(Ok(messages)) => messages,
        Some(Err(status)) => return Ended::Failed(status),
        None => return Ended::Limit(limit),
    };
    on(Event::Opened);
    loop {
        match within(next, messages.next()).await {
            Some(Some(Ok(message))) => on(Event::Message(message)),
            Some(Some(Err(status))) => return Ended::Failed(status),
            Some(None) => return Ended::Failed(Status::unavailable("the stream ended")),
            None => return Ended::Limit(limit),
        }
        (next, limit) = earlier(
            limits
                .idle
                .and_then(|idle| Instant::now().checked_add(idle)),
            end,
            "idle",
        );
    }
}

fn earlier(
    wait: Option<Instant>,
    end: Option<Instant>,
    name: &'static str,
) -> (Option<Instant>, &'static str) {
    match (wait, end) {
        (Some(wait), Some(end)) if end <= wait => (Some(end), "lifetime"),
        (Some(wait), _) => (Some(wait), name),
        (None, end) => (end, "lifetime"),
    }
}

async fn within<F: Future>(deadline: Option<Instant>, future: F) -> Option<F::Output> {
    match deadline {
        Some(deadline) => timeout_at(deadline, future).await.ok(),
        None => Some(future.await),
    }
}

/// The message of a status and, if the transport failed, the causes below it, which the message leaves out.
pub fn reason(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        source = error.source();
    }
    text
}
