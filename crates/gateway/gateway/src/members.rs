//! Members of a request body that only some policies use. Reading them requires a full parse of the
//! body, which is done only when such a policy applies.

use serde::Deserialize;
use serde_json::Value;

/// Endpoints whose responses are generated text.
const TEXTS: [&str; 4] = [
    "/v1/chat/completions",
    "/v1/completions",
    RESPONSES,
    "/v1/messages",
];
pub(crate) const RESPONSES: &str = "/v1/responses";

/// Values of the members; absent ones are null.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Members {
    stream: Value,
    temperature: Value,
    seed: Value,
    store: Value,
    background: Value,
    previous_response_id: Value,
    conversation: Value,
}

impl Members {
    /// `None` if the body is not valid JSON.
    pub(crate) fn of(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }

    /// Whether the request can be computed a second time without side effects. Responses of
    /// `/v1/responses` are stored by default, and may refer to earlier ones that a single server
    /// holds.
    pub(crate) fn are_repeatable(&self, path: &str) -> bool {
        let stored = match path == RESPONSES {
            true => self.store != Value::Bool(false),
            false => self.store == Value::Bool(true),
        };
        let refers = !self.previous_response_id.is_null() || !self.conversation.is_null();
        is_text(path) && !stored && !refers && self.background != Value::Bool(true)
    }

    /// Whether the request has side effects that a client can see: a background computation, an
    /// item in a conversation, or an explicitly stored response. Storage by default does not count:
    /// if the response is not delivered, the client never receives its id.
    pub(crate) fn leave_something(&self) -> bool {
        let asked = |member: &Value| *member == Value::Bool(true);
        asked(&self.background) || asked(&self.store) || !self.conversation.is_null()
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.stream == Value::Bool(true)
    }

    /// Whether two computations give the same text, according to the sampling parameters.
    pub(crate) fn are_deterministic(&self) -> bool {
        self.temperature.as_f64() == Some(0.0) || self.seed.is_number()
    }
}

/// Whether the responses at `path` are generated text.
pub(crate) fn is_text(path: &str) -> bool {
    TEXTS.contains(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(body: &str) -> Members {
        Members::of(body.as_bytes()).unwrap()
    }

    #[test]
    fn what_is_stored_or_refers_to_others_is_not_repeated() {
        let repeatable = |path: &str, body: &str| members(body).are_repeatable(path);
        assert!(repeatable("/v1/completions", "{}"));
        assert!(!repeatable("/v1/completions", r#"{"store":true}"#));
        assert!(!repeatable("/v1/embeddings", "{}"));
        assert!(!repeatable("/v1/responses", "{}"));
        assert!(repeatable("/v1/responses", r#"{"store":false}"#));
        for member in [
            "\"previous_response_id\":\"a\"",
            "\"background\":true",
            "\"conversation\":{}",
        ] {
            let body = format!("{{\"store\":false,{member}}}");
            assert!(!repeatable("/v1/responses", &body), "{member}");
        }
        assert!(Members::of(b"{").is_none());
    }

    #[test]
    fn greedy_and_seeded_requests_are_deterministic() {
        for (body, wanted) in [
            (r#"{"temperature":0}"#, true),
            (r#"{"temperature":0.0,"x":[{"seed":1}]}"#, true),
            (r#"{"temperature":0.7}"#, false),
            (r#"{"temperature":0.7,"seed":0}"#, true),
            (r#"{"seed":null}"#, false),
            ("{}", false),
        ] {
            assert_eq!(members(body).are_deterministic(), wanted, "{body}");
        }
    }
}
