//! Tests with real sockets on loopback.

use super::*;
use std::net::Ipv4Addr;

mod redirect;

const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const SECOND: Duration = Duration::from_secs(1);

async fn connected(options: &SocketOptions) -> (TcpStream, TcpStream) {
    let listener = bind(LOCAL, None).unwrap();
    let addr = listener.local_addr().unwrap();
    let (dialled, (accepted, peer)) =
        tokio::join!(connect(addr, SECOND, options), accept(&listener));
    let dialled = dialled.unwrap();
    assert_eq!(dialled.local_addr().unwrap(), peer);
    (dialled, accepted)
}

#[tokio::test]
async fn a_listener_on_any_address_serves_both_families() {
    let addr = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
    let Ok(listener) = bind(addr, Some(16)) else {
        eprintln!("skipped: this host has no IPv6");
        return;
    };
    let port = listener.local_addr().unwrap().port();
    let v4 = SocketAddr::from(([127, 0, 0, 1], port));
    let options = SocketOptions::default();
    let (dialled, (accepted, peer)) =
        tokio::join!(connect(v4, SECOND, &options), accept(&listener));
    assert!(dialled.is_ok());
    assert!(peer.is_ipv4(), "{peer} must be unwrapped (case T09)");
    // Whatever the kernel knows of this connection, the lookup must be the one for IPv4.
    if let Ok(original) = original_dst(&accepted) {
        assert_eq!(original, v4);
    }
}

/// The kernel of a node with `ipv6.disable=1`, which refuses to make such a socket.
fn without_ipv6(addr: SocketAddr) -> io::Result<TcpListener> {
    match addr {
        SocketAddr::V4(_) => open_listener(addr, None),
        SocketAddr::V6(_) => Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
    }
}

#[tokio::test]
async fn without_ipv6_any_address_is_any_of_ipv4() {
    let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
    let listener = or_ipv4(any, without_ipv6).unwrap();
    let addr = listener.local_addr().unwrap();
    assert_eq!(addr.ip(), Ipv4Addr::UNSPECIFIED);
    // Somebody who names an address of IPv6 wants that one; and other faults are not hidden.
    let one = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0);
    assert!(or_ipv4(one, without_ipv6).is_err());
    let taken = |_| Err::<TcpListener, _>(io::ErrorKind::AddrInUse.into());
    assert_eq!(
        or_ipv4(any, taken).unwrap_err().kind(),
        io::ErrorKind::AddrInUse
    );
}

#[tokio::test]
async fn a_taken_port_is_named_with_a_remedy() {
    let listener = bind(LOCAL, None).unwrap();
    let addr = listener.local_addr().unwrap();
    let error = bind(addr, None).unwrap_err();
    assert_eq!(error.addr, addr);
    let text = error.to_string();
    assert!(
        text.contains(&addr.to_string()) && text.contains("stop the program"),
        "{text}"
    );
}

#[tokio::test]
async fn options_reach_the_socket_on_both_ends() {
    let options = SocketOptions {
        keepalive: Some(Duration::from_secs(10)),
        user_timeout: Some(Duration::from_secs(30)),
    };
    let (dialled, accepted) = connected(&options).await;
    configure(&accepted, &options).unwrap();
    for stream in [dialled, accepted] {
        let socket = SockRef::from(&stream);
        assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
        assert_eq!(
            socket.tcp_keepalive_time().unwrap(),
            Duration::from_secs(10)
        );
        assert_eq!(
            socket.tcp_keepalive_interval().unwrap(),
            Duration::from_secs(10)
        );
        assert_eq!(
            socket.tcp_user_timeout().unwrap(),
            Some(Duration::from_secs(30))
        );
    }
}

#[tokio::test]
async fn options_beyond_the_kernels_limits_are_clamped() {
    for (given, kept) in [
        (Duration::from_millis(10), 1),
        (Duration::from_secs(365 * 86_400), 32_767),
    ] {
        let options = SocketOptions {
            keepalive: Some(given),
            user_timeout: Some(given),
        };
        let (stream, _peer) = connected(&options).await;
        let time = SockRef::from(&stream).tcp_keepalive_time().unwrap();
        assert_eq!(time, Duration::from_secs(kept));
    }
}

#[tokio::test]
async fn without_options_only_delay_is_off() {
    let (stream, _peer) = connected(&SocketOptions::default()).await;
    let socket = SockRef::from(&stream);
    assert!(socket.tcp_nodelay().unwrap() && !socket.keepalive().unwrap());
}

#[tokio::test]
async fn a_refused_connection_names_the_address() {
    let listener = bind(LOCAL, None).unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let error = connect(addr, SECOND, &SocketOptions::default())
        .await
        .unwrap_err();
    assert!(error.to_string().contains(&addr.to_string()));
    let ConnectError::Io { source, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(source.kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn a_peer_that_does_not_answer_is_a_timeout() {
    // A full backlog makes the kernel ignore what knocks.
    let listener = bind(LOCAL, Some(1)).unwrap();
    let addr = listener.local_addr().unwrap();
    let limit = Duration::from_millis(300);
    let mut held = Vec::new();
    for _ in 0..16 {
        match connect(addr, limit, &SocketOptions::default()).await {
            Ok(stream) => held.push(stream),
            Err(error) => {
                assert!(matches!(error, ConnectError::Timeout { limit: l, .. } if l == limit));
                assert!(error.to_string().contains(&addr.to_string()));
                return;
            }
        }
    }
    panic!("the backlog never filled");
}

#[test]
fn only_mapped_addresses_change() {
    let cases = [
        ("[::ffff:10.0.0.1]:80", "10.0.0.1:80"),
        ("10.0.0.1:80", "10.0.0.1:80"),
        ("[fd00::1]:80", "[fd00::1]:80"),
        ("[::1]:80", "[::1]:80"),
    ];
    for (given, expected) in cases {
        assert_eq!(unmap(given.parse().unwrap()).to_string(), expected);
    }
}
