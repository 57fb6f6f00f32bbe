//! A cursor over JSON text. It avoids a full parse: strings are skipped with `memchr`, nested
//! values by counting brackets.

use std::ops::Range;

use memchr::memchr2;

/// Number of bytes that are scanned one by one before `memchr2` is called.
const NEAR: usize = 16;

/// Offset of the next quote or backslash in `rest`. The first bytes are scanned one by one: in text
/// with many escapes, that is faster than a call of `memchr2`.
fn quote_or_backslash(rest: &[u8]) -> Option<usize> {
    let matters = |byte: &u8| matches!(byte, b'"' | b'\\');
    let (near, far) = rest.split_at(rest.len().min(NEAR));
    let found = near.iter().position(matters);
    found.or_else(|| Some(NEAR + memchr2(b'"', b'\\', far)?))
}

/// The JSON is invalid at byte offset `at`.
#[derive(Debug)]
pub(crate) struct Malformed {
    pub(crate) at: usize,
}

/// A cursor over JSON text that advances by whole strings, values and punctuation.
pub(crate) struct Cursor<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Self {
        Self { body, at: 0 }
    }

    /// The next byte; `None` at the end.
    pub(crate) fn peek(&self) -> Option<u8> {
        self.body.get(self.at).copied()
    }

    pub(crate) fn malformed(&self) -> Malformed {
        Malformed { at: self.at }
    }

    pub(crate) fn space(&mut self) {
        let rest = &self.body[self.at..];
        let space = |byte: &&u8| matches!(**byte, b' ' | b'\t' | b'\n' | b'\r');
        self.at += rest.iter().take_while(space).count();
    }

    pub(crate) fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    pub(crate) fn expect(&mut self, byte: u8) -> Result<(), Malformed> {
        match self.take(byte) {
            true => Ok(()),
            false => Err(self.malformed()),
        }
    }

    /// Consumes the string at the cursor; returns its byte range, with the quotes.
    pub(crate) fn string(&mut self) -> Result<Range<usize>, Malformed> {
        let start = self.at;
        self.expect(b'"')?;
        loop {
            let found = quote_or_backslash(&self.body[self.at..]);
            self.at += found.ok_or_else(|| self.malformed())?;
            if self.body[self.at] == b'"' {
                self.at += 1;
                return Ok(start..self.at);
            }
            self.at += 2; // a backslash and what it escapes
            if self.at > self.body.len() {
                return Err(Malformed { at: start });
            }
        }
    }

    /// Consumes the value at the cursor, of any type; returns its byte range.
    pub(crate) fn value(&mut self) -> Result<Range<usize>, Malformed> {
        let start = self.at;
        match self.body.get(start) {
            Some(b'"') => self.string(),
            Some(b'{' | b'[') => self.nested(),
            _ => self.word(),
        }
    }

    /// Consumes an object or array; returns its byte range.
    fn nested(&mut self) -> Result<Range<usize>, Malformed> {
        let start = self.at;
        let mut depth = 0usize;
        while let Some(byte) = self.body.get(self.at) {
            match byte {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Ok(start..self.at);
            }
        }
        Err(Malformed { at: start })
    }

    /// Consumes a number, `true`, `false` or `null`; returns its byte range.
    fn word(&mut self) -> Result<Range<usize>, Malformed> {
        let start = self.at;
        let part = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
        self.at += self.body[start..].iter().take_while(part).count();
        match self.at > start {
            true => Ok(start..self.at),
            false => Err(self.malformed()),
        }
    }
}
