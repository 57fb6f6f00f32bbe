//! Rejects bare LF line ends in HTTP/1 request heads (request smuggling). A reverse proxy may treat
//! a bare LF as part of a value, and would then have checked a different request.
//!
//! hyper accepts a bare LF and has no option to reject it. This filter replaces it by NUL, which is
//! invalid in a head, so that hyper answers 400 and closes the connection. To find every head of a
//! connection, the filter parses the framing of bodies in the same way as hyper.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

use crate::filter::write_through;

/// Bytes inspected per line: more than name and value of a valid `Content-Length` need.
const MOST_LINE: usize = 48;

const LENGTH: &[u8] = b"content-length:";
const CODING: &[u8] = b"transfer-encoding:";

/// Written to end a head that has been spoiled: hyper parses a head only when it is complete.
const HEAD_END: &[u8] = b"\n\n";

/// A connection that rejects bare LF in request heads.
pub(crate) struct LineEnds<S> {
    stream: S,
    framing: Framing,
}

/// The part of the message that the next byte belongs to.
#[derive(Debug)]
enum Framing {
    Head(Head),
    /// Remaining bytes of a body.
    Body(u64),
    Chunks(Chunks),
    /// After input that hyper rejects; it closes the connection.
    Unknown,
}

/// Position in a chunked body (RFC 9112, section 7.1). hyper rejects malformed input.
#[derive(Debug)]
enum Chunks {
    /// In the digits of a size; the flag is set after the first digit.
    Size(u64, bool),
    /// After the digits, in the same line.
    Extension(u64),
    SizeLf(u64),
    /// Remaining bytes of the chunk.
    Data(u64),
    DataCr,
    DataLf,
    /// At the beginning of a trailer line.
    Line,
    Trailer,
    TrailerLf,
    LastLf,
}

impl Chunks {
    /// The framing after this byte.
    fn behind(&self, byte: u8) -> Framing {
        Framing::Chunks(match (self, byte) {
            (Self::Size(_, true), b' ' | b'\t' | b';') => Self::Extension(self.size()),
            (Self::Size(_, true) | Self::Extension(_), b'\r') => Self::SizeLf(self.size()),
            (Self::Size(size, _), _) => {
                let digit = (byte as char).to_digit(16);
                match digit.and_then(|digit| size.checked_mul(16)?.checked_add(digit.into())) {
                    Some(size) => Self::Size(size, true),
                    None => return Framing::Unknown,
                }
            }
            (Self::Extension(size), byte) if byte != b'\n' => Self::Extension(*size),
            (Self::SizeLf(0), b'\n') => Self::Line,
            (Self::SizeLf(size), b'\n') => Self::Data(*size),
            (Self::DataCr, b'\r') => Self::DataLf,
            (Self::DataLf, b'\n') => Self::Size(0, false),
            (Self::Line, b'\r') => Self::LastLf,
            (Self::Trailer, b'\r') => Self::TrailerLf,
            (Self::Line | Self::Trailer, _) => Self::Trailer,
            (Self::TrailerLf, b'\n') => Self::Line,
            (Self::LastLf, b'\n') => return Framing::head(),
            _ => return Framing::Unknown,
        })
    }

    fn size(&self) -> u64 {
        match self {
            Self::Size(size, _) | Self::Extension(size) | Self::SizeLf(size) => *size,
            _ => 0,
        }
    }
}

#[derive(Debug, Default)]
struct Head {
    /// Prefix of the current line.
    line: Vec<u8>,
    /// The line is longer than the prefix.
    is_cut: bool,
    /// The request line has ended.
    begun: bool,
    /// The last byte was CR.
    cr: bool,
    length: Option<u64>,
    /// Whether the last transfer coding is chunked; overrides the length.
    is_chunked: Option<bool>,
    /// hyper rejects the head.
    is_wrong: bool,
}

impl Head {
    /// Consumes a byte; returns whether the head has ended. `None`: the byte is a bare LF, or ends
    /// an overlong length.
    fn take(&mut self, byte: u8) -> Option<bool> {
        let cr = std::mem::replace(&mut self.cr, byte == b'\r');
        if byte == b'\n' {
            return cr.then(|| self.ended_line()).flatten();
        }
        if byte != b'\r' {
            match self.line.len() < MOST_LINE {
                true => self.line.push(byte),
                false => self.is_cut = true,
            }
        }
        Some(false)
    }

    fn ended_line(&mut self) -> Option<bool> {
        let line = std::mem::take(&mut self.line);
        let is_cut = std::mem::take(&mut self.is_cut);
        if line.is_empty() {
            return Some(self.begun);
        }
        if std::mem::replace(&mut self.begun, true) {
            let line = line.to_ascii_lowercase();
            let says_length = [LENGTH, CODING].iter().any(|name| line.starts_with(name));
            if is_cut && says_length {
                return None;
            }
            self.note(&line);
        }
        Some(false)
    }

    fn note(&mut self, line: &[u8]) {
        if let Some(value) = line.strip_prefix(LENGTH) {
            let value = value.trim_ascii();
            let digits = value.iter().all(u8::is_ascii_digit);
            let value = std::str::from_utf8(value).ok().filter(|_| digits);
            let length = value.and_then(|value| value.parse().ok());
            self.is_wrong |= length.is_none() || self.length.is_some_and(|one| Some(one) != length);
            self.length = length;
        }
        if let Some(value) = line.strip_prefix(CODING) {
            let last = value.rsplit(|byte| *byte == b',').next();
            self.is_chunked = last.map(|last| last.trim_ascii() == b"chunked");
        }
    }

    /// The framing after the head.
    fn next(&self) -> Framing {
        match (self.is_chunked, self.length) {
            _ if self.is_wrong => Framing::Unknown,
            (Some(true), _) => Framing::Chunks(Chunks::Size(0, false)),
            (Some(false), _) => Framing::Unknown,
            (None, None | Some(0)) => Framing::head(),
            (None, Some(length)) => Framing::Body(length),
        }
    }
}

impl Framing {
    fn head() -> Self {
        Self::Head(Head::default())
    }

    /// Scans bytes that were read and spoils a bare LF in a head; returns whether it found one.
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
                Self::Chunks(Chunks::Data(left)) if *left > bytes.len() as u64 => {
                    *left -= bytes.len() as u64;
                    return false;
                }
                Self::Chunks(Chunks::Data(left)) => {
                    // not more than `bytes.len()`, so it fits in `usize`
                    let here = *left as usize;
                    *self = Self::Chunks(Chunks::DataCr);
                    bytes = &mut bytes[here..];
                }
                Self::Chunks(chunks) => {
                    *self = chunks.behind(bytes[0]);
                    bytes = &mut bytes[1..];
                }
                Self::Head(head) => {
                    match head.take(bytes[0]) {
                        None => {
                            bytes[0] = 0;
                            *self = Self::Unknown;
                            return true;
                        }
                        Some(true) => *self = head.next(),
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
            framing: Framing::head(),
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
        let spoiled = this.framing.pass(&mut buffer.filled_mut()[before..]);
        if spoiled && buffer.remaining() >= HEAD_END.len() {
            buffer.put_slice(HEAD_END);
        }
        polled
    }
}

write_through!(LineEnds);

#[cfg(test)]
mod tests {
    use super::*;

    /// The text after the filter, which gets it in pieces of `piece` bytes.
    fn passed(text: &str, piece: usize) -> String {
        let (mut framing, mut bytes) = (Framing::head(), text.as_bytes().to_vec());
        bytes.chunks_mut(piece).for_each(|part| {
            framing.pass(part);
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
            "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n\n\n",
            "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n\nGET / HTTP/1.1\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0;a=b\r\nx: y\nz\r\n\r\nGET",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\na\nb",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n11111111111111111\r\na\nb",
            "POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\na\nb",
            "P / HTTP/1.1\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n\n\n\r\n",
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

    /// The filter finds heads after bodies of any kind, as hyper does.
    #[test]
    fn a_head_behind_any_body_is_looked_at() {
        for before in [
            "transfer-encoding: chunked\r\n\r\n3\r\na\nb\r\n0\r\n\r\n",
            "Transfer-Encoding: gzip,  Chunked\r\n\r\n0a \t;x\r\n\n\n345678\r\n\r\n00\r\n\r\n",
            "transfer-encoding: chunked\r\n\r\n1\r\n\n\r\n0\r\nx: a\r\ny: b\nc\r\n\r\n",
            "content-length: 9\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            "content-length: 1\r\ncontent-length: 1\r\n\r\n\n",
            "content-length: 001\r\n\r\n\n",
        ] {
            let before = format!("POST / HTTP/1.1\r\n{before}");
            for piece in [1, 3, 1000] {
                let text = format!("{before}GET / HTTP/1.1\nhost: a\r\n\r\n");
                let passed = passed(&text, piece);
                assert_eq!(passed.find('\0'), Some(before.len() + 14), "{before:?}");
            }
        }
    }

    /// No client writes a length that is longer than the inspected part of a line.
    #[test]
    fn a_length_that_is_too_long_is_spoiled() {
        for line in [
            format!("content-length: {}1", "0".repeat(40)),
            format!("content-length:{}1", " ".repeat(40)),
            format!("transfer-encoding: {}chunked", "gzip,".repeat(9)),
        ] {
            let text = format!("POST / HTTP/1.1\r\n{line}\r\n\r\na\nb");
            assert_eq!(passed(&text, 7).find('\0'), Some(18 + line.len()), "{line}");
        }
        let long = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(100));
        assert_eq!(passed(&long, 7), long);
    }
}
