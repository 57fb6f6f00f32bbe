//! Marks in a stream, by which another server can go on with it where this one stops.
//!
//! The first mark, before all events, has what this server drew; one follows the events of each
//! step and has the step's tokens. The last step has none: it is made again. A server that goes
//! on makes the events of the marked steps again from their tokens, sends none of them, and so
//! is where the first one was: detokenizer, stop strings, parsers, writers and counts have no
//! other state.

use bytes::{BufMut, BytesMut};
use penstock_api_types::{ApiError, FAILED_MARK, MARK, Origin};
use serde::Serialize;

/// The marks of one stream.
#[derive(Debug)]
pub(crate) struct Marks {
    /// `None` once it has been written, and in a resumed stream, whose client has it.
    origin: Option<Origin>,
}

impl Marks {
    pub(crate) fn new(origin: Origin, resumed: bool) -> Self {
        Self {
            origin: (!resumed).then_some(origin),
        }
    }

    /// Appends the mark that comes before all events.
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

    /// Appends the mark of a failure that another server may not have.
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
    // Neither plain data nor memory can fail.
    let written = serde_json::to_writer(out.writer(), value);
    debug_assert!(written.is_ok(), "plain data serialises: {written:?}");
    out.extend_from_slice(b"\n\n");
}
