//! Outputs as JSON: chunks of a stream, or the one body of a response that is not streamed. The two
//! endpoints differ here and nowhere below.

use bytes::BytesMut;
use penstock_openai::Usage;

use crate::choices::OutputDelta;

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
    fn usage(&self, out: &mut BytesMut, usage: &Usage);

    /// The body of a response that is not streamed; one merged delta for each choice.
    fn response(&mut self, deltas: &[OutputDelta], usage: Usage) -> Vec<u8>;
}
