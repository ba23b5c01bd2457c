//! How the operating system ends a process of the mesh.
//! It does not decide what happens then.

use std::io;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Resolves with the signal's name when the process is asked to end (`SIGTERM`, `SIGINT`).
///
/// From the first poll on these signals no longer end the process by themselves. Where they cannot be caught, that is
/// logged, they keep their usual effect, and this never resolves.
pub async fn terminated() -> &'static str {
    match wait().await {
        Ok(name) => name,
        Err(error) => {
            tracing::warn!(%error, "cannot catch SIGTERM and SIGINT: they will end the process without draining");
            std::future::pending().await
        }
    }
}

/// A token that is cancelled when the process is asked to end, for a service that has nothing else to wait for. Spawns the
/// task that waits, with the effect of [`terminated`].
pub fn shutdown() -> CancellationToken {
    let shutdown = CancellationToken::new();
    let ending = shutdown.clone();
    tokio::spawn(async move {
        let signal = terminated().await;
        tracing::info!(signal, "shutting down");
        ending.cancel();
    });
    shutdown
}

async fn wait() -> io::Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => Ok("SIGTERM"),
        _ = interrupt.recv() => Ok("SIGINT"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn both_signals_are_named() {
        for (sent, expected) in [(libc::SIGTERM, "SIGTERM"), (libc::SIGINT, "SIGINT")] {
            let waiting = tokio::spawn(terminated());
            // The handler is there once the task has been polled; only then may the signal come.
            tokio::time::sleep(Duration::from_millis(50)).await;
            let signal = nix::sys::signal::Signal::try_from(sent).unwrap();
            nix::sys::signal::raise(signal).unwrap();
            let named = tokio::time::timeout(Duration::from_secs(5), waiting).await;
            assert_eq!(named.unwrap().unwrap(), expected);
        }
    }
}
