/// The protocol version; must be equal at both ends.
pub const WIRE_VERSION: u16 = 8;

/// Upper bound on a frame's bytes after its length field.
pub const MAX_FRAME_BYTES: usize = 64 << 20;

/// Upper bound on alternatives per log-probability row.
pub const MAX_LOGPROBS: u8 = 20;
