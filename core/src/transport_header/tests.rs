//! The header as documented byte for byte, round trips, and damaged input.

use proptest::prelude::*;

use super::*;

fn with_message(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("short").to_be_bytes();
    [PREFACE, &length, message].concat()
}

fn header(message: &[u8]) -> Result<TransportHeader, TransportHeaderError> {
    let bytes = with_message(message);
    match TransportHeader::decode(&bytes)? {
        Decoded::Complete { header, consumed } => {
            assert_eq!(consumed, bytes.len());
            Ok(header)
        }
        Decoded::Incomplete => unreachable!("the message is whole"),
    }
}

#[test]
fn bytes_are_those_of_the_contract() {
    let header = TransportHeader {
        port: 8080,
        name: Some("a.b:80".into()),
        protocol: Some(SessionProtocol::Http2),
    };
    let message = b"\x08\x90\x3f\x12\x06a.b:80\x1a\x02\x12\x00";
    assert_eq!(
        header.encode(),
        [b"transport.l5d.io/v1\r\n\r\n\0\0\0\x0f", &message[..]].concat()
    );
    let opaque = TransportHeader {
        port: 1,
        name: None,
        protocol: None,
    };
    assert_eq!(
        opaque.encode(),
        b"transport.l5d.io/v1\r\n\r\n\0\0\0\x02\x08\x01"
    );
    assert!(PREFACE.starts_with(ALPN));
}

#[test]
fn unknown_fields_are_skipped_and_the_last_known_one_counts() {
    let unknown = b"\x20\x05\x29\0\0\0\0\0\0\0\0\x35\0\0\0\0\x3a\x02hi";
    let message = [
        &unknown[..],
        b"\x08\x01\x1a\x02\x0a\x00\x12\x00",
        unknown,
        b"\x08\x02",
    ]
    .concat();
    let expected = TransportHeader {
        port: 2,
        name: None,
        protocol: Some(SessionProtocol::Http1),
    };
    assert_eq!(header(&message), Ok(expected));
    // A protocol this version does not know counts as none.
    assert_eq!(
        header(b"\x08\x01\x1a\x02\x1a\x00").map(|header| header.protocol),
        Ok(None)
    );
}

#[test]
fn ports_are_checked() {
    assert_eq!(header(b""), Err(TransportHeaderError::Port(0)));
    assert_eq!(header(b"\x08\x00"), Err(TransportHeaderError::Port(0)));
    assert_eq!(
        header(b"\x08\xff\xff\x03").map(|header| header.port),
        Ok(65535)
    );
    assert_eq!(
        header(b"\x08\x80\x80\x04"),
        Err(TransportHeaderError::Port(65536))
    );
    assert_eq!(
        header(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        Err(TransportHeaderError::Port(-1))
    );
}

#[test]
fn malformed_messages_are_refused() {
    let malformed: [&[u8]; 7] = [
        b"\x08",
        b"\x08\x80",
        b"\x12\x05a",
        b"\x00\x01",
        b"\x0b",
        b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
        b"\x08\x01\x1a\x02\x12\x01",
    ];
    for message in malformed {
        assert!(
            matches!(header(message), Err(TransportHeaderError::Malformed(_))),
            "{}",
            message.escape_ascii()
        );
    }
    assert_eq!(
        header(b"\x08\x01\x12\x01\xff"),
        Err(TransportHeaderError::Name)
    );
}

#[test]
fn length_is_limited_before_it_is_waited_for() {
    let announced =
        |length: u32| TransportHeader::decode(&[PREFACE, &length.to_be_bytes()].concat());
    assert_eq!(announced(4096), Ok(Decoded::Incomplete));
    assert_eq!(announced(4097), Err(TransportHeaderError::TooLong(4097)));
    assert_eq!(
        announced(u32::MAX),
        Err(TransportHeaderError::TooLong(u32::MAX))
    );
}

#[test]
fn another_protocol_is_refused_at_the_first_wrong_byte() {
    for end in 0..PREFACE.len() {
        assert_eq!(
            TransportHeader::decode(&PREFACE[..end]),
            Ok(Decoded::Incomplete)
        );
        let wrong = [&PREFACE[..end], b"\x16"].concat();
        assert_eq!(
            TransportHeader::decode(&wrong),
            Err(TransportHeaderError::Preface)
        );
    }
}

fn any_header() -> impl Strategy<Value = TransportHeader> {
    let protocol = proptest::sample::select(vec![
        None,
        Some(SessionProtocol::Http1),
        Some(SessionProtocol::Http2),
    ]);
    (1u16.., proptest::option::of("\\PC{1,60}"), protocol).prop_map(|(port, name, protocol)| {
        TransportHeader {
            port,
            name,
            protocol,
        }
    })
}

proptest! {
    #[test]
    fn round_trip(header in any_header(), after in proptest::collection::vec(any::<u8>(), 0..20)) {
        let encoded = header.encode();
        for end in 0..encoded.len() {
            prop_assert_eq!(TransportHeader::decode(&encoded[..end]), Ok(Decoded::Incomplete));
        }
        let consumed = encoded.len();
        let decoded = TransportHeader::decode(&[encoded, after].concat());
        prop_assert_eq!(decoded, Ok(Decoded::Complete { header, consumed }));
    }

    #[test]
    fn any_message_is_decoded_or_refused(message in proptest::collection::vec(any::<u8>(), 0..60)) {
        let _ = header(&message);
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let _ = TransportHeader::decode(&bytes);
        let _ = TransportHeader::decode(&[PREFACE, &bytes].concat());
    }
}
