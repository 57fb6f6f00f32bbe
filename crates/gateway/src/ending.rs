//! Whether a stream has said its last.
//!
//! A connection that closes in good order ends a body, not an answer: a server that was stopped
//! does so, too. What an answer ends with is its protocol's.

use axum::http::StatusCode;
use memchr::memmem;

use crate::events::data;

const DONE: &[u8] = b"[DONE]";

/// What ends the streams of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// The reasons for which all choices end, or some and `[DONE]`.
    Choices,
    /// An event of one of these types.
    Types(&'static [&'static str]),
    /// The end of the body.
    Other,
}

const MESSAGES: Protocol = Protocol::Types(&["message_stop", "error"]);
const RESPONSES: Protocol = Protocol::Types(&[
    "response.completed",
    "response.incomplete",
    "response.failed",
    "response.cancelled",
    "error",
]);

/// How far a stream is from its end.
#[derive(Debug)]
pub(crate) struct Ending {
    protocol: Protocol,
    choices: u64,
    /// Choices that have ended.
    finished: u64,
    /// Events have a place for the reason of an end.
    has_reasons: bool,
    /// The last event has come.
    is_final: bool,
}

impl Ending {
    /// For an answer at `path` of so many choices.
    pub(crate) fn new(status: StatusCode, path: &str, choices: u64) -> Self {
        let protocol = match path {
            _ if status != StatusCode::OK => Protocol::Other,
            _ if path.ends_with("/v1/chat/completions") => Protocol::Choices,
            _ if path.ends_with("/v1/completions") => Protocol::Choices,
            _ if path.ends_with("/v1/messages") => MESSAGES,
            _ if path.ends_with("/v1/responses") => RESPONSES,
            _ => Protocol::Other,
        };
        Self {
            protocol,
            choices,
            finished: 0,
            has_reasons: false,
            is_final: false,
        }
    }

    /// Another replica goes on with the answer.
    pub(crate) fn begin_again(&mut self) {
        (self.finished, self.is_final) = (0, false);
    }

    /// An event has come.
    pub(crate) fn see(&mut self, event: &[u8]) {
        match self.protocol {
            _ if self.is_final => {}
            Protocol::Choices => {
                for reason in values(event, "finish_reason") {
                    self.has_reasons = true;
                    self.finished += u64::from(is_said(reason));
                }
                let done = is_done(event) && (self.finished > 0 || !self.has_reasons);
                self.is_final = done || values(event, "error").any(is_said);
            }
            Protocol::Types(types) => {
                let last = |value: &[u8]| {
                    let value = value.strip_prefix(b"\"");
                    let named = |one: &str| value.is_some_and(|value| begins(value, one));
                    types.iter().any(|one| named(one))
                };
                self.is_final = values(event, "type").any(last);
            }
            Protocol::Other => {}
        }
    }

    /// Whether the answer is whole.
    pub(crate) fn has_come(&self) -> bool {
        self.is_final || self.finished >= self.choices || self.protocol == Protocol::Other
    }

    /// Whether what no empty line has ended is an event all the same.
    pub(crate) fn is_event(&self, rest: &[u8]) -> bool {
        let is_whole = |data: &[u8]| {
            data == DONE || serde_json::from_slice::<serde::de::IgnoredAny>(data).is_ok()
        };
        match self.protocol {
            Protocol::Other => !rest.trim_ascii().is_empty(),
            _ => data(rest).is_some_and(is_whole),
        }
    }

    /// Whether an event says that the answer is whole, and it is not.
    pub(crate) fn belies(&self, event: &[u8]) -> bool {
        is_done(event) && !self.has_come()
    }

    /// Whether nothing is to follow.
    pub(crate) fn is_final(&self) -> bool {
        self.is_final
    }
}

/// Whether a string begins with exactly this.
fn begins(text: &[u8], word: &str) -> bool {
    text.strip_prefix(word.as_bytes())
        .is_some_and(|rest| rest.first() == Some(&b'"'))
}

/// What follows the members of this name. Inside a string the quotes of a name would be escaped.
fn values<'a>(event: &'a [u8], name: &str) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let member = format!("\"{name}\":").into_bytes();
    let found: Vec<usize> = memmem::find_iter(event, &member).collect();
    let length = member.len();
    let values = found.into_iter().map(move |at| &event[at + length..]);
    values.map(<[u8]>::trim_ascii_start)
}

fn is_done(event: &[u8]) -> bool {
    data(event) == Some(DONE)
}

fn is_said(value: &[u8]) -> bool {
    !b"null".starts_with(&value[..value.len().min(4)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(path: &str, choices: u64, events: &[&str]) -> bool {
        let mut ending = Ending::new(StatusCode::OK, path, choices);
        events.iter().for_each(|event| ending.see(event.as_bytes()));
        ending.has_come()
    }

    #[test]
    fn choices_end_with_done_an_error_or_their_reasons() {
        let chat = |choices, events: &[&str]| ended("/v1/chat/completions", choices, events);
        let text = r#"data: {"choices":[{"delta":{"content":"\"finish_reason\":\"stop\""}}]}"#;
        let open = r#"data: {"choices":[{"finish_reason":null}],"error":null}"#;
        let stop = r#"data: {"choices":[{"index":1,"finish_reason": "stop"}]}"#;
        assert!(!chat(1, &[text, open, text]));
        assert!(chat(1, &[text, stop]));
        assert!(!chat(2, &[text, stop]));
        assert!(chat(2, &[stop, text, stop]));
        assert!(chat(2, &[stop, "data: [DONE]\n\n"]));
        assert!(!chat(1, &[open, "data: [DONE]\n\n"]), "it has no reason");
        assert!(
            chat(1, &["data: {}", "data: [DONE]\n\n"]),
            "as the server has none"
        );
        assert!(chat(1, &[open, r#"data: {"error":{"message":"no"}}"#]));
        assert!(!ended("/v1/completions", 1, &[open]));
        assert!(!ended("/base/v1/completions", 1, &[open]));
    }

    #[test]
    fn other_protocols_end_with_their_last_event() {
        let messages = |events: &[&str]| ended("/v1/messages", 1, events);
        let text = r#"data: {"type":"content_block_delta","delta":{"text":"\"type\":\"error\""}}"#;
        assert!(!messages(&[text, r#"data: {"type": "message_delta"}"#]));
        assert!(messages(&[
            text,
            "event: message_stop\ndata: {\"type\":\"message_stop\"}"
        ]));
        assert!(messages(&[r#"data: {"type": "error"}"#]));
        let responses = |events: &[&str]| ended("/v1/responses", 1, events);
        assert!(!responses(&[r#"data: {"type":"response.completed.not"}"#]));
        assert!(responses(&[r#"data: {"type":"response.incomplete"}"#]));
        assert!(ended("/v1/audio/speech", 1, &[]));
    }
}
