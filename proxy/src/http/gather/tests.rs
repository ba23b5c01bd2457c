//! Tests of the gathered transport on real sockets.

use super::*;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A gathered transport and its peer.
async fn pair() -> (Gathered, Turns, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(addr), listener.accept());
    let (gathered, turns) = gather(Stream::plain(near.unwrap()));
    (gathered, turns, far.unwrap().0)
}

#[tokio::test]
async fn what_a_turn_writes_goes_out_when_it_waits_and_in_one_piece() {
    let (mut io, turns, mut peer) = pair().await;
    let mut heard = [0; 64];
    let mut waits = pin!(turns.run(async {
        for _ in 0..10 {
            io.write_all(b"abc").await.unwrap();
            io.flush().await.unwrap();
        }
        let early = tokio::time::timeout(Duration::from_millis(50), peer.read(&mut heard));
        // A turn ends here, since nothing has come yet.
        early.await.unwrap().unwrap()
    }));
    assert_eq!(waits.as_mut().await, 30);
}

#[tokio::test]
async fn nothing_goes_out_before_the_turn_ends() {
    let (mut io, _turns, peer) = pair().await;
    io.write_all(b"abc").await.unwrap();
    io.flush().await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let error = peer.try_read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn a_peer_that_does_not_read_holds_the_writer_back_and_loses_nothing() {
    const CHUNK: usize = 10_000;
    const CHUNKS: usize = 3_000;
    let (mut io, turns, mut peer) = pair().await;
    let most = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let seen = most.clone();
    let buffers = turns.0.clone();
    let writer = tokio::spawn(async move {
        let write = async {
            for i in 0..CHUNKS {
                io.write_all(&[i as u8; CHUNK]).await.unwrap();
                let waiting = buffers.lock().output.len();
                seen.fetch_max(waiting, std::sync::atomic::Ordering::Relaxed);
            }
            io.shutdown().await.unwrap();
        };
        turns.run(write).await;
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!writer.is_finished(), "30 MB fitted into a socket");
    let mut all = Vec::new();
    peer.read_to_end(&mut all).await.unwrap();
    writer.await.unwrap();
    assert_eq!(all.len(), CHUNK * CHUNKS);
    let chunks = all.chunks(CHUNK).enumerate();
    assert!(
        chunks
            .into_iter()
            .all(|(i, c)| c.iter().all(|b| *b == i as u8))
    );
    let most = most.load(std::sync::atomic::Ordering::Relaxed);
    assert!(most <= MAX_WAITING + CHUNK, "{most} bytes waited");
}

#[tokio::test]
async fn small_reads_get_all_that_came_and_then_the_end() {
    let (mut io, turns, mut peer) = pair().await;
    peer.write_all(&(0..=255).collect::<Vec<u8>>())
        .await
        .unwrap();
    drop(peer);
    let mut all = Vec::new();
    let read = async {
        let mut buf = [0; 7];
        loop {
            match io.read(&mut buf).await.unwrap() {
                0 => return,
                n => all.extend_from_slice(&buf[..n]),
            }
        }
    };
    turns.run(read).await;
    assert_eq!(all, (0..=255).collect::<Vec<u8>>());
    assert_eq!(
        turns.0.lock().input.capacity(),
        0,
        "an idle connection holds memory"
    );
}

#[tokio::test]
async fn a_transport_that_cannot_send_fails_the_next_use() {
    let (mut io, turns, peer) = pair().await;
    weft_runtime::net::reset_on_close(&peer).unwrap();
    drop(peer);
    let used = turns.run(async {
        loop {
            io.write_all(b"abc").await?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        #[allow(unreachable_code)]
        Ok::<(), io::Error>(())
    });
    let used = tokio::time::timeout(Duration::from_secs(5), used).await;
    assert!(used.expect("the writer hears of it").is_err());
}
