//! Owns the responses that the proxy itself makes: plain HTTP, or gRPC's form where the client
//! speaks gRPC (contract 3.5, 4.7). Does not decide when.

use super::body::Body;
use super::headers;
use crate::error::Error;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use http::{Request, Response, StatusCode, Version};

/// What must be known of a request to answer it in its own terms.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    version: Version,
    grpc: bool,
    /// Whether the client may know why (a mesh peer, or our own application).
    informational: bool,
    /// Whether the request is HTTP/1 carried on HTTP/2.
    carried: bool,
}

impl Answer {
    /// Notes what an answer to `request` needs.
    pub fn to<B>(request: &Request<B>, informational: bool) -> Self {
        let http2 = request.version() == Version::HTTP_2;
        Self {
            version: request.version(),
            grpc: http2 && headers::is_grpc(request.headers()),
            informational,
            carried: request.headers().contains_key(headers::ORIG_PROTO),
        }
    }

    /// The response for `error`; an error that is a reset of an HTTP/2 stream is passed on as
    /// one to HTTP/2 clients.
    ///
    /// # Errors
    /// The reset.
    pub fn error(&self, error: &Error) -> Result<Response<Body>, h2::Reason> {
        if self.version == Version::HTTP_2
            && !self.carried
            && let Some(reason) = error.reset()
        {
            return Err(reason);
        }
        Ok(self.response(error))
    }

    fn response(&self, error: &Error) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.version_mut() = self.version;
        *response.status_mut() = error.status();
        let out = response.headers_mut();
        let message = text(error);
        if let Error::Redirect { location, .. } = error
            && let Ok(location) = HeaderValue::from_str(location)
        {
            out.insert(LOCATION, location);
        }
        if self.grpc && !matches!(error, Error::Redirect { .. }) {
            out.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            out.insert("grpc-status", HeaderValue::from(error.grpc_code()));
            if self.informational {
                out.insert("grpc-message", percent_encode(&message));
            }
        }
        if self.informational {
            out.insert(headers::PROXY_ERROR, message);
        }
        if error.fatal() {
            self.close(out);
        }
        if self.grpc && !matches!(error, Error::Redirect { .. }) {
            *response.status_mut() = StatusCode::OK;
        }
        response
    }

    fn close(&self, out: &mut HeaderMap) {
        if self.informational {
            out.insert(headers::PROXY_CONNECTION, HeaderValue::from_static("close"));
        }
        if self.version < Version::HTTP_2 {
            out.insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

fn text(error: &Error) -> HeaderValue {
    let text: String = error
        .to_string()
        .chars()
        .map(|c| if c.is_ascii_graphic() { c } else { ' ' })
        .collect();
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("unexpected"))
}

/// `grpc-message` is percent-encoded (gRPC over HTTP/2, "Responses").
fn percent_encode(value: &HeaderValue) -> HeaderValue {
    let bytes = value.as_bytes();
    if !bytes.contains(&b'%') {
        return value.clone();
    }
    let encoded = String::from_utf8_lossy(bytes).replace('%', "%25");
    HeaderValue::from_str(&encoded).unwrap_or(HeaderValue::from_static("unexpected"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error() -> Error {
        Error::FailFast {
            backend: "web.default:80".into(),
            limit: std::time::Duration::from_secs(3),
        }
    }

    fn request(version: Version, content_type: &str) -> Request<()> {
        Request::builder()
            .version(version)
            .header(CONTENT_TYPE, content_type)
            .body(())
            .expect("valid")
    }

    #[test]
    fn an_http1_client_is_told_to_close() {
        let request = request(Version::HTTP_11, "text/plain");
        let response = Answer::to(&request, true)
            .error(&error())
            .expect("no reset");
        assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(response.headers()[CONNECTION], "close");
        assert!(response.headers().contains_key(headers::PROXY_ERROR));
    }

    #[test]
    fn a_grpc_client_gets_a_status_in_the_head() {
        let request = request(Version::HTTP_2, "application/grpc+proto");
        let response = Answer::to(&request, true)
            .error(&error())
            .expect("no reset");
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["grpc-status"], "4");
        assert!(!response.headers().contains_key(CONNECTION), "case H15");
    }

    #[test]
    fn a_stranger_learns_nothing() {
        let request = request(Version::HTTP_11, "text/plain");
        let response = Answer::to(&request, false)
            .error(&error())
            .expect("no reset");
        assert!(
            !response.headers().contains_key(headers::PROXY_ERROR),
            "case P26"
        );
        assert!(!response.headers().contains_key(headers::PROXY_CONNECTION));
    }
}
