//! Our record layer against rustls's own on the other side, and against itself: data, ends, changes of keys, damage.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex, split};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::testing::{Authority, id};
use crate::*;

const PIPE: usize = 64 * 1024;

fn credentials() -> Arc<Credentials> {
    Authority::root().store("db.example").current().unwrap()
}

fn name() -> ServerName<'static> {
    ServerName::try_from("db.example").unwrap()
}

async fn ours(near: DuplexStream, credentials: &Credentials) -> TlsStream<DuplexStream> {
    let client = ClientConfigRef::Credentials(credentials);
    let expected = id("db.example");
    connect(near, client, &expected, "db.example", false)
        .await
        .unwrap()
}

/// Our client and rustls's server.
async fn client_and_rustls() -> (
    TlsStream<DuplexStream>,
    tokio_rustls::server::TlsStream<DuplexStream>,
) {
    let credentials = credentials();
    let (near, far) = duplex(PIPE);
    let acceptor = TlsAcceptor::from(credentials.server(false).clone());
    let (ours, theirs) = tokio::join!(ours(near, &credentials), acceptor.accept(far));
    (ours, theirs.unwrap())
}

/// Our server and rustls's client.
async fn server_and_rustls() -> (
    TlsStream<DuplexStream>,
    tokio_rustls::client::TlsStream<DuplexStream>,
) {
    let credentials = credentials();
    let (near, far) = duplex(PIPE);
    let connector = TlsConnector::from(credentials.client(false).clone());
    let (ours, theirs) = tokio::join!(
        accept(far, &credentials, false),
        connector.connect(name(), near)
    );
    (ours.unwrap().stream, theirs.unwrap())
}

/// Ours on both sides.
async fn both() -> (TlsStream<DuplexStream>, TlsStream<DuplexStream>) {
    let credentials = credentials();
    let (near, far) = duplex(PIPE);
    let (client, server) = tokio::join!(ours(near, &credentials), accept(far, &credentials, false));
    (client, server.unwrap().stream)
}

fn pattern(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 31 % 251) as u8).collect()
}

/// Sends `data` both ways at once and checks both.
async fn exchange<A, B>(a: A, b: B, data: &[u8])
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (mut a_read, mut a_write) = split(a);
    let (mut b_read, mut b_write) = split(b);
    let send_a = async {
        a_write.write_all(data).await.unwrap();
        a_write.shutdown().await.unwrap();
    };
    let send_b = async {
        b_write.write_all(data).await.unwrap();
        b_write.shutdown().await.unwrap();
    };
    let (mut at_a, mut at_b) = (Vec::new(), Vec::new());
    let (read_a, read_b, (), ()) = tokio::join!(
        a_read.read_to_end(&mut at_a),
        b_read.read_to_end(&mut at_b),
        send_a,
        send_b,
    );
    read_a.unwrap();
    read_b.unwrap();
    assert!(at_a == data && at_b == data);
}

#[tokio::test]
async fn rustls_understands_us_and_we_understand_rustls() {
    for size in [0, 1, 16_384, 16_385, 1 << 20] {
        let data = pattern(size);
        let (ours, theirs) = client_and_rustls().await;
        exchange(ours, theirs, &data).await;
        let (ours, theirs) = server_and_rustls().await;
        exchange(ours, theirs, &data).await;
        let (client, server) = both().await;
        exchange(client, server, &data).await;
    }
}

#[tokio::test]
async fn what_comes_with_the_end_of_the_handshake_is_not_lost() {
    // Everything the client says arrives in one piece, its farewell included.
    let credentials = credentials();
    let (near, far) = duplex(PIPE);
    let client = async {
        let mut client = ours(near, &credentials).await;
        client.write_all(b"at once").await.unwrap();
        client.shutdown().await.unwrap();
        client
    };
    let server = async {
        let mut server = accept(far, &credentials, false).await.unwrap().stream;
        let mut seen = Vec::new();
        server.read_to_end(&mut seen).await.unwrap();
        seen
    };
    let (_client, seen) = tokio::join!(client, server);
    assert_eq!(seen, b"at once");
}

#[tokio::test]
async fn half_closed_connections_carry_the_other_half() {
    let (mut client, mut server) = both().await;
    client.shutdown().await.unwrap();
    let mut seen = Vec::new();
    server.read_to_end(&mut seen).await.unwrap();
    server.write_all(b"still here").await.unwrap();
    server.shutdown().await.unwrap();
    client.read_to_end(&mut seen).await.unwrap();
    assert_eq!(seen, b"still here");
    assert!(client.write_all(b"x").await.is_err(), "we have closed");
}

#[tokio::test]
async fn an_end_without_farewell_is_an_error() {
    let (mut client, server) = both().await;
    drop(server);
    let error = client.read_to_end(&mut Vec::new()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn keys_change_while_data_flows() {
    let (mut client, mut server) = both().await;
    for round in 0..4u8 {
        client.change_key().unwrap();
        client.write_all(&[round; 100]).await.unwrap();
        let mut seen = [0; 100];
        server.read_exact(&mut seen).await.unwrap();
        assert_eq!(seen, [round; 100]);
        server.change_key().unwrap();
        server.write_all(&seen).await.unwrap();
        client.read_exact(&mut seen).await.unwrap();
        assert_eq!(seen, [round; 100]);
    }
}

#[tokio::test]
async fn rustls_follows_our_change_of_keys_and_we_follow_its() {
    let (mut ours, mut theirs) = client_and_rustls().await;
    ours.change_key().unwrap();
    ours.write_all(b"new").await.unwrap();
    let mut seen = [0; 3];
    theirs.read_exact(&mut seen).await.unwrap();
    assert_eq!(&seen, b"new");
    // It asks us to change ours, too.
    theirs.get_mut().1.refresh_traffic_keys().unwrap();
    theirs.write_all(b"its").await.unwrap();
    theirs.flush().await.unwrap();
    ours.read_exact(&mut seen).await.unwrap();
    assert_eq!(&seen, b"its");
    ours.write_all(b"end").await.unwrap();
    theirs.read_exact(&mut seen).await.unwrap();
    assert_eq!(&seen, b"end");
}

#[tokio::test]
async fn a_peer_that_asks_for_new_keys_without_end_is_given_up() {
    let (mut ours, mut theirs) = client_and_rustls().await;
    let asking = async {
        for _ in 0..20_000 {
            theirs.get_mut().1.refresh_traffic_keys().unwrap();
            if theirs.flush().await.is_err() {
                return;
            }
        }
    };
    let mut seen = Vec::new();
    let reading = async {
        let error = ours.read_to_end(&mut seen).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
        drop(ours);
    };
    tokio::join!(asking, reading);
}

#[tokio::test]
async fn a_worn_key_is_changed_by_itself() {
    let (mut client, mut server) = both().await;
    client.sealer.wear_out();
    server.opener.follow(&client.sealer);
    client.write_all(b"after").await.unwrap();
    assert!(!client.sealer.is_worn());
    let mut seen = [0; 5];
    server.read_exact(&mut seen).await.unwrap();
    assert_eq!(&seen, b"after");
}

#[tokio::test]
async fn a_changed_record_ends_the_connection() {
    for at in [0, 3, 5, 20] {
        let (mut client, mut server) = both().await;
        client.write_all(b"a record of some length").await.unwrap();
        let mut record = vec![0; 256];
        let n = server.io.read(&mut record).await.unwrap();
        record.truncate(n);
        record[at] ^= 1;
        client.io.write_all(&record).await.unwrap();
        client.io.shutdown().await.unwrap();
        assert!(
            server.read_to_end(&mut Vec::new()).await.is_err(),
            "byte {at}"
        );
    }
}

#[tokio::test]
async fn an_idle_connection_holds_no_buffer() {
    let (mut client, mut server) = both().await;
    client.write_all(&pattern(50_000)).await.unwrap();
    let mut seen = vec![0; 50_000];
    server.read_exact(&mut seen).await.unwrap();
    let more = tokio::time::timeout(Duration::from_millis(20), server.read(&mut seen)).await;
    assert!(more.is_err(), "nothing more comes");
    assert_eq!(client.outgoing.capacity(), 0);
    assert_eq!(server.incoming.capacity(), 0);
}

#[tokio::test]
async fn a_read_of_nothing_takes_nothing() {
    let (mut client, mut server) = both().await;
    client.write_all(b"ab").await.unwrap();
    client.write_all(b"cd").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), b'a');
    assert_eq!(server.read(&mut []).await.unwrap(), 0);
    let mut rest = Vec::new();
    server.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"bcd");
}

/// Many connections end at once when their peer does; each waits for its other half then.
#[tokio::test]
async fn an_ended_connection_holds_no_buffer_to_read_into() {
    let (mut client, mut server) = both().await;
    client.write_all(b"the last").await.unwrap();
    client.shutdown().await.unwrap();
    let mut said = Vec::new();
    server.read_to_end(&mut said).await.unwrap();
    assert_eq!(said, b"the last");
    assert_eq!(server.incoming.capacity(), 0);
    assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
}

#[test]
fn a_connection_is_small() {
    let size = size_of::<TlsStream<DuplexStream>>();
    assert!(size <= 2048, "{size} bytes");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// However the data is cut into writes and reads, it arrives as it was.
    #[test]
    fn any_cut_of_the_data_arrives(
        writes in proptest::collection::vec(0usize..40_000, 1..12),
        read in 1usize..50_000,
        pipe in 16usize..70_000,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let credentials = credentials();
            let (near, far) = duplex(pipe);
            let (client, server) =
                tokio::join!(ours(near, &credentials), accept(far, &credentials, false));
            let (mut client, mut server) = (client, server.unwrap().stream);
            let total: usize = writes.iter().sum();
            let data = pattern(total);
            let sent = data.clone();
            let sending = tokio::spawn(async move {
                let mut rest = &sent[..];
                for n in writes {
                    let (now, later) = rest.split_at(n);
                    client.write_all(now).await.unwrap();
                    rest = later;
                }
                client.shutdown().await.unwrap();
                client
            });
            let mut seen = Vec::new();
            let mut buffer = vec![0; read];
            loop {
                let n = server.read(&mut buffer).await.unwrap();
                if n == 0 { break }
                seen.extend_from_slice(&buffer[..n]);
            }
            sending.await.unwrap();
            assert!(seen == data);
        });
    }
}

/// Copies from one pipe to another and changes one byte on the way.
async fn tamper(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    at: usize,
    flip: u8,
) {
    let mut buffer = vec![0; 4096];
    let mut passed = 0;
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        if let Some(byte) = at
            .checked_sub(passed)
            .and_then(|at| buffer[..n].get_mut(at))
        {
            *byte ^= flip;
        }
        passed += n;
        if to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// A byte that changes on the way ends the handshake or the first exchange with an error; nothing panics.
    #[test]
    fn a_damaged_handshake_is_an_error(at in 0usize..3_000, flip in 1u8.., to_server: bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let credentials = credentials();
            let (client_end, near) = duplex(PIPE);
            let (far, server_end) = duplex(PIPE);
            let (near_read, near_write) = split(near);
            let (far_read, far_write) = split(far);
            let (up, down) = if to_server { (flip, 0) } else { (0, flip) };
            tokio::spawn(tamper(near_read, far_write, at, up));
            tokio::spawn(tamper(far_read, near_write, at, down));
            let client = ClientConfigRef::Credentials(&credentials);
            let expected = id("db.example");
            let meet = async {
                let client = connect(client_end, client, &expected, "db.example", false);
                let server = accept(server_end, &credentials, false);
                let (client, server) = tokio::join!(client, server);
                let (Ok(mut client), Ok(server)) = (client, server) else { return };
                // The damage may come after the handshake.
                let mut server = server.stream;
                let _ = client.write_all(b"ping").await;
                let mut seen = [0; 4];
                if server.read_exact(&mut seen).await.is_ok() {
                    assert_eq!(&seen, b"ping");
                }
            };
            let _ = tokio::time::timeout(Duration::from_millis(50), meet).await;
        });
    }

    /// Bytes that are not TLS at all are an error.
    #[test]
    fn noise_is_an_error(noise in proptest::collection::vec(any::<u8>(), 0..600), tls: bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let credentials = credentials();
            let (mut near, far) = duplex(PIPE);
            if tls {
                let length = u16::try_from(noise.len()).unwrap().to_be_bytes();
                near.write_all(&[22, 3, 1, length[0], length[1]]).await.unwrap();
            }
            near.write_all(&noise).await.unwrap();
            near.shutdown().await.unwrap();
            assert!(accept(far, &credentials, false).await.is_err());
        });
    }
}
