//! Parser of reasoning between marks at the start of an output.

use crate::out::{Out, excess};
use crate::search::{FirstMark, Next, find, next_of, spaces};

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
    state: ParseState,
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParseState {
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
            state: ParseState::Start(opened),
            held: String::new(),
        }
    }

    pub(crate) fn reasons(&self) -> bool {
        matches!(
            self.state,
            ParseState::Start(true) | ParseState::Opened | ParseState::Reasoning
        )
    }

    /// Parses text and returns the part that is not reasoning.
    pub(crate) fn push(&mut self, text: &str, out: &mut Out) -> String {
        if self.state == ParseState::Content && self.buffer.is_empty() {
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
            ParseState::Start(opened) => {
                if spaces(text) > 0 {
                    let space = &text[..spaces(text)];
                    if !opened {
                        self.held.push_str(space);
                        let more = excess(&mut self.held);
                        if !more.is_empty() {
                            // White space beyond the bound is content; stop waiting for a mark.
                            content.push_str(&more);
                            content.push_str(&std::mem::take(&mut self.held));
                            self.state = ParseState::Content;
                        }
                    }
                    return Some(space.len());
                }
                match next_of(text, self.marks.open) {
                    Next::Wait => None,
                    Next::Mark { end, .. } => {
                        self.held.clear();
                        self.state = ParseState::Opened;
                        Some(end)
                    }
                    Next::Other => {
                        content.push_str(&std::mem::take(&mut self.held));
                        self.state = if opened {
                            ParseState::Opened
                        } else {
                            ParseState::Content
                        };
                        Some(0)
                    }
                }
            }
            ParseState::Opened | ParseState::Closed if spaces(text) > 0 => Some(spaces(text)),
            ParseState::Opened => {
                self.state = ParseState::Reasoning;
                Some(0)
            }
            ParseState::Reasoning => match find(text, self.marks.close) {
                FirstMark::Mark { start, end, .. } => {
                    self.reasoning(&text[..start], out);
                    self.held.clear();
                    self.state = ParseState::Closed;
                    Some(end)
                }
                FirstMark::Clear(0) => None,
                FirstMark::Clear(end) => {
                    self.reasoning(&text[..end], out);
                    Some(end)
                }
            },
            ParseState::Closed => {
                self.state = ParseState::Content;
                Some(0)
            }
            ParseState::Content => {
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
