//! Mistral: `[TOOL_CALLS]` and a list of objects, or, in newer models, `name{..}`, `name[ARGS]{..}`
//! and `name[CALL_ID]id[ARGS]{..}`, each call after its own mark.

use crate::call_object::CallObject;
use crate::json::Progress;
use crate::machine::Machine;
use crate::object_text::ObjectText;
use crate::out::Out;
use crate::search::{FirstMark, Next, find, next_of, spaces};

pub(crate) const OPEN: &str = "[TOOL_CALLS]";
pub(crate) const ARGUMENTS: &str = "[ARGS]";
pub(crate) const ID: &str = "[CALL_ID]";
/// Maximum bytes of a name or an id.
const MAX_NAME: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Mistral {
    buffer: String,
    state: ParseState,
    /// Text since the mark, which becomes content unless a call follows.
    before: String,
}

#[derive(Debug, Default)]
enum ParseState {
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
        self.state = ParseState::Text;
        Some(0)
    }

    fn goes_on(&mut self, taken: &str, state: ParseState) -> Option<usize> {
        self.before.push_str(taken);
        self.state = state;
        Some(taken.len())
    }

    fn text(&mut self, text: &str, out: &mut Out) -> Option<usize> {
        match find(text, &[OPEN]) {
            FirstMark::Mark { start, end, .. } => {
                out.content(&text[..start]);
                self.before.clear();
                self.goes_on(OPEN, ParseState::Opened);
                Some(end)
            }
            FirstMark::Clear(0) => None,
            FirstMark::Clear(end) => {
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
                self.goes_on(&text[..length + end], ParseState::Id { name })
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
                self.state = ParseState::Id { name };
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
        self.state = ParseState::Arguments(ObjectText::default());
    }

    fn in_call(&mut self, mut call: Box<CallObject>, text: &str, out: &mut Out) -> Option<usize> {
        let (used, progress) = call.feed(text, out);
        self.state = match progress {
            Progress::More => ParseState::Call(call),
            Progress::Done => {
                self.before.clear();
                ParseState::AfterItem
            }
            Progress::Failed => {
                if let Some(raw) = call.unread() {
                    out.content(&std::mem::take(&mut self.before));
                    out.content(&raw);
                }
                ParseState::Text
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
            ParseState::Text => self.text(text, out),
            ParseState::Opened | ParseState::Item | ParseState::AfterItem
                if self.before.len() > MAX_NAME =>
            {
                self.give_up(out)
            }
            state @ (ParseState::Opened | ParseState::Item | ParseState::AfterItem)
                if spaces(text) > 0 =>
            {
                let first = text.chars().next().map_or(0, char::len_utf8);
                self.goes_on(&text[..first], state)
            }
            ParseState::Opened if text.starts_with('[') => self.goes_on("[", ParseState::Item),
            ParseState::Opened => {
                self.state = ParseState::Name;
                Some(0)
            }
            ParseState::Name => {
                self.state = ParseState::Name;
                self.name(text, out)
            }
            ParseState::Id { name } => self.id(name, text, out),
            ParseState::Item if text.starts_with('{') => {
                self.state = ParseState::Call(Box::new(CallObject::new(None)));
                Some(0)
            }
            ParseState::Item => self.give_up(out),
            ParseState::Call(call) => self.in_call(call, text, out),
            ParseState::AfterItem if text.starts_with(',') => self.goes_on(",", ParseState::Item),
            ParseState::AfterItem if text.starts_with(']') => {
                self.before.clear();
                Some(1)
            }
            ParseState::AfterItem => self.give_up(out),
            ParseState::Arguments(mut arguments) => {
                // A mark ends arguments that are not an object.
                let (end, found) = match find(text, &[OPEN]) {
                    FirstMark::Mark { start, .. } if !arguments.is_done() => (start, true),
                    FirstMark::Mark { .. } => (text.len(), false),
                    FirstMark::Clear(0) if !arguments.is_done() => {
                        self.state = ParseState::Arguments(arguments);
                        return None;
                    }
                    FirstMark::Clear(end) => (end, false),
                };
                let used = arguments.feed(&text[..end], out);
                if arguments.is_done() || found && used == end {
                    arguments.end(out);
                } else {
                    self.state = ParseState::Arguments(arguments);
                }
                Some(used)
            }
        }
    }

    fn end(&mut self, rest: &str, out: &mut Out) {
        match &mut self.state {
            ParseState::Call(call) => {
                if let Some(raw) = call.unread() {
                    out.content(&std::mem::take(&mut self.before));
                    out.content(&raw);
                }
            }
            ParseState::Arguments(arguments) => {
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
