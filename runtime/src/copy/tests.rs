//! Tests of copying: real sockets for its ends and errors, scripted streams for its memory and its integrity.

use super::buffer::SIZES;
use super::*;
use proptest::prelude::*;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Two connected sockets.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (dialled, accepted) = tokio::join!(TcpStream::connect(addr), listener.accept());
    (dialled.unwrap(), accepted.unwrap().0)
}

/// A client and a server with a copy between them.
async fn relay() -> (TcpStream, TcpStream, JoinHandle<Result<Copied, CopyError>>) {
    let (client, a) = pair().await;
    let (server, b) = pair().await;
    (client, server, tokio::spawn(bidirectional(a, b)))
}

async fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let reading = stream.read_to_end(&mut all);
    timeout(Duration::from_secs(10), reading)
        .await
        .expect("ends")
        .unwrap();
    all
}

async fn read_some(stream: &mut TcpStream, n: usize) -> Vec<u8> {
    let mut some = vec![0; n];
    let reading = stream.read_exact(&mut some);
    timeout(Duration::from_secs(10), reading)
        .await
        .expect("arrives")
        .unwrap();
    some
}

#[tokio::test]
async fn the_client_may_end_first() {
    let (mut client, mut server, copy) = relay().await;
    client.write_all(b"request").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut server).await, b"request");
    server.write_all(b"a late answer").await.unwrap();
    assert_eq!(read_some(&mut client, 13).await, b"a late answer");
    drop(server);
    assert_eq!(read_all(&mut client).await, b"");
    assert_eq!(
        copy.await.unwrap().unwrap(),
        Copied {
            a_to_b: 7,
            b_to_a: 13
        }
    );
}

#[tokio::test]
async fn the_server_may_end_first() {
    let (mut client, mut server, copy) = relay().await;
    server.write_all(b"banner").await.unwrap();
    server.shutdown().await.unwrap();
    assert_eq!(read_all(&mut client).await, b"banner");
    client.write_all(b"more").await.unwrap();
    assert_eq!(read_some(&mut server, 4).await, b"more");
    client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut server).await, b"");
    assert_eq!(
        copy.await.unwrap().unwrap(),
        Copied {
            a_to_b: 4,
            b_to_a: 6
        }
    );
}

#[tokio::test]
async fn a_reset_of_one_side_ends_the_other_and_is_named() {
    let (client, mut server, copy) = relay().await;
    server.write_all(b"x").await.unwrap();
    socket2::SockRef::from(&client)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    client.readable().await.unwrap();
    drop(client);
    let error = copy.await.unwrap().unwrap_err();
    assert_eq!((error.side, error.operation), (Side::A, Operation::Read));
    assert_eq!(error.source.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(
        error.copied,
        Copied {
            a_to_b: 0,
            b_to_a: 1
        }
    );
    assert!(
        error
            .to_string()
            .starts_with("Read on side A failed after 0 bytes a→b and 1 b→a")
    );
    assert_eq!(
        read_all(&mut server).await,
        b"",
        "the server must not be left open"
    );
}

#[tokio::test]
async fn much_data_passes_both_ways_at_once() {
    const SIZE: usize = 8 * 1024 * 1024;
    let (client, server, copy) = relay().await;
    let flood = |mut stream: TcpStream, byte: u8| async move {
        let (mut reader, mut writer) = stream.split();
        let data = vec![byte; SIZE];
        let mut back = Vec::new();
        let send = async {
            writer.write_all(&data).await.unwrap();
            writer.shutdown().await.unwrap();
        };
        let (_, received) = tokio::join!(send, reader.read_to_end(&mut back));
        assert_eq!(received.unwrap(), SIZE);
        back
    };
    let (at_client, at_server) = tokio::join!(flood(client, 1), flood(server, 2));
    assert!(at_client.iter().all(|b| *b == 2) && at_server.iter().all(|b| *b == 1));
    let copied = copy.await.unwrap().unwrap();
    assert_eq!(
        copied,
        Copied {
            a_to_b: SIZE as u64,
            b_to_a: SIZE as u64
        }
    );
}

/// Polls once, outside of any wake-up.
async fn poll_once(
    direction: &mut Direction,
    reader: &mut Scripted,
    writer: &mut Scripted,
) -> Poll<Result<(), Failure>> {
    poll_fn(|cx| Poll::Ready(direction.poll(cx, reader, writer))).await
}

#[tokio::test]
async fn an_idle_direction_holds_no_memory_and_a_blocked_one_does() {
    let mut direction = Direction::default();
    let mut reader = Scripted::new(vec![7; 3_000], &[]);
    reader.open = true;
    let mut writer = Scripted::new(vec![], &[0]);
    assert!(
        poll_once(&mut direction, &mut reader, &mut writer)
            .await
            .is_pending()
    );
    assert_eq!(
        direction.buffer.held(),
        SIZES[0],
        "3000 bytes wait for the writer"
    );
    writer.steps = vec![1];
    for _ in 0..100 {
        assert!(
            poll_once(&mut direction, &mut reader, &mut writer)
                .await
                .is_pending()
        );
    }
    assert_eq!(writer.output.len(), 3_000);
    assert_eq!(direction.buffer.held(), 0);
    assert!(!direction.unflushed && writer.flushed, "idle means flushed");
}

#[tokio::test]
async fn buffers_grow_with_full_reads_and_shrink_with_small_ones() {
    let mut direction = Direction::default();
    let mut reader = Scripted::new(vec![7; 256 * 1024], &[]);
    reader.open = true;
    let mut writer = Scripted::new(vec![], &[]);
    assert!(
        poll_once(&mut direction, &mut reader, &mut writer)
            .await
            .is_pending()
    );
    let [small, middle, large] = SIZES;
    assert_eq!(
        writer.writes[..6],
        [small, small, middle, middle, large, large]
    );
    assert_eq!(usize::from(direction.buffer.class), 2);
    for _ in 0..4 {
        reader.input.push(1);
        assert!(
            poll_once(&mut direction, &mut reader, &mut writer)
                .await
                .is_pending()
        );
    }
    assert_eq!(usize::from(direction.buffer.class), 0);
}

#[tokio::test]
async fn an_endless_reader_lets_others_work() {
    let mut direction = Direction::default();
    let mut reader = Scripted::new(vec![7; 4 * TURN_BYTES as usize], &[]);
    let mut writer = Scripted::new(vec![], &[]);
    assert!(
        poll_once(&mut direction, &mut reader, &mut writer)
            .await
            .is_pending()
    );
    let done = writer.output.len() as u64;
    assert!(
        (TURN_BYTES..TURN_BYTES + SIZES[2] as u64).contains(&done),
        "{done}"
    );
}

#[tokio::test]
async fn a_writer_that_takes_nothing_is_an_error() {
    struct Full;
    impl AsyncRead for Full {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }
    impl AsyncWrite for Full {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(0))
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }
    let error = bidirectional(Scripted::new(vec![1], &[]), Full)
        .await
        .unwrap_err();
    assert_eq!((error.side, error.operation), (Side::B, Operation::Write));
    assert_eq!(error.source.kind(), io::ErrorKind::WriteZero);
}

/// A stream whose reads and writes are as long as its steps say, in turn: 0 is "not yet", n is up to 97 n bytes.
/// Without steps everything is as long as it can be.
struct Scripted {
    input: Vec<u8>,
    read: usize,
    /// After the input comes nothing, rather than the end.
    open: bool,
    steps: Vec<u8>,
    step: usize,
    output: Vec<u8>,
    writes: Vec<usize>,
    flushed: bool,
    ended: bool,
}

impl Scripted {
    fn new(input: Vec<u8>, steps: &[u8]) -> Self {
        Self {
            input,
            read: 0,
            open: false,
            steps: steps.to_vec(),
            step: 0,
            output: Vec::new(),
            writes: Vec::new(),
            flushed: true,
            ended: false,
        }
    }

    fn next(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        let Some(n) = self.steps.get(self.step % self.steps.len().max(1)) else {
            return Poll::Ready(usize::MAX);
        };
        self.step += 1;
        if *n == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(usize::from(*n) * 97)
    }
}

impl AsyncRead for Scripted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let limit = ready!(self.next(cx));
        let rest = &self.input[self.read..];
        if rest.is_empty() && self.open {
            return Poll::Pending;
        }
        let n = rest.len().min(limit).min(buf.remaining());
        buf.put_slice(&rest[..n]);
        self.read += n;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Scripted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        assert!(!self.ended, "written to after its end");
        let n = ready!(self.next(cx)).min(data.len());
        self.output.extend_from_slice(&data[..n]);
        self.writes.push(n);
        self.flushed = false;
        Poll::Ready(Ok(n))
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flushed = true;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.ended = true;
        Poll::Ready(Ok(()))
    }
}

fn script() -> impl Strategy<Value = Vec<u8>> {
    // At least one step of progress, or it would never end.
    (prop::collection::vec(0_u8..=255, 0..20), 1_u8..=255).prop_map(|(mut steps, last)| {
        steps.push(last);
        steps
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_byte_arrives_once_and_in_order(
        forth in prop::collection::vec(any::<u8>(), 0..100_000),
        back in prop::collection::vec(any::<u8>(), 0..20_000),
        a_steps in script(),
        b_steps in script(),
    ) {
        let mut a = Scripted::new(forth.clone(), &a_steps);
        let mut b = Scripted::new(back.clone(), &b_steps);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let copied = runtime.block_on(bidirectional(&mut a, &mut b)).unwrap();
        prop_assert_eq!(copied, Copied { a_to_b: forth.len() as u64, b_to_a: back.len() as u64 });
        prop_assert!(a.ended && b.ended);
        prop_assert!(b.output == forth && a.output == back);
    }
}

/// Ten thousand idle connections are ten thousand of these.
#[test]
fn the_future_holds_its_streams_once() {
    fn size<A, F: Future>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }
    let size = size(|(a, b): (TcpStream, TcpStream)| bidirectional(a, b));
    let most = 2 * size_of::<TcpStream>() + 96;
    assert!(size <= most, "{size} bytes, above {most}");
}
