//! Interface of all tool parsers.

use crate::out::Out;

/// Maximum bytes added to the buffer at once: text that a step does not consume is copied again.
const PIECE: usize = 4096;

/// A state machine over chunked text. The events do not depend on the chunk boundaries.
pub(crate) trait Machine: std::fmt::Debug + Send {
    /// Text that no step has consumed yet.
    fn buffer(&mut self) -> &mut String;

    /// Consumes a prefix of `text` and returns its length; `None` if more text is needed. A step
    /// that returns 0 must change the state.
    fn step(&mut self, text: &str, out: &mut Out) -> Option<usize>;

    /// Handles the end of the output; `rest` was not consumed. It is content unless it belongs to a
    /// call.
    fn end(&mut self, rest: &str, out: &mut Out);

    fn push(&mut self, mut text: &str, out: &mut Out) {
        while !text.is_empty() {
            let most = text.len().min(PIECE);
            let cut = (most..=text.len()).find(|&at| text.is_char_boundary(at));
            let (piece, rest) = text.split_at(cut.unwrap_or(text.len()));
            self.take(piece, out);
            text = rest;
        }
    }

    fn take(&mut self, piece: &str, out: &mut Out) {
        self.buffer().push_str(piece);
        let held = std::mem::take(self.buffer());
        let mut at = 0;
        while let Some(used) = self.step(&held[at..], out) {
            at += used;
        }
        self.buffer().push_str(&held[at..]);
    }

    fn finish(&mut self, out: &mut Out) {
        let rest = std::mem::take(self.buffer());
        self.end(&rest, out);
    }
}
