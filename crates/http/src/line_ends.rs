//! Line ends of requests in HTTP/1. A proxy before this server may take a bare LF for a part of a
//! value, and would then have checked another request than this one.
//!
//! hyper takes a bare LF for a line end and cannot be told otherwise. So it gets a NUL in its
//! place, which is allowed nowhere in a head: it answers 400 and closes the connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of a line that are looked at: more than the name and value of a length have.
const MOST_LINE: usize = 48;

/// hyper parses no further before a head has come whole, so a spoiled one ends here.
const HEAD_END: &[u8] = b"\n\n";

/// A connection whose heads end their lines as they must.
pub(crate) struct LineEnds<S> {
    stream: S,
    place: Place,
}

/// Where the next byte is.
#[derive(Debug)]
enum Place {
    Head(Head),
    /// So many bytes are of a body.
    Body(u64),
    /// Behind a body whose length is not known here.
    Unknown,
}

#[derive(Debug, Default)]
struct Head {
    /// The beginning of the line.
    line: Vec<u8>,
    /// Its request line has ended.
    begun: bool,
    /// The last byte was CR.
    cr: bool,
    length: Option<u64>,
    /// How long the body is cannot be said.
    unknown: bool,
}

impl Head {
    /// Whether the head has ended; `None`: this is a bare LF.
    fn take(&mut self, byte: u8) -> Option<bool> {
        let cr = std::mem::replace(&mut self.cr, byte == b'\r');
        if byte == b'\n' {
            return cr.then(|| self.ended_line());
        }
        if byte != b'\r' && self.line.len() < MOST_LINE {
            self.line.push(byte);
        }
        Some(false)
    }

    fn ended_line(&mut self) -> bool {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return self.begun;
        }
        if std::mem::replace(&mut self.begun, true) {
            self.note(&line.to_ascii_lowercase());
        }
        false
    }

    fn note(&mut self, line: &[u8]) {
        if let Some(value) = line.strip_prefix(b"content-length:") {
            let value = value.trim_ascii();
            let digits = value.iter().all(u8::is_ascii_digit);
            let value = std::str::from_utf8(value).ok().filter(|_| digits);
            let length = value.and_then(|value| value.parse().ok());
            self.unknown |= length.is_none() || self.length.is_some();
            self.length = length;
        }
        self.unknown |= line.starts_with(b"transfer-encoding");
    }
}

impl Place {
    fn head() -> Self {
        Self::Head(Head::default())
    }

    /// Goes over bytes that were read, and spoils a bare line end in a head; whether there was one.
    fn pass(&mut self, mut bytes: &mut [u8]) -> bool {
        while !bytes.is_empty() {
            match self {
                Self::Unknown => return false,
                Self::Body(left) => {
                    let here = usize::try_from(*left)
                        .unwrap_or(usize::MAX)
                        .min(bytes.len());
                    *left -= here as u64;
                    if *left == 0 {
                        *self = Self::head();
                    }
                    bytes = &mut bytes[here..];
                }
                Self::Head(head) => {
                    match head.take(bytes[0]) {
                        None => {
                            bytes[0] = 0;
                            *self = Self::Unknown;
                            return true;
                        }
                        Some(true) if head.unknown => *self = Self::Unknown,
                        Some(true) => match head.length {
                            None | Some(0) => *self = Self::head(),
                            Some(length) => *self = Self::Body(length),
                        },
                        Some(false) => {}
                    }
                    bytes = &mut bytes[1..];
                }
            }
        }
        false
    }
}

impl<S> LineEnds<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            place: Place::head(),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LineEnds<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buffer);
        let spoiled = this.place.pass(&mut buffer.filled_mut()[before..]);
        if spoiled && buffer.remaining() >= HEAD_END.len() {
            buffer.put_slice(HEAD_END);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LineEnds<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text as it comes through, in pieces.
    fn passed(text: &str, piece: usize) -> String {
        let (mut place, mut bytes) = (Place::head(), text.as_bytes().to_vec());
        bytes.chunks_mut(piece).for_each(|part| {
            place.pass(part);
        });
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn bodies_and_right_heads_come_through_unchanged() {
        for text in [
            "GET / HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "\r\nPOST / HTTP/1.1\r\nContent-Length:  7 \r\n\r\na\nb\n\n\nc",
            "POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n\n\nGET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\na\nb\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: x\r\n\r\na\nb",
            "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n\n\n",
            "POST / HTTP/1.1\r\nx-a: content-length: 9\r\n\r\n",
        ] {
            for piece in [1, 2, 7, 1000] {
                assert_eq!(passed(text, piece), text);
            }
        }
    }

    #[test]
    fn a_bare_line_end_in_a_head_is_spoiled() {
        for (text, place) in [
            ("GET / HTTP/1.1\nhost: a\r\n\r\n", 14),
            ("GET / HTTP/1.1\r\nhost: a\n\r\n", 23),
            ("GET / HTTP/1.1\r\nhost: a\r\n\n", 25),
            ("\nGET / HTTP/1.1\r\nhost: a\r\n\r\n", 0),
            ("GET / HTTP/1.1\r\n\r\nGET /b HTTP/1.1\nhost: a", 33),
            ("POST / HTTP/1.1\r\ncontent-length: 1\r\n\r\n\nGET /b\n", 45),
        ] {
            for piece in [1, 5, 1000] {
                let passed = passed(text, piece);
                assert_eq!(passed.find('\0'), Some(place), "{text:?}");
            }
        }
    }
}
