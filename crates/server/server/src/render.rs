//! Renders outputs as JSON: chunks of a stream, or the body of a non-streamed response. The code
//! that calls this trait is shared by all endpoints.

use bytes::BytesMut;
use penstock_api_types::{ApiError, StreamOptions, Usage, sse};

use crate::delta::OutputDelta;

/// Fields repeated in every chunk of a response.
pub(crate) struct Identity {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
}

/// Renderer of one endpoint. It may keep state, such as the progress of each choice.
pub(crate) trait Render: Send + 'static {
    /// Appends the events for a delta of choice `index`; nothing if the delta has no visible
    /// contents.
    fn chunk(
        &mut self,
        out: &mut BytesMut,
        index: usize,
        delta: &OutputDelta,
        usage: Option<&Usage>,
    );

    /// Appends the event with the usage of the whole request.
    fn usage(&self, _out: &mut BytesMut, _usage: &Usage) {}

    /// Appends the end of a stream.
    fn end(&mut self, out: &mut BytesMut, usage: &Usage, options: StreamOptions) {
        if options.include_usage {
            self.usage(out, usage);
        }
        sse::done(out);
    }

    /// Appends an error and the end of the stream.
    fn fail(&mut self, out: &mut BytesMut, error: &ApiError) {
        sse::error(out, error);
        sse::done(out);
    }

    /// Whether the rest of the stream depends only on the tokens so far, so that it can be resumed.
    fn resumable(&self) -> bool {
        true
    }

    /// Body of a non-streamed response, from one merged delta per choice.
    fn response(&mut self, deltas: &[OutputDelta], usage: Usage) -> Vec<u8>;
}
