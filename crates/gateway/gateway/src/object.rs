//! Incremental reader that finds known members of a JSON object while its text streams through.
//!
//! Only members defined by the protocol count: members of the object itself and, in events, of the
//! nested response (`message` in Anthropic's API, `response` in OpenAI's). The same names at deeper
//! levels belong to tool arguments, a schema or the client's own data.

use memchr::memchr2;

/// Maximum size in bytes of a reported value. A longer value is treated as plain text.
const MOST_VALUE: usize = 16 << 10;
/// Length in bytes of the longest known name.
const MOST_NAME: usize = 8;

/// A member whose value is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Member {
    Model,
    Usage,
}

/// A segment of the JSON text. The concatenation of all segments is the text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Segment<'a> {
    Text(&'a [u8]),
    /// The value of the member, as JSON.
    Value(Member, &'a [u8]),
}

/// Classes of member names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemberName {
    Wanted(Member),
    /// A member of an event that contains the response.
    Answer,
    Other,
}

/// State of the reader. The results do not depend on how the text is divided into chunks.
#[derive(Debug, Default)]
pub(crate) struct ObjectReader {
    /// Whether the text is an event, in which the response may be nested one level deeper.
    is_event: bool,
    /// Whether the text is not a JSON object, so that it passes through unread.
    is_other: bool,
    depth: usize,
    /// Whether the object at the second level is a response.
    in_answer: bool,
    in_string: bool,
    escaped: bool,
    /// Whether the next string is a member's name.
    before_name: bool,
    /// The name being read, or the last one that was read; `None` inside of values.
    name: Option<Vec<u8>>,
    /// The member whose value is expected next or is being read.
    wanted: Option<Member>,
    value: Vec<u8>,
    /// The depth at which the current value began; `None` outside of reported values.
    value_depth: Option<usize>,
}

impl ObjectReader {
    /// A reader for the events of a stream (`is_event`), or for a whole response.
    pub(crate) fn new(is_event: bool) -> Self {
        Self {
            is_event,
            ..Self::default()
        }
    }

    /// Processes more of the text, and calls `each` with its segments.
    pub(crate) fn read(&mut self, bytes: &[u8], mut each: impl FnMut(Segment<'_>)) {
        let (mut text, mut at) = (0, 0);
        while at < bytes.len() && !self.is_other {
            if self.in_string && self.name.is_none() && self.value_depth.is_none() && !self.escaped
            {
                at += memchr2(b'"', b'\\', &bytes[at..]).unwrap_or(bytes.len() - at);
                if at == bytes.len() {
                    break;
                }
            }
            let byte = bytes[at];
            if self.value_depth.is_some() {
                at = self.read_value(bytes, at, &mut each);
                text = at;
                continue;
            }
            if matches!(byte, b',' | b'}' | b']') {
                self.wanted = None; // its value is missing
            }
            if self.wanted.is_some() && !byte.is_ascii_whitespace() {
                put(&bytes[text..at], &mut each);
                text = at;
                self.value_depth = Some(self.depth);
                continue;
            }
            self.step(byte);
            at += 1;
        }
        put(&bytes[text..], &mut each);
    }

    /// Ends the text: emits the bytes of an incomplete value, and resets the reader.
    pub(crate) fn end(&mut self, mut each: impl FnMut(Segment<'_>)) {
        put(&self.value, &mut each);
        *self = Self::new(self.is_event);
    }

    /// Continues a value at index `at`; returns the index at which the text after it starts.
    fn read_value(
        &mut self,
        bytes: &[u8],
        mut at: usize,
        each: &mut impl FnMut(Segment<'_>),
    ) -> usize {
        let start = self.value_depth.unwrap_or_default();
        while at < bytes.len() {
            let byte = bytes[at];
            let is_scalar = self.depth == start && !self.in_string;
            let ends_scalar = matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
            if is_scalar && ends_scalar && !self.value.is_empty() {
                self.report(each);
                return at;
            }
            self.value.push(byte);
            self.step(byte);
            at += 1;
            let closed =
                self.depth == start && !self.in_string && matches!(byte, b'"' | b'}' | b']');
            if closed || self.value.len() > MOST_VALUE {
                self.report(each);
                return at;
            }
        }
        at
    }

    fn report(&mut self, each: &mut impl FnMut(Segment<'_>)) {
        let value = std::mem::take(&mut self.value);
        self.value_depth = None;
        match self.wanted.take() {
            Some(member) if value.len() <= MOST_VALUE => each(Segment::Value(member, &value)),
            _ => each(Segment::Text(&value)),
        }
    }

    fn step(&mut self, byte: u8) {
        if self.in_string {
            return self.step_in_string(byte);
        }
        match byte {
            b'"' => {
                self.in_string = true;
                let is_name = std::mem::take(&mut self.before_name);
                self.name = is_name.then(Vec::new);
            }
            b':' if self.is_followed() && self.wanted.is_none() => self.after_name(),
            b',' => self.before_name = self.is_followed(),
            b'{' | b'[' => self.open(byte == b'{'),
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.in_answer &= self.depth > 1;
                self.before_name = false;
            }
            _ if self.depth == 0 && !byte.is_ascii_whitespace() => self.is_other = true,
            _ => {}
        }
    }

    fn step_in_string(&mut self, byte: u8) {
        match byte {
            _ if std::mem::take(&mut self.escaped) => {}
            b'\\' => self.escaped = true,
            b'"' => {
                self.in_string = false;
                return;
            }
            _ => {}
        }
        if let Some(name) = self.name.as_mut().filter(|name| name.len() <= MOST_NAME) {
            name.push(byte);
        }
    }

    /// Whether the names of members at the current depth are read.
    fn is_followed(&self) -> bool {
        self.depth == 1 || (self.depth == 2 && self.in_answer)
    }

    fn after_name(&mut self) {
        self.wanted = match self.last_name() {
            MemberName::Wanted(member) => Some(member),
            MemberName::Answer | MemberName::Other => None,
        };
    }

    fn last_name(&self) -> MemberName {
        match self.name.as_deref() {
            Some(b"model") => MemberName::Wanted(Member::Model),
            Some(b"usage") => MemberName::Wanted(Member::Usage),
            Some(b"message" | b"response") => MemberName::Answer,
            _ => MemberName::Other,
        }
    }

    fn open(&mut self, is_object: bool) {
        if self.depth == 0 && !is_object {
            self.is_other = true;
            return;
        }
        if self.depth == 1 {
            let is_answer = self.last_name() == MemberName::Answer;
            self.in_answer = self.is_event && is_object && is_answer && self.value_depth.is_none();
        }
        self.depth += 1;
        self.before_name = is_object && self.is_followed() && self.value_depth.is_none();
        self.name = None;
    }
}

fn put(text: &[u8], each: &mut impl FnMut(Segment<'_>)) {
    if !text.is_empty() {
        each(Segment::Text(text));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// The values that were found, and the text with a `#` in place of each.
    fn found(is_event: bool, text: &[u8], size: usize) -> (Vec<(Member, Value)>, String) {
        let (mut reader, mut wanted, mut out) =
            (ObjectReader::new(is_event), Vec::new(), Vec::new());
        let mut each = |found: Segment<'_>| match found {
            Segment::Text(text) => out.extend_from_slice(text),
            Segment::Value(member, value) => {
                wanted.push((member, serde_json::from_slice(value).unwrap()));
                out.push(b'#');
            }
        };
        for part in text.chunks(size) {
            reader.read(part, &mut each);
        }
        reader.end(&mut each);
        (wanted, String::from_utf8(out).unwrap())
    }

    #[test]
    fn the_protocol_s_own_members_are_found_and_no_others_however_it_is_cut() {
        let text = r#" {"x":{"model":"no","usage":{}},"model" : "a\"}","m":["model",{"model":"no"}],
            "usage":{"model":"no","n":[1,{}]},"message":{"model":"b","input":{"model":"no"},
            "usage":null},"response":{"model":7,"usage":{"a":1},"metadata":{"usage":"no"}},
            "\"model":"no","modelx":"no","text":"\"model\":\"no\"","model":true } "#;
        let own = [
            (Member::Model, json!("a\"}")),
            (Member::Usage, json!({"model": "no", "n": [1, {}]})),
        ];
        let inside = [
            (Member::Model, json!("b")),
            (Member::Usage, Value::Null),
            (Member::Model, json!(7)),
            (Member::Usage, json!({"a": 1})),
        ];
        let last = [(Member::Model, json!(true))];
        let event: Vec<_> = own.iter().chain(&inside).chain(&last).cloned().collect();
        let whole: Vec<_> = own.iter().chain(&last).cloned().collect();
        let shown = |text: &str| text.replace(r#""a\"}""#, "#").replace("true", "#");
        let shown = shown(text).replace(r#"{"model":"no","n":[1,{}]}"#, "#");
        let shown_event = shown.replace(r#""b""#, "#").replace("null", "#");
        let shown_event = shown_event.replace(":7,", ":#,").replace(r#"{"a":1}"#, "#");
        for size in 1..text.len() {
            let (wanted, out) = found(true, text.as_bytes(), size);
            assert_eq!(
                (wanted, out),
                (event.clone(), shown_event.clone()),
                "{size}"
            );
            let (wanted, out) = found(false, text.as_bytes(), size);
            assert_eq!((wanted, out), (whole.clone(), shown.clone()), "{size}");
        }
    }

    #[test]
    fn what_is_no_object_passes_and_objects_may_follow_one_another() {
        for text in ["[{\"model\":1}]", "audio {\"model\":1}", "\"model\":1", ""] {
            assert_eq!(found(false, text.as_bytes(), 3), (vec![], text.to_owned()));
        }
        for text in [
            "{\"model\":][\"model\"",
            "{\"usage\":},{",
            "{\"model\":,\"a\":1}",
        ] {
            assert_eq!(found(false, text.as_bytes(), 1), (vec![], text.to_owned()));
        }
        let (wanted, _) = found(false, b"{\"model\":1}\n{\"a\":{},\"model\":2}\n", 4);
        assert_eq!(
            wanted,
            [(Member::Model, json!(1)), (Member::Model, json!(2))]
        );
        let (wanted, out) = found(false, b"{\"model\":\"cut", 2);
        assert_eq!((wanted, out.as_str()), (vec![], "{\"model\":\"cut"));
    }

    #[test]
    fn a_value_of_any_length_passes() {
        let text = json!({"model": "x".repeat(3 * MOST_VALUE), "usage": 1}).to_string();
        let (wanted, out) = found(false, text.as_bytes(), 1000);
        assert_eq!(wanted, [(Member::Usage, json!(1))]);
        assert_eq!(out, text.replace(":1}", ":#}"));
    }

    proptest! {
        #[test]
        fn text_passes_whole_whatever_it_is(
            text in prop::collection::vec(
                prop::sample::select(vec!["\"model\"", "\"usage\"", "{", "}", "[", "]", ":", ",",
                    "\"", "\\", "1", " ", "\"message\"", "null"]), 0..40),
            size in 1..20usize,
            is_event: bool,
        ) {
            let text = text.concat().into_bytes();
            let (mut reader, mut out) = (ObjectReader::new(is_event), Vec::new());
            let mut each = |found: Segment<'_>| match found {
                Segment::Text(text) | Segment::Value(_, text) => out.extend_from_slice(text),
            };
            text.chunks(size).for_each(|part| reader.read(part, &mut each));
            reader.end(&mut each);
            prop_assert_eq!(out, text);
        }
    }
}
