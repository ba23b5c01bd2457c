//! Protocol detection on real and made-up beginnings of connections, whole and cut at every byte.

use proptest::prelude::*;

use super::*;

/// The verdict for each beginning of the input must be `Incomplete` or the final one.
fn stable_http(bytes: &[u8]) -> Http {
    let whole = http(bytes);
    for end in 0..bytes.len() {
        let verdict = http(&bytes[..end]);
        assert!(
            verdict == Http::Incomplete || verdict == whole,
            "{verdict:?} at {end}, then {whole:?}"
        );
    }
    whole
}

fn stable_hello(bytes: &[u8]) -> ClientHello {
    let whole = client_hello(bytes);
    for end in 0..bytes.len() {
        let verdict = client_hello(&bytes[..end]);
        assert!(
            verdict == ClientHello::Incomplete || verdict == whole,
            "{verdict:?} at {end}, then {whole:?}"
        );
    }
    whole
}

#[test]
fn http_request_lines() {
    let http1: [&[u8]; 9] = [
        b"GET / HTTP/1.1\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\n",
        b"\r\n\r\nGET / HTTP/1.1\r\n",
        b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\n",
        b"GET http://example.com/a?b HTTP/1.1\r\nbad header",
        b"M-SEARCH * HTTP/1.1\r\n",
        b"PRI * HTTP/1.1\r\n",
    ];
    for bytes in http1 {
        assert_eq!(stable_http(bytes), Http::Http1, "{}", bytes.escape_ascii());
    }
    let not: [&[u8]; 14] = [
        b"GET /\r\n",
        b"GET / HTTP/1.2\r\n",
        b"GET / HTTP/2.0\r\n",
        b"GET / HTTP/1.1 \r\n",
        b"GET  / HTTP/1.1\r\n",
        b" GET / HTTP/1.1\r\n",
        b"DESCRIBE rtsp://a/b RTSP/1.0\r\n",
        b"EHLO mail.example.com\r\n",
        b"PING\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
        b"*1\r\n$4\r\nPING\r\n",
        b"\nGET / HTTP/1.1\r\n",
    ];
    for bytes in not {
        assert_eq!(
            stable_http(bytes),
            Http::NotHttp,
            "{}",
            bytes.escape_ascii()
        );
    }
    for bytes in [
        &b""[..],
        b"GE",
        b"GET",
        b"GET ",
        b"GET /",
        b"GET / HTTP/1.1",
        b"PRI * HTTP/2.",
        b"\r",
        b"\r\n",
    ] {
        assert_eq!(http(bytes), Http::Incomplete, "{}", bytes.escape_ascii());
    }
    assert_eq!(
        stable_http(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        Http::Http2
    );
}

#[test]
fn impossible_bytes_are_refused_at_once() {
    for byte in 0..=u8::MAX {
        let possible = is_token(byte) || byte == b'\r';
        let expected = if possible {
            Http::Incomplete
        } else {
            Http::NotHttp
        };
        assert_eq!(http(&[byte]), expected, "{byte:#x}");
    }
}

#[test]
fn raw_bytes_in_the_target_never_change_the_verdict() {
    // Case P19: every byte at every offset, since a parser that works on wide words may differ by offset.
    for byte in (0x21..=0xff).filter(|byte| *byte != 0x7f) {
        for length in 1..70 {
            for at in 0..length {
                let mut bytes = b"GET /".to_vec();
                bytes.extend((0..length).map(|index| if index == at { byte } else { b'a' }));
                bytes.extend(b" HTTP/1.1\r\n");
                assert_eq!(http(&bytes), Http::Http1, "{byte:#x} at {at} of {length}");
            }
        }
    }
}

#[test]
fn long_request_lines_end_the_wait() {
    let line = [b"GET /".to_vec(), vec![b'a'; MAX_HTTP_DETECT]].concat();
    assert_eq!(stable_http(&line), Http::Http1);
    assert_eq!(stable_http(&[b'A'; MAX_HTTP_DETECT]), Http::NotHttp);
    assert_eq!(stable_http(&[b'A'; MAX_METHOD + 1]), Http::NotHttp);
    assert_eq!(stable_http(&b"\r\n".repeat(MAX_HTTP_DETECT)), Http::NotHttp);
}

/// A ClientHello message; `extensions` are encoded with their headers, `None` leaves the whole block out.
fn message(extensions: Option<&[u8]>) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([2, 1, 1]); // session id
    body.extend([0, 4, 0x13, 1, 0x13, 2]); // cipher suites
    body.extend([1, 0]); // compression
    if let Some(extensions) = extensions {
        body.extend(
            u16::try_from(extensions.len())
                .expect("short")
                .to_be_bytes(),
        );
        body.extend(extensions);
    }
    let length = u16::try_from(body.len()).expect("short").to_be_bytes();
    [&[1, 0], &length[..], &body].concat()
}

fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).expect("short").to_be_bytes();
    [&kind.to_be_bytes()[..], &length, data].concat()
}

fn sni(name: &[u8]) -> Vec<u8> {
    let length = u16::try_from(name.len()).expect("short");
    let entry = [&[0][..], &length.to_be_bytes(), name].concat();
    extension(0, &[&(length + 3).to_be_bytes()[..], &entry].concat())
}

/// Cuts a message into records of these sizes, the rest into one.
fn records(message: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = message;
    for size in sizes.iter().copied().chain([usize::MAX]) {
        let (fragment, after) = rest.split_at(size.min(rest.len()));
        rest = after;
        if !fragment.is_empty() {
            let length = u16::try_from(fragment.len()).expect("short").to_be_bytes();
            out.extend([22, 3, 1]);
            out.extend(length);
            out.extend(fragment);
        }
    }
    out
}

/// With a key share of post-quantum size before the name, as in case T01.
fn large_message() -> Vec<u8> {
    let share = extension(51, &[9; 1216 + 42]);
    message(Some(
        &[
            share,
            sni(b"web.example.com"),
            extension(16, b"\0\x03\x02h2"),
        ]
        .concat(),
    ))
}

#[test]
fn hellos_of_openssl() {
    // Captured from `openssl s_client` 3.0.19.
    let tls13 = include_bytes!("testdata/openssl_tls13_sni.bin");
    assert_eq!(
        stable_hello(tls13),
        ClientHello::Sni("web.example.test".into())
    );
    let tls12 = include_bytes!("testdata/openssl_tls12_no_sni.bin");
    assert_eq!(stable_hello(tls12), ClientHello::NoSni);
}

#[test]
fn large_hello_in_pieces_and_in_records() {
    let message = large_message();
    let expected = ClientHello::Sni("web.example.com".into());
    for sizes in [
        &[][..],
        &[1],
        &[1, 511],
        &[700],
        &[1, 1, 1, 1, 1],
        &[4; 400],
    ] {
        assert_eq!(
            stable_hello(&records(&message, sizes)),
            expected,
            "{sizes:?}"
        );
    }
}

#[test]
fn hellos_without_a_usable_name() {
    let hello = |extensions: Option<&[u8]>| stable_hello(&records(&message(extensions), &[]));
    assert_eq!(hello(None), ClientHello::NoSni);
    assert_eq!(hello(Some(&[])), ClientHello::NoSni);
    assert_eq!(
        hello(Some(&extension(16, b"\0\x03\x02h2"))),
        ClientHello::NoSni
    );
    for name in [&b"10.0.0.1"[..], b"", b"\xff\xfe", b"a b", b"."] {
        assert_eq!(
            hello(Some(&sni(name))),
            ClientHello::NoSni,
            "{}",
            name.escape_ascii()
        );
    }
    assert_eq!(
        hello(Some(&sni(b"Web.Example.com."))),
        ClientHello::Sni("web.example.com".into())
    );
    let other_kind = extension(0, &[0, 4, 9, 0, 1, b'a']);
    assert_eq!(hello(Some(&other_kind)), ClientHello::NoSni);
}

#[test]
fn what_is_no_hello() {
    let good = records(&large_message(), &[]);
    // Offsets: record type and version 0-2, length 3-4, message type 5, its length 6-8, version 9, session id 43.
    for (at, byte) in [
        (0, 23),
        (0, 0x80),
        (1, 2),
        (2, 5),
        (3, 0x50),
        (5, 2),
        (6, 1),
        (9, 2),
        (43, 33),
    ] {
        let mut bad = good.clone();
        bad[at] = byte;
        assert_eq!(stable_hello(&bad), ClientHello::NotTls, "{byte} at {at}");
        assert_eq!(
            client_hello(&bad[..=at]),
            ClientHello::NotTls,
            "late: {byte} at {at}"
        );
    }
    assert_eq!(stable_hello(b"GET / HTTP/1.1\r\n"), ClientHello::NotTls);
    assert_eq!(stable_hello(&[22, 3, 1, 0, 0]), ClientHello::NotTls);
    // An alert between two records of the hello.
    let mut between = records(&large_message(), &[100]);
    between[105] = 21;
    assert_eq!(stable_hello(&between), ClientHello::NotTls);
}

#[test]
fn inner_lengths_stay_within_outer_ones() {
    let too_long: [&[u8]; 4] = [
        &[0, 0, 0, 9, 0, 4, 0, 0, 1, b'a'], // extension beyond the block
        &[0, 0, 0, 6, 0, 9, 0, 0, 1, b'a'], // list beyond the extension
        &[0, 0, 0, 6, 0, 4, 0, 0, 9, b'a'], // name beyond the list
        &[0, 0, 0, 1, 0],                   // list without a length
    ];
    for extensions in too_long {
        let hello = records(&message(Some(extensions)), &[]);
        assert_eq!(stable_hello(&hello), ClientHello::NotTls, "{extensions:?}");
    }
}

#[test]
fn hello_beyond_the_limit_ends_the_wait() {
    let filler = extension(21, &[0; MAX_CLIENT_HELLO]);
    let late = records(
        &message(Some(&[filler.clone(), sni(b"a.example")].concat())),
        &[],
    );
    assert_eq!(stable_hello(&late), ClientHello::NoSni);
    let early = records(&message(Some(&[sni(b"a.example"), filler].concat())), &[]);
    assert_eq!(stable_hello(&early), ClientHello::Sni("a.example".into()));
}

proptest! {
    #[test]
    fn any_bytes_have_a_stable_verdict(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        stable_http(&bytes);
        stable_hello(&bytes);
    }

    #[test]
    fn text_like_http_has_a_stable_verdict(text in "(\r\n)?(GET|PRI|[A-Z]{1,4}) ?[ -~]{0,20} ?(HTTP/[12].[01])?\r?\n?") {
        stable_http(text.as_bytes());
    }

    #[test]
    fn any_target_is_http(
        target in proptest::collection::vec((0x21u8..=0xff).prop_filter("no DEL", |byte| *byte != 0x7f), 1..200), minor in 0u8..2,
    ) {
        let line = [b"GET ", &target[..], b" HTTP/1.", &[b'0' + minor], b"\r\n"].concat();
        prop_assert_eq!(stable_http(&line), Http::Http1);
    }

    #[test]
    fn name_is_found_whatever_the_records(
        sizes in proptest::collection::vec(1usize..150, 0..20), before in 0usize..400, name in "[a-z]{1,20}(\\.[a-z]{1,10}){0,3}",
    ) {
        let extensions = [extension(51, &vec![1; before]), sni(name.as_bytes()), extension(43, &[2, 3, 4])].concat();
        let hello = records(&message(Some(&extensions)), &sizes);
        prop_assert_eq!(stable_hello(&hello), ClientHello::Sni(name));
    }

    #[test]
    fn damaged_hello_has_a_stable_verdict(
        sizes in proptest::collection::vec(1usize..200, 0..4), damage in proptest::collection::vec((0usize..400, any::<u8>()), 1..4),
    ) {
        let extensions = [extension(16, b"\0\x03\x02h2"), sni(b"web.example.com"), extension(43, &[2, 3, 4])].concat();
        let mut hello = records(&message(Some(&extensions)), &sizes);
        for (at, byte) in damage {
            let at = at % hello.len();
            hello[at] = byte;
        }
        stable_hello(&hello);
    }
}
