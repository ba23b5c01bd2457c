//! `weft shutdown`: tells the proxy of its pod to end, for pods whose sidecar the kubelet does not end by itself (case J18). Run in the
//! proxy's container, whose image has no shell: by `kubectl exec`, or by whatever ends sidecars. It does not wait for the end.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::wait::ask;

/// Tells the proxy of the pod to end.
#[derive(Args, Clone, Debug)]
pub struct ShutdownArgs {
    /// Admin port of the proxy.
    #[arg(long, default_value_t = 4191)]
    pub port: u16,
}

/// Returns when the proxy has agreed to end.
///
/// # Errors
/// It does not answer, or it is not allowed to be ended in this way.
pub async fn run(args: ShutdownArgs) -> Result<()> {
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
    let answer = ask(addr, "POST /shutdown")
        .await
        .with_context(|| format!("the proxy (http://{addr}) cannot be told to end"))?;
    if answer.contains(" 404 ") {
        bail!(
            "the proxy (http://{addr}) does not let itself be ended: give its pod, or its namespace, the annotation \
             config.linkerd.io/proxy-admin-shutdown: enabled"
        );
    }
    if !answer.contains(" 200 ") {
        bail!("the proxy (http://{addr}) answers {answer:?} to POST /shutdown");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// What is said when the proxy gives this answer.
    async fn told(status: &'static str) -> Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let port = listener.local_addr().expect("address").port();
        let proxy = async {
            let (mut stream, _) = listener.accept().await.expect("accept");
            let mut request = [0; 1024];
            let length = stream.read(&mut request).await.expect("read");
            assert!(request[..length].starts_with(b"POST /shutdown HTTP/1.1\r\n"));
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.expect("write");
        };
        tokio::join!(run(ShutdownArgs { port }), proxy).0
    }

    #[tokio::test]
    async fn j18_the_answer_of_the_proxy_is_passed_on() {
        told("200 OK").await.expect("it ends");
        let said = told("404 Not Found").await.expect_err("off").to_string();
        assert!(said.contains("proxy-admin-shutdown: enabled"), "{said}");
        let said = told("403 Forbidden")
            .await
            .expect_err("refused")
            .to_string();
        assert!(said.contains("403 Forbidden"), "{said}");
    }

    #[tokio::test]
    async fn j18_a_proxy_that_is_gone_is_said() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let port = listener.local_addr().expect("address").port();
        drop(listener);
        let error = run(ShutdownArgs { port }).await.expect_err("nobody");
        assert!(format!("{error:#}").contains("refused"), "{error:#}");
    }
}
