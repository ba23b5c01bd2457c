//! Owns `Expect: 100-continue` (RFC 9110 section 10.1.1): a client holds its body back until the server wants it, and so
//! do we. The 100 itself is read and sent where HTTP is.

use futures_util::task::AtomicWaker;
use http::header::EXPECT;
use http::{Request, StatusCode, Version};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// How long a server may take to say whether it wants the body. One that never says so gets it then; clients wait about
/// as long (curl: 1 s).
const PATIENCE: Duration = Duration::from_secs(1);

const UNDECIDED: u8 = 0;
const WANTED: u8 = 1;
const UNWANTED: u8 = 2;

/// Whether a server wants the body of a request. Travels in the request's extensions, from the connection that the
/// request came on to the one that it is sent on. One task waits for it.
#[derive(Clone, Debug)]
pub struct Continue(Arc<State>);

#[derive(Debug)]
struct State {
    verdict: AtomicU8,
    waiting: AtomicWaker,
}

impl Continue {
    /// For a request with a body whose client waits.
    pub fn expected<B: http_body::Body>(request: &mut Request<B>) -> Option<Self> {
        let expect = request.headers().get(EXPECT)?;
        let waits = expect.as_bytes().eq_ignore_ascii_case(b"100-continue");
        if !waits || request.version() < Version::HTTP_11 || request.body().is_end_stream() {
            return None;
        }
        let this = Self(Arc::new(State {
            verdict: AtomicU8::new(UNDECIDED),
            waiting: AtomicWaker::new(),
        }));
        request.extensions_mut().insert(this.clone());
        Some(this)
    }

    /// That of a request, if its client waits.
    pub fn of<B>(request: &Request<B>) -> Option<Self> {
        request.extensions().get().cloned()
    }

    /// The server has said something before its response.
    pub fn informed(&self, status: StatusCode) {
        if status == StatusCode::CONTINUE {
            self.decide(WANTED);
        }
    }

    /// The server has responded. Returns whether the body was held back until now; it is for good then.
    pub fn responded(&self) -> bool {
        self.decide(UNWANTED)
    }

    fn decide(&self, verdict: u8) -> bool {
        let now = &self.0.verdict;
        let first = now.compare_exchange(UNDECIDED, verdict, Ordering::AcqRel, Ordering::Acquire);
        // Whoever waits is told once: a wake for nothing would make it spin.
        if first.is_ok() {
            self.0.waiting.wake();
        }
        first.is_ok()
    }

    /// Resolves when the server wants the body.
    pub fn poll_wanted(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.waiting.register(cx.waker());
        match self.0.verdict.load(Ordering::Acquire) {
            WANTED => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }
}

/// Holds a body back.
pub struct Gate {
    wanted: Continue,
    patience: Pin<Box<Sleep>>,
}

impl Gate {
    /// Open when the server wants the body, or has not said anything for too long.
    pub fn new(wanted: Continue) -> Self {
        Self {
            wanted,
            patience: Box::pin(sleep(PATIENCE)),
        }
    }

    /// Resolves when the body may be read, which also tells an HTTP/1 client so: hyper does that.
    pub fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.wanted.poll_wanted(cx).is_pending() && self.patience.as_mut().poll(cx).is_ready() {
            self.wanted.decide(WANTED);
        }
        self.wanted.poll_wanted(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::body::Body;
    use std::future::poll_fn;

    fn request(expect: &str) -> Request<Body> {
        let request = Request::put("/").header(EXPECT, expect);
        request.body(Body::full("body")).expect("valid")
    }

    #[test]
    fn only_a_request_with_a_body_waits() {
        assert!(Continue::expected(&mut request("100-Continue")).is_some());
        assert!(Continue::expected(&mut request("something")).is_none());
        let mut empty = request("100-continue").map(|_| Body::empty());
        assert!(Continue::expected(&mut empty).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_gate_opens_at_100_and_at_no_other_word() {
        let mut request = request("100-continue");
        let mut gate = Gate::new(Continue::expected(&mut request).expect("it waits"));
        let server = Continue::of(&request).expect("it travels");
        server.informed(StatusCode::EARLY_HINTS);
        assert!(poll_fn(|cx| Poll::Ready(gate.poll_open(cx).is_pending())).await);
        server.informed(StatusCode::CONTINUE);
        poll_fn(|cx| gate.poll_open(cx)).await;
        assert!(!server.responded(), "the body was not held back");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_says_nothing_gets_the_body_after_a_second() {
        let mut gate =
            Gate::new(Continue::expected(&mut request("100-continue")).expect("it waits"));
        let from = tokio::time::Instant::now();
        poll_fn(|cx| gate.poll_open(cx)).await;
        assert_eq!(from.elapsed().as_secs(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_has_responded_never_gets_it() {
        let mut request = request("100-continue");
        let mut gate = Gate::new(Continue::expected(&mut request).expect("it waits"));
        assert!(Continue::of(&request).expect("it travels").responded());
        let open = tokio::time::timeout(Duration::from_secs(60), poll_fn(|cx| gate.poll_open(cx)));
        assert!(open.await.is_err());
    }
}
