//! Mistral: `[TOOL_CALLS]` and a list of objects, or, in newer models, `name{..}`, `name[ARGS]{..}`
//! and `name[CALL_ID]id[ARGS]{..}`, each call after its own mark.

use crate::call_object::CallObject;
use crate::json::Progress;
use crate::machine::Machine;
use crate::object_text::ObjectText;
use crate::out::Out;
use crate::search::{Found, Next, find, next_of, spaces};

pub(crate) const OPEN: &str = "[TOOL_CALLS]";
pub(crate) const ARGUMENTS: &str = "[ARGS]";
pub(crate) const ID: &str = "[CALL_ID]";
/// Maximum bytes of a name or an id.
const MAX_NAME: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Mistral {
    buffer: String,
    state: State,
    /// Text since the mark, which becomes content unless a call follows.
    before: String,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Text,
    Opened,
    Name,
    Id {
        name: String,
    },
    Arguments(ObjectText),
    Item,
    Call(Box<CallObject>),
    AfterItem,
}

impl Mistral {
    fn give_up(&mut self, out: &mut Out) -> Option<usize> {
        out.content(&std::mem::take(&mut self.before));
        self.state = State::Text;
        Some(0)
    }

    fn goes_on(&mut self, taken: &str, state: State) -> Option<usize> {
        self.before.push_str(taken);
        self.state = state;
        Some(taken.len())
    }

    fn text(&mut self, text: &str, out: &mut Out) -> Option<usize> {
        match find(text, &[OPEN]) {
            Found::Mark { start, end, .. } => {
                out.content(&text[..start]);
                self.before.clear();
                self.goes_on(OPEN, State::Opened);
                Some(end)
            }
            Found::Clear(0) => None,
            Found::Clear(end) => {
                out.content(&text[..end]);
                Some(end)
            }
        }
    }

    fn name(&mut self, text: &str, out: &mut Out) -> Option<usize> {
        let length = name_length(text);
        if length > MAX_NAME || length == 0 && !text.is_empty() {
            return self.give_up(out);
        }
        let (name, rest) = text.split_at(length);
        match next_of(rest, &["{", ARGUMENTS, ID]) {
            Next::Wait => None,
            Next::Other => self.give_up(out),
            Next::Mark { which: 2, end } => {
                let name = name.to_owned();
                self.goes_on(&text[..length + end], State::Id { name })
            }
            Next::Mark { which, end } => {
                self.start("", name, out);
                Some(length + if which == 0 { 0 } else { end })
            }
        }
    }

    fn id(&mut self, name: String, text: &str, out: &mut Out) -> Option<usize> {
        let length = name_length(text);
        if length > MAX_NAME {
            return self.give_up(out);
        }
        let (id, rest) = text.split_at(length);
        match next_of(rest, &[ARGUMENTS]) {
            Next::Wait => {
                self.state = State::Id { name };
                None
            }
            Next::Other => self.give_up(out),
            Next::Mark { end, .. } => {
                self.start(id, &name, out);
                Some(length + end)
            }
        }
    }

    fn start(&mut self, id: &str, name: &str, out: &mut Out) {
        self.before.clear();
        out.start(id, name);
        self.state = State::Arguments(ObjectText::default());
    }

    fn in_call(&mut self, mut call: Box<CallObject>, text: &str, out: &mut Out) -> Option<usize> {
        let (used, progress) = call.feed(text, out);
        self.state = match progress {
            Progress::More => State::Call(call),
            Progress::Done => {
                self.before.clear();
                State::AfterItem
            }
            Progress::Failed => {
                if let Some(raw) = call.unread() {
                    out.content(&std::mem::take(&mut self.before));
                    out.content(&raw);
                }
                State::Text
            }
        };
        Some(used)
    }
}

impl Machine for Mistral {
    fn buffer(&mut self) -> &mut String {
        &mut self.buffer
    }

    fn step(&mut self, text: &str, out: &mut Out) -> Option<usize> {
        if text.is_empty() {
            return None;
        }
        match std::mem::take(&mut self.state) {
            State::Text => self.text(text, out),
            State::Opened | State::Item | State::AfterItem if self.before.len() > MAX_NAME => {
                self.give_up(out)
            }
            state @ (State::Opened | State::Item | State::AfterItem) if spaces(text) > 0 => {
                let first = text.chars().next().map_or(0, char::len_utf8);
                self.goes_on(&text[..first], state)
            }
            State::Opened if text.starts_with('[') => self.goes_on("[", State::Item),
            State::Opened => {
                self.state = State::Name;
                Some(0)
            }
            State::Name => {
                self.state = State::Name;
                self.name(text, out)
            }
            State::Id { name } => self.id(name, text, out),
            State::Item if text.starts_with('{') => {
                self.state = State::Call(Box::new(CallObject::new(None)));
                Some(0)
            }
            State::Item => self.give_up(out),
            State::Call(call) => self.in_call(call, text, out),
            State::AfterItem if text.starts_with(',') => self.goes_on(",", State::Item),
            State::AfterItem if text.starts_with(']') => {
                self.before.clear();
                Some(1)
            }
            State::AfterItem => self.give_up(out),
            State::Arguments(mut arguments) => {
                // A mark ends arguments that are not an object.
                let (end, found) = match find(text, &[OPEN]) {
                    Found::Mark { start, .. } if !arguments.is_done() => (start, true),
                    Found::Mark { .. } => (text.len(), false),
                    Found::Clear(0) if !arguments.is_done() => {
                        self.state = State::Arguments(arguments);
                        return None;
                    }
                    Found::Clear(end) => (end, false),
                };
                let used = arguments.feed(&text[..end], out);
                if arguments.is_done() || found && used == end {
                    arguments.end(out);
                } else {
                    self.state = State::Arguments(arguments);
                }
                Some(used)
            }
        }
    }

    fn end(&mut self, rest: &str, out: &mut Out) {
        match &mut self.state {
            State::Call(call) => {
                if let Some(raw) = call.unread() {
                    out.content(&std::mem::take(&mut self.before));
                    out.content(&raw);
                }
            }
            State::Arguments(arguments) => {
                arguments.feed(rest, out);
                return arguments.end(out);
            }
            _ => out.content(&std::mem::take(&mut self.before)),
        }
        out.content(rest);
    }
}

/// Length of the prefix of characters allowed in names and ids, in bytes.
fn name_length(text: &str) -> usize {
    let part = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b':');
    text.bytes().take_while(|&b| part(b)).count()
}
