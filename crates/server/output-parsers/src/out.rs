//! Collects the events of one output.

use crate::OutputEvent;

/// Maximum bytes of white space held back in case a call follows: before a call it is not content.
const HELD_BYTES: usize = 256;

/// Removes and returns the start of held-back white space, so that at most `HELD_BYTES` bytes
/// remain.
pub(crate) fn excess(held: &mut String) -> String {
    let least = held.len().saturating_sub(HELD_BYTES);
    let cut = (least..=held.len()).find(|&at| held.is_char_boundary(at));
    held.drain(..cut.unwrap_or(least)).collect()
}

/// Collects events and drops white space around calls.
#[derive(Debug, Default)]
pub(crate) struct Out {
    pub(crate) events: Vec<OutputEvent>,
    /// Number of calls so far, without those above `limit`.
    pub(crate) calls: usize,
    /// Maximum number of reported calls; `None` = unlimited.
    limit: Option<usize>,
    /// Content may be followed by calls.
    with_calls: bool,
    held: String,
    after_call: bool,
    muted: bool,
}

impl Out {
    pub(crate) fn new(with_calls: bool, limit: Option<usize>) -> Self {
        Self {
            with_calls,
            limit,
            ..Self::default()
        }
    }

    pub(crate) fn reasoning(&mut self, text: &str) {
        self.append(text, OutputEvent::Reasoning);
    }

    pub(crate) fn content(&mut self, mut text: &str) {
        if !self.with_calls {
            return self.append(text, OutputEvent::Content);
        }
        if self.after_call {
            text = text.trim_start();
        }
        if text.is_empty() {
            return;
        }
        self.after_call = false;
        let body = text.trim_end();
        if !body.is_empty() {
            self.flush();
            self.append(body, OutputEvent::Content);
        }
        self.held.push_str(&text[body.len()..]);
        let excess = excess(&mut self.held);
        self.append(&excess, OutputEvent::Content);
    }

    /// Starts a call; `id` is empty if the format has none.
    pub(crate) fn start(&mut self, id: &str, name: &str) {
        self.held.clear();
        self.after_call = true;
        self.muted = self.limit.is_some_and(|limit| self.calls >= limit);
        if self.muted {
            return;
        }
        self.events.push(OutputEvent::ToolCallStart {
            index: self.calls,
            id: id.to_owned(),
            name: name.to_owned(),
        });
        self.calls += 1;
    }

    /// Appends `text` to the arguments of the current call.
    pub(crate) fn arguments(&mut self, text: &str) {
        if self.muted || self.calls == 0 {
            return;
        }
        let index = self.calls - 1;
        self.append(text, |text| OutputEvent::ToolCallArguments { index, text });
    }

    pub(crate) fn finish(&mut self) {
        self.flush();
    }

    fn flush(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.append(&held, OutputEvent::Content);
    }

    fn append(&mut self, text: &str, event: impl FnOnce(String) -> OutputEvent) {
        if !text.is_empty() {
            OutputEvent::append(&mut self.events, event(text.to_owned()));
        }
    }
}
