//! Taking connections off a listener, whatever the state of the process.
//! It does not configure what it accepts, and it does not limit how many there are.

use super::unmap;
use crate::log::Throttle;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// First pause after the process ran out of something; doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Long enough not to burn a CPU, short enough that a freed descriptor is used at once.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// For all listeners together.
static LINES: Throttle = Throttle::new(Duration::from_secs(5));

/// The next connection, and the address it comes from (IPv4-mapped addresses unwrapped, case T09).
///
/// Never fails: a connection that was reset while it waited is passed over, and when the process is out of descriptors
/// or memory it waits 10 ms, doubling up to 1 s, and tries again. Cancel safe.
pub async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    let (stream, peer) = accept_with(|| listener.accept()).await;
    (stream, unmap(peer))
}

async fn accept_with<T, F>(mut next: impl FnMut() -> F) -> T
where
    F: Future<Output = io::Result<T>>,
{
    let mut pause = PAUSE_MIN;
    loop {
        let error = match next().await {
            Ok(accepted) => return accepted,
            Err(error) => error,
        };
        if concerns_one_connection(&error) {
            log(&error, Duration::ZERO);
            // Each such error took one connection off the queue, so this ends; but it must not hold the thread.
            tokio::task::yield_now().await;
            continue;
        }
        log(&error, pause);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// accept(2): these report on the connection that was taken, not on the listener.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNABORTED
                | libc::ECONNRESET
                | libc::EINTR
                | libc::EPROTO
                | libc::EPERM
                | libc::ENETDOWN
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::EHOSTUNREACH
        )
    )
}

fn log(error: &io::Error, pause: Duration) {
    let Some(left_out) = LINES.pass() else {
        return;
    };
    let remedy = match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "; raise the limit of open files (ulimit -n)",
        _ => "",
    };
    tracing::warn!(%error, ?pause, left_out, "cannot accept a connection{remedy}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{Ready, ready};
    use tokio::time::Instant;

    fn failing(errno: i32, mut times: u32) -> impl FnMut() -> Ready<io::Result<&'static str>> {
        move || {
            if times == 0 {
                return ready(Ok("accepted"));
            }
            times -= 1;
            ready(Err(io::Error::from_raw_os_error(errno)))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lack_of_descriptors_pauses_longer_and_longer() {
        let start = Instant::now();
        assert_eq!(accept_with(failing(libc::EMFILE, 3)).await, "accepted");
        assert_eq!(start.elapsed(), Duration::from_millis(10 + 20 + 40));
    }

    #[tokio::test(start_paused = true)]
    async fn the_pause_has_a_ceiling() {
        let start = Instant::now();
        accept_with(failing(libc::ENFILE, 10)).await;
        // 10 + 20 + … + 640 ms, then 1 s each.
        assert_eq!(start.elapsed(), Duration::from_millis(1_270 + 3_000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_reset_in_the_queue_costs_no_time() {
        let start = Instant::now();
        accept_with(failing(libc::ECONNABORTED, 1_000)).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_error_does_not_spin() {
        let start = Instant::now();
        accept_with(failing(libc::EINVAL, 1)).await;
        assert_eq!(start.elapsed(), PAUSE_MIN);
    }
}
