//! Incremental reader of server-sent events; chunks may be cut anywhere.
//!
//! Follows the "event stream" of the WHATWG HTML standard: lines end with LF, CR or CR LF, lines of
//! data are joined with LF, a line that starts with a colon is a comment, an event ends at an empty
//! line. Fields that only concern reconnecting (`id`, `retry`) are skipped.

use std::borrow::Cow;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use memchr::memchr2_iter;
use thiserror::Error;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// An event: a block of lines, with the empty line that ends it. A block of comments has no data.
#[derive(Debug, Clone, Default)]
pub struct Event {
    bytes: Bytes,
    name: Range<usize>,
    /// The first line of data, and the others below: byte ranges of their values, without `data:`.
    first: Option<Range<usize>>,
    others: Vec<Range<usize>>,
}

/// An event is larger than the reader's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("an event is larger than {limit} bytes")]
pub struct EventTooLarge {
    pub limit: usize,
}

/// Splits a stream into events, which it yields as an iterator. Events inside one chunk share its
/// memory; an event that several chunks contain is copied.
#[derive(Debug)]
pub struct EventReader {
    limit: usize,
    /// Unread bytes of the last chunk; empty while bytes are held.
    chunk: Bytes,
    /// The beginning of an incomplete event, and all chunks received after it.
    held: BytesMut,
    /// Length of the prefix of `held` known to contain no end of an event.
    scanned: usize,
    /// No event has been read yet. A byte order mark may precede the first one.
    is_first: bool,
}

impl EventReader {
    /// `limit`: maximum size of an incomplete event in bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            chunk: Bytes::new(),
            held: BytesMut::new(),
            scanned: 0,
            is_first: true,
        }
    }

    /// Appends a chunk of the stream. The events before it must have been read.
    pub fn push(&mut self, chunk: Bytes) {
        match self.held.is_empty() && self.chunk.is_empty() {
            true => self.chunk = chunk,
            false => {
                self.held
                    .extend_from_slice(&std::mem::take(&mut self.chunk));
                self.held.extend_from_slice(&chunk);
            }
        }
    }

    /// # Errors
    /// The incomplete event exceeds the limit.
    pub fn check(&self) -> Result<(), EventTooLarge> {
        let limit = self.limit;
        match self.held() > limit {
            true => Err(EventTooLarge { limit }),
            false => Ok(()),
        }
    }

    /// Number of bytes after the last whole event.
    pub fn held(&self) -> usize {
        self.held.len() + self.chunk.len()
    }

    /// Takes the bytes after the last whole event.
    pub fn rest(&mut self) -> Bytes {
        self.scanned = 0;
        match self.held.is_empty() {
            true => std::mem::take(&mut self.chunk),
            false => std::mem::take(&mut self.held).freeze(),
        }
    }

    fn next_bytes(&mut self) -> Option<Bytes> {
        if let Some(end) = event_end(&self.chunk, 0) {
            return Some(self.chunk.split_to(end));
        }
        if !self.chunk.is_empty() {
            self.held
                .extend_from_slice(&std::mem::take(&mut self.chunk));
        }
        let Some(end) = event_end(&self.held, self.scanned) else {
            // the last line break may be the first half of an empty line, so scan it again
            self.scanned = self.held.len().saturating_sub(2);
            return None;
        };
        self.scanned = 0;
        Some(self.held.split_to(end).freeze())
    }
}

impl Iterator for EventReader {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let bytes = self.next_bytes()?;
        let marked = std::mem::take(&mut self.is_first) && bytes.starts_with(BYTE_ORDER_MARK);
        Some(Event::after(
            bytes,
            if marked { BYTE_ORDER_MARK.len() } else { 0 },
        ))
    }
}

/// Offset of the end of the first event of `bytes`, which lies after `scanned`.
fn event_end(bytes: &[u8], scanned: usize) -> Option<usize> {
    let mut ends = memchr2_iter(b'\n', b'\r', &bytes[scanned..]).map(|at| scanned + at);
    ends.find_map(|at| Some(at + empty_line(&bytes[at..])?))
}

/// Length of the line end at the start of `rest` and the empty line after it. A CR at the end of
/// the buffer may be half of a CR LF.
fn empty_line(rest: &[u8]) -> Option<usize> {
    match rest {
        [b'\n', b'\n', ..] | [b'\r', b'\r', ..] => Some(2),
        [b'\n', b'\r', b'\n', ..] => Some(3),
        [b'\n', b'\r', _, ..] => Some(2),
        _ => None,
    }
}

impl Event {
    /// An event of these lines.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self::after(bytes.into(), 0)
    }

    /// An event whose lines begin at `start`.
    fn after(bytes: Bytes, start: usize) -> Self {
        let (mut event, mut line) = (Self::default(), start);
        let ends = memchr2_iter(b'\n', b'\r', &bytes[start..]).map(|at| start + at);
        for end in ends.chain([bytes.len()]) {
            event.note(&bytes[line..end], line);
            line = end + 1;
        }
        event.bytes = bytes;
        event
    }

    /// Records the field of the line that begins at `start`.
    fn note(&mut self, line: &[u8], start: usize) {
        let value = |name: &[u8]| match line.strip_prefix(name)? {
            [] => Some(start + name.len()..start + line.len()),
            [b':', ..] => Some(start + name.len() + 1..start + line.len()),
            _ => None,
        };
        if let Some(data) = value(b"data") {
            match self.first {
                None => self.first = Some(data),
                Some(_) => self.others.push(data),
            }
        } else if let Some(name) = value(b"event") {
            self.name = name;
        }
    }

    /// The whole block, as received.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The value of the field `event`; empty if there is none.
    pub fn name(&self) -> &[u8] {
        self.value(&self.name)
    }

    /// Byte ranges of the lines of data, without `data:`.
    pub fn data_lines(&self) -> impl DoubleEndedIterator<Item = Range<usize>> {
        self.first.iter().chain(&self.others).cloned()
    }

    /// The lines of data, joined; `None` if there are none.
    pub fn data(&self) -> Option<Cow<'_, [u8]>> {
        let first = self.value(self.first.as_ref()?);
        if self.others.is_empty() {
            return Some(first.into());
        }
        let others = self.others.iter().map(|line| self.value(line));
        let lines: Vec<&[u8]> = std::iter::once(first).chain(others).collect();
        Some(lines.join(&b'\n').into())
    }

    /// The value of a field, without one space after the colon, which does not belong to it.
    fn value(&self, field: &Range<usize>) -> &[u8] {
        let value = &self.bytes[field.clone()];
        value.strip_prefix(b" ").unwrap_or(value)
    }
}
