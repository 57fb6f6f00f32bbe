//! Connections to the server under test.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use rustix::net::sockopt::set_tcp_quickack;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::stamps::{Stamped, Stamps};
use crate::target::{Target, TargetError};
use crate::tls::Tls;

/// Opens connections; tests use a scripted implementation.
pub trait Connect {
    type Stream: AsyncRead + AsyncWrite + Unpin + 'static;

    /// Opens a connection. Through [`Stamped`], the times of its raw reads and writes are noted in
    /// `stamps`.
    fn connect(&self, stamps: Rc<Stamps>) -> impl Future<Output = io::Result<Self::Stream>>;

    /// Whether an idle connection can be reused: it is open and has no unread bytes.
    fn is_quiet(stream: &mut Self::Stream) -> bool;
}

/// Connects by TCP, with TLS for an https target.
#[derive(Debug)]
pub struct Tcp {
    host: String,
    port: u16,
    tls: Option<Tls>,
    /// Addresses of the host, resolved at the first connection.
    addresses: RefCell<Vec<SocketAddr>>,
}

impl Tcp {
    /// For an https target, this loads the platform's certificate authorities.
    pub fn new(target: &Target) -> Result<Self, TargetError> {
        let tls = match target.https {
            true => Some(Tls::new(&target.host, target.insecure).map_err(TargetError::Tls)?),
            false => None,
        };
        Ok(Self {
            host: target.host.clone(),
            port: target.port,
            tls,
            addresses: RefCell::default(),
        })
    }

    async fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, self.port)]);
        }
        let known = self.addresses.borrow().clone();
        if !known.is_empty() {
            return Ok(known);
        }
        let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await?;
        let found: Vec<SocketAddr> = found.collect();
        self.addresses.replace(found.clone());
        Ok(found)
    }

    /// Tries the addresses in order. After the first success, only that address is used.
    async fn open(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in self.addresses().await? {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    self.addresses.replace(vec![address]);
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Connect for Tcp {
    type Stream = Wire;

    async fn connect(&self, stamps: Rc<Stamps>) -> io::Result<Wire> {
        let stream = Stamped::new(self.open().await?, stamps);
        match &self.tls {
            None => Ok(Wire::Plain(stream)),
            Some(tls) => Ok(Wire::Tls(Box::new(tls.connect(stream).await?))),
        }
    }

    fn is_quiet(stream: &mut Wire) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let seen = recv(stream.socket(), &mut [0; 1], flags);
        matches!(seen, Err(rustix::io::Errno::AGAIN))
    }
}

/// A connection of [`Tcp`].
#[derive(Debug)]
pub enum Wire {
    Plain(Stamped<TcpStream>),
    Tls(Box<TlsStream<Stamped<TcpStream>>>),
}

impl Wire {
    fn socket(&mut self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream.stream(),
            Self::Tls(stream) => stream.get_mut().0.stream(),
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let wire = self.get_mut();
        let polled = match wire {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        };
        if polled.is_ready() {
            // Acknowledges received data immediately. Otherwise, if the server uses Nagle's
            // algorithm, its next token would wait for a delayed acknowledgement (40 ms), and the
            // delay would be attributed to the server.
            let _ = set_tcp_quickack(wire.socket(), true);
        }
        polled
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt::tcp_quickack;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Requests and responses alternate, a pattern for which the kernel starts to delay
    /// acknowledgements.
    #[tokio::test]
    async fn what_was_read_is_acknowledged_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            for _ in 0..4 {
                let asked = socket.read_u8().await.unwrap();
                socket.write_u8(asked).await.unwrap();
            }
            socket
        };
        let client = async {
            let tcp = Tcp {
                host: "127.0.0.1".to_owned(),
                port,
                tls: None,
                addresses: RefCell::default(),
            };
            let mut wire = tcp.connect(Rc::new(Stamps::new())).await.unwrap();
            for asked in 0..4 {
                wire.write_u8(asked).await.unwrap();
                assert_eq!(wire.read_u8().await.unwrap(), asked);
                assert!(tcp_quickack(wire.socket()).unwrap());
            }
        };
        tokio::join!(server, client);
    }
}
