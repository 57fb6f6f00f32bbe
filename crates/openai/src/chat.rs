//! `POST /v1/chat/completions`.

use serde_json::{Map, Value};

use super::MAX_LOGPROBS;
use super::common::Common;
use super::fields::Fields;
use super::neutral;
use crate::error::ApiError;

/// A validated chat request.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    pub common: Common,
    /// A non-empty array of objects. Every `role` is a string; every `content` is a string or null:
    /// text parts have been joined with newlines. Other members are left as they came, for the
    /// template.
    pub messages: Value,
    pub add_generation_prompt: bool,
    /// Alternatives per token, 0 to 20; `None` for no log-probabilities at all.
    pub logprobs: Option<u8>,
    /// Extra variables for the chat template.
    pub template_kwargs: Map<String, Value>,
}

impl ChatRequest {
    /// Reads and validates a request body.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let request = Self {
            messages: take_messages(&mut fields)?,
            common: Common::take(&mut fields, 1)?,
            add_generation_prompt: fields.flag("add_generation_prompt", true)?,
            logprobs: take_logprobs(&mut fields)?,
            template_kwargs: take_template_kwargs(&mut fields)?,
        };
        neutral::check(&fields)?;
        Ok(request)
    }
}

/// `logprobs: true` with `top_logprobs` alternatives.
fn take_logprobs(fields: &mut Fields<'_>) -> Result<Option<u8>, ApiError> {
    let wanted = fields.flag("logprobs", false)?;
    match fields.integer("top_logprobs", 0..=i64::from(MAX_LOGPROBS))? {
        Some(n) if n > 0 && !wanted => Err(ApiError::invalid(
            "top_logprobs",
            "top_logprobs is only allowed when logprobs is true.",
        )),
        n => Ok(wanted.then_some(n.unwrap_or(0) as u8)),
    }
}

fn take_template_kwargs(fields: &mut Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs: Map<String, Value> = fields.take("chat_template_kwargs")?.unwrap_or_default();
    if let Some(effort) = fields.take::<String>("reasoning_effort")? {
        kwargs.insert("reasoning_effort".into(), effort.into());
    }
    Ok(kwargs)
}

/// Takes and normalises `messages`.
pub(super) fn take_messages(fields: &mut Fields<'_>) -> Result<Value, ApiError> {
    let messages: Option<Vec<Map<String, Value>>> = fields.take("messages")?;
    let messages = messages.ok_or_else(|| invalid("messages is required."))?;
    if messages.is_empty() {
        return Err(invalid("messages must not be empty."));
    }
    let messages = messages
        .into_iter()
        .enumerate()
        .map(|(i, m)| normalised(i, m).map(Value::Object));
    Ok(Value::Array(messages.collect::<Result<_, _>>()?))
}

fn normalised(
    index: usize,
    mut message: Map<String, Value>,
) -> Result<Map<String, Value>, ApiError> {
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(invalid(format!("messages[{index}].role must be a string.")));
    }
    match message.get("content") {
        None | Some(Value::Null | Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            let text = joined_parts(index, parts)?;
            message.insert("content".into(), text.into());
        }
        Some(_) => {
            return Err(invalid(format!(
                "messages[{index}].content must be a string or a list of text parts."
            )));
        }
    }
    Ok(message)
}

fn joined_parts(index: usize, parts: &[Value]) -> Result<String, ApiError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (k, part) in parts.iter().enumerate() {
        let at = || format!("messages[{index}].content[{k}]");
        let kind = part.get("type").and_then(Value::as_str);
        if !matches!(kind, Some("text" | "input_text")) {
            let kind = kind.unwrap_or("of no type");
            return Err(invalid(format!(
                "{}: parts of type text only, this one is {kind}.",
                at()
            )));
        }
        let text = part.get("text").and_then(Value::as_str);
        texts.push(text.ok_or_else(|| invalid(format!("{}.text must be a string.", at())))?);
    }
    Ok(texts.join("\n"))
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::invalid("messages", message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(rest: &str) -> Result<ChatRequest, ApiError> {
        ChatRequest::parse(
            format!(r#"{{"messages":[{{"role":"user","content":"hi"}}]{rest}}}"#).as_bytes(),
        )
    }

    #[test]
    fn text_parts_are_joined() {
        let parts = r#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#;
        let body = format!(r#"{{"messages":[{{"role":"user","content":{parts},"name":"x"}}]}}"#);
        let request = ChatRequest::parse(body.as_bytes()).unwrap();
        assert_eq!(
            request.messages,
            serde_json::json!([{"role":"user","content":"a\nb","name":"x"}])
        );
    }

    #[test]
    fn bad_messages_are_refused() {
        for body in [
            r#"{}"#,
            r#"{"messages":[]}"#,
            r#"{"messages":"hi"}"#,
            r#"{"messages":[1]}"#,
            r#"{"messages":[{"content":"x"}]}"#,
            r#"{"messages":[{"role":1,"content":"x"}]}"#,
            r#"{"messages":[{"role":"user","content":5}]}"#,
            r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]}"#,
            r#"{"messages":[{"role":"user","content":[{"type":"text"}]}]}"#,
        ] {
            let error = ChatRequest::parse(body.as_bytes()).unwrap_err();
            assert_eq!(
                (error.status, error.param.as_deref()),
                (400, Some("messages")),
                "{body}"
            );
        }
    }

    #[test]
    fn logprobs_need_their_switch() {
        assert_eq!(
            parse(r#","logprobs":true,"top_logprobs":5"#)
                .unwrap()
                .logprobs,
            Some(5)
        );
        assert_eq!(parse(r#","logprobs":true"#).unwrap().logprobs, Some(0));
        assert_eq!(parse(r#","top_logprobs":0"#).unwrap().logprobs, None);
        assert_eq!(
            parse(r#","top_logprobs":2"#).unwrap_err().param.as_deref(),
            Some("top_logprobs")
        );
        assert_eq!(
            parse(r#","logprobs":2"#).unwrap_err().param.as_deref(),
            Some("logprobs")
        );
    }

    #[test]
    fn chat_only_refusals() {
        for field in [
            r#""chat_template":"x""#,
            r#""continue_final_message":true"#,
            r#""echo":true"#,
            r#""max_tokens":0"#,
        ] {
            assert_eq!(
                parse(&format!(",{field}")).unwrap_err().status,
                400,
                "{field}"
            );
        }
    }
}
