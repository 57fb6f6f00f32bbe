use bytes::{Buf, BytesMut};

use super::{FrameError, MAX_FRAME_BYTES};

/// The frames of one direction of a connection.
pub trait Frame: Sized {
    /// Decodes the body of a frame of type `kind`.
    fn decode(kind: u8, body: &[u8]) -> Result<Self, FrameError>;
}

/// Splits the byte stream of one connection into frames. Buffers received bytes only: a length
/// field alone reserves no memory.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: BytesMut,
}

const LENGTH_BYTES: usize = 4;
const READ_BYTES: usize = 64 << 10;

impl FrameReader {
    pub fn new() -> Self {
        Self::default()
    }

    /// Buffer for received bytes, with space for one read.
    pub fn spare(&mut self) -> &mut BytesMut {
        self.buffer.reserve(READ_BYTES);
        &mut self.buffer
    }

    /// The next whole frame, or `None` until more bytes arrive. After an error the frame boundary
    /// is lost: close the connection.
    pub fn next_frame<F: Frame>(&mut self) -> Result<Option<F>, FrameError> {
        let Some(prefix) = self.buffer.first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*prefix) as usize;
        if !(1..=MAX_FRAME_BYTES).contains(&length) {
            return Err(FrameError::length(length));
        }
        let Some(frame) = self.buffer.get(LENGTH_BYTES..LENGTH_BYTES + length) else {
            return Ok(None);
        };
        let decoded = F::decode(frame[0], &frame[1..]);
        self.buffer.advance(LENGTH_BYTES + length);
        decoded.map(Some)
    }
}
