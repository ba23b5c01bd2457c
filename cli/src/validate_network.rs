//! `weft validate-network`: checks in a pod whose traffic a CNI plugin redirects that it has done so, because a pod whose traffic is not
//! redirected would run without the mesh (contract 9.5). It changes nothing.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use weft_core::parse;

use crate::flags::LogArgs;

/// Checks the redirection of the pod's traffic.
#[derive(Args, Clone, Debug)]
pub struct ValidateArgs {
    /// A connection to this address must be redirected; nobody needs to be there.
    #[arg(long, default_value = "1.1.1.1:20001")]
    pub connect_addr: SocketAddr,
    /// Where it must arrive: the outbound port of the proxy, which has not started yet.
    #[arg(long, default_value = "0.0.0.0:4140")]
    pub listen_addr: SocketAddr,
    /// How long it may take.
    #[arg(long, default_value = "10s", value_parser = parse::duration)]
    pub timeout: Duration,
    #[command(flatten)]
    log: LogArgs,
}

/// Connects, and returns when the connection has come back to us.
///
/// # Errors
/// It has not: it went elsewhere, or nowhere.
pub async fn run(args: ValidateArgs) -> Result<()> {
    let listener = weft_runtime::net::bind(args.listen_addr, None)?;
    validate(listener, args.connect_addr, args.timeout).await
}

async fn validate(listener: TcpListener, connect: SocketAddr, limit: Duration) -> Result<()> {
    let listen = listener.local_addr()?;
    let token = token();
    let served = async {
        loop {
            let (mut stream, _) = weft_runtime::net::accept(&listener).await;
            // Who goes away before it has read is not the one we wait for.
            let _ = stream.write_all(token.as_bytes()).await;
        }
    };
    let length = u64::try_from(token.len()).unwrap_or(u64::MAX);
    let received = async {
        let stream = TcpStream::connect(connect).await?;
        let mut received = Vec::new();
        stream.take(length).read_to_end(&mut received).await?;
        std::io::Result::Ok(received)
    };
    let received = tokio::select! {
        received = timeout(limit, received) => received,
        never = served => never,
    };
    let went = match received {
        Ok(Ok(received)) if received == token.as_bytes() => return Ok(()),
        Ok(Ok(_)) => "somebody else answered it".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {limit:?}"),
    };
    bail!(
        "a connection to {connect} was not redirected to {listen}: {went}; the CNI plugin has not set up this pod, so it would run \
         without its proxy: see whether the plugin runs on this node, then delete the pod"
    )
}

/// A text nobody else sends by chance.
fn token() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("weft-validate-{:016x}{:016x}\n", random(), random())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn listener() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").await.expect("bind")
    }

    #[tokio::test]
    async fn a_redirected_connection_is_recognised() {
        let listener = listener().await;
        // Connecting to ourselves is what a redirection looks like.
        let addr = listener.local_addr().expect("address");
        validate(listener, addr, Duration::from_secs(5))
            .await
            .expect("redirected");
    }

    #[tokio::test]
    async fn a_stranger_that_answers_is_refused() {
        let stranger = listener().await;
        let addr = stranger.local_addr().expect("address");
        let task = tokio::spawn(async move {
            let (mut stream, _) = stranger.accept().await.expect("accept");
            let text = "weft-validate-00000000000000000000000000000000\n";
            stream.write_all(text.as_bytes()).await.expect("write");
        });
        let error = validate(listener().await, addr, Duration::from_secs(5)).await;
        let error = error.expect_err("not redirected").to_string();
        assert!(
            error.contains("somebody else") && error.contains("CNI plugin"),
            "{error}"
        );
        task.await.expect("it was asked");
    }

    #[tokio::test]
    async fn silence_and_refusal_are_told_apart() {
        let silent = listener().await;
        let addr = silent.local_addr().expect("address");
        let limit = Duration::from_millis(100);
        let error = validate(listener().await, addr, limit)
            .await
            .expect_err("silence");
        assert!(error.to_string().contains("no answer within"), "{error}");
        drop(silent);
        let error = validate(listener().await, addr, limit)
            .await
            .expect_err("refused");
        assert!(error.to_string().contains("refused"), "{error}");
    }
}
