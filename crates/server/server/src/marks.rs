//! Resume marks in a stream, with which another server can resume an interrupted stream.
//!
//! The first mark precedes all events and holds this server's time and random seeds. After the
//! events of each step, a mark holds the step's tokens; the last step has no mark and is
//! recomputed. The resuming server replays the marked steps from their tokens without sending the
//! events. The replay restores all state, because detokenizer, stop strings, parsers, writers and
//! counts depend on nothing else.

use bytes::{BufMut, BytesMut};
use penstock_api_types::{ApiError, FAILED_MARK, MARK, Origin};
use serde::Serialize;

/// The marks of one stream.
#[derive(Debug)]
pub(crate) struct Marks {
    /// `None` after it was written, and in a resumed stream, whose client already has it.
    origin: Option<Origin>,
}

impl Marks {
    pub(crate) fn new(origin: Origin, resumed: bool) -> Self {
        Self {
            origin: (!resumed).then_some(origin),
        }
    }

    /// Appends the mark that precedes all events.
    pub(crate) fn begin(&mut self, out: &mut BytesMut) {
        if let Some(origin) = self.origin.take() {
            mark(out, &origin);
        }
    }

    /// Appends the mark of a step whose events have been appended.
    pub(crate) fn step(out: &mut BytesMut, tokens: &[u32]) {
        if !tokens.is_empty() {
            mark(out, &tokens);
        }
    }

    /// Appends the mark of a failure (status 5xx) that may not occur on another server.
    pub(crate) fn failed(out: &mut BytesMut, error: &ApiError) {
        if error.status >= 500 {
            out.extend_from_slice(MARK);
            out.extend_from_slice(FAILED_MARK);
            out.extend_from_slice(b"\n\n");
        }
    }
}

fn mark(out: &mut BytesMut, value: &impl Serialize) {
    out.extend_from_slice(MARK);
    // Cannot fail: plain data into memory.
    let written = serde_json::to_writer(out.writer(), value);
    debug_assert!(written.is_ok(), "plain data serialises: {written:?}");
    out.extend_from_slice(b"\n\n");
}
