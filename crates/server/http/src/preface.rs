//! Detects the HTTP version of a connection by its first bytes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::filter::write_through;

/// The connection preface of HTTP/2 with prior knowledge (RFC 9113, section 3.4).
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

/// A connection that replays the bytes read to detect its version.
pub(crate) struct Prefaced<S> {
    stream: S,
    head: Vec<u8>,
    /// Bytes of `head` already replayed.
    taken: usize,
}

/// Reads until the version is known. No time-out.
///
/// # Errors
/// Errors of the connection, and its end before the version is known.
pub(crate) async fn version_of<S>(mut stream: S) -> io::Result<(Version, Prefaced<S>)>
where
    S: AsyncRead + Unpin,
{
    let mut head = Vec::with_capacity(HTTP2.len());
    while head.len() < HTTP2.len() && HTTP2.starts_with(&head) {
        let room = (HTTP2.len() - head.len()) as u64;
        if (&mut stream).take(room).read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let version = if head == HTTP2 {
        Version::Http2
    } else {
        Version::Http1
    };
    let prefaced = Prefaced {
        stream,
        head,
        taken: 0,
    };
    Ok((version, prefaced))
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefaced<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let rest = &this.head[this.taken..];
        if rest.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, buffer);
        }
        let count = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..count]);
        this.taken += count;
        Poll::Ready(Ok(()))
    }
}

write_through!(Prefaced);

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_through(sent: &[u8], piece: usize) -> (Version, Vec<u8>) {
        let (mut client, server) = tokio::io::duplex(piece);
        let bytes = sent.to_vec();
        let sending = tokio::spawn(async move {
            use tokio::io::AsyncWriteExt;
            client.write_all(&bytes).await.unwrap();
        });
        let (version, mut stream) = version_of(server).await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        sending.await.unwrap();
        (version, all)
    }

    #[tokio::test]
    async fn nothing_is_lost_whatever_the_pieces() {
        let http2 = [HTTP2, b"frames"].concat();
        for piece in [1, 3, 23, 24, 100] {
            for sent in [
                b"POST / HTTP/1.1\r\n\r\n".as_slice(),
                b"PRI * HTTP/2.1\r\n\r\n",
            ] {
                assert_eq!(
                    read_through(sent, piece).await,
                    (Version::Http1, sent.to_vec())
                );
            }
            assert_eq!(
                read_through(&http2, piece).await,
                (Version::Http2, http2.clone())
            );
        }
    }

    #[tokio::test]
    async fn an_end_before_the_version_is_an_error() {
        let (client, server) = tokio::io::duplex(8);
        drop(client);
        assert!(version_of(server).await.is_err());
    }
}
