//! Scratch.
use weft_e2e::{Hop, over};
#[test]
fn big() {
    over(Hop::ServerOnly, async |way| {
        for kib in [8usize, 120, 200, 300, 400, 500, 600, 600, 600, 600] {
          for _ in 0..5 {
            let mut app = way.connect().await?;
            let request = format!("GET / HTTP/1.1\r\nHost: web\r\nx-large: {}\r\n\r\n", "v".repeat(kib << 10));
            let t = std::time::Instant::now();
            let sent = app.send(request).await;
            let t1 = t.elapsed();
            if kib < 128 { let mut s = way.listener.accept().await?; s.head().await?; s.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?; }
            let head = app.head().await;
            println!("{kib} {sent:?} {t1:?} head {:?} {:?}", head.map(|h| h.status()), t.elapsed());
          }
        }
        anyhow::bail!("look")
    });
}
