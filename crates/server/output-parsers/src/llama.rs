//! Llama 3: the whole output is `{"name": .., "parameters": {..}}`, several separated by
//! semicolons, usually without a mark; `<|python_tag|>` may precede it. Any JSON object has this
//! form, so only names of offered tools are calls.

use std::sync::Arc;

use crate::ToolSchema;
use crate::call_object::CallObject;
use crate::json::Progress;
use crate::machine::Machine;
use crate::out::Out;
use crate::search::{FirstMark, Next, find, next_of, spaces};

pub(crate) const TAG: &str = "<|python_tag|>";

#[derive(Debug)]
pub(crate) struct Llama {
    buffer: String,
    state: ParseState,
    tools: Arc<[ToolSchema]>,
}

#[derive(Debug)]
enum ParseState {
    /// At the start, or after a call.
    Open {
        /// Text before the object, which becomes content if there is no call.
        before: &'static str,
    },
    Call {
        before: &'static str,
        call: Box<CallObject>,
    },
    After,
    Text,
}

impl Llama {
    pub(crate) fn new(tools: Arc<[ToolSchema]>) -> Self {
        Self {
            buffer: String::new(),
            state: ParseState::Open { before: "" },
            tools,
        }
    }

    fn text(&mut self, text: &str, out: &mut Out) -> Option<usize> {
        match find(text, &[TAG]) {
            FirstMark::Mark { start, end, .. } => {
                out.content(&text[..start]);
                self.state = ParseState::Open { before: TAG };
                Some(end)
            }
            FirstMark::Clear(0) => None,
            FirstMark::Clear(end) => {
                out.content(&text[..end]);
                Some(end)
            }
        }
    }

    fn open(&mut self, before: &'static str, text: &str, out: &mut Out) -> Option<usize> {
        match next_of(text, &["{", TAG]) {
            Next::Mark { which: 0, .. } => {
                let call = Box::new(CallObject::new(Some(self.tools.clone())));
                self.state = ParseState::Call { before, call };
                Some(0)
            }
            Next::Mark { end, .. } => {
                out.content(before);
                self.state = ParseState::Open { before: TAG };
                Some(end)
            }
            Next::Wait => None,
            Next::Other => {
                out.content(before);
                self.state = ParseState::Text;
                Some(0)
            }
        }
    }
}

impl Machine for Llama {
    fn buffer(&mut self) -> &mut String {
        &mut self.buffer
    }

    fn step(&mut self, text: &str, out: &mut Out) -> Option<usize> {
        match &mut self.state {
            ParseState::Text => self.text(text, out),
            ParseState::Open { before: "" } | ParseState::After if spaces(text) > 0 => {
                out.content(&text[..spaces(text)]);
                Some(spaces(text))
            }
            ParseState::Open { .. } if spaces(text) > 0 => Some(spaces(text)),
            ParseState::Open { before } => {
                let before = *before;
                self.open(before, text, out)
            }
            ParseState::Call { before, call } => {
                if text.is_empty() {
                    return None;
                }
                let (used, progress) = call.feed(text, out);
                match progress {
                    Progress::More => {}
                    Progress::Done => self.state = ParseState::After,
                    Progress::Failed => {
                        if let Some(raw) = call.unread() {
                            out.content(before);
                            out.content(&raw);
                        }
                        self.state = ParseState::Text;
                    }
                }
                Some(used)
            }
            ParseState::After => match next_of(text, &[";", ",", "{"]) {
                Next::Mark { which: 0, end } => {
                    self.state = ParseState::Open { before: ";" };
                    Some(end)
                }
                Next::Mark { which: 1, end } => {
                    self.state = ParseState::Open { before: "," };
                    Some(end)
                }
                Next::Mark { .. } => {
                    self.state = ParseState::Open { before: "" };
                    Some(0)
                }
                Next::Wait => None,
                Next::Other => {
                    self.state = ParseState::Text;
                    Some(0)
                }
            },
        }
    }

    fn end(&mut self, rest: &str, out: &mut Out) {
        match &mut self.state {
            ParseState::Open { before } => out.content(before),
            ParseState::Call { before, call } => {
                if let Some(raw) = call.unread() {
                    out.content(before);
                    out.content(&raw);
                }
            }
            ParseState::After | ParseState::Text => {}
        }
        out.content(rest);
    }
}
