//! A ZeroMQ connection to one peer: its handshake, then messages.

use std::io::{Error, ErrorKind};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use crate::endpoint::Endpoint;
use crate::msgpack::Malformed;
use crate::zmtp::{
    Frames, GREETING, MAX_MESSAGE, MAX_WISH, Traffic, check_greeting, greeting, pong, ready,
};

/// Time-out for the connection including its handshake, and for writes to a peer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Self {
        Self::new(ErrorKind::InvalidData, malformed)
    }
}

/// Traffic from a peer, in order.
#[derive(Debug)]
pub(crate) struct Incoming {
    half: OwnedReadHalf,
    frames: Frames,
}

/// A connection. `writer` accepts only complete frames.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) incoming: Incoming,
    pub(crate) writer: OwnedWriteHalf,
}

impl Connection {
    /// Connects as a ZeroMQ socket of the type `socket_type`.
    ///
    /// # Errors
    /// The connection fails, or the peer violates the protocol.
    pub(crate) async fn open(endpoint: &Endpoint, socket_type: &str) -> Result<Self, Error> {
        let opened = async {
            let stream = TcpStream::connect(endpoint.to_connect()).await?;
            Self::greet(stream, socket_type).await
        };
        timeout(PATIENCE, opened).await?
    }

    /// Runs the handshake on a new TCP connection; it is the same on both sides.
    ///
    /// # Errors
    /// The peer violates the protocol or times out.
    pub(crate) async fn greet(stream: TcpStream, socket_type: &str) -> Result<Self, Error> {
        stream.set_nodelay(true)?;
        let (half, mut writer) = stream.into_split();
        let publishes = matches!(socket_type, "PUB" | "ROUTER");
        let frames = Frames::of_at_most(if publishes { MAX_WISH } else { MAX_MESSAGE });
        let mut incoming = Incoming { half, frames };
        let greeted = async {
            writer.write_all(&greeting()).await?;
            let mut theirs = [0; GREETING];
            incoming.half.read_exact(&mut theirs).await?;
            check_greeting(&theirs)?;
            writer.write_all(&ready(socket_type)).await?;
            match incoming.next().await? {
                Traffic::Ready => Ok::<(), Error>(()),
                _ => Err(Malformed("the peer is not ready").into()),
            }
        };
        timeout(PATIENCE, greeted).await??;
        Ok(Self { incoming, writer })
    }

    /// The next message; pings are answered.
    ///
    /// # Errors
    /// The connection has ended, or the peer violates the protocol.
    pub(crate) async fn message(&mut self) -> Result<Vec<bytes::Bytes>, Error> {
        loop {
            match self.incoming.next().await? {
                Traffic::Message(frames) => return Ok(frames),
                Traffic::Ping(context) => self.send(&pong(&context)).await?,
                _ => {}
            }
        }
    }

    /// Writes whole frames.
    ///
    /// # Errors
    /// The connection has ended, or the write timed out.
    pub(crate) async fn send(&mut self, frames: &[u8]) -> Result<(), Error> {
        timeout(PATIENCE, self.writer.write_all(frames)).await?
    }
}

impl Incoming {
    /// # Errors
    /// The connection has ended, or the peer violates the protocol.
    pub(crate) async fn next(&mut self) -> Result<Traffic, Error> {
        loop {
            if let Some(traffic) = self.frames.next()? {
                return Ok(traffic);
            }
            if self.half.read_buf(&mut self.frames.bytes).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }
}
