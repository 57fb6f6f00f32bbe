//! Outputs as JSON: chunks of a stream, or the one body of a response that is not streamed. The
//! endpoints differ here and nowhere below.

use bytes::BytesMut;
use penstock_api_types::{ApiError, StreamOptions, Usage, sse};

use crate::delta::OutputDelta;

/// What every response of a request repeats.
pub(crate) struct Identity {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
}

/// One endpoint's way of writing deltas. It may keep state: what has been sent of each choice.
pub(crate) trait Render: Send + 'static {
    /// Appends the events for a delta of choice `index`. May append nothing for a delta without
    /// news.
    fn chunk(
        &mut self,
        out: &mut BytesMut,
        index: usize,
        delta: &OutputDelta,
        usage: Option<&Usage>,
    );

    /// Appends the event that closes the accounting of the whole request.
    fn usage(&self, _out: &mut BytesMut, _usage: &Usage) {}

    /// Appends what ends a stream.
    fn end(&mut self, out: &mut BytesMut, usage: &Usage, options: StreamOptions) {
        if options.include_usage {
            self.usage(out, usage);
        }
        sse::done(out);
    }

    /// Appends what ends a stream that an error cuts short.
    fn fail(&mut self, out: &mut BytesMut, error: &ApiError) {
        sse::error(out, error);
        sse::done(out);
    }

    /// Whether all that is sent later can be made from the tokens so far.
    fn resumable(&self) -> bool {
        true
    }

    /// The body of a response that is not streamed; one merged delta for each choice.
    fn response(&mut self, deltas: &[OutputDelta], usage: Usage) -> Vec<u8>;
}
