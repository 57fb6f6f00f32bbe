/// The protocol version; must be equal at both ends.
pub const WIRE_VERSION: u16 = 8;

/// Upper bound on a frame's bytes after its length field.
pub const MAX_FRAME_BYTES: usize = 64 << 20;

/// Maximum number of alternatives (the most likely tokens with log-probabilities) per position.
pub const MAX_LOGPROBS: u8 = 20;
