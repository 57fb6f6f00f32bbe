//! Hermes and Qwen: `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, several in a row.

use crate::call_object::CallObject;
use crate::json::Progress;
use crate::machine::Machine;
use crate::out::Out;
use crate::search::{Found, Next, find, next_of, spaces};

pub(crate) const OPEN: &str = "<tool_call>";
pub(crate) const CLOSE: &str = "</tool_call>";

#[derive(Debug, Default)]
pub(crate) struct Hermes {
    buffer: String,
    state: State,
}

#[derive(Debug, Default)]
enum State {
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
            State::Text => match find(text, &[OPEN]) {
                Found::Mark { start, end, .. } => {
                    out.content(&text[..start]);
                    self.state = State::Call(Box::new(CallObject::new(None)));
                    Some(end)
                }
                Found::Clear(0) => None,
                Found::Clear(end) => {
                    out.content(&text[..end]);
                    Some(end)
                }
            },
            State::Call(call) => {
                if text.is_empty() {
                    return None;
                }
                let (used, progress) = call.feed(text, out);
                match progress {
                    Progress::More => {}
                    Progress::Done => self.state = State::After,
                    Progress::Failed => {
                        self.state = match call.unread() {
                            Some(raw) => {
                                out.content(OPEN);
                                out.content(&raw);
                                State::Text
                            }
                            None => State::After,
                        }
                    }
                }
                Some(used)
            }
            State::After if spaces(text) > 0 => Some(spaces(text)),
            State::After => match next_of(text, &[CLOSE]) {
                Next::Mark { end, .. } => {
                    self.state = State::Text;
                    Some(end)
                }
                Next::Wait => None,
                Next::Other => {
                    self.state = State::Text;
                    Some(0)
                }
            },
        }
    }

    fn end(&mut self, rest: &str, out: &mut Out) {
        if let State::Call(call) = &mut self.state
            && let Some(raw) = call.unread()
        {
            out.content(OPEN);
            out.content(&raw);
        }
        out.content(rest);
    }
}
