//! Owns what goes over the wire: messages that are encoded once and shared by all streams that send them, and the body of
//! a response made of such messages. Does not know what they say.
//!
//! The server that is generated for the service encodes each message anew for each stream, into a buffer that the stream
//! then keeps. With thousands of streams that follow one Service this is most of the work and of the memory.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, header::CONTENT_TYPE};
use http_body::{Body, Frame};
use prost::Message;
use tonic::{Status, codec::Streaming};
use weft_runtime::grpc::{self, Updates};

/// Compressed or not, and the length (gRPC over HTTP/2, "Length-Prefixed-Message").
const HEADER: usize = 5;

/// Messages up to this size together are copied into one frame.
const TOGETHER: usize = 1024;

/// A message as it is sent: its length, then itself.
pub(crate) fn encode(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(HEADER + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).expect("messages have some megabytes at most"));
    message
        .encode(&mut bytes)
        .expect("there is room for the message");
    bytes.freeze()
}

/// The one message of a request.
///
/// # Errors
/// None has come, or it cannot be decoded.
pub(crate) async fn decode<M: Message + Default + 'static>(
    body: tonic::body::Body,
) -> Result<M, Status> {
    let decoder = tonic_prost::ProstDecoder::<M>::default();
    let mut messages = Streaming::new_request(decoder, body, None, Some(grpc::MAX_REQUEST));
    let message = messages.message().await?;
    message.ok_or_else(|| Status::invalid_argument("the request has no message"))
}

/// The response that sends these messages.
pub(crate) fn response(updates: Updates<Bytes>) -> Response<tonic::body::Body> {
    let body = Messages {
        updates,
        held: None,
        end: End::Open,
    };
    let mut response = Response::new(tonic::body::Body::new(body));
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(CONTENT_TYPE, grpc);
    response
}

/// Messages, then how it ended.
struct Messages {
    updates: Updates<Bytes>,
    /// A message that did not fit into the last frame.
    held: Option<Bytes>,
    end: End,
}

enum End {
    Open,
    Known(Status),
    Sent,
}

impl Messages {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(held) = self.held.take() {
            return Poll::Ready(Some(held));
        }
        if !matches!(self.end, End::Open) {
            return Poll::Ready(None);
        }
        let status = match ready!(self.updates.as_mut().poll_next(cx)) {
            Some(Ok(message)) => return Poll::Ready(Some(message)),
            Some(Err(status)) => status,
            None => Status::ok(""),
        };
        self.end = End::Known(status);
        Poll::Ready(None)
    }
}

impl Body for Messages {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(mut data) = ready!(self.poll_message(cx)) else {
            let End::Known(status) = std::mem::replace(&mut self.end, End::Sent) else {
                return Poll::Ready(None);
            };
            let mut trailers = HeaderMap::new();
            status.add_header(&mut trailers)?;
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        };
        // An addition and a removal are mostly one change: in one frame they cost half.
        while data.len() < TOGETHER {
            let Poll::Ready(Some(next)) = self.poll_message(cx) else {
                break;
            };
            if data.len() + next.len() > TOGETHER {
                self.held = Some(next);
                break;
            }
            data = [data, next].concat().into();
        }
        Poll::Ready(Some(Ok(Frame::data(data))))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, stream};
    use linkerd2_proxy_api::destination::NoEndpoints;

    use super::*;

    fn body(messages: Vec<Result<Bytes, Status>>) -> Messages {
        Messages {
            updates: Box::pin(stream::iter(messages)),
            held: None,
            end: End::Open,
        }
    }

    /// Lengths of the frames, then the status of the trailers.
    fn read(mut body: Messages) -> (Vec<usize>, String) {
        let mut lengths = Vec::new();
        loop {
            let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
            let frame = frame.now_or_never().expect("never waits");
            let frame = frame.expect("trailers come first").expect("no error");
            match frame.into_data() {
                Ok(data) => lengths.push(data.len()),
                Err(frame) => {
                    let trailers = frame.into_trailers().expect("the only other kind");
                    let end = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
                    assert!(end.now_or_never().expect("never waits").is_none());
                    let status = trailers["grpc-status"].to_str().expect("a number");
                    return (lengths, status.to_owned());
                }
            }
        }
    }

    #[test]
    fn a_message_has_its_length_before_it() {
        let message = NoEndpoints { exists: true };
        assert_eq!(&*encode(&message), [0, 0, 0, 0, 2, 8, 1]);
        assert_eq!(&*encode(&NoEndpoints::default()), [0; 5]);
    }

    #[test]
    fn small_messages_that_are_there_share_a_frame_and_large_ones_are_not_copied() {
        let of = |length: usize| Bytes::from(vec![0; length]);
        let large = of(TOGETHER);
        let lengths = [10, 20, TOGETHER - 40, 20, 5, TOGETHER, 7];
        let mut messages: Vec<_> = lengths.iter().map(|l| Ok(of(*l))).collect();
        assert_eq!(
            read(body(messages.clone())),
            (vec![TOGETHER - 10, 25, TOGETHER, 7], "0".to_owned())
        );
        messages.push(Err(Status::not_found("gone")));
        let (frames, status) = read(body(messages));
        assert_eq!(
            (frames.iter().sum::<usize>(), &*status),
            (lengths.iter().sum(), "5")
        );

        let mut body = body(vec![Ok(of(1)), Ok(large.clone())]);
        let mut next = || {
            let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
            let frame = frame
                .now_or_never()
                .flatten()
                .expect("there")
                .expect("no error");
            frame.into_data().expect("a message")
        };
        assert_eq!(next().len(), 1);
        assert_eq!(next().as_ptr(), large.as_ptr());
    }

    #[tokio::test]
    async fn what_is_not_there_yet_is_not_waited_for() {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let updates = stream::unfold(receiver, |mut receiver| async {
            Some((Ok(receiver.recv().await?), receiver))
        });
        let mut body = Messages {
            updates: Box::pin(updates),
            held: None,
            end: End::Open,
        };
        sender.send(Bytes::from_static(b"one")).await.expect("open");
        let mut next =
            || std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).now_or_never();
        assert!(next().is_some());
        assert!(next().is_none(), "waits");
        sender.send(Bytes::from_static(b"two")).await.expect("open");
        assert!(next().is_some());
    }
}
