//! Calls with separately tagged arguments: Qwen3-Coder's
//! `<tool_call><function=f><parameter=k>v</parameter></function></tool_call>`, and GLM-4.5's
//! `<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`.

use std::sync::Arc;

use crate::ToolSchema;
use crate::machine::Machine;
use crate::marked::is_name;
use crate::out::Out;
use crate::search::{FirstMark, Next, find, next_of, spaces};
use crate::typed::TypedArguments;

/// Maximum bytes of a name.
const MAX_NAME: usize = 256;

/// Tags of one model family.
#[derive(Debug)]
pub(crate) struct Tags {
    /// Start of a call; after the first of these, `function` may still follow.
    pub(crate) open: &'static [&'static str],
    /// Between `open` and the function's name.
    pub(crate) function: Option<&'static str>,
    /// End of the function's name. GLM has no such mark: the tag that follows is parsed again.
    pub(crate) name_ends: &'static [&'static str],
    pub(crate) keeps_name_end: bool,
    /// Start of a parameter's name.
    pub(crate) key: &'static str,
    /// End of a parameter's name.
    pub(crate) key_end: &'static str,
    /// Start of the value, after the name.
    pub(crate) value: Option<&'static str>,
    /// End of the value.
    pub(crate) value_ends: &'static [&'static str],
    /// Drop one line break at the start of a value.
    pub(crate) newline: bool,
    /// End of the call; each of these may be missing.
    pub(crate) close: &'static [&'static str],
}

pub(crate) static QWEN3_CODER: Tags = Tags {
    open: &["<tool_call>", "<function="],
    function: Some("<function="),
    name_ends: &[">"],
    keeps_name_end: false,
    key: "<parameter=",
    key_end: ">",
    value: None,
    value_ends: &["\n</parameter>", "</parameter>"],
    newline: true,
    close: &["</function>", "</tool_call>"],
};

pub(crate) static GLM_45: Tags = Tags {
    open: &["<tool_call>"],
    function: None,
    name_ends: &["<arg_key>", "</tool_call>"],
    keeps_name_end: true,
    key: "<arg_key>",
    key_end: "</arg_key>",
    value: Some("<arg_value>"),
    value_ends: &["</arg_value>"],
    newline: false,
    close: &["</tool_call>"],
};

#[derive(Debug)]
pub(crate) struct Tagged {
    buffer: String,
    tags: &'static Tags,
    tools: Arc<[ToolSchema]>,
    state: ParseState,
    arguments: TypedArguments,
    /// The opening mark, which becomes content unless a call follows.
    before: String,
}

#[derive(Debug, Clone, Copy)]
enum ParseState {
    Text,
    /// After the opening mark.
    Function,
    Name,
    /// Between parameters.
    Body,
    Key,
    /// Between a parameter's name and its value.
    Equals,
    ValueStart,
    Value,
    /// After a call.
    After,
}

impl Tagged {
    pub(crate) fn new(tags: &'static Tags, tools: Arc<[ToolSchema]>) -> Self {
        Self {
            buffer: String::new(),
            tags,
            arguments: TypedArguments::new(&[], ""),
            tools,
            state: ParseState::Text,
            before: String::new(),
        }
    }

    fn to(&mut self, state: ParseState, used: usize) -> Option<usize> {
        self.state = state;
        Some(used)
    }

    fn give_up(&mut self, out: &mut Out) -> Option<usize> {
        out.content(&std::mem::take(&mut self.before));
        self.to(ParseState::Text, 0)
    }

    fn text(&mut self, text: &str, out: &mut Out) -> Option<usize> {
        match find(text, self.tags.open) {
            FirstMark::Mark { start, end, which } => {
                out.content(&text[..start]);
                self.before = text[start..end].to_owned();
                let named = which > 0 || self.tags.function.is_none();
                self.to(
                    if named {
                        ParseState::Name
                    } else {
                        ParseState::Function
                    },
                    end,
                )
            }
            FirstMark::Clear(0) => None,
            FirstMark::Clear(end) => {
                out.content(&text[..end]);
                Some(end)
            }
        }
    }

    /// Finds a name that ends at one of the marks `ends`: its length, and the offset after the
    /// mark. `Err(true)`: more text is needed; `Err(false)`: the text is too long for a name.
    fn short(&self, text: &str, ends: &[&str]) -> Result<(usize, usize), bool> {
        match find(text, ends) {
            FirstMark::Mark { start, end, .. } if start <= MAX_NAME => Ok((start, end)),
            FirstMark::Clear(end) if end <= MAX_NAME => Err(true),
            _ => Err(false),
        }
    }

    fn name(&mut self, text: &str, out: &mut Out) -> Option<usize> {
        let (length, end) = match self.short(text, self.tags.name_ends) {
            Ok(found) => found,
            Err(true) => return None,
            Err(false) => return self.give_up(out),
        };
        let name = text[..length].trim();
        if !is_name(name) {
            return self.give_up(out);
        }
        out.start("", name);
        self.before.clear();
        self.arguments = TypedArguments::new(&self.tools, name);
        let used = if self.tags.keeps_name_end {
            length
        } else {
            end
        };
        self.to(ParseState::Body, used)
    }

    fn body(&mut self, text: &str, out: &mut Out) -> Option<usize> {
        let tags = self.tags;
        let marks: Vec<&str> = std::iter::once(tags.key)
            .chain(tags.close.iter().copied())
            .collect();
        match next_of(text, &marks) {
            Next::Mark { which: 0, end } => self.to(ParseState::Key, end),
            Next::Mark { end, .. } => {
                self.arguments.end(out);
                self.to(ParseState::After, end)
            }
            Next::Wait => None,
            Next::Other => {
                self.arguments.end(out);
                self.to(ParseState::Text, 0)
            }
        }
    }

    fn key(&mut self, text: &str, out: &mut Out) -> Option<usize> {
        match self.short(text, &[self.tags.key_end]) {
            Ok((length, end)) => {
                self.arguments.begin(text[..length].trim(), out);
                self.to(ParseState::Equals, end)
            }
            Err(true) => None,
            Err(false) => {
                self.arguments.end(out);
                out.content(self.tags.key);
                self.to(ParseState::Text, 0)
            }
        }
    }

    fn equals(&mut self, text: &str) -> Option<usize> {
        let Some(mark) = self.tags.value else {
            return self.to(ParseState::ValueStart, 0);
        };
        match next_of(text, &[mark]) {
            Next::Mark { end, .. } => self.to(ParseState::ValueStart, end),
            Next::Wait => None,
            Next::Other => self.to(ParseState::ValueStart, 0),
        }
    }

    fn value(&mut self, text: &str, out: &mut Out) -> Option<usize> {
        match find(text, self.tags.value_ends) {
            FirstMark::Mark { start, end, .. } => {
                self.arguments.text(&text[..start], out);
                self.arguments.end_value(out);
                self.to(ParseState::Body, end)
            }
            FirstMark::Clear(0) => None,
            FirstMark::Clear(end) => {
                self.arguments.text(&text[..end], out);
                Some(end)
            }
        }
    }
}

impl Machine for Tagged {
    fn buffer(&mut self) -> &mut String {
        &mut self.buffer
    }

    fn step(&mut self, text: &str, out: &mut Out) -> Option<usize> {
        if text.is_empty() {
            return None;
        }
        let blank = spaces(text);
        match self.state {
            ParseState::Text => self.text(text, out),
            ParseState::Body | ParseState::After if blank > 0 => Some(blank),
            ParseState::Function if blank > 0 => {
                self.before.push_str(&text[..blank]);
                if self.before.len() > MAX_NAME {
                    self.give_up(out);
                }
                Some(blank)
            }
            ParseState::Equals if blank > 0 && self.tags.value.is_some() => Some(blank),
            ParseState::Function => {
                let mark = self.tags.function.unwrap_or_default();
                match next_of(text, &[mark]) {
                    Next::Mark { end, .. } => {
                        self.before.push_str(mark);
                        self.to(ParseState::Name, end)
                    }
                    Next::Wait => None,
                    Next::Other => self.give_up(out),
                }
            }
            ParseState::Name => self.name(text, out),
            ParseState::Body => self.body(text, out),
            ParseState::Key => self.key(text, out),
            ParseState::Equals => self.equals(text),
            ParseState::ValueStart if self.tags.newline && text.starts_with('\n') => {
                // In an empty value, the only line break belongs to the mark that ends the value.
                match next_of(text, &self.tags.value_ends[..1]) {
                    Next::Wait => None,
                    Next::Mark { .. } => self.to(ParseState::Value, 0),
                    Next::Other => self.to(ParseState::Value, 1),
                }
            }
            ParseState::ValueStart => self.to(ParseState::Value, 0),
            ParseState::Value => self.value(text, out),
            ParseState::After => match next_of(text, self.tags.close) {
                Next::Mark { end, .. } => Some(end),
                Next::Wait => None,
                Next::Other => self.to(ParseState::Text, 0),
            },
        }
    }

    fn end(&mut self, rest: &str, out: &mut Out) {
        match self.state {
            ParseState::Text | ParseState::After => out.content(rest),
            ParseState::Function | ParseState::Name => {
                self.give_up(out);
                out.content(rest);
            }
            ParseState::Value | ParseState::ValueStart => {
                self.arguments.text(rest, out);
                self.arguments.cut_off(out);
            }
            ParseState::Body => self.arguments.end(out),
            ParseState::Key | ParseState::Equals => {}
        }
    }
}
