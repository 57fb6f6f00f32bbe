use super::{FrameError, MAX_FRAME_BYTES, Problem};

/// Appends the fields of one frame.
pub(super) struct FrameWriter<'a> {
    frame: &'static str,
    out: &'a mut Vec<u8>,
    body: usize,
}

macro_rules! numbers {
    ($($name:ident)*) => {$(
        pub(super) fn $name(&mut self, value: $name) {
            self.out.extend_from_slice(&value.to_le_bytes());
        }
    )*};
}

impl FrameWriter<'_> {
    /// Appends length, type and the fields that `write` appends. On an error, `out` is unchanged.
    pub(super) fn frame(
        out: &mut Vec<u8>,
        kind: u8,
        frame: &'static str,
        write: impl FnOnce(&mut FrameWriter<'_>) -> Result<(), FrameError>,
    ) -> Result<(), FrameError> {
        let start = out.len();
        out.extend_from_slice(&[0, 0, 0, 0, kind]);
        let written = write(&mut FrameWriter {
            frame,
            out: &mut *out,
            body: start + 5,
        });
        let length = out.len() - start - 4;
        let checked = match written {
            Ok(()) if length > MAX_FRAME_BYTES => Err(FrameError {
                frame,
                ..FrameError::length(length)
            }),
            other => other,
        };
        match checked {
            Ok(()) => out[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes()),
            Err(_) => out.truncate(start),
        }
        checked
    }

    /// Appends the fields that `write` appends, without length and type. On an error, `out` is
    /// unchanged.
    pub(super) fn message(
        out: &mut Vec<u8>,
        frame: &'static str,
        write: impl FnOnce(&mut FrameWriter<'_>) -> Result<(), FrameError>,
    ) -> Result<(), FrameError> {
        let body = out.len();
        let written = write(&mut FrameWriter {
            frame,
            out: &mut *out,
            body,
        });
        if written.is_err() {
            out.truncate(body);
        }
        written
    }

    /// Offset of the next field in the frame body.
    pub(super) fn offset(&self) -> usize {
        self.out.len() - self.body
    }

    pub(super) fn frame_name(&self) -> &'static str {
        self.frame
    }

    pub(super) fn refuse(
        &self,
        field: &'static str,
        value: impl ToString,
        allowed: &'static str,
    ) -> FrameError {
        FrameError {
            frame: self.frame,
            field,
            offset: self.offset(),
            problem: Problem::Value {
                value: value.to_string(),
                allowed,
            },
        }
    }

    numbers!(u8 u16 u32 u64 i16 i32 f32 f64);

    pub(super) fn array(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Writes a length. Lengths above `u32::MAX` need no separate check: such a frame exceeds the
    /// frame limit.
    pub(super) fn count(&mut self, count: usize) {
        self.u32(count as u32);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.array(bytes);
    }

    pub(super) fn u32_list(&mut self, items: &[u32]) {
        self.count(items.len());
        self.u32_column(items.iter().copied());
    }

    pub(super) fn u64_list(&mut self, items: &[u64]) {
        self.count(items.len());
        for item in items {
            self.u64(*item);
        }
    }

    pub(super) fn u32_column(&mut self, items: impl Iterator<Item = u32>) {
        self.out.extend(items.flat_map(u32::to_le_bytes));
    }

    /// Writes `f32` numbers as a `bytes` field.
    pub(super) fn vector(&mut self, numbers: &[f32]) {
        self.count(4 * numbers.len());
        self.out
            .extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
    }

    pub(super) fn i32_column(&mut self, items: &[i32]) {
        let start = self.out.len();
        self.out.resize(start + 4 * items.len(), 0);
        let (slots, _) = self.out[start..].as_chunks_mut::<4>();
        for (slot, item) in slots.iter_mut().zip(items) {
            *slot = item.to_le_bytes();
        }
    }

    pub(super) fn i8_column(&mut self, items: &[i8]) {
        self.out
            .extend(items.iter().map(|item| item.to_le_bytes()[0]));
    }

    /// Appends a `bytes` field that contains the fields that `write` appends.
    pub(super) fn nested<T>(&mut self, write: impl FnOnce(&mut Self) -> T) -> T {
        let start = self.out.len();
        self.u32(0);
        let written = write(self);
        let length = self.out.len() - start - 4;
        self.out[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
        written
    }
}
