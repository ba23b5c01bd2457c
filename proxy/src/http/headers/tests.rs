//! Properties of headers on the way between proxies.

use super::*;

fn request(target: &str, version: Version, headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::builder().uri(target).version(version);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).expect("a valid request")
}

fn there_and_back(request: &Request<()>) -> Request<()> {
    let mut carried = request.clone();
    to_orig_proto(&mut carried);
    *carried.version_mut() = Version::HTTP_2;
    from_orig_proto(&mut carried).expect("it was marked");
    carried
}

#[test]
fn the_form_of_a_target_survives_the_way_over_http2() {
    for (target, version, headers) in [
        ("/a?b=c", Version::HTTP_11, vec![("host", "web:80")]),
        ("/a", Version::HTTP_10, vec![]),
        ("http://web/a", Version::HTTP_11, vec![("host", "web")]),
        ("http://web/a", Version::HTTP_11, vec![("host", "other")]),
    ] {
        let before = request(target, version, &headers);
        let after = there_and_back(&before);
        assert_eq!(before.uri(), after.uri(), "{target}");
        assert_eq!(before.version(), after.version(), "{target}");
        assert_eq!(before.headers(), after.headers(), "{target}");
    }
}

#[test]
fn what_connection_lists_goes() {
    let mut r = request(
        "/",
        Version::HTTP_11,
        &[
            ("connection", "close, X-Secret"),
            ("x-secret", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("x-kept", "1"),
        ],
    );
    strip_hop_by_hop(r.headers_mut());
    let left: Vec<&str> = r.headers().keys().map(HeaderName::as_str).collect();
    assert_eq!(left, ["te", "x-kept"]);
}

#[test]
fn only_a_complete_upgrade_is_an_upgrade() {
    let upgrade = [
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "websocket"),
    ];
    assert!(is_upgrade(&request("/", Version::HTTP_11, &upgrade)));
    assert!(!is_upgrade(&request("/", Version::HTTP_10, &upgrade)));
    assert!(!is_upgrade(&request("/", Version::HTTP_11, &upgrade[1..])));
}

#[test]
fn a_forged_orig_proto_on_http1_means_nothing() {
    let mut r = request("/", Version::HTTP_11, &[("l5d-orig-proto", "HTTP/1.0")]);
    assert_eq!(from_orig_proto(&mut r), None);
    assert_eq!(r.version(), Version::HTTP_11);
}
