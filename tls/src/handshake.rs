//! The handshake, by rustls's unbuffered interface, so that the connection afterwards is ours (`stream`). Who the peer is
//! and whether that is right, `accept` and `connect` decide.

use std::io;
use std::sync::Arc;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{ClientConfig, CommonState, ServerConfig};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::names::Certificate;
use crate::stream::{Keys, TlsStream};

/// Bytes of a handshake that wait to be understood: a certificate chain is a few KB.
const MAX_WAITING: usize = 64 * 1024;
const READ: usize = 4096;

/// Why a handshake failed.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    Tls(rustls::Error),
    Io(io::Error),
}

impl From<rustls::Error> for HandshakeError {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error)
    }
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What the handshake found out about the peer.
pub(crate) struct Peer {
    pub(crate) leaf: Option<Certificate>,
    pub(crate) alpn: Option<Vec<u8>>,
}

impl Peer {
    fn of(state: &CommonState) -> Self {
        let leaf = state.peer_certificates().and_then(|chain| chain.first());
        Self {
            leaf: leaf.and_then(|leaf| Certificate::from_der(leaf).ok()),
            alpn: state.alpn_protocol().map(<[u8]>::to_vec),
        }
    }
}

/// Meets a server.
pub(crate) async fn client<IO: AsyncRead + AsyncWrite + Unpin>(
    mut io: IO,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
) -> Result<(TlsStream<IO>, Peer), HandshakeError> {
    let mut connection = UnbufferedClientConnection::new(config, name)?;
    let early = drive(&mut io, &mut connection).await?;
    let peer = Peer::of(&connection);
    let (secrets, keys) = connection.dangerous_into_kernel_connection()?;
    let stream = TlsStream::new(io, secrets, Keys::Client(keys), early);
    Ok((stream.map_err(io::Error::other)?, peer))
}

/// Meets a client.
pub(crate) async fn server<IO: AsyncRead + AsyncWrite + Unpin>(
    mut io: IO,
    config: Arc<ServerConfig>,
) -> Result<(TlsStream<IO>, Peer), HandshakeError> {
    let mut connection = UnbufferedServerConnection::new(config)?;
    let early = drive(&mut io, &mut connection).await?;
    let peer = Peer::of(&connection);
    let (secrets, keys) = connection.dangerous_into_kernel_connection()?;
    let stream = TlsStream::new(io, secrets, Keys::Server(keys), early);
    Ok((stream.map_err(io::Error::other)?, peer))
}

/// Both roles of a connection.
trait Unbuffered {
    type Data;
    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn state(&self) -> &CommonState;
}

impl Unbuffered for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }

    fn state(&self) -> &CommonState {
        self
    }
}

impl Unbuffered for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }

    fn state(&self) -> &CommonState {
        self
    }
}

/// What came right behind the end of the handshake.
#[derive(Default)]
pub(crate) struct Early {
    /// Data that rustls has opened already.
    pub(crate) plain: Vec<u8>,
    /// Records that nobody has opened.
    pub(crate) sealed: Vec<u8>,
    /// The peer has said that nothing more follows.
    pub(crate) ended: bool,
}

/// What to do next.
enum Step {
    Again,
    Send,
    Receive,
    Done,
}

/// Carries the handshake to its end.
async fn drive<IO, C>(io: &mut IO, connection: &mut C) -> Result<Early, HandshakeError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    C: Unbuffered,
{
    let mut incoming = Vec::new();
    let mut outgoing = Vec::new();
    let mut early = Early::default();
    loop {
        let (discard, step) = step(connection, &mut incoming, &mut outgoing, &mut early);
        incoming.drain(..discard.min(incoming.len()));
        match step {
            Ok(Step::Again) => {}
            Ok(Step::Send) => {
                io.write_all(&outgoing).await?;
                io.flush().await?;
                outgoing.clear();
            }
            Ok(Step::Receive) => receive(io, &mut incoming).await?,
            Ok(Step::Done) => {
                early.sealed = incoming;
                return Ok(early);
            }
            Err(error) => {
                // The alert that tells the peer why, if there is one; the error itself is what counts.
                last_words(io, connection, &mut incoming, outgoing).await;
                return Err(error.into());
            }
        }
    }
}

fn step<C: Unbuffered>(
    connection: &mut C,
    incoming: &mut [u8],
    outgoing: &mut Vec<u8>,
    early: &mut Early,
) -> (usize, Result<Step, rustls::Error>) {
    let UnbufferedStatus { mut discard, state } = connection.process(incoming);
    let step = state.and_then(|state| match state {
        ConnectionState::EncodeTlsData(mut encode) => {
            let at = outgoing.len();
            if let Err(EncodeError::InsufficientSize(needs)) = encode.encode(&mut []) {
                outgoing.resize(at + needs.required_size, 0);
                let place = outgoing.get_mut(at..).unwrap_or_default();
                encode
                    .encode(place)
                    .map_err(|error| rustls::Error::General(error.to_string()))?;
            }
            Ok(Step::Again)
        }
        ConnectionState::TransmitTlsData(transmit) => {
            transmit.done();
            Ok(Step::Send)
        }
        ConnectionState::BlockedHandshake => Ok(Step::Receive),
        ConnectionState::WriteTraffic(_) => Ok(Step::Done),
        ConnectionState::ReadTraffic(mut data) => {
            while let Some(record) = data.next_record() {
                let record = record?;
                early.plain.extend_from_slice(record.payload);
                discard += record.discard;
            }
            Ok(Step::Again)
        }
        ConnectionState::PeerClosed => {
            early.ended = true;
            Ok(Step::Again)
        }
        _ => Err(rustls::Error::General(
            "the handshake has no such state".into(),
        )),
    });
    let handshaking = connection.state().is_handshaking();
    match step {
        Ok(Step::Again) if early.ended && handshaking => {
            let error = "the peer closed during the handshake";
            (discard, Err(rustls::Error::General(error.into())))
        }
        step => (discard, step),
    }
}

async fn receive<IO: AsyncRead + Unpin>(
    io: &mut IO,
    incoming: &mut Vec<u8>,
) -> Result<(), HandshakeError> {
    if incoming.len() >= MAX_WAITING {
        let error = rustls::Error::General("a message of the handshake is too long".into());
        return Err(error.into());
    }
    incoming.reserve(READ);
    if io.read_buf(incoming).await? == 0 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(())
}

/// Sends the alert that tells the peer what is wrong, if rustls has one ready.
async fn last_words<IO, C>(
    io: &mut IO,
    connection: &mut C,
    incoming: &mut [u8],
    mut outgoing: Vec<u8>,
) where
    IO: AsyncWrite + Unpin,
    C: Unbuffered,
{
    // Only then does the step encode and not look for more messages.
    while connection.state().wants_write() {
        let (_, step) = step(connection, incoming, &mut outgoing, &mut Early::default());
        if step.is_err() {
            break;
        }
    }
    if !outgoing.is_empty() && io.write_all(&outgoing).await.is_ok() {
        // Whether the peer hears it makes no difference here.
        let _ = io.flush().await;
    }
}
