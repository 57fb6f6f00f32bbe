//! Listeners: TCP, with or without TLS, or a Unix socket.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

use crate::Tls;

/// Accept backlog, as in tokio.
const BACKLOG: u32 = 1024;

/// A bound listener.
#[derive(Debug)]
pub struct Listener {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener, Option<Tls>),
    Unix(UnixListener, SocketFile),
}

/// A new connection.
pub(crate) enum Socket {
    Tcp(TcpStream, Option<Tls>),
    Unix(UnixStream),
}

/// Peer address of a connection; an extension of its requests. `None` for a Unix socket.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub Option<SocketAddr>);

/// The remedy for an error of `bind`, in terms of the flags --host and --port.
#[must_use]
pub fn bind_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "choose another --port or stop the program that uses it",
        io::ErrorKind::AddrNotAvailable => "no interface of this machine has it: correct --host",
        io::ErrorKind::PermissionDenied => "choose a --port above 1023",
        _ => "choose another address",
    }
}

impl Listener {
    /// Binds a TCP port; 0 chooses a free one. `::` is dual-stack, and falls back to IPv4 if the
    /// kernel has no IPv6.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub async fn tcp(host: &str, port: u16, tls: Option<Tls>) -> io::Result<Self> {
        let listener = if host.parse() == Ok(Ipv6Addr::UNSPECIFIED) {
            every_address(port)?
        } else {
            TcpListener::bind((host, port)).await?
        };
        Ok(Self {
            kind: Kind::Tcp(listener, tls),
        })
    }

    /// Binds a Unix socket. The file is removed with the listener; a stale file of a dead server is
    /// replaced.
    ///
    /// # Errors
    /// Errors of the operating system; address in use if the file is no socket or another server
    /// listens on it.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let abandoned = fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket())
            && BlockingStream::connect(path).is_err();
        if abandoned {
            fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        Ok(Self {
            kind: Kind::Unix(listener, SocketFile(path.to_owned())),
        })
    }

    /// `http://host:port`, `https://host:port` or `unix:path`.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn url(&self) -> io::Result<String> {
        Ok(match &self.kind {
            Kind::Tcp(listener, tls) => {
                let scheme = if tls.is_some() { "https" } else { "http" };
                format!("{scheme}://{}", listener.local_addr()?)
            }
            Kind::Unix(_, file) => format!("unix:{}", file.0.display()),
        })
    }

    pub(crate) async fn accept(&self) -> io::Result<(Socket, Peer)> {
        match &self.kind {
            Kind::Tcp(listener, tls) => {
                let (stream, address) = listener.accept().await?;
                // Unmaps IPv4 clients of a dual-stack socket (`::ffff:10.0.0.1`).
                let address = SocketAddr::new(address.ip().to_canonical(), address.port());
                // Best effort. With Nagle's algorithm each token would wait for the previous ACK.
                let _ = stream.set_nodelay(true);
                Ok((Socket::Tcp(stream, tls.clone()), Peer(Some(address))))
            }
            Kind::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((Socket::Unix(stream), Peer(None)))
            }
        }
    }
}

fn every_address(port: u16) -> io::Result<TcpListener> {
    match both_families(port) {
        Err(error) if has_no_ipv6(&error) => {
            let socket = TcpSocket::new_v4()?;
            listening(socket, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
        }
        bound => bound,
    }
}

fn both_families(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    // Some hosts set `net.ipv6.bindv6only`.
    rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    listening(socket, SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
}

fn listening(socket: TcpSocket, address: SocketAddr) -> io::Result<TcpListener> {
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn has_no_ipv6(error: &io::Error) -> bool {
    let none = [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL];
    Errno::from_io_error(error).is_some_and(|found| none.contains(&found))
}

#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_remedy_fits_its_error() {
        let taken = Listener::tcp("127.0.0.1", 0, None).await.unwrap();
        let Kind::Tcp(listener, _) = &taken.kind else {
            panic!("no TCP");
        };
        let port = listener.local_addr().unwrap().port();
        let twice = Listener::tcp("127.0.0.1", port, None).await.unwrap_err();
        assert!(bind_remedy(&twice).contains("another --port"));
        // an address for documentation (RFC 5737), which no interface has
        let elsewhere = Listener::tcp("192.0.2.1", 0, None).await.unwrap_err();
        assert!(bind_remedy(&elsewhere).contains("correct --host"));
    }
}
