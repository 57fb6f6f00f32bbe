//! Errors in Anthropic's format.

use serde::Serialize;

use crate::error::ApiError;

#[derive(Serialize)]
struct Body<'a> {
    r#type: &'static str,
    error: Fault,
    request_id: &'a str,
}

#[derive(Serialize)]
pub(super) struct Fault {
    r#type: &'static str,
    message: String,
}

/// The body of an error response: `{"type": "error", "error": {"type", "message"}, "request_id"}`.
pub fn to_json(error: &ApiError, request_id: &str) -> Vec<u8> {
    let body = Body {
        r#type: "error",
        error: fault(error),
        request_id,
    };
    // Plain data with string keys always serialises.
    serde_json::to_vec(&body).unwrap_or_default()
}

pub(super) fn fault(error: &ApiError) -> Fault {
    let kind = match (error.status, error.code) {
        (401, _) => "authentication_error",
        (403, _) => "permission_error",
        (404, _) => "not_found_error",
        (413, _) => "request_too_large",
        (429, _) => "rate_limit_error",
        (503, Some("queue_full")) => "overloaded_error",
        (500.., _) => "api_error",
        _ => "invalid_request_error",
    };
    // Clients match these words, and then shorten the conversation.
    let too_long = error.code == Some("context_length_exceeded");
    let prefix = if too_long { "prompt is too long: " } else { "" };
    Fault {
        r#type: kind,
        message: format!("{prefix}{}", error.message),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn kinds() {
        let json = |error: &ApiError| -> Value {
            serde_json::from_slice(&to_json(error, "req_1")).unwrap()
        };
        assert_eq!(
            json(&ApiError::queue_full(1)),
            json!({"type": "error", "request_id": "req_1", "error": {
                "type": "overloaded_error",
                "message": "The server has as many requests as it may hold. Try again later."}})
        );
        let kind = |error: &ApiError| json(error)["error"]["type"].clone();
        assert_eq!(kind(&ApiError::bad_request("x")), "invalid_request_error");
        assert_eq!(kind(&ApiError::unauthorized()), "authentication_error");
        assert_eq!(kind(&ApiError::internal("x")), "api_error");
        let long = json(&ApiError::context_length(8, 9, None));
        let message = long["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("prompt is too long: "), "{message}");
    }
}
