//! Incremental parser of server-sent events; chunks may be cut anywhere.
//!
//! Follows the "event stream" of the WHATWG HTML standard: lines end with LF, CR or CR LF, lines of
//! data are joined with LF, a line that starts with a colon is a comment, an event ends at an empty
//! line and one that no empty line ends is discarded. Fields that only concern reconnecting (`id`,
//! `retry`) are skipped.

use memchr::memchr2;
use thiserror::Error;

/// One event, valid until the next is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// The field `event`; empty when there is none.
    pub name: &'a [u8],
    pub data: &'a [u8],
}

/// An event is larger than the reader's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("an event is larger than {limit} bytes")]
pub struct EventTooLarge {
    pub limit: usize,
}

/// Parser state between two chunks. Complete single-line events are borrowed from the chunk; only
/// split ones are copied.
#[derive(Debug)]
pub struct EventReader {
    limit: usize,
    /// A line without its end yet.
    line: Vec<u8>,
    name: Vec<u8>,
    /// Lines of data of the event being read, unless `Lines::whole` has them.
    data: Vec<u8>,
    has_data: bool,
    /// The last piece ended with CR: an LF that comes next belongs to it.
    after_cr: bool,
    /// Nothing but (parts of) the first line has come: a byte order mark may stand before it.
    first_line: bool,
}

/// The meaning of one line.
enum Field<'a> {
    End,
    Data(&'a [u8]),
    Name(&'a [u8]),
    Nothing,
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

impl EventReader {
    /// `limit`: bytes of a line, and of the data of an event, that are held at most.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            name: Vec::new(),
            data: Vec::new(),
            has_data: false,
            after_cr: false,
            first_line: true,
        }
    }

    /// Parses the next chunk and passes each completed event to `each`, in order.
    ///
    /// After an error the reader must not be used again.
    pub fn push(
        &mut self,
        piece: &[u8],
        mut each: impl FnMut(Event<'_>),
    ) -> Result<(), EventTooLarge> {
        let mut rest = piece;
        if self.after_cr && !rest.is_empty() {
            self.after_cr = false;
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        // the event's only line of data, borrowed from the chunk
        let mut whole: Option<&[u8]> = None;
        while let Some(end) = memchr2(b'\n', b'\r', rest) {
            let line = &rest[..end];
            rest = self.after_line_end(&rest[end..]);
            if self.line.is_empty() {
                self.take_line(line, &mut whole, &mut each)?;
            } else {
                self.take_cut_line(line, &mut each)?;
            }
        }
        if let Some(data) = whole {
            self.hold(data)?;
        }
        self.hold_line(rest)
    }

    /// What follows the line end at the start of `rest`.
    fn after_line_end<'a>(&mut self, rest: &'a [u8]) -> &'a [u8] {
        match rest {
            [b'\r', b'\n', after @ ..] => after,
            [b'\r'] => {
                self.after_cr = true;
                &[]
            }
            _ => &rest[1..],
        }
    }

    fn take_cut_line(
        &mut self,
        end: &[u8],
        each: &mut impl FnMut(Event<'_>),
    ) -> Result<(), EventTooLarge> {
        self.hold_line(end)?;
        let line = std::mem::take(&mut self.line);
        let mut whole = None;
        self.take_line(&line, &mut whole, each)?;
        if let Some(data) = whole {
            self.hold(data)?;
        }
        self.line = line;
        self.line.clear();
        Ok(())
    }

    fn take_line<'a>(
        &mut self,
        line: &'a [u8],
        whole: &mut Option<&'a [u8]>,
        each: &mut impl FnMut(Event<'_>),
    ) -> Result<(), EventTooLarge> {
        let line = match std::mem::take(&mut self.first_line) {
            true => line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line),
            false => line,
        };
        match field(line) {
            Field::End => self.end_event(whole.take(), each),
            Field::Data(data) if whole.is_none() && !self.has_data => *whole = Some(data),
            Field::Data(data) => {
                if let Some(first) = whole.take() {
                    self.hold(first)?;
                }
                self.hold(data)?;
            }
            Field::Name(name) => {
                self.name.clear();
                self.name.extend_from_slice(name);
            }
            Field::Nothing => {}
        }
        Ok(())
    }

    fn end_event(&mut self, whole: Option<&[u8]>, each: &mut impl FnMut(Event<'_>)) {
        let held = self.has_data.then_some(self.data.as_slice());
        if let Some(data) = whole.or(held) {
            each(Event {
                name: &self.name,
                data,
            });
        }
        self.name.clear();
        self.data.clear();
        self.has_data = false;
    }

    fn hold(&mut self, data: &[u8]) -> Result<(), EventTooLarge> {
        if self.data.len() + data.len() > self.limit {
            return Err(EventTooLarge { limit: self.limit });
        }
        if self.has_data {
            self.data.push(b'\n');
        }
        self.data.extend_from_slice(data);
        self.has_data = true;
        Ok(())
    }

    fn hold_line(&mut self, part: &[u8]) -> Result<(), EventTooLarge> {
        if self.line.len() + part.len() > self.limit {
            return Err(EventTooLarge { limit: self.limit });
        }
        self.line.extend_from_slice(part);
        Ok(())
    }
}

fn field(line: &[u8]) -> Field<'_> {
    if line.is_empty() {
        return Field::End;
    }
    let colon = line.iter().position(|&byte| byte == b':');
    let (name, value) = match colon {
        Some(at) => (&line[..at], &line[at + 1..]),
        None => (line, &line[line.len()..]),
    };
    let value = value.strip_prefix(b" ").unwrap_or(value);
    match name {
        b"data" => Field::Data(value),
        b"event" => Field::Name(value),
        _ => Field::Nothing,
    }
}
