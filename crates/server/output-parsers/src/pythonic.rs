//! Llama 4 and Llama 3.2: the whole output is a list of calls in Python, `[f(a=1), g(b='x')]`,
//! between `<|python_start|>` and `<|python_end|>` or without marks. Any list has this form, so
//! only names of offered tools are calls. A call's arguments are emitted when it is complete.

use std::sync::Arc;

use crate::ToolSchema;
use crate::call_object::MAX_HELD;
use crate::machine::Machine;
use crate::out::Out;
use crate::python;
use crate::search::{FirstMark, Next, find, next_of, spaces};

pub(crate) const OPEN: &str = "<|python_start|>";
pub(crate) const CLOSE: &str = "<|python_end|>";

#[derive(Debug)]
pub(crate) struct Pythonic {
    buffer: String,
    state: ParseState,
    tools: Arc<[ToolSchema]>,
    /// Text since the last call or the start, which becomes content unless a call follows.
    before: String,
}

#[derive(Debug)]
enum ParseState {
    Start,
    /// After the opening bracket or a comma: the name of a call follows.
    Name,
    /// Inside a call's brackets.
    Arguments {
        name: String,
        text: String,
        scan: Brackets,
    },
    /// After a call.
    After,
    Text,
}

/// Tracks brackets and strings of Python's syntax.
#[derive(Debug, Default)]
struct Brackets {
    depth: u32,
    quote: Option<char>,
    escaped: bool,
}

impl Brackets {
    /// Offset of the bracket that closes the call, if it is in the text.
    fn end(&mut self, text: &str) -> Option<usize> {
        for (at, c) in text.char_indices() {
            if let Some(quote) = self.quote {
                match c {
                    _ if self.escaped => self.escaped = false,
                    '\\' => self.escaped = true,
                    _ if c == quote => self.quote = None,
                    _ => {}
                }
                continue;
            }
            match c {
                '\'' | '"' => self.quote = Some(c),
                '(' | '[' | '{' => self.depth += 1,
                ')' | ']' | '}' if self.depth > 0 => self.depth -= 1,
                ')' => return Some(at),
                _ => {}
            }
        }
        None
    }
}

impl Pythonic {
    pub(crate) fn new(tools: Arc<[ToolSchema]>) -> Self {
        Self {
            buffer: String::new(),
            state: ParseState::Start,
            tools,
            before: String::new(),
        }
    }

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

    fn name(&mut self, text: &str, out: &mut Out) -> Option<usize> {
        let part = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
        let length = text.bytes().take_while(|&b| part(b)).count();
        let (name, rest) = text.split_at(length);
        let known = |name: &str| self.tools.iter().any(|tool| tool.name == name);
        if rest.is_empty() && length <= 256 {
            return None;
        }
        if !rest.starts_with('(') || !known(name) {
            return self.give_up(out);
        }
        let name = name.to_owned();
        let (text_of, scan) = Default::default();
        let state = ParseState::Arguments {
            name,
            text: text_of,
            scan,
        };
        self.goes_on(&text[..=length], state)
    }

    fn arguments(&mut self, piece: &str, out: &mut Out) -> Option<usize> {
        let ParseState::Arguments { name, text, scan } = &mut self.state else {
            return None;
        };
        let end = scan.end(piece);
        text.push_str(&piece[..end.unwrap_or(piece.len())]);
        if end.is_none() && text.len() <= MAX_HELD {
            return Some(piece.len());
        }
        let (name, text) = (std::mem::take(name), std::mem::take(text));
        match python::arguments(&text).filter(|_| end.is_some()) {
            Some(arguments) => {
                self.before.clear();
                out.start("", &name);
                out.arguments(&serde_json::Value::Object(arguments).to_string());
                self.state = ParseState::After;
                end.map(|end| end + 1)
            }
            None => {
                self.before.push_str(&text);
                self.give_up(out);
                Some(end.unwrap_or(piece.len()))
            }
        }
    }
}

impl Machine for Pythonic {
    fn buffer(&mut self) -> &mut String {
        &mut self.buffer
    }

    fn step(&mut self, text: &str, out: &mut Out) -> Option<usize> {
        if text.is_empty() {
            return None;
        }
        match self.state {
            ParseState::Arguments { .. } => self.arguments(text, out),
            ParseState::Text => match find(text, &[OPEN, CLOSE]) {
                FirstMark::Mark { start, end, which } => {
                    out.content(&text[..start]);
                    if which == 0 {
                        self.goes_on(OPEN, ParseState::Start);
                    }
                    Some(end)
                }
                FirstMark::Clear(0) => None,
                FirstMark::Clear(end) => {
                    out.content(&text[..end]);
                    Some(end)
                }
            },
            _ if spaces(text) > 0 => {
                if self.before.is_empty() {
                    out.content(&text[..spaces(text)]);
                }
                Some(spaces(text))
            }
            ParseState::Start => match next_of(text, &["[", OPEN]) {
                Next::Mark { which: 0, .. } => self.goes_on("[", ParseState::Name),
                Next::Mark { .. } => self.goes_on(OPEN, ParseState::Start),
                Next::Wait => None,
                Next::Other => self.give_up(out),
            },
            ParseState::Name => self.name(text, out),
            ParseState::After => match next_of(text, &[",", "]"]) {
                Next::Mark { which: 0, .. } => self.goes_on(",", ParseState::Name),
                Next::Mark { .. } => {
                    self.state = ParseState::Text;
                    Some(1)
                }
                _ => self.give_up(out),
            },
        }
    }

    fn end(&mut self, rest: &str, out: &mut Out) {
        if let ParseState::Arguments { text, .. } = &mut self.state {
            self.before.push_str(text);
        }
        self.give_up(out);
        out.content(rest);
    }
}
