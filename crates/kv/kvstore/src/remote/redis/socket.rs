//! Byte stream of a connection: TCP, TLS or Unix socket, with a deadline and a size limit for
//! replies.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::ConnectionAddr;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::limits::RedisLimits;

/// A socket whose reads and writes fail with `TimedOut` after the deadline.
pub(super) struct Socket {
    stream: Box<dyn Stream>,
    deadline: Instant,
    /// Number of bytes that may still be read. At 0, reads fail with `FileTooLarge`.
    room: usize,
}

trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

impl Socket {
    /// Opens a socket; with `tls`, TLS over TCP.
    pub(super) fn open(
        server: &ConnectionAddr,
        tls: Option<&Arc<ClientConfig>>,
        limits: &RedisLimits,
    ) -> io::Result<Self> {
        let stream: Box<dyn Stream> = match (server, tls) {
            (ConnectionAddr::Unix(path), _) => Box::new(unix(path, limits.answer)?),
            (ConnectionAddr::Tcp(host, port), Some(tls)) => {
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                let session =
                    ClientConnection::new(Arc::clone(tls), name).map_err(io::Error::other)?;
                Box::new(StreamOwned::new(session, tcp(host, *port, limits)?))
            }
            (ConnectionAddr::Tcp(host, port), None) => Box::new(tcp(host, *port, limits)?),
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(Self {
            stream,
            deadline: Instant::now() + limits.answer,
            room: 0,
        })
    }

    /// Sets the deadline for all further reads and writes, and how many bytes may be read.
    pub(super) fn limit(&mut self, deadline: Instant, room: usize) {
        (self.deadline, self.room) = (deadline, room);
    }

    /// Reads at least one byte.
    pub(super) fn read_some(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.read(into) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.read_some(into),
            read => read,
        }
    }

    fn in_time(&self) -> io::Result<()> {
        match Instant::now() < self.deadline {
            true => Ok(()),
            false => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

fn unix(path: &std::path::Path, answer: Duration) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(answer))?;
    stream.set_write_timeout(Some(answer))?;
    Ok(stream)
}

/// Tries the addresses of the host in order.
fn tcp(host: &str, port: u16, limits: &RedisLimits) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limits.connect) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(limits.answer))?;
                stream.set_write_timeout(Some(limits.answer))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Maps `WouldBlock`, which a socket's own time-out returns, to `TimedOut`.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.in_time()?;
        if self.room == 0 {
            let text = "the reply is longer than any to this command";
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        let most = into.len().min(self.room);
        let count = self.stream.read(&mut into[..most]).map_err(timed_out)?;
        self.room -= count;
        Ok(count)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.in_time()?;
        self.stream.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush().map_err(timed_out)
    }
}
