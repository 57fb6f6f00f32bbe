//! Protection against special tokens that are spelled out in a request: they remain text.
//!
//! Before a template is rendered, each spelling is replaced by a mark that cannot occur in text.
//! The text between the marks is encoded normally; each mark's spelling is encoded without special
//! tokens.

use std::borrow::Cow;

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::{Map, Value};

use crate::{TextError, Tokenizer};

/// Start of a mark: a mark is the index of a spelling between `OPEN` and `CLOSE`. Unicode
/// guarantees that neither is ever a character.
const OPEN: char = '\u{FDD0}';
const CLOSE: char = '\u{FDD1}';
/// Marks the end of the message that the output continues. The space in the mark shows whether the
/// template trims white space.
const END: &str = "\u{FDD2} ";

/// Finds spellings of special tokens.
#[derive(Debug)]
pub(crate) struct Guard(AhoCorasick);

/// A rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    /// Spellings by mark index in `text`.
    hidden: Vec<String>,
}

impl Guard {
    pub(crate) fn new(tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let ids = 0..tokenizer.vocab_size() as u32;
        let special = ids.filter(|&id| tokenizer.is_special(id));
        let texts = special.map(|id| tokenizer.token_text(id));
        let marks = [OPEN, CLOSE].map(String::from);
        let patterns = texts.filter(|text| !text.is_empty()).chain(marks);
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(patterns);
        finder.map(Self).map_err(TextError::build)
    }

    /// Returns the value with marks in place of special tokens' spellings, also in keys of objects;
    /// adds the spellings to `hidden`.
    pub(crate) fn hide<'v>(&self, value: &'v Value, hidden: &mut Vec<String>) -> Cow<'v, Value> {
        if !self.finds(value) {
            return Cow::Borrowed(value);
        }
        Cow::Owned(self.hidden(value, hidden))
    }

    pub(crate) fn hide_map(
        &self,
        map: &Map<String, Value>,
        hidden: &mut Vec<String>,
    ) -> Map<String, Value> {
        let member = |(name, value): (&String, &Value)| {
            (name.clone(), self.hide(value, hidden).into_owned())
        };
        map.iter().map(member).collect()
    }

    fn finds(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.0.is_match(text),
            Value::Array(items) => items.iter().any(|item| self.finds(item)),
            Value::Object(map) => map
                .iter()
                .any(|(name, value)| self.0.is_match(name) || self.finds(value)),
            _ => false,
        }
    }

    fn hidden(&self, value: &Value, hidden: &mut Vec<String>) -> Value {
        match value {
            Value::String(text) => Value::String(self.hide_text(text, hidden)),
            Value::Array(items) => {
                let items = items.iter().map(|item| self.hidden(item, hidden));
                Value::Array(items.collect())
            }
            Value::Object(map) => {
                let members = map.iter().map(|(name, value)| {
                    let name = self.hide_text(name, hidden);
                    (name, self.hidden(value, hidden))
                });
                Value::Object(members.collect())
            }
            other => other.clone(),
        }
    }

    fn hide_text(&self, text: &str, hidden: &mut Vec<String>) -> String {
        let mut out = String::with_capacity(text.len());
        self.0.replace_all_with(text, &mut out, |_, spelling, out| {
            out.push(OPEN);
            out.push_str(&hidden.len().to_string());
            out.push(CLOSE);
            hidden.push(spelling.to_owned());
            true
        });
        out
    }

    /// Token ids of a spelling, without special tokens.
    fn encode(&self, tokenizer: &Tokenizer, spelling: &str) -> Result<Vec<u32>, TextError> {
        let first = spelling.chars().next().map_or(0, char::len_utf8);
        let (first, rest) = spelling.split_at(first);
        let mut ids = tokenizer.encode(first, false)?;
        if !self.0.is_match(rest) {
            ids.extend(tokenizer.encode(rest, false)?);
            return Ok(ids);
        }
        for (at, c) in rest.char_indices() {
            ids.extend(tokenizer.encode(&rest[at..at + c.len_utf8()], false)?);
        }
        Ok(ids)
    }

    pub(crate) fn encode_prompt(
        &self,
        tokenizer: &Tokenizer,
        prompt: &Rendered,
    ) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::new();
        let mut rest = prompt.text.as_str();
        while let Some((before, spelling, after)) = prompt.first_mark(rest) {
            ids.extend(tokenizer.encode(before, false)?);
            ids.extend(self.encode(tokenizer, spelling)?);
            rest = after;
        }
        ids.extend(tokenizer.encode(rest, false)?);
        Ok(ids)
    }
}

impl Rendered {
    /// `hidden` are the spellings that the marks in `text` represent.
    pub(crate) fn new(text: String, hidden: Vec<String>) -> Self {
        Self { text, hidden }
    }

    /// The messages with an end mark after the last one's content, for [`Self::cut`].
    pub(crate) fn mark_end(messages: &Value) -> Result<Value, TextError> {
        let mut messages = messages.clone();
        let last = messages.as_array_mut().and_then(|list| list.last_mut());
        let content = last.and_then(|message| message.get_mut("content"));
        match content.and_then(last_text) {
            Some(Value::String(text)) => text.push_str(END),
            _ => {
                let reason = "the last one has no text to continue".to_owned();
                return Err(TextError::BadMessages { reason });
            }
        }
        Ok(messages)
    }

    /// The text up to the end mark. White space before the mark belongs to the message if the
    /// template keeps it.
    pub(crate) fn cut(mut self) -> Result<Self, TextError> {
        let mark = END.trim_end();
        let Some(end) = self.text.rfind(mark) else {
            let reason = "the template does not print the last message".to_owned();
            return Err(TextError::TemplateRender { reason });
        };
        let kept = self.text[end..].starts_with(END);
        self.text.truncate(end);
        if !kept {
            self.text.truncate(self.text.trim_end().len());
        }
        Ok(self)
    }

    /// The text with marks in place of special token spellings.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text with the original spellings.
    pub fn written(&self) -> String {
        let (mut out, mut rest) = (String::new(), self.text.as_str());
        while let Some((before, spelling, after)) = self.first_mark(rest) {
            out.push_str(before);
            out.push_str(spelling);
            rest = after;
        }
        out + rest
    }

    /// The text before the first mark, the mark's spelling, and the rest.
    fn first_mark<'a>(&'a self, text: &'a str) -> Option<(&'a str, &'a str, &'a str)> {
        if self.hidden.is_empty() {
            return None;
        }
        let mut from = 0;
        loop {
            let at = from + text[from..].find(OPEN)?;
            let inside = &text[at + OPEN.len_utf8()..];
            let number = inside.split_once(CLOSE).and_then(|(number, after)| {
                let spelling = self.hidden.get(number.parse::<usize>().ok()?)?;
                Some((spelling, after))
            });
            if let Some((spelling, after)) = number {
                return Some((&text[..at], spelling, after));
            }
            // The template truncated the mark.
            from = at + OPEN.len_utf8();
        }
    }
}

/// The text of a message's content: the content itself, or its last text part.
fn last_text(content: &mut Value) -> Option<&mut Value> {
    match content {
        Value::Array(parts) => {
            let texts = parts.iter_mut().rev();
            texts.filter_map(|part| part.get_mut("text")).next()
        }
        text => Some(text),
    }
}
