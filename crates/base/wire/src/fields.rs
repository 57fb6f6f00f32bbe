use super::{FrameError, Problem};

/// Reads the fields of one frame body in order. Memory is allocated only after a length is checked
/// against the remaining bytes.
pub(super) struct Fields<'a> {
    frame: &'static str,
    rest: &'a [u8],
    offset: usize,
}

type Result<T> = std::result::Result<T, FrameError>;

macro_rules! numbers {
    ($($name:ident)*) => {$(
        pub(super) fn $name(&mut self, field: &'static str) -> Result<$name> {
            self.array(field).map($name::from_le_bytes)
        }
    )*};
}

impl<'a> Fields<'a> {
    /// Reads a whole body; bytes that remain after `read` are an error.
    pub(super) fn frame<T>(
        body: &'a [u8],
        frame: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        Self {
            frame,
            rest: body,
            offset: 0,
        }
        .whole(read)
    }

    /// Reads a `bytes` field whose content is itself a sequence of fields.
    pub(super) fn nested<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let rest = self.bytes(field)?;
        let offset = self.offset - rest.len();
        Self {
            frame: self.frame,
            rest,
            offset,
        }
        .whole(read)
    }

    fn whole<T>(mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let value = read(&mut self)?;
        match self.rest.len() {
            0 => Ok(value),
            left => Err(self.error("end", Problem::Trailing(left))),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Offset of the next field in the frame body.
    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    pub(super) fn frame_name(&self) -> &'static str {
        self.frame
    }

    pub(super) fn error(&self, field: &'static str, problem: Problem) -> FrameError {
        FrameError {
            frame: self.frame,
            field,
            offset: self.offset,
            problem,
        }
    }

    /// Error for the field just read, of `width` bytes: its value is `value`, but only `allowed` is
    /// valid.
    pub(super) fn refuse(
        &self,
        field: &'static str,
        width: usize,
        value: impl ToString,
        allowed: &'static str,
    ) -> FrameError {
        FrameError {
            offset: self.offset - width,
            ..self.error(
                field,
                Problem::Value {
                    value: value.to_string(),
                    allowed,
                },
            )
        }
    }

    numbers!(u8 u16 u32 u64 i16 i32 f32 f64);

    /// Reads `count` items of `N` bytes.
    pub(super) fn column<const N: usize>(
        &mut self,
        field: &'static str,
        count: usize,
    ) -> Result<&'a [[u8; N]]> {
        let short = || Problem::Short {
            needed: count as u64 * N as u64,
            left: self.rest.len(),
        };
        let taken = count
            .checked_mul(N)
            .and_then(|bytes| self.rest.split_at_checked(bytes));
        let (head, rest) = taken.ok_or_else(|| self.error(field, short()))?;
        self.rest = rest;
        self.offset += head.len();
        Ok(head.as_chunks().0)
    }

    pub(super) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N]> {
        let [bytes] = self.column(field, 1)? else {
            unreachable!("a column of one item has one item")
        };
        Ok(*bytes)
    }

    pub(super) fn bytes(&mut self, field: &'static str) -> Result<&'a [u8]> {
        let length = self.u32(field)? as usize;
        Ok(self.column::<1>(field, length)?.as_flattened())
    }

    /// All remaining bytes.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        let rest = std::mem::take(&mut self.rest);
        self.offset += rest.len();
        rest
    }

    pub(super) fn string(&mut self, field: &'static str) -> Result<String> {
        let bytes = self.bytes(field)?;
        let text = str::from_utf8(bytes).map_err(|_| FrameError {
            offset: self.offset - bytes.len(),
            ..self.error(field, Problem::NotUtf8)
        })?;
        Ok(text.to_owned())
    }

    pub(super) fn u32_list(&mut self, field: &'static str) -> Result<Vec<u32>> {
        let count = self.u32(field)? as usize;
        Ok(self
            .column(field, count)?
            .iter()
            .map(|bytes| u32::from_le_bytes(*bytes))
            .collect())
    }

    pub(super) fn u64_list(&mut self, field: &'static str) -> Result<Vec<u64>> {
        let count = self.u32(field)? as usize;
        Ok(self
            .column(field, count)?
            .iter()
            .map(|bytes| u64::from_le_bytes(*bytes))
            .collect())
    }

    /// A `bytes` field of `f32` numbers.
    pub(super) fn vector(&mut self, field: &'static str) -> Result<Vec<f32>> {
        let bytes = self.bytes(field)?;
        let (numbers, left) = bytes.as_chunks();
        if !left.is_empty() {
            let width = bytes.len();
            return Err(self.refuse(field, width, width, "multiples of 4 bytes"));
        }
        Ok(numbers.iter().map(|n| f32::from_le_bytes(*n)).collect())
    }

    /// Reads a `u32` as a number of items.
    pub(super) fn size(&mut self, field: &'static str) -> Result<usize> {
        self.u32(field).map(|size| size as usize)
    }

    pub(super) fn i32_column(&mut self, field: &'static str, count: usize) -> Result<Vec<i32>> {
        let items = self.column(field, count)?.iter();
        Ok(items.map(|bytes| i32::from_le_bytes(*bytes)).collect())
    }

    pub(super) fn i8_column(&mut self, field: &'static str, count: usize) -> Result<Vec<i8>> {
        let items = self.column(field, count)?.iter();
        Ok(items.map(|bytes| i8::from_le_bytes(*bytes)).collect())
    }

    /// Reads the count of a list. Fails unless `count` items of `item_bytes` bytes each fit in the
    /// remaining bytes, so that the caller may reserve memory for them.
    pub(super) fn count(&mut self, field: &'static str, item_bytes: usize) -> Result<usize> {
        let count = self.size(field)?;
        self.room(field, count, item_bytes)?;
        Ok(count)
    }

    /// Checks that `count` items of `item_bytes` bytes each fit in the remaining bytes.
    pub(super) fn room(&self, field: &'static str, count: usize, item_bytes: usize) -> Result<()> {
        let (needed, left) = (count as u64 * item_bytes as u64, self.rest.len());
        if needed > left as u64 {
            return Err(self.error(field, Problem::Short { needed, left }));
        }
        Ok(())
    }
}
