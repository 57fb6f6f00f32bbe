//! Detects whether a streamed response is complete.
//!
//! A clean end of the body does not prove that the response is complete: a server that shuts down
//! also closes its connections cleanly. Each protocol has a final event, identified by a member of
//! the event. A member of the same name at another level belongs to tool arguments or to a server's
//! extension.

use axum::http::StatusCode;
use memchr::memmem;
use penstock_api_types::sse_reader::Event;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::events::{data, values};
use crate::filter::BodyFilter;

const DONE: &[u8] = b"[DONE]";

/// How the end of a stream is recognised; it depends on the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// Ends when every choice has a `finish_reason`, or at an `error`. Also ends at `[DONE]`, if a
    /// choice has finished or no event has a `finish_reason`.
    Choices,
    /// Ends with an event whose `type` is one of these.
    Types(&'static [&'static str]),
    /// Has no final event: it ends when the body ends.
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

/// Detects the end of one response from its events, and removes a premature `[DONE]`.
#[derive(Debug)]
pub(crate) struct EndDetector {
    protocol: Protocol,
    choices: u64,
    /// Number of finished choices.
    finished: u64,
    /// Whether events have a member `finish_reason`.
    has_reasons: bool,
    /// Whether the final event has been received.
    is_final: bool,
}

impl EndDetector {
    /// A detector for the response at `path` with `choices` choices.
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

    /// Resets the state because another replica resumes the response.
    pub(crate) fn begin_again(&mut self) {
        (self.finished, self.is_final) = (0, false);
    }

    /// Processes one event.
    pub(crate) fn see(&mut self, event: &Event) {
        match self.protocol {
            _ if self.is_final => {}
            Protocol::Choices => self.see_choices(event),
            Protocol::Types(types)
                if types
                    .iter()
                    .any(|one| contains(event.bytes(), one.as_bytes())) =>
            {
                let last = |value: Value| types.iter().any(|one| value["type"] == **one);
                self.is_final = data(event).is_some_and(|data| values(&data).any(last));
            }
            Protocol::Types(_) | Protocol::Other => {}
        }
    }

    fn see_choices(&mut self, event: &Event) {
        if is_done(event) {
            self.is_final = self.finished > 0 || !self.has_reasons;
            return;
        }
        if self.has_reasons && !may_end(event.bytes()) {
            return;
        }
        for value in data(event).iter().flat_map(|data| values(data)) {
            let choices = value["choices"].as_array().into_iter().flatten();
            for reason in choices.filter_map(|choice| choice.get("finish_reason")) {
                self.has_reasons = true;
                self.finished += u64::from(!reason.is_null());
            }
            self.is_final |= !value["error"].is_null();
        }
    }

    /// Whether the response is complete.
    pub(crate) fn has_come(&self) -> bool {
        self.is_final || self.finished >= self.choices || self.protocol == Protocol::Other
    }

    /// Whether `rest`, the bytes at the end of the stream, is a complete event although the empty
    /// line that ends an event is missing.
    pub(crate) fn is_event(&self, rest: &Event) -> bool {
        let is_whole = |data: &[u8]| {
            let mut values = serde_json::Deserializer::from_slice(data).into_iter::<IgnoredAny>();
            data == DONE || (!data.is_empty() && values.all(|value| value.is_ok()))
        };
        match self.protocol {
            Protocol::Other => !rest.bytes().trim_ascii().is_empty(),
            _ => data(rest).is_some_and(|data| is_whole(&data)),
        }
    }

    /// Whether the event is a premature `[DONE]`: the response is not complete yet.
    fn belies(&self, event: &Event) -> bool {
        !self.has_come() && is_done(event)
    }

    /// Whether the final event has been received.
    pub(crate) fn is_final(&self) -> bool {
        self.is_final
    }
}

impl BodyFilter for EndDetector {
    /// Removes a premature `[DONE]`.
    fn events(&mut self, events: &mut Vec<Event>) {
        events.retain(|event| {
            self.see(event);
            !self.belies(event)
        });
    }
}

/// Whether the event may end a choice or the response. Most events have a null `finish_reason`; for
/// these the result is false, so that they need not be parsed.
fn may_end(event: &[u8]) -> bool {
    const REASON: &[u8] = b"\"finish_reason\"";
    let is_null = |at: usize| {
        let value = event[at + REASON.len()..].trim_ascii_start();
        let value = value.strip_prefix(b":").map(<[u8]>::trim_ascii_start);
        value.is_some_and(|value| value.starts_with(b"null"))
    };
    contains(event, b"\"error\"") || !memmem::find_iter(event, REASON).all(is_null)
}

fn contains(event: &[u8], word: &[u8]) -> bool {
    memmem::find(event, word).is_some()
}

fn is_done(event: &Event) -> bool {
    data(event).is_some_and(|data| *data == *DONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(path: &str, choices: u64, events: &[&str]) -> bool {
        let mut ending = EndDetector::new(StatusCode::OK, path, choices);
        let events = events.iter().map(|event| Event::new(event.to_string()));
        events.for_each(|event| ending.see(&event));
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
        let other = |value: &str| chat(1, &[open, &format!("data: {value}")]);
        assert!(!other(
            r#"{"choices":[{"delta":{"finish_reason":"stop"}}]}"#
        ));
        assert!(!other(
            r#"{"finish_reason":"stop","metadata":{"error":"x"}}"#
        ));
        assert!(!other(
            r#"{"x":"y","choices":[{"error":"x","finish_reason" : null}]}"#
        ));
        assert!(other(
            "{\"choices\":[{\ndata: \"finish_reason\" :\r\ndata: \"stop\"}]}"
        ));
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
        assert!(!messages(&[
            r#"data: {"type":"x","metadata":{"type":"error"}}"#
        ]));
        assert!(messages(&["data: {\"type\":\ndata: \"error\"}"]));
        let responses = |events: &[&str]| ended("/v1/responses", 1, events);
        assert!(!responses(&[r#"data: {"type":"response.completed.not"}"#]));
        assert!(!responses(&[
            r#"data: {"type":"x","item":{"type":"response.failed"}}"#
        ]));
        assert!(responses(&[r#"data: {"type":"response.incomplete"}"#]));
        assert!(ended("/v1/audio/speech", 1, &[]));
    }
}
