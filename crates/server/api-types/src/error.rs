//! The error type sent to clients, built at the point of failure and passed unchanged to the
//! response.

use std::borrow::Cow;

use serde::Serialize;

/// Maximum bytes of a message sent to a client, which may quote parts of a large request.
const MAX_MESSAGE: usize = 1000;

/// An error in OpenAI form together with its HTTP status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub status: u16,
    /// `error.type` in the body.
    pub kind: &'static str,
    pub message: String,
    /// The request field at fault.
    pub param: Option<Cow<'static, str>>,
    /// A word that programs match on, such as `context_length_exceeded`.
    pub code: Option<&'static str>,
    /// Value of the `Retry-After` header, in seconds.
    pub retry_after_s: Option<u32>,
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: Body<'a>,
}

#[derive(Serialize)]
struct Body<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

/// Removes a duplicate full stop, e.g. after a reason raised by a template.
fn ended_once(mut message: String) -> String {
    let dots = message.len() - message.trim_end_matches('.').len();
    let said = message[..message.len() - dots].ends_with(['!', '?']);
    if matches!(dots, 2 | 4) || (said && dots == 1) {
        message.pop();
    }
    message
}

impl ApiError {
    fn new(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        let message = ended_once(message.into());
        Self {
            status,
            kind,
            message: capped(message, MAX_MESSAGE),
            param: None,
            code: None,
            retry_after_s: None,
        }
    }

    /// 400: the field `param` has a value that is not accepted.
    pub fn invalid(param: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        let mut error = Self::bad_request(message);
        error.param = Some(param.into());
        error
    }

    /// 400 without a single faulty field.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "invalid_request_error", message)
    }

    /// 400: the prompt, or prompt and requested output together, do not fit the context. Clients
    /// match on the beginning of this message, and on the code in the message (LangChain).
    pub fn context_length(max_model_len: u32, prompt_tokens: usize, asked: Option<u32>) -> Self {
        let asked = asked.map_or(String::new(), |n| format!(" and asks for {n} more"));
        let message = format!(
            "This model's maximum context length is {max_model_len} tokens. The request has \
             {prompt_tokens} prompt tokens{asked}. Shorten the prompt or ask for fewer tokens \
             (context_length_exceeded)."
        );
        let mut error = Self::invalid("prompt", message);
        error.code = Some("context_length_exceeded");
        error
    }

    /// 400: a text of `bytes` cannot fit the context, however it is tokenized.
    pub fn text_too_long(max_model_len: u32, bytes: usize) -> Self {
        let mut error = Self::invalid(
            "prompt",
            format!(
                "This model's maximum context length is {max_model_len} tokens. The prompt's text \
                 has {bytes} bytes, more than so many tokens can stand for. Shorten the prompt \
                 (context_length_exceeded)."
            ),
        );
        error.code = Some("context_length_exceeded");
        error
    }

    /// 400: the value of a field is not supported; `remedy` names the alternative.
    pub fn unsupported(name: &'static str, remedy: &str) -> Self {
        let message = format!("{name} is not supported by this server: {remedy}.");
        let mut error = Self::invalid(name, message);
        error.code = Some("unsupported_parameter");
        error
    }

    /// 400: the field has text, and the server has no tokenizer.
    pub fn no_tokenizer(name: &'static str) -> Self {
        let remedy = match name {
            "stop" => "send stop_token_ids",
            "bad_words" => "send logit_bias",
            "prompt" | "input" => "send token ids, such as [1, 2, 3]",
            "messages" | "query" | "documents" | "text_1" | "text_2" => {
                "send token ids as the prompt of /v1/completions or the input of /v1/embeddings"
            }
            // Grammars, which constrain the text of the output.
            _ => "send the request without it",
        };
        let message = format!(
            "{name} needs a tokenizer, and this server has none (--skip-tokenizer-init): {remedy}, \
             or start the server without that flag."
        );
        let mut error = Self::invalid(name, message);
        error.code = Some("unsupported_parameter");
        error
    }

    /// 401: the request has no valid API key.
    pub fn unauthorized() -> Self {
        let mut error = Self::new(
            401,
            "authentication_error",
            "A valid API key is required in the Authorization header: 'Bearer KEY'.",
        );
        error.code = Some("invalid_api_key");
        error
    }

    /// 401 of the KV cache administration endpoints.
    pub fn admin_unauthorized() -> Self {
        let mut error = Self::unauthorized();
        error.message =
            "The admin key is required in the Authorization header: 'Bearer KEY'.".to_owned();
        error
    }

    /// 403: the KV cache administration is disabled, because no admin key is set.
    pub fn admin_disabled() -> Self {
        let mut error = Self::new(
            403,
            "permission_error",
            "Looking after the KV cache needs an admin key, and this server has none: start it \
             with --admin-api-key KEY, or with PENSTOCK_ADMIN_API_KEY in its environment.",
        );
        error.code = Some("admin_key_not_configured");
        error
    }

    /// 403: the key may not use this endpoint.
    pub fn endpoint_forbidden(key: &str, path: &str) -> Self {
        let path: String = path.chars().take(100).collect();
        let mut error = Self::new(
            403,
            "permission_error",
            format!("The key {key:?} may not reach {path}: its endpoints are in the key file."),
        );
        error.code = Some("endpoint_forbidden");
        error
    }

    /// 403: a cross-origin request without a preflight.
    pub fn cross_origin() -> Self {
        let mut error = Self::new(
            403,
            "permission_error",
            "A page of another origin must send its request as application/json, and the server \
             must be started with --allowed-origins ORIGIN.",
        );
        error.code = Some("cross_origin");
        error
    }

    /// 415: a compressed body.
    pub fn encoded_body() -> Self {
        Self::new(
            415,
            "invalid_request_error",
            "The request body has a Content-Encoding. Send it uncompressed, without that header.",
        )
    }

    /// 409: the engine rejects the cache command in its current state.
    pub fn kv_refused(reason: &str) -> Self {
        let message = format!("The cache stays as it is: {reason}.");
        let mut error = Self::new(409, "invalid_request_error", message);
        error.code = Some("kv_refused");
        error
    }

    /// 404: `model` is not served here.
    pub fn model_not_found(model: &str, served: &[String]) -> Self {
        let asked = capped(model.to_owned(), 200);
        let mut error = Self::new(
            404,
            "invalid_request_error",
            format!(
                "The model `{asked}` does not exist. Served here: {}.",
                served.join(", ")
            ),
        );
        error.param = Some("model".into());
        error.code = Some("model_not_found");
        error
    }

    /// 400: the model does not support the endpoint. Not a 404, for which proxies eject a server,
    /// nor a 501, which clients retry.
    pub fn unsupported_endpoint(reason: &str) -> Self {
        let mut error = Self::bad_request(format!("{reason}."));
        error.code = Some("unsupported_endpoint");
        error
    }

    /// 404: responses are not kept.
    pub fn not_stored(id: &str) -> Self {
        let id = capped(id.to_owned(), 200);
        let mut error = Self::new(
            404,
            "invalid_request_error",
            format!("There is no response {id}: this server does not store responses."),
        );
        error.code = Some("not_found");
        error
    }

    /// 404: unknown path.
    pub fn no_route(path: &str) -> Self {
        let path = capped(path.to_owned(), 200);
        let mut error = Self::new(
            404,
            "invalid_request_error",
            format!("There is no endpoint at {path}."),
        );
        error.code = Some("not_found");
        error
    }

    /// 405: the path does not accept the method.
    pub fn method_not_allowed(method: &str, path: &str) -> Self {
        let path = capped(path.to_owned(), 200);
        let mut error = Self::new(
            405,
            "invalid_request_error",
            format!("{path} does not accept {method}."),
        );
        error.code = Some("method_not_allowed");
        error
    }

    /// 408: the client did not finish sending its request.
    pub fn request_timeout(seconds: u64) -> Self {
        Self::new(
            408,
            "invalid_request_error",
            format!("The request body did not arrive within {seconds} s."),
        )
    }

    /// 408 inside a stream: the client reads too slowly.
    pub fn left_unread(bytes: usize) -> Self {
        let message = format!("The client left more than {bytes} bytes of the stream unread.");
        Self::new(408, "invalid_request_error", message)
    }

    /// 413: the request body is too large.
    pub fn body_too_large(limit: usize) -> Self {
        let mut error = Self::new(
            413,
            "invalid_request_error",
            format!("The request body is larger than {limit} bytes."),
        );
        error.code = Some("request_too_large");
        error
    }

    /// 503: the queue is full.
    pub fn queue_full(retry_after_s: u32) -> Self {
        let mut error = Self::new(
            503,
            "overloaded_error",
            "The server has as many requests as it may hold. Try again later.",
        );
        error.code = Some("queue_full");
        error.retry_after_s = Some(retry_after_s);
        error
    }

    /// 429: the request's API key has reached a rate limit; `limit` is its name, `most` its value.
    pub fn rate_limited(limit: &str, most: u32, retry_after_s: u32) -> Self {
        let message = format!(
            "This API key has reached its {limit} of {most}. Try again in {retry_after_s} s."
        );
        let mut error = Self::new(429, "rate_limit_error", message);
        error.code = Some("rate_limit_exceeded");
        error.retry_after_s = Some(retry_after_s);
        error
    }

    /// 429: the gateway is at its limit of requests in flight.
    pub fn saturated(retry_after_s: u32) -> Self {
        let message = "The gateway has as many requests as it may hold. Try again later.";
        let mut error = Self::new(429, "overloaded_error", message);
        error.code = Some("saturated");
        error.retry_after_s = Some(retry_after_s);
        error
    }

    /// 429: no replica has capacity; `reason` explains why the request is not queued.
    pub fn shed(reason: &str, retry_after_s: u32) -> Self {
        let mut error = Self::saturated(retry_after_s);
        error.message = format!("No replica has room, and {reason}. Try again later.");
        error
    }

    /// 503: the budget for request bodies is used up.
    pub fn bodies_full(retry_after_s: u32) -> Self {
        let mut error = Self::queue_full(retry_after_s);
        error.message =
            "The server reads as many large requests as it may. Try again later.".to_owned();
        error
    }

    /// 503: the server cannot accept requests now, for the given reason.
    pub fn unavailable(reason: impl Into<String>, retry_after_s: u32) -> Self {
        let mut error = Self::new(503, "service_unavailable_error", reason);
        error.code = Some("service_unavailable");
        error.retry_after_s = Some(retry_after_s);
        error
    }

    /// 503, or an error event inside a stream: the engine was lost during the request.
    pub fn engine_failed(reason: &str) -> Self {
        let mut error = Self::unavailable(format!("The engine failed: {reason}"), 1);
        error.code = Some("engine_failed");
        error
    }

    /// 500: the engine reported a fault in this one request.
    pub fn internal(message: impl Into<String>) -> Self {
        let mut error = Self::new(500, "internal_server_error", message);
        error.code = Some("internal_error");
        error
    }

    /// The response body: `{"error": {...}}`.
    pub fn to_json(&self) -> Vec<u8> {
        let error = Body {
            message: &self.message,
            r#type: self.kind,
            param: self.param.as_deref(),
            code: self.code,
        };
        serde_json::to_vec(&Envelope { error }).unwrap_or_default()
    }
}

/// `text` cut to at most `limit` bytes at a character boundary.
fn capped(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        let cut = (0..=limit)
            .rev()
            .find(|&i| text.is_char_boundary(i))
            .unwrap_or(0);
        text.truncate(cut);
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_has_the_four_fields() {
        let error = ApiError::invalid("top_p", "top_p must be in (0, 1].");
        assert_eq!(
            String::from_utf8_lossy(&error.to_json()),
            concat!(
                r#"{"error":{"message":"top_p must be in (0, 1].","#,
                r#""type":"invalid_request_error","param":"top_p","code":null}}"#
            )
        );
    }

    #[test]
    fn a_message_ends_once() {
        for (message, shown) in [
            ("boom..", "boom."),
            ("boom.", "boom."),
            ("really?.", "really?"),
            ("stop!.", "stop!"),
            ("and so on....", "and so on..."),
            ("and so on...", "and so on..."),
        ] {
            assert_eq!(ApiError::bad_request(message).message, shown);
        }
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let error = ApiError::bad_request("é".repeat(5000));
        assert!(error.message.len() <= MAX_MESSAGE + 3);
        assert!(error.message.ends_with("é..."));
    }
}
