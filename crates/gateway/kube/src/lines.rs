//! Splits a byte stream into lines of bounded length.

/// Error: a line exceeds the maximum length.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// Splitter of a byte stream; holds the incomplete last line.
#[derive(Debug)]
pub(crate) struct Lines {
    begun: Vec<u8>,
    most: usize,
}

impl Lines {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            begun: Vec::new(),
            most,
        }
    }

    /// Processes bytes and calls `line` with each complete, non-empty line.
    ///
    /// # Errors
    /// [`TooLong`], or an error of `line`.
    pub(crate) fn push<E: From<TooLong>>(
        &mut self,
        mut bytes: &[u8],
        mut line: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            let (last, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            if self.begun.len() + last.len() > self.most {
                return Err(TooLong.into());
            }
            if self.begun.is_empty() {
                if !last.is_empty() {
                    line(last)?;
                }
                continue;
            }
            self.begun.extend_from_slice(last);
            line(&self.begun)?;
            self.begun.clear();
        }
        if self.begun.len() + bytes.len() > self.most {
            return Err(TooLong.into());
        }
        self.begun.extend_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(pieces: &[&[u8]], most: usize) -> Result<Vec<Vec<u8>>, TooLong> {
        let (mut lines, mut found) = (Lines::new(most), Vec::new());
        for piece in pieces {
            lines.push(piece, |line| {
                found.push(line.to_vec());
                Ok::<(), TooLong>(())
            })?;
        }
        Ok(found)
    }

    #[test]
    fn a_line_that_is_too_long_is_an_error_whether_it_ends_or_not() {
        assert_eq!(lines(&[b"abcd\n"], 4).unwrap().len(), 1);
        assert_eq!(lines(&[b"abcde"], 4), Err(TooLong));
        assert_eq!(lines(&[b"abc", b"de\n"], 4), Err(TooLong));
        assert_eq!(lines(&[b"abcde\n"], 4), Err(TooLong));
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(
            text in "[a-c\n]{0,40}",
            mut cuts in prop::collection::vec(0usize..40, 0..6),
        ) {
            cuts.extend([0, text.len()]);
            cuts.iter_mut().for_each(|cut| *cut = (*cut).min(text.len()));
            cuts.sort_unstable();
            let piece = |two: &[usize]| &text.as_bytes()[two[0]..two[1]];
            let pieces: Vec<&[u8]> = cuts.windows(2).map(piece).collect();
            let ended = text.rsplit_once('\n').map_or("", |(ended, _)| ended);
            let wanted = ended.split('\n').filter(|line| !line.is_empty());
            let wanted: Vec<Vec<u8>> = wanted.map(|line| line.into()).collect();
            prop_assert_eq!(lines(&pieces, 100).unwrap(), wanted);
        }
    }
}
