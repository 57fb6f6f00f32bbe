//! Pieces as JSON: a chunk of a stream, or the one response of a request that does not stream. The
//! two endpoints differ here and nowhere below.

use bytes::BytesMut;
use penstock_openai::Usage;

use crate::generation::Piece;

/// What every response of a request repeats.
pub(crate) struct Identity {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
}

/// One endpoint's way of writing pieces. It may keep state: what has been sent of each choice.
pub(crate) trait Render: Send + 'static {
    /// Appends the events for a piece of choice `index`. May append nothing for a piece without
    /// news.
    fn chunk(&mut self, out: &mut BytesMut, index: usize, piece: &Piece, usage: Option<&Usage>);

    /// Appends the event that closes the accounting of the whole request.
    fn usage(&self, out: &mut BytesMut, usage: &Usage);

    /// The body of a response that is not streamed; one merged piece for each choice.
    fn response(&mut self, pieces: &[Piece], usage: Usage) -> Vec<u8>;
}
