//! Locates the fields of a request body that routing needs, without parsing the rest.
//!
//! Strings are skipped with `memchr`, nested values by counting brackets: a prompt of 400 KB takes
//! some 50 us. The body is forwarded unchanged, so errors inside of values are left to the replica.
//! Duplicate members are rejected here, because a replica might use the other one.

use std::ops::Range;

use axum::body::Bytes;
use serde_json::Value;

use crate::cursor::{Cursor, Malformed};
use crate::form::{self, FormError};

/// Byte ranges of the fields in the body; those of strings include the quotes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Fields {
    /// The model's name, a string.
    pub(crate) model: Option<Range<usize>>,
    /// Whether the model's name is the plain text of a form's part, rather than JSON.
    form: bool,
    /// Values that make up the prompt, in the order of [`PROMPT`], which is that of chat templates.
    prompt: [Option<Range<usize>>; PROMPT.len()],
    /// Values that may identify the session, the most specific one first.
    session: [Option<Range<usize>>; SESSION.len()],
    pub(crate) cache_salt: Option<Range<usize>>,
    /// Numbers: `n`, `best_of`, and the maximum numbers of output tokens ([`MOST_TOKENS`]).
    choices: Option<Range<usize>>,
    computed: Option<Range<usize>>,
    most_tokens: [Option<Range<usize>>; MOST_TOKENS.len()],
    stream: Option<Range<usize>>,
}

/// Members that make up the prompt, among them `messages` of both chat APIs, `prompt` of
/// completions, `input` of responses and embeddings, `query` and `documents` of rerankers.
const PROMPT: [&[u8]; 9] = [
    b"tools",
    b"system",
    b"instructions",
    b"messages",
    b"prompt",
    b"input",
    b"query",
    b"documents",
    b"text_1",
];
const SESSION: [&[u8]; 2] = [b"prompt_cache_key", b"user"];
const MOST_TOKENS: [&[u8]; 3] = [
    b"max_tokens",
    b"max_completion_tokens",
    b"max_output_tokens",
];

/// Why a body is not a valid request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ScanError {
    #[error("The request body is not a JSON object.")]
    NoObject,
    #[error("The request body is not valid JSON (byte {at}).")]
    Malformed { at: usize },
    #[error("The request body has two members {name:?}.")]
    Twice { name: String },
    #[error(transparent)]
    Form(#[from] FormError),
    #[error("The value of {name} has the wrong type.")]
    Type { name: &'static str },
}

impl From<Malformed> for ScanError {
    fn from(Malformed { at }: Malformed) -> Self {
        Self::Malformed { at }
    }
}

impl Fields {
    /// # Errors
    /// [`ScanError`]
    pub(crate) fn of(body: &[u8]) -> Result<Self, ScanError> {
        let mut fields = Self::default();
        let mut at = Cursor::new(body);
        at.space();
        if !at.take(b'{') {
            return Err(ScanError::NoObject);
        }
        at.space();
        let mut more = !at.take(b'}');
        while more {
            let key = at.string()?;
            at.space();
            at.expect(b':')?;
            at.space();
            let value = at.value()?;
            fields.note(body, key, value)?;
            at.space();
            more = at.take(b',');
            if more {
                at.space();
            } else {
                at.expect(b'}')?;
            }
        }
        at.space();
        match at.peek() {
            None => Ok(fields),
            Some(_) => Err(at.malformed().into()),
        }
    }

    /// Fields of a form whose parts `boundary` separates.
    ///
    /// # Errors
    /// [`ScanError`]
    pub(crate) fn of_form(body: &[u8], boundary: &str) -> Result<Self, ScanError> {
        Ok(Self {
            model: form::model(body, boundary)?,
            form: true,
            ..Self::default()
        })
    }

    /// The body with the model's name replaced; `None` if it names no model.
    pub(crate) fn renamed(&self, body: &[u8], model: &str) -> Option<Bytes> {
        let place = self.model.clone()?;
        let name = match self.form {
            true => model.to_owned(),
            false => serde_json::Value::from(model).to_string(),
        };
        let (before, after) = (&body[..place.start], &body[place.end..]);
        Some([before, name.as_bytes(), after].concat().into())
    }

    fn note(
        &mut self,
        body: &[u8],
        key: Range<usize>,
        value: Range<usize>,
    ) -> Result<(), ScanError> {
        let raw = &body[key.start + 1..key.end - 1];
        let decoded;
        let name: &[u8] = if raw.contains(&b'\\') {
            decoded = text(body, &key).ok_or(ScanError::Malformed { at: key.start })?;
            decoded.as_bytes()
        } else {
            raw
        };
        let Some(place) = self.place(name) else {
            return Ok(());
        };
        if place.is_some() {
            let name = String::from_utf8_lossy(name).into_owned();
            return Err(ScanError::Twice { name });
        }
        let is_null = &body[value.clone()] == b"null";
        // a null salt is kept as well, so that the API key's salt can replace it
        *place = (!is_null || name == b"cache_salt").then_some(value);
        match &self.model {
            Some(model) if body[model.start] != b'"' => Err(ScanError::Type { name: "model" }),
            _ => Ok(()),
        }
    }

    fn place(&mut self, name: &[u8]) -> Option<&mut Option<Range<usize>>> {
        match name {
            b"model" => return Some(&mut self.model),
            b"cache_salt" => return Some(&mut self.cache_salt),
            b"n" => return Some(&mut self.choices),
            b"best_of" => return Some(&mut self.computed),
            b"stream" => return Some(&mut self.stream),
            _ => {}
        }
        if let Some(at) = MOST_TOKENS.iter().position(|one| *one == name) {
            return Some(&mut self.most_tokens[at]);
        }
        if let Some(at) = PROMPT.iter().position(|one| *one == name) {
            return Some(&mut self.prompt[at]);
        }
        let at = SESSION.iter().position(|one| *one == name)?;
        Some(&mut self.session[at])
    }

    /// The values that make up the prompt.
    pub(crate) fn prompt<'a>(&'a self, body: &'a [u8]) -> Vec<&'a [u8]> {
        let found = self.prompt.iter().flatten();
        found.map(|range| &body[range.clone()]).collect()
    }

    /// The value that identifies the session, if the body has one.
    pub(crate) fn session<'a>(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        let found = self.session.iter().flatten().next();
        found.map(|range| &body[range.clone()])
    }

    /// Number of choices in the response to a request to `path`: `n` times the number of prompts.
    pub(crate) fn choices(&self, path: &str, body: &[u8]) -> u64 {
        let each = number(body, &self.choices).unwrap_or(1).max(1);
        each.saturating_mul(self.prompts(path, body))
    }

    /// Number of prompts in a request to `path`. Only completions may have several.
    fn prompts(&self, path: &str, body: &[u8]) -> u64 {
        let named = PROMPT.iter().zip(&self.prompt);
        let mut list = named.filter(|(name, _)| **name == b"prompt");
        match list.next() {
            Some((_, Some(list))) if path.ends_with("/v1/completions") => {
                prompts(&body[list.clone()])
            }
            _ => 1,
        }
    }

    /// Whether the request sets `stream` to true.
    pub(crate) fn is_stream(&self, body: &[u8]) -> bool {
        let value = self.stream.clone().map(|range| &body[range]);
        value == Some(b"true")
    }

    /// Maximum number of output tokens for a request to `path`, over all choices that are computed:
    /// for each prompt, the larger of `best_of` and `n`. `None`: the request sets no maximum.
    pub(crate) fn most_tokens(&self, path: &str, body: &[u8]) -> Option<u64> {
        let bounds = self.most_tokens.iter();
        let bound = bounds.filter_map(|range| number(body, range)).min()?;
        let each = number(body, &self.choices).max(number(body, &self.computed));
        let choices = each
            .unwrap_or(1)
            .max(1)
            .saturating_mul(self.prompts(path, body));
        Some(bound.saturating_mul(choices))
    }

    /// The salt of the prefix cache, if the body has one.
    pub(crate) fn salt(&self, body: &[u8]) -> Option<String> {
        self.cache_salt.as_ref().and_then(|range| text(body, range))
    }

    /// The model's name, if the body has one.
    pub(crate) fn model(&self, body: &[u8]) -> Option<String> {
        let range = self.model.as_ref()?;
        match self.form {
            true => String::from_utf8(body[range.clone()].to_vec()).ok(),
            false => text(body, range),
        }
    }
}

/// The JSON string at `range`, unescaped.
fn text(body: &[u8], range: &Range<usize>) -> Option<String> {
    serde_json::from_slice(&body[range.clone()]).ok()
}

/// The unsigned integer at `range`. Accepts 2.0, which some encoders write, and "2", which some
/// servers accept.
fn number(body: &[u8], range: &Option<Range<usize>>) -> Option<u64> {
    let value: Value = serde_json::from_slice(&body[range.clone()?]).ok()?;
    let whole = |number: &f64| *number >= 0.0 && number.fract() == 0.0;
    match value {
        Value::String(text) => text.trim().parse().ok(),
        value => value
            .as_u64()
            .or_else(|| Some(value.as_f64().filter(whole)? as u64)),
    }
}

/// Number of prompts in the JSON `value`: the length of a list of texts, token lists or objects.
/// Other values, such as one text or one list of tokens, are 1 prompt.
fn prompts(value: &[u8]) -> u64 {
    let mut at = Cursor::new(value);
    let (mut count, mut more) = (0, at.take(b'['));
    while more {
        at.space();
        let is_prompt = matches!(at.peek(), Some(b'"' | b'[' | b'{'));
        if !is_prompt || at.value().is_err() {
            return 1;
        }
        count += 1;
        at.space();
        more = at.take(b',');
    }
    count.max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const CHATS: &str = "/v1/chat/completions";
    const COMPLETIONS: &str = "/v1/completions";

    fn found(body: &str) -> Fields {
        Fields::of(body.as_bytes()).unwrap()
    }

    #[test]
    fn fields_are_found_between_others_whatever_the_order() {
        let body = r#" {"n":1.5e3,"messages":[{"role":"user","content":"a \"}\\"}],
            "x":{"model":"no"},"mod\u0065l" : "m\u00e9","user":"u","tools":[],
            "prompt_cache_key":"k"} "#;
        let fields = found(body);
        let bytes = body.as_bytes();
        assert_eq!(fields.model(bytes).unwrap(), "mé");
        assert_eq!(fields.session(bytes).unwrap(), br#""k""#);
        let prompt = fields.prompt(bytes);
        assert_eq!(prompt[0], b"[]");
        assert_eq!(prompt[1], br#"[{"role":"user","content":"a \"}\\"}]"#);
        assert_eq!(found("{}"), Fields::default());
        assert_eq!(found(r#"{"model":null}"#).model, None);
    }

    #[test]
    fn numbers_bound_the_output() {
        let body = r#"{"max_tokens":70,"n":2,"max_output_tokens":null}"#;
        let fields = found(body);
        assert_eq!(fields.choices(CHATS, body.as_bytes()), 2);
        assert_eq!(fields.most_tokens(CHATS, body.as_bytes()), Some(140));
        for body in [r#"{"max_tokens":"x","n":-1}"#, "{}"] {
            let fields = found(body);
            assert_eq!(fields.choices(CHATS, body.as_bytes()), 1);
            assert_eq!(fields.most_tokens(CHATS, body.as_bytes()), None);
        }
    }

    #[test]
    fn choices_are_counted_for_each_prompt() {
        for (prompt, prompts) in [
            (json!("a, [b]"), 1),
            (json!(["a, [b], \"", "]"]), 2),
            (json!([1, 2, 3]), 1),
            (json!([[1, 2], [], [3, 4]]), 3),
            (json!([[1], "a", {"prompt_string": "b"}]), 3),
            (json!(["a", 1, "b"]), 1),
            (json!([]), 1),
            (json!(null), 1),
        ] {
            for (more, choices, computed) in [
                (json!({}), 1, 1),
                (json!({"n": 3}), 3, 3),
                (json!({"n": 2.0, "best_of": 4}), 2, 4),
                (json!({"n": "2", "best_of": 1}), 2, 2),
                (json!({"n": null, "best_of": 5}), 1, 5),
                (json!({"n": u64::MAX}), u64::MAX, u64::MAX),
            ] {
                let mut body = json!({"prompt": prompt, "max_tokens": 10});
                body.as_object_mut()
                    .unwrap()
                    .extend(more.as_object().unwrap().clone());
                let text = serde_json::to_vec_pretty(&body).unwrap();
                let fields = Fields::of(&text).unwrap();
                let all = |each: u64, prompts: u64| each.saturating_mul(prompts);
                assert_eq!(
                    fields.choices(COMPLETIONS, &text),
                    all(choices, prompts),
                    "{body}"
                );
                assert_eq!(fields.choices(CHATS, &text), choices, "{body}");
                let most = all(all(computed, prompts), 10);
                assert_eq!(fields.most_tokens(COMPLETIONS, &text), Some(most), "{body}");
                assert_eq!(fields.most_tokens(CHATS, &text), Some(all(computed, 10)));
            }
        }
    }

    #[test]
    fn streams_are_asked_for() {
        for (body, wanted) in [
            (r#"{"stream": true ,"n":1}"#, true),
            (r#"{"str\u0065am":true}"#, true),
            (r#"{"stream":false}"#, false),
            (r#"{"stream":null}"#, false),
            (r#"{"x":{"stream":true}}"#, false),
        ] {
            assert_eq!(found(body).is_stream(body.as_bytes()), wanted, "{body}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused_with_the_place() {
        let error = |body: &str| Fields::of(body.as_bytes()).unwrap_err();
        assert_eq!(error(""), ScanError::NoObject);
        assert_eq!(error("[1]"), ScanError::NoObject);
        assert_eq!(error(r#"{"a":1"#), ScanError::Malformed { at: 6 });
        assert_eq!(error(r#"{"a"}"#), ScanError::Malformed { at: 4 });
        assert_eq!(error(r#"{"a":}"#), ScanError::Malformed { at: 5 });
        assert_eq!(error(r#"{"a":1} x"#), ScanError::Malformed { at: 8 });
        assert_eq!(error(r#"{"a":"b\"#), ScanError::Malformed { at: 5 });
        assert_eq!(error(r#"{"a":[{]"#), ScanError::Malformed { at: 5 });
        assert_eq!(error(r#"{"model":7}"#), ScanError::Type { name: "model" });
        let twice = error(r#"{"model":"a","model":"b"}"#);
        assert_eq!(
            twice,
            ScanError::Twice {
                name: "model".into()
            }
        );
        assert_eq!(error(r#"{"model":"a","\u006dodel":"b"}"#), twice);
    }

    /// A random JSON value, whose strings contain quotes, backslashes and brackets.
    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            any::<i32>().prop_map(|n| Value::from(f64::from(n) / 8.0)),
            r#"[a-z"\\{}\[\]:, é\n]{0,12}"#.prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 20, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(r#"[a-z"\\]{0,6}"#, inner, 0..5)
                    .prop_map(|map| json!(map)),
            ]
        })
    }

    proptest! {
        #[test]
        fn places_are_those_of_a_parser(
            (before, messages, after) in (value(), value(), value()),
            model in ".{0,20}",
            pretty: bool,
        ) {
            let body = json!({"a": before, "messages": messages, "b": after, "model": model});
            let text = match pretty {
                true => serde_json::to_vec_pretty(&body).unwrap(),
                false => serde_json::to_vec(&body).unwrap(),
            };
            let fields = Fields::of(&text).unwrap();
            prop_assert_eq!(fields.model(&text).unwrap(), model);
            let found: Vec<Value> = fields
                .prompt(&text)
                .iter()
                .map(|part| serde_json::from_slice(part).unwrap())
                .collect();
            let wanted: Vec<Value> = [messages].into_iter().filter(|m| !m.is_null()).collect();
            prop_assert_eq!(found, wanted);
        }

        #[test]
        fn nothing_that_a_parser_takes_for_an_object_is_refused_and_nothing_panics(
            bytes in prop::collection::vec(prop::sample::select(&b"{}[]\":,\\ a1e.-"[..]), 0..40),
        ) {
            let parsed = serde_json::from_slice::<Value>(&bytes);
            let scanned = Fields::of(&bytes);
            if parsed.is_ok_and(|value| value.is_object()) {
                prop_assert!(scanned.is_ok());
            }
        }
    }
}
