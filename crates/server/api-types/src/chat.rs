//! `POST /v1/chat/completions`.

use serde_json::{Map, Value};

use super::MAX_LOGPROBS;
use super::common::{Common, take_prompt_logprobs};
use super::fields::Fields;
use super::messages::take_messages;
use super::neutral;
use super::tools::Tools;
use crate::error::ApiError;

/// A validated chat request.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    pub common: Common,
    /// A non-empty array of objects. Every `role` is a string; every `content` is a string or null:
    /// text parts have been joined with newlines. Other members are unchanged, for the chat
    /// template.
    pub messages: Value,
    pub add_generation_prompt: bool,
    /// Number of alternatives per output token, 0 to 20; `None` for no log-probabilities at all.
    pub logprobs: Option<u8>,
    pub tools: Tools,
    /// Include the reasoning in the response.
    pub include_reasoning: bool,
    /// The output continues the last message.
    pub continue_final: bool,
    /// Number of alternatives per prompt token, 0 to 20; `None` for no log-probabilities of the
    /// prompt.
    pub prompt_logprobs: Option<u8>,
    /// Log-probabilities name tokens by id, `token_id:17`.
    pub tokens_as_ids: bool,
    /// A chat template that replaces the model's own; rejected unless the server trusts clients'
    /// templates.
    pub template: Option<String>,
    /// Extra variables for the chat template.
    pub template_kwargs: Map<String, Value>,
}

impl ChatRequest {
    /// Reads and validates a request body.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let (add_generation_prompt, continue_final) = take_end(&mut fields)?;
        let messages = take_messages(&mut fields)?;
        let common = Common::take(&mut fields, 1)?;
        let request = Self {
            messages,
            add_generation_prompt,
            continue_final,
            prompt_logprobs: take_prompt_logprobs(&mut fields, common.stream)?,
            common,
            tokens_as_ids: fields.flag("return_tokens_as_token_ids", false)?,
            logprobs: take_logprobs(&mut fields)?,
            tools: Tools::take(&mut fields)?,
            include_reasoning: fields.flag("include_reasoning", true)?,
            template: fields.take("chat_template")?,
            template_kwargs: take_template_kwargs(&mut fields)?,
        };
        neutral::check(&fields)?;
        Ok(request)
    }
}

/// Whether to add a generation prompt, and whether to continue the last message.
pub(super) fn take_end(fields: &mut Fields<'_>) -> Result<(bool, bool), ApiError> {
    let begins = fields.flag("add_generation_prompt", true)?;
    let goes_on = fields.flag("continue_final_message", false)?;
    if begins && goes_on {
        return Err(ApiError::invalid(
            "continue_final_message",
            "continue_final_message needs add_generation_prompt: false.",
        ));
    }
    Ok((begins, goes_on))
}

/// Takes `logprobs` and `top_logprobs`; returns the number of alternatives.
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

/// Takes the extra variables for the chat template.
pub(super) fn take_template_kwargs(
    fields: &mut Fields<'_>,
) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs: Map<String, Value> = fields.take("chat_template_kwargs")?.unwrap_or_default();
    if let Some(documents) = fields.take::<Vec<Map<String, Value>>>("documents")? {
        let documents = documents.into_iter().map(Value::Object).collect();
        kwargs.insert("documents".into(), Value::Array(documents));
    }
    if let Some(effort) = fields.take::<String>("reasoning_effort")? {
        kwargs.insert("reasoning_effort".into(), effort.into());
    }
    Ok(kwargs)
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
            r#""chat_template":5"#,
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
