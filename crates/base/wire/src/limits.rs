/// The version both ends must speak.
pub const WIRE_VERSION: u16 = 8;

/// The most bytes that may follow a frame's length field.
pub const MAX_FRAME_BYTES: usize = 64 << 20;

/// The most alternatives a log-probability row may ask for.
pub const MAX_LOGPROBS: u8 = 20;
