//! DeepSeek V3, V3.1 and Kimi K2: a call is a header and arguments between marks. The marks are
//! separate tokens, so the end mark is recognised at any position.

use crate::machine::Machine;
use crate::object_text::ObjectText;
use crate::out::Out;
use crate::search::{FirstMark, find};

/// Maximum bytes of a call's header.
const MAX_HEADER: usize = 1024;

/// Marks of one model family.
#[derive(Debug)]
pub(crate) struct Marks {
    /// Around all calls; removed from the content.
    pub(crate) section: [&'static str; 2],
    pub(crate) open: &'static str,
    /// Between header and arguments.
    pub(crate) arguments: &'static str,
    pub(crate) close: &'static str,
    /// Extracts id and name from a header.
    pub(crate) header: fn(&str) -> Option<(&str, &str)>,
}

pub(crate) static DEEPSEEK_V3: Marks = Marks {
    section: ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
    open: "<｜tool▁call▁begin｜>",
    arguments: "\n```json",
    close: "<｜tool▁call▁end｜>",
    header: |header| {
        let (kind, name) = header.split_once(SEPARATOR)?;
        (kind.trim() == "function").then_some(("", name.trim()))
    },
};

pub(crate) static DEEPSEEK_V31: Marks = Marks {
    section: DEEPSEEK_V3.section,
    open: DEEPSEEK_V3.open,
    arguments: SEPARATOR,
    close: DEEPSEEK_V3.close,
    header: |header| Some(("", header.trim())),
};

pub(crate) static KIMI_K2: Marks = Marks {
    section: ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
    open: "<|tool_call_begin|>",
    arguments: "<|tool_call_argument_begin|>",
    close: "<|tool_call_end|>",
    header: |header| {
        let id = header.trim();
        let name = id.strip_prefix("functions.").unwrap_or(id);
        Some((id, name.rsplit_once(':').map_or(name, |(name, _)| name)))
    },
};

/// Between a call's type and name, or between its name and arguments.
pub(crate) const SEPARATOR: &str = "<｜tool▁sep｜>";

#[derive(Debug)]
pub(crate) struct Marked {
    buffer: String,
    marks: &'static Marks,
    state: ParseState,
}

#[derive(Debug)]
enum ParseState {
    Text,
    Header,
    Arguments(ObjectText),
}

impl Marked {
    pub(crate) fn new(marks: &'static Marks) -> Self {
        Self {
            buffer: String::new(),
            marks,
            state: ParseState::Text,
        }
    }

    fn header(&mut self, text: &str, out: &mut Out) -> Option<usize> {
        let marks = self.marks;
        let ends = [
            marks.arguments,
            marks.close,
            marks.open,
            marks.section[0],
            marks.section[1],
        ];
        let (header, taken) = match find(text, &ends) {
            FirstMark::Mark {
                start,
                end,
                which: 0,
            } if start <= MAX_HEADER => ((marks.header)(&text[..start]), end),
            FirstMark::Clear(end) if end <= MAX_HEADER => return None,
            _ => (None, 0),
        };
        match header.filter(|(_, name)| is_name(name)) {
            Some((id, name)) => {
                out.start(id, name);
                self.state = ParseState::Arguments(ObjectText::default());
                Some(taken)
            }
            None => {
                out.content(marks.open);
                self.state = ParseState::Text;
                Some(0)
            }
        }
    }
}

impl Machine for Marked {
    fn buffer(&mut self) -> &mut String {
        &mut self.buffer
    }

    fn step(&mut self, text: &str, out: &mut Out) -> Option<usize> {
        let marks = self.marks;
        match &mut self.state {
            ParseState::Text => match find(text, &[marks.open, marks.section[0], marks.section[1]])
            {
                FirstMark::Mark { start, end, which } => {
                    out.content(&text[..start]);
                    if which == 0 {
                        self.state = ParseState::Header;
                    }
                    Some(end)
                }
                FirstMark::Clear(0) => None,
                FirstMark::Clear(end) => {
                    out.content(&text[..end]);
                    Some(end)
                }
            },
            ParseState::Header => self.header(text, out),
            ParseState::Arguments(arguments) => {
                let (end, taken) = match find(text, &[marks.close, marks.section[1]]) {
                    FirstMark::Mark { start, end, .. } => (start, Some(end)),
                    FirstMark::Clear(0) => return None,
                    FirstMark::Clear(end) => (end, None),
                };
                behind(arguments, &text[..end], out);
                let Some(taken) = taken else {
                    return Some(end);
                };
                arguments.end(out);
                self.state = ParseState::Text;
                Some(taken)
            }
        }
    }

    fn end(&mut self, rest: &str, out: &mut Out) {
        match &mut self.state {
            ParseState::Text => out.content(rest),
            ParseState::Header => {
                out.content(self.marks.open);
                out.content(rest);
            }
            ParseState::Arguments(arguments) => {
                behind(arguments, rest, out);
                arguments.end(out);
            }
        }
    }
}

/// Emits arguments. After a complete object, white space and the end of a code block are dropped;
/// anything else is content.
fn behind(arguments: &mut ObjectText, text: &str, out: &mut Out) {
    let used = arguments.feed(text, out);
    if arguments.is_done() {
        out.content(&text[used..].replace('`', ""));
    }
}

pub(crate) fn is_name(name: &str) -> bool {
    let part = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'/');
    !name.is_empty() && name.len() <= 256 && name.bytes().all(part)
}
