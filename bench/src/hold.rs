//! Owns holding many connections without traffic (`weft-bench hold`): plain ones, or HTTP/2 with mutual TLS as a proxy of
//! the mesh opens them.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use bytes::Bytes;
use clap::Args;
use http::Request;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use weft_core::name::Identity;
use weft_tls::{ClientConfigRef, Credentials, PrivateKey, Store, TrustAnchors};

use crate::app::BODY;

/// Connections that are being opened at once.
const AT_ONCE: usize = 64;

/// Arguments of `weft-bench hold`.
#[derive(Args, Clone, Debug)]
pub struct HoldArgs {
    /// Where to: ADDRESS:PORT
    #[arg(long)]
    pub target: String,
    /// How many
    #[arg(long)]
    pub connections: usize,
    /// HTTP/2 over mutual TLS; needs the three files
    #[arg(long, requires_all = ["chain", "key", "anchors", "server_name"])]
    pub tls: bool,
    /// Our certificate and what is above it, PEM
    #[arg(long)]
    pub chain: Option<PathBuf>,
    /// Our key, PEM
    #[arg(long)]
    pub key: Option<PathBuf>,
    /// Trust anchors, PEM
    #[arg(long)]
    pub anchors: Option<PathBuf>,
    /// Our own name
    #[arg(long)]
    pub name: Option<String>,
    /// Name of the server
    #[arg(long)]
    pub server_name: Option<String>,
}

/// Opens all connections, makes one exchange on each, prints how many there are and holds them until it is killed.
///
/// # Errors
/// A connection cannot be had.
pub async fn run(args: HoldArgs) -> anyhow::Result<()> {
    let tls = if args.tls {
        Some(Arc::new(Tls::read(&args)?))
    } else {
        None
    };
    let target: Arc<str> = args.target.into();
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let (mut opening, mut held) = (JoinSet::new(), Vec::new());
    for _ in 0..args.connections {
        let permit = Arc::clone(&room).acquire_owned().await?;
        let (target, tls) = (Arc::clone(&target), tls.clone());
        opening.spawn(async move {
            let opened = open(&target, tls.as_deref()).await;
            drop(permit);
            opened
        });
        while let Some(opened) = opening.try_join_next() {
            held.push(opened??);
        }
    }
    for opened in opening.join_all().await {
        held.push(opened?);
    }
    writeln!(std::io::stdout().lock(), "{}", held.len())?;
    // Whoever started us ends us.
    std::future::pending().await
}

/// What keeps a connection open.
enum Held {
    Plain {
        _stream: TcpStream,
    },
    /// Its task answers pings.
    Http2 {
        _requests: h2::client::SendRequest<Bytes>,
    },
}

async fn open(target: &str, tls: Option<&Tls>) -> anyhow::Result<Held> {
    let mut stream = TcpStream::connect(target).await?;
    stream.set_nodelay(true)?;
    if let Some(tls) = tls {
        let client = ClientConfigRef::Credentials(&tls.credentials);
        let stream =
            weft_tls::connect(stream, client, &tls.server, tls.server.as_str(), false).await?;
        return Ok(Held::Http2 {
            _requests: exchange(stream).await?,
        });
    }
    stream.write_all(b"?").await?;
    let mut answer = [0; BODY];
    stream.read_exact(&mut answer).await?;
    Ok(Held::Plain { _stream: stream })
}

async fn exchange<IO>(stream: IO) -> anyhow::Result<h2::client::SendRequest<Bytes>>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (requests, connection) = h2::client::handshake(stream).await?;
    // It ends with the connection; an early end is noticed by the request.
    tokio::spawn(connection);
    let mut requests = requests.ready().await?;
    let request = Request::get("http://app:8081/").body(())?;
    let response = requests.send_request(request, true)?.0.await?;
    ensure!(response.status().is_success(), "{}", response.status());
    let mut body = response.into_body();
    while let Some(data) = body.data().await {
        body.flow_control().release_capacity(data?.len())?;
    }
    Ok(requests)
}

/// Who we are and whom we expect.
struct Tls {
    credentials: Arc<Credentials>,
    server: Identity,
}

impl Tls {
    fn read(args: &HoldArgs) -> anyhow::Result<Self> {
        let read = |path: &Option<PathBuf>| {
            let path = path.as_ref().context("a file is missing: see --help")?;
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
        };
        let anchors = TrustAnchors::from_pem(&read(&args.anchors)?)?;
        let key = pem::parse(read(&args.key)?)?;
        let key = PrivateKey::from_pkcs8_der(key.contents())?;
        let mut chain = pem::parse_many(read(&args.chain)?)?
            .into_iter()
            .map(pem::Pem::into_contents);
        let leaf = chain
            .next()
            .context("no certificate in the file of the chain")?;
        let name = |name: &Option<String>| Identity::parse(name.as_deref().unwrap_or_default());
        let own = name(&args.name)?;
        let store = Store::new(anchors, own.clone(), own.as_str().to_owned(), key);
        store.install(
            leaf,
            chain.collect(),
            SystemTime::now() + Duration::from_secs(3600),
        )?;
        let credentials = store.current().context("no credentials")?;
        Ok(Tls {
            credentials,
            server: name(&args.server_name)?,
        })
    }
}
