//! Hermes and Qwen: `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, several in a row.

use crate::call_object::CallObject;
use crate::json::Progress;
use crate::machine::Machine;
use crate::out::Out;
use crate::search::{FirstMark, Next, find, next_of, spaces};

pub(crate) const OPEN: &str = "<tool_call>";
pub(crate) const CLOSE: &str = "</tool_call>";

#[derive(Debug, Default)]
pub(crate) struct Hermes {
    buffer: String,
    state: ParseState,
}

#[derive(Debug, Default)]
enum ParseState {
    #[default]
    Text,
    Call(Box<CallObject>),
    After,
}

impl Machine for Hermes {
    fn buffer(&mut self) -> &mut String {
        &mut self.buffer
    }

    fn step(&mut self, text: &str, out: &mut Out) -> Option<usize> {
        match &mut self.state {
            ParseState::Text => match find(text, &[OPEN]) {
                FirstMark::Mark { start, end, .. } => {
                    out.content(&text[..start]);
                    self.state = ParseState::Call(Box::new(CallObject::new(None)));
                    Some(end)
                }
                FirstMark::Clear(0) => None,
                FirstMark::Clear(end) => {
                    out.content(&text[..end]);
                    Some(end)
                }
            },
            ParseState::Call(call) => {
                if text.is_empty() {
                    return None;
                }
                let (used, progress) = call.feed(text, out);
                match progress {
                    Progress::More => {}
                    Progress::Done => self.state = ParseState::After,
                    Progress::Failed => {
                        self.state = match call.unread() {
                            Some(raw) => {
                                out.content(OPEN);
                                out.content(&raw);
                                ParseState::Text
                            }
                            None => ParseState::After,
                        }
                    }
                }
                Some(used)
            }
            ParseState::After if spaces(text) > 0 => Some(spaces(text)),
            ParseState::After => match next_of(text, &[CLOSE]) {
                Next::Mark { end, .. } => {
                    self.state = ParseState::Text;
                    Some(end)
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
        if let ParseState::Call(call) = &mut self.state
            && let Some(raw) = call.unread()
        {
            out.content(OPEN);
            out.content(&raw);
        }
        out.content(rest);
    }
}
