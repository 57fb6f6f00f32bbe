//! Members of a body that some policies ask for. They parse it, so they are asked only where a
//! request comes so far.

use serde::Deserialize;
use serde_json::Value;

/// Endpoints whose answers are the text of a model.
const TEXTS: [&str; 4] = [
    "/v1/chat/completions",
    "/v1/completions",
    RESPONSES,
    "/v1/messages",
];
pub(crate) const RESPONSES: &str = "/v1/responses";

/// Absent members, and null, are null.
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
    /// `None` where the body is no JSON.
    pub(crate) fn of(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }

    /// Whether a second computation of the request leaves nothing behind. Responses are stored by
    /// default, and go on from others that one server has.
    pub(crate) fn are_repeatable(&self, path: &str) -> bool {
        let stored = match path == RESPONSES {
            true => self.store != Value::Bool(false),
            false => self.store == Value::Bool(true),
        };
        let refers = !self.previous_response_id.is_null() || !self.conversation.is_null();
        is_text(path) && !stored && !refers && self.background != Value::Bool(true)
    }

    /// Whether a response leaves something that a client may find: a computation that it does not
    /// wait for, an item of a conversation, or what it asks to be stored. One that is stored by
    /// default, and whose answer does not come, has an id that no client knows.
    pub(crate) fn leave_something(&self) -> bool {
        let asked = |member: &Value| *member == Value::Bool(true);
        asked(&self.background) || asked(&self.store) || !self.conversation.is_null()
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.stream == Value::Bool(true)
    }

    /// Whether two computations say the same, as far as the request decides.
    pub(crate) fn are_deterministic(&self) -> bool {
        self.temperature.as_f64() == Some(0.0) || self.seed.is_number()
    }
}

/// Whether answers at `path` are the text of a model.
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
