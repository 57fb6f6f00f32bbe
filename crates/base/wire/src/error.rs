use super::{MAX_FRAME_BYTES, WIRE_VERSION};

/// Error when a frame is encoded or decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{frame} frame, field {field} at byte {offset}: {problem}")]
pub struct FrameError {
    /// Name of the frame in `docs/wire.md`; "unknown" if the frame's header itself is invalid.
    pub frame: &'static str,
    /// Name of the field in `docs/wire.md`.
    pub field: &'static str,
    /// Offset of the field from the start of the body.
    pub offset: usize,
    pub problem: Problem,
}

/// What is wrong with the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("{needed} bytes are needed, {left} are left in the frame")]
    Short { needed: u64, left: usize },
    #[error("{0} bytes follow the last field")]
    Trailing(usize),
    #[error("{0} bytes, a frame has 1 to {MAX_FRAME_BYTES}")]
    Length(usize),
    #[error("the text is not UTF-8")]
    NotUtf8,
    #[error("{0:#04x} is not a frame type of this direction")]
    UnknownType(u8),
    #[error("{0:02x?} instead of PSTK: the peer does not speak this protocol")]
    Magic([u8; 4]),
    #[error(
        "the peer speaks wire version {0}, this side {WIRE_VERSION}: \
         install the same Penstock release on both sides"
    )]
    Version(u16),
    #[error("{value} is not allowed, only {allowed}")]
    Value {
        value: String,
        allowed: &'static str,
    },
}

impl FrameError {
    pub(super) fn unknown_type(kind: u8) -> Self {
        Self::head("type", Problem::UnknownType(kind))
    }

    pub(super) fn length(length: usize) -> Self {
        Self::head("length", Problem::Length(length))
    }

    fn head(field: &'static str, problem: Problem) -> Self {
        Self {
            frame: "unknown",
            field,
            offset: 0,
            problem,
        }
    }
}

/// A value out of range in a struct whose position in the frame is not known yet.
pub(super) struct Refused {
    field: &'static str,
    offset: usize,
    problem: Problem,
}

impl Refused {
    /// Completes the error for a struct that starts at byte `start` of the body of `frame`.
    pub(super) fn error(self, frame: &'static str, start: usize) -> FrameError {
        FrameError {
            frame,
            field: self.field,
            offset: start + self.offset,
            problem: self.problem,
        }
    }
}

/// Returns an error unless `ok`. The error reports `value` for the field at byte `offset` of its
/// struct, and the `allowed` values.
pub(super) fn rule(
    field: &'static str,
    offset: usize,
    value: &dyn ToString,
    ok: bool,
    allowed: &'static str,
) -> Result<(), Refused> {
    if ok {
        return Ok(());
    }
    let value = value.to_string();
    Err(Refused {
        field,
        offset,
        problem: Problem::Value { value, allowed },
    })
}
