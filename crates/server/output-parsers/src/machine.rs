//! Interface of all tool parsers.

use crate::out::Out;

/// Text that one step sees at most: marks are short, and moving the rest costs time.
const PIECE: usize = 4096;

/// A state machine over chunked text. The events do not depend on the chunk boundaries.
pub(crate) trait Machine: std::fmt::Debug + Send {
    /// Text that was not taken yet.
    fn buffer(&mut self) -> &mut String;

    /// Takes a beginning of `text` and returns its length; `None` when more text is needed. A step
    /// that takes nothing has changed the state.
    fn step(&mut self, text: &str, out: &mut Out) -> Option<usize>;

    /// The output is complete; `rest` was not taken. It is content unless it belongs to a call.
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
