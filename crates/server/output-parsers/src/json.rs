//! Detects the end of a JSON value in chunked text.

/// Parse state of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The value is incomplete; all text was consumed.
    More,
    /// The value is complete.
    Done,
    /// The next character is invalid here.
    Failed,
}

/// Tracks strings and brackets of one value; other characters are not checked.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    depth: u32,
    started: bool,
    in_string: bool,
    escaped: bool,
}

impl Scan {
    /// Consumes the text of the value, from its first character on. A number or a word ends before
    /// the first character that is not part of it.
    pub(crate) fn take(&mut self, text: &str) -> (usize, Progress) {
        for (at, byte) in text.bytes().enumerate() {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => {
                        self.in_string = false;
                        if self.depth == 0 {
                            return (at + 1, Progress::Done);
                        }
                    }
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' | b'{' | b'[' if self.depth == 0 && self.started => {
                    return (at, Progress::Done);
                }
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return (at + 1, Progress::Done);
                    }
                }
                b' ' | b'\n' | b'\r' | b'\t' | b',' | b':' if self.depth > 0 => {}
                _ if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.') => {}
                _ if self.depth == 0 && self.started => return (at, Progress::Done),
                _ => return (at, Progress::Failed),
            }
            self.started = true;
        }
        (text.len(), Progress::More)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_end() {
        for (text, end) in [
            (r#"{"a":"}"} x"#, 9),
            (r#"[1,[2]],"#, 7),
            (r#""a\"b"c"#, 6),
            ("12.5,", 4),
            ("null}", 4),
        ] {
            assert_eq!(Scan::default().take(text), (end, Progress::Done), "{text}");
        }
        assert_eq!(Scan::default().take("{\"a\":<"), (5, Progress::Failed));
        assert_eq!(Scan::default().take("{\"a\":é"), (5, Progress::Failed));
        assert_eq!(Scan::default().take("<"), (0, Progress::Failed));
        assert_eq!(Scan::default().take("{\"a"), (3, Progress::More));
    }
}
