//! Parser of reasoning between marks at the start of an output.

use crate::out::{Out, excess};
use crate::search::{Found, Next, find, next_of, spaces};

/// Marks of one model family, in all spellings.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ThinkMarks {
    pub(crate) open: &'static [&'static str],
    pub(crate) close: &'static [&'static str],
}

pub(crate) static THINK: ThinkMarks = ThinkMarks {
    open: &["<think>"],
    close: &["</think>"],
};
pub(crate) static MISTRAL: ThinkMarks = ThinkMarks {
    open: &["[THINK]"],
    close: &["[/THINK]"],
};
pub(crate) static SEED: ThinkMarks = ThinkMarks {
    open: &["<seed:think>"],
    close: &["</seed:think>"],
};
pub(crate) static GRANITE: ThinkMarks = ThinkMarks {
    open: &["Here is my thought process:", "Here's my thought process:"],
    close: &["Here is my response:", "Here's my response:"],
};

/// Splits an output into reasoning and the text after it. White space at the ends of both is
/// dropped.
#[derive(Debug)]
pub(crate) struct Think {
    buffer: String,
    marks: &'static ThinkMarks,
    state: State,
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// At the start of the output: reasoning may follow. `true`: it certainly follows.
    Start(bool),
    /// Inside reasoning, before its first character.
    Opened,
    Reasoning,
    /// After reasoning, before the first character of content.
    Closed,
    Content,
}

impl Think {
    /// `opened`: the output starts inside reasoning.
    pub(crate) fn new(marks: &'static ThinkMarks, opened: bool) -> Self {
        Self {
            buffer: String::new(),
            marks,
            state: State::Start(opened),
            held: String::new(),
        }
    }

    pub(crate) fn reasons(&self) -> bool {
        matches!(
            self.state,
            State::Start(true) | State::Opened | State::Reasoning
        )
    }

    /// Parses text and returns the part that is not reasoning.
    pub(crate) fn push(&mut self, text: &str, out: &mut Out) -> String {
        if self.state == State::Content && self.buffer.is_empty() {
            return text.to_owned();
        }
        self.buffer.push_str(text);
        let held = std::mem::take(&mut self.buffer);
        let (mut at, mut content) = (0, String::new());
        while let Some(used) = self.step(&held[at..], out, &mut content) {
            at += used;
        }
        self.buffer.push_str(&held[at..]);
        content
    }

    pub(crate) fn finish(&mut self, out: &mut Out) -> String {
        let rest = std::mem::take(&mut self.buffer);
        if self.reasons() {
            self.reasoning(&rest, out);
            self.held.clear();
            return String::new();
        }
        std::mem::take(&mut self.held) + &rest
    }

    fn step(&mut self, text: &str, out: &mut Out, content: &mut String) -> Option<usize> {
        if text.is_empty() {
            return None;
        }
        match self.state {
            State::Start(opened) => {
                if spaces(text) > 0 {
                    let space = &text[..spaces(text)];
                    if !opened {
                        self.held.push_str(space);
                        let more = excess(&mut self.held);
                        if !more.is_empty() {
                            // White space beyond the bound is content; stop waiting for a mark.
                            content.push_str(&more);
                            content.push_str(&std::mem::take(&mut self.held));
                            self.state = State::Content;
                        }
                    }
                    return Some(space.len());
                }
                match next_of(text, self.marks.open) {
                    Next::Wait => None,
                    Next::Mark { end, .. } => {
                        self.held.clear();
                        self.state = State::Opened;
                        Some(end)
                    }
                    Next::Other => {
                        content.push_str(&std::mem::take(&mut self.held));
                        self.state = if opened {
                            State::Opened
                        } else {
                            State::Content
                        };
                        Some(0)
                    }
                }
            }
            State::Opened | State::Closed if spaces(text) > 0 => Some(spaces(text)),
            State::Opened => {
                self.state = State::Reasoning;
                Some(0)
            }
            State::Reasoning => match find(text, self.marks.close) {
                Found::Mark { start, end, .. } => {
                    self.reasoning(&text[..start], out);
                    self.held.clear();
                    self.state = State::Closed;
                    Some(end)
                }
                Found::Clear(0) => None,
                Found::Clear(end) => {
                    self.reasoning(&text[..end], out);
                    Some(end)
                }
            },
            State::Closed => {
                self.state = State::Content;
                Some(0)
            }
            State::Content => {
                content.push_str(text);
                Some(text.len())
            }
        }
    }

    /// Emits reasoning, except white space that may be at its end.
    fn reasoning(&mut self, text: &str, out: &mut Out) {
        let body = text.trim_end();
        if !body.is_empty() {
            out.reasoning(&std::mem::take(&mut self.held));
            out.reasoning(body);
        }
        self.held.push_str(&text[body.len()..]);
        out.reasoning(&excess(&mut self.held));
    }
}
