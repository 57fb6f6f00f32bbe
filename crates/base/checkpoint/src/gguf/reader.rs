//! A bounds-checked cursor over a file's bytes.

use crate::error::Fault;

/// Upper bound on counts: far above any real header (the largest arrays are vocabularies and merge
/// lists), and low enough to bound the memory.
const MOST_THINGS: usize = 1 << 24;

pub(super) struct Reader<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a [u8]) -> Self {
        Self { file, at: 0 }
    }

    /// File offset of the next byte.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn remaining(&self) -> usize {
        self.file.len() - self.at
    }

    /// The next `n` bytes; `item` names their owner in errors.
    pub(super) fn bytes(&mut self, n: usize, item: &str) -> Result<&'a [u8], Fault> {
        if n > self.remaining() {
            let problem = format!(
                "needs {n} bytes, but {} are left; the file is truncated or damaged",
                self.remaining()
            );
            return Err(Fault::new(item, self.at, problem));
        }
        let bytes = &self.file[self.at..self.at + n];
        self.at += n;
        Ok(bytes)
    }

    /// The next `N` bytes as an array.
    pub(super) fn array<const N: usize>(&mut self, item: &str) -> Result<[u8; N], Fault> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N, item)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, item: &str) -> Result<u32, Fault> {
        Ok(u32::from_le_bytes(self.array(item)?))
    }

    pub(super) fn u64(&mut self, item: &str) -> Result<u64, Fault> {
        Ok(u64::from_le_bytes(self.array(item)?))
    }

    /// A u64 that must fit in `usize`.
    pub(super) fn usize(&mut self, item: &str) -> Result<usize, Fault> {
        let at = self.at;
        let value = self.u64(item)?;
        usize::try_from(value)
            .map_err(|_| Fault::new(item, at, format!("{value} is too large for this machine")))
    }

    /// Checks that the file has space for `count` items of at least `smallest` bytes.
    pub(super) fn count(
        &self,
        count: u64,
        smallest: usize,
        item: &str,
        things: &str,
    ) -> Result<usize, Fault> {
        let most = (self.remaining() / smallest).min(MOST_THINGS);
        match usize::try_from(count) {
            Ok(n) if n <= most => Ok(n),
            _ => {
                let problem =
                    format!("claims {count} {things}, but at most {most} are possible here");
                Err(Fault::new(item, self.at, problem))
            }
        }
    }

    /// A length-prefixed UTF-8 string of at most `longest` bytes.
    pub(super) fn string(&mut self, longest: usize, item: &str) -> Result<&'a str, Fault> {
        let at = self.at;
        let len = self.usize(item)?;
        if len > longest {
            return Err(Fault::new(
                item,
                at,
                format!("string of {len} bytes; at most {longest} are possible"),
            ));
        }
        std::str::from_utf8(self.bytes(len, item)?)
            .map_err(|_| Fault::new(item, at, "string is not UTF-8"))
    }
}
