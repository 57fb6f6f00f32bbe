//! A call written as one JSON object: `{"name": .., "arguments": {..}}`, with members in any order.

use std::sync::Arc;

use crate::ToolSchema;
use crate::json::{Progress, Scan};
use crate::out::Out;

/// Maximum bytes of text held back until it is known to be a call.
pub(crate) const MAX_HELD: usize = 1 << 20;

/// Parser of one object. Arguments are streamed once the name is known.
#[derive(Debug)]
pub(crate) struct CallObject {
    state: ParseState,
    /// All text so far, until the call is reported.
    raw: String,
    started: bool,
    name: Option<String>,
    id: String,
    /// Arguments that arrived before the name.
    early: Option<String>,
    with_arguments: bool,
    /// If set, only objects with the name of one of these tools are calls.
    known: Option<Arc<[ToolSchema]>>,
}

#[derive(Debug)]
enum ParseState {
    Open,
    Member {
        first: bool,
    },
    Key {
        scan: Scan,
        text: String,
    },
    Colon(Key),
    Value(Key),
    InValue {
        key: Key,
        scan: Scan,
        text: String,
        /// The value is streamed while it is parsed.
        streamed: bool,
    },
    Next,
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Name,
    Id,
    Arguments,
    Other,
}

impl CallObject {
    pub(crate) fn new(known: Option<Arc<[ToolSchema]>>) -> Self {
        Self {
            state: ParseState::Open,
            raw: String::new(),
            started: false,
            name: None,
            id: String::new(),
            early: None,
            with_arguments: false,
            known,
        }
    }

    /// The text so far if it did not become a call, to be emitted as content.
    pub(crate) fn unread(&mut self) -> Option<String> {
        (!self.started).then(|| std::mem::take(&mut self.raw))
    }

    /// Consumes text of the object; returns the number of bytes consumed.
    pub(crate) fn feed(&mut self, text: &str, out: &mut Out) -> (usize, Progress) {
        let mut at = 0;
        loop {
            let mut rest = &text[at..];
            if !self.started {
                rest = cut(rest, MAX_HELD - self.raw.len());
                if rest.is_empty() && at < text.len() {
                    return (at, Progress::Failed);
                }
            }
            let (used, progress) = self.step(rest, out);
            if !self.started {
                self.raw.push_str(&rest[..used]);
            }
            at += used;
            match progress {
                Some(Progress::More) if at < text.len() => {}
                Some(progress) => return (at, progress),
                None => {}
            }
        }
    }

    /// One step of [`Self::feed`]; `None` if another step follows.
    fn step(&mut self, text: &str, out: &mut Out) -> (usize, Option<Progress>) {
        if let ParseState::Key { .. } | ParseState::InValue { .. } = self.state {
            return self.inside(text, out);
        }
        let rest = text.trim_start_matches([' ', '\n', '\r', '\t']);
        let skipped = text.len() - rest.len();
        let Some(next) = rest.chars().next() else {
            return (skipped, Some(Progress::More));
        };
        let state = std::mem::replace(&mut self.state, ParseState::Closed);
        let (used, state) = match (state, next) {
            (ParseState::Open, '{') => (1, ParseState::Member { first: true }),
            (ParseState::Member { .. }, '"') => {
                let (scan, text) = Default::default();
                (0, ParseState::Key { scan, text })
            }
            (ParseState::Colon(key), ':') => (1, ParseState::Value(key)),
            (ParseState::Value(key), _) => {
                let (scan, text) = Default::default();
                let streamed = key == Key::Arguments && self.started && next == '{';
                self.with_arguments |= streamed;
                let value = ParseState::InValue {
                    key,
                    scan,
                    text,
                    streamed,
                };
                (0, value)
            }
            (ParseState::Next, ',') => (1, ParseState::Member { first: false }),
            (ParseState::Next | ParseState::Member { first: true }, '}') => {
                let done = self.close(out);
                return (skipped + usize::from(done == Progress::Done), Some(done));
            }
            _ => return (skipped, Some(Progress::Failed)),
        };
        self.state = state;
        (skipped + used, None)
    }

    /// A step inside a key or a value.
    fn inside(&mut self, piece: &str, out: &mut Out) -> (usize, Option<Progress>) {
        let (scan, text, kept, streamed) = match &mut self.state {
            ParseState::Key { scan, text } => (scan, text, true, false),
            ParseState::InValue {
                key,
                scan,
                text,
                streamed,
            } => (scan, text, *key != Key::Other, *streamed),
            _ => return (0, Some(Progress::Failed)),
        };
        let (used, progress) = scan.take(piece);
        if streamed {
            out.arguments(&piece[..used]);
        } else if kept {
            text.push_str(&piece[..used]);
        }
        let too_long = text.len() > MAX_HELD;
        match progress {
            Progress::More if too_long => (used, Some(Progress::Failed)),
            Progress::Done => (used, self.complete(out)),
            other => (used, Some(other)),
        }
    }

    /// Handles the end of a key or a value.
    fn complete(&mut self, out: &mut Out) -> Option<Progress> {
        let state = std::mem::replace(&mut self.state, ParseState::Next);
        match state {
            ParseState::Key { text, .. } => {
                let key = match serde_json::from_str::<String>(&text).as_deref() {
                    Ok("name") => Key::Name,
                    Ok("id") => Key::Id,
                    Ok("arguments" | "parameters") if !self.argued_for() => Key::Arguments,
                    _ => Key::Other,
                };
                self.state = ParseState::Colon(key);
            }
            ParseState::InValue { key, text, .. } => match key {
                Key::Name if self.name.is_none() => return self.named(&text, out),
                Key::Id => self.id = serde_json::from_str(&text).unwrap_or_default(),
                Key::Arguments if !self.with_arguments => self.argued(text, out),
                _ => {}
            },
            _ => {}
        }
        None
    }

    fn named(&mut self, text: &str, out: &mut Out) -> Option<Progress> {
        let name = serde_json::from_str::<String>(text).ok();
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Some(Progress::Failed);
        };
        let known = self.known.as_ref();
        if known.is_some_and(|known| known.iter().all(|tool| tool.name != name)) {
            return Some(Progress::Failed);
        }
        out.start(&self.id, &name);
        self.started = true;
        self.raw = String::new();
        self.name = Some(name);
        if let Some(early) = self.early.take() {
            self.argued(early, out);
        }
        None
    }

    /// Emits arguments that were not streamed: an object unchanged, a string's text, `{}` for null.
    fn argued(&mut self, text: String, out: &mut Out) {
        if !self.started {
            self.early = Some(text);
            return;
        }
        self.with_arguments = true;
        match serde_json::from_str::<String>(&text) {
            Ok(inner) if inner.trim().is_empty() => out.arguments("{}"),
            Ok(inner) => out.arguments(&inner),
            Err(_) if text == "null" => out.arguments("{}"),
            Err(_) => out.arguments(&text),
        }
    }

    fn argued_for(&self) -> bool {
        self.with_arguments || self.early.is_some()
    }

    fn close(&mut self, out: &mut Out) -> Progress {
        if !self.started {
            return Progress::Failed;
        }
        if !self.with_arguments {
            out.arguments("{}");
        }
        Progress::Done
    }
}

/// The first `most` bytes of `text`, cut at a character boundary.
fn cut(text: &str, most: usize) -> &str {
    if text.len() <= most {
        return text;
    }
    let end = (0..=most).rev().find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}
