//! gpt-oss (Harmony format): messages in channels. `analysis` is reasoning, `final` and other
//! `commentary` are content, a message to `functions.NAME` is a call.

use crate::machine::Machine;
use crate::marked::is_name;
use crate::object_text::ObjectText;
use crate::out::Out;
use crate::search::{FirstMark, find};

pub(crate) const CHANNEL: &str = "<|channel|>";
pub(crate) const START: &str = "<|start|>";
pub(crate) const MESSAGE: &str = "<|message|>";
pub(crate) const END: &str = "<|end|>";
pub(crate) const CALL: &str = "<|call|>";
pub(crate) const RETURN: &str = "<|return|>";
pub(crate) const CONSTRAIN: &str = "<|constrain|>";
/// Marks that end a message, including unexpected ones.
const ENDS: [&str; 5] = [END, CALL, RETURN, START, CHANNEL];
/// Maximum bytes of a message's header. Beyond it, the text is content.
const MAX_HEADER: usize = 1024;

#[derive(Debug)]
pub(crate) struct Harmony {
    buffer: String,
    state: ParseState,
    with_calls: bool,
}

#[derive(Debug)]
enum ParseState {
    /// Before a message. Text here belongs to no message, and is content.
    Between,
    /// In the header of a message, which starts with this mark. Mark and header become content if
    /// no message can follow.
    Header(&'static str),
    Body(Body),
}

#[derive(Debug)]
enum Body {
    Reasoning,
    Content,
    Call(ObjectText),
}

impl Harmony {
    /// `with_calls`: parse messages to functions as calls; otherwise they are content.
    pub(crate) fn new(with_calls: bool) -> Self {
        Self {
            buffer: String::new(),
            state: ParseState::Between,
            with_calls,
        }
    }

    pub(crate) fn reasons(&self) -> bool {
        matches!(self.state, ParseState::Body(Body::Reasoning))
    }

    fn between(&mut self, text: &str, out: &mut Out) -> Option<usize> {
        match find(text, &[CHANNEL, START, END, CALL, RETURN]) {
            FirstMark::Mark { start, end, which } => {
                out.content(&text[..start]);
                match which {
                    0 => self.state = ParseState::Header(CHANNEL),
                    1 => self.state = ParseState::Header(START),
                    _ => {}
                }
                Some(end)
            }
            FirstMark::Clear(0) => None,
            FirstMark::Clear(end) => {
                out.content(&text[..end]);
                Some(end)
            }
        }
    }

    fn header(&mut self, mark: &'static str, text: &str, out: &mut Out) -> Option<usize> {
        match find(text, &[MESSAGE, END, CALL, RETURN]) {
            FirstMark::Mark {
                start,
                end,
                which: 0,
            } if start <= MAX_HEADER => {
                self.state = ParseState::Body(self.body(mark, &text[..start], out));
                Some(end)
            }
            FirstMark::Clear(end) if end <= MAX_HEADER => None,
            _ => {
                out.content(mark);
                self.state = ParseState::Between;
                Some(0)
            }
        }
    }

    /// Determines the kind of a message from its header, such as `assistant
    /// to=functions.f<|channel|>commentary json`, with parts in any order.
    fn body(&self, mark: &str, header: &str, out: &mut Out) -> Body {
        let channel = match header.split_once(CHANNEL) {
            Some((_, rest)) => rest,
            None if mark == CHANNEL => header,
            None => "",
        };
        let words = |text: &'_ str| text.replace(CONSTRAIN, " ").replace(CHANNEL, " ");
        let header_words = words(header);
        let recipient = header_words
            .split_whitespace()
            .find_map(|word| word.strip_prefix("to="));
        if let Some(name) = recipient.and_then(|name| name.strip_prefix("functions."))
            && is_name(name)
            && self.with_calls
        {
            out.start("", name);
            return Body::Call(ObjectText::default());
        }
        match words(channel).split_whitespace().next() {
            Some("analysis") => Body::Reasoning,
            // Calls of the model's built-in tools count as reasoning.
            _ if recipient.is_some_and(|name| !name.starts_with("functions.")) => Body::Reasoning,
            _ => Body::Content,
        }
    }
}

impl Body {
    fn text(&mut self, text: &str, out: &mut Out) {
        match self {
            Self::Reasoning => out.reasoning(text),
            Self::Content => out.content(text),
            Self::Call(arguments) => {
                let used = arguments.feed(text, out);
                out.content(&text[used..]);
            }
        }
    }
}

impl Machine for Harmony {
    fn buffer(&mut self) -> &mut String {
        &mut self.buffer
    }

    fn step(&mut self, text: &str, out: &mut Out) -> Option<usize> {
        match &mut self.state {
            ParseState::Between => self.between(text, out),
            ParseState::Header(mark) => {
                let mark = *mark;
                self.header(mark, text, out)
            }
            ParseState::Body(body) => match find(text, &ENDS) {
                FirstMark::Mark { start, end, which } => {
                    body.text(&text[..start], out);
                    if let Body::Call(arguments) = body {
                        arguments.end(out);
                    }
                    self.state = match which {
                        3 => ParseState::Header(START),
                        4 => ParseState::Header(CHANNEL),
                        _ => ParseState::Between,
                    };
                    Some(end)
                }
                FirstMark::Clear(0) => None,
                FirstMark::Clear(end) => {
                    body.text(&text[..end], out);
                    Some(end)
                }
            },
        }
    }

    fn end(&mut self, rest: &str, out: &mut Out) {
        match &mut self.state {
            ParseState::Between => out.content(rest),
            // A message that ends inside its header has no text.
            ParseState::Header(_) => {}
            ParseState::Body(body) => {
                body.text(rest, out);
                if let Body::Call(arguments) = body {
                    arguments.end(out);
                }
            }
        }
    }
}
