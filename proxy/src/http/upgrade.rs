//! Owns connections that stop being HTTP: WebSocket and other upgrades (101), and CONNECT.
//! Does not decide whether a request may upgrade.

use http::{Request, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use weft_runtime::drain;

/// The client's side of an upgrade, taken out of its request; none if it did not ask.
pub fn client_side<B>(request: &mut Request<B>) -> Option<OnUpgrade> {
    request.extensions_mut().remove::<OnUpgrade>()
}

/// Whether a response ends HTTP on its connection.
pub fn accepted<B>(response: &Response<B>, connect: bool) -> bool {
    response.status() == StatusCode::SWITCHING_PROTOCOLS
        || (connect && response.status().is_success())
}

/// Joins both sides once the response that ends HTTP has been sent, in a task of its own that
/// ends when both sides have. `drain` is held until then.
pub fn join<B>(client: OnUpgrade, response: &mut Response<B>, drain: drain::Watch) {
    let server = hyper::upgrade::on(response);
    tokio::spawn(async move {
        let (client, server) = match tokio::try_join!(client, server) {
            Ok(both) => both,
            Err(error) => {
                tracing::debug!(%error, "upgrade was not completed");
                return;
            }
        };
        let copied =
            weft_runtime::copy::bidirectional(TokioIo::new(client), TokioIo::new(server)).await;
        if let Err(error) = copied {
            tracing::debug!(%error, "upgraded connection ended");
        }
        drop(drain);
    });
}
