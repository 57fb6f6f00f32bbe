//! The model's name in answers, put back to what was asked for.
//!
//! `"model":"target"` is looked for as bytes: inside a string its quotes would be escaped, so what
//! is found is a member. One that is cut by the end of a chunk is held back until the next.

use axum::body::Bytes;
use memchr::memmem;

const MEMBER: &[u8] = b"\"model\":";

/// A replacement under way.
#[derive(Debug)]
pub(crate) struct Rename {
    /// JSON strings, with their quotes.
    from: Vec<u8>,
    to: Vec<u8>,
    held: Vec<u8>,
}

/// What begins with `"model":`.
enum Found {
    /// The name to be replaced, and how much of the text stands for it.
    Name(usize),
    Other,
    /// The text ends before it is clear.
    Cut,
}

impl Rename {
    pub(crate) fn new(from: &str, to: &str) -> Self {
        let json = |name: &str| serde_json::Value::from(name).to_string().into_bytes();
        Self {
            from: json(from),
            to: json(to),
            held: Vec::new(),
        }
    }

    /// The bytes that follow those given out before.
    pub(crate) fn pass(&mut self, bytes: Bytes) -> Bytes {
        if self.held.is_empty() && memmem::find(&bytes, MEMBER).is_none() && !cut(&bytes) {
            return bytes;
        }
        let mut text = std::mem::take(&mut self.held);
        text.extend_from_slice(&bytes);
        let (mut out, mut at) = (Vec::with_capacity(text.len() + self.to.len()), 0);
        while let Some(found) = memmem::find(&text[at..], MEMBER) {
            let value = at + found + MEMBER.len();
            out.extend_from_slice(&text[at..value]);
            at = value;
            match self.value(&text[value..]) {
                Found::Name(length) => {
                    out.extend_from_slice(&self.to);
                    at += length;
                }
                Found::Other => {}
                Found::Cut => {
                    out.truncate(out.len() - MEMBER.len());
                    self.held = text.split_off(value - MEMBER.len());
                    return out.into();
                }
            }
        }
        let held = (0..MEMBER.len())
            .rev()
            .find(|n| text[at..].ends_with(&MEMBER[..*n]));
        let end = text.len() - held.unwrap_or(0);
        out.extend_from_slice(&text[at..end]);
        self.held = text.split_off(end);
        out.into()
    }

    /// What was held back, at the end.
    pub(crate) fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.held).into()
    }

    /// What follows `"model":`. Python's encoder puts a space there.
    fn value(&self, text: &[u8]) -> Found {
        let space = usize::from(text.first() == Some(&b' '));
        let text = &text[space..];
        if text.starts_with(&self.from) {
            Found::Name(space + self.from.len())
        } else if self.from.starts_with(text) {
            Found::Cut
        } else {
            Found::Other
        }
    }
}

/// Whether a member may begin at the end.
fn cut(bytes: &[u8]) -> bool {
    (1..MEMBER.len()).any(|n| bytes.ends_with(&MEMBER[..n]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(parts: &[&[u8]]) -> String {
        let mut rename = Rename::new("v2", "chat \"é\"");
        let mut out = Vec::new();
        for part in parts {
            out.extend_from_slice(&rename.pass(Bytes::copy_from_slice(part)));
        }
        out.extend_from_slice(&rename.rest());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn members_are_replaced_and_texts_are_not_however_it_is_cut() {
        let text = r#"data: {"model":"v2","x":"\"model\":\"v2\"","y":{"model": "v2"},"z":"model"}
data: {"model":"v22","m":"v2","model":7} "model":"#;
        let wanted = text
            .replace("{\"model\":\"v2\",", "{\"model\":\"chat \\\"é\\\"\",")
            .replace("{\"model\": \"v2\"}", "{\"model\":\"chat \\\"é\\\"\"}");
        for size in 1..text.len() {
            let parts: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            assert_eq!(renamed(&parts), wanted, "{size}");
        }
    }

    #[test]
    fn whole_events_are_not_held_back() {
        let mut rename = Rename::new("a", "b");
        for event in [
            &b"data: {\"model\":\"a\"}\n\n"[..],
            b"data: [DONE]\n\n",
            b": x\n\n",
        ] {
            assert!(rename.pass(Bytes::from_static(event)).ends_with(b"\n\n"));
        }
    }
}
