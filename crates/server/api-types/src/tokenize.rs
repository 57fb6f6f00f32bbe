//! `POST /tokenize` and `POST /detokenize`, in vLLM's format.

use serde_json::{Map, Value};

use super::chat::{take_end, take_template_kwargs};
use super::common::Truncation;
use super::fields::Fields;
use super::messages::take_messages;
use super::neutral;
use super::tools::Tools;
use crate::error::ApiError;

/// A validated request to tokenize a text, or a conversation, which is rendered first.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizeRequest {
    pub model: Option<String>,
    pub input: TokenizeInput,
    pub return_token_strs: bool,
    pub truncation: Truncation,
}

#[derive(Debug, Clone, PartialEq)]
pub enum TokenizeInput {
    Text {
        text: String,
        add_special_tokens: bool,
    },
    Messages {
        messages: Value,
        add_generation_prompt: bool,
        continue_final: bool,
        tools: Box<Tools>,
        /// A chat template that replaces the model's own; rejected unless the server trusts
        /// clients' templates.
        template: Option<String>,
        template_kwargs: Map<String, Value>,
    },
}

impl TokenizeRequest {
    /// Reads and validates a request body.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let input = match fields.take::<String>("prompt")? {
            Some(text) => TokenizeInput::Text {
                text,
                add_special_tokens: fields.flag("add_special_tokens", true)?,
            },
            None => {
                let messages = take_messages(&mut fields).map_err(|e| {
                    ApiError::invalid("prompt", format!("prompt or messages is required: {e}"))
                })?;
                let (add_generation_prompt, continue_final) = take_end(&mut fields)?;
                TokenizeInput::Messages {
                    messages,
                    add_generation_prompt,
                    continue_final,
                    tools: Box::new(Tools::take(&mut fields)?),
                    template: fields.take("chat_template")?,
                    template_kwargs: take_template_kwargs(&mut fields)?,
                }
            }
        };
        let request = Self {
            model: fields.take("model")?,
            input,
            return_token_strs: fields.flag("return_token_strs", false)?,
            truncation: Truncation::take(&mut fields, "left")?,
        };
        neutral::check(&fields)?;
        Ok(request)
    }
}

/// A validated request to convert token ids to text, special tokens included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetokenizeRequest {
    pub model: Option<String>,
    pub tokens: Vec<u32>,
}

impl DetokenizeRequest {
    /// Reads and validates a request body.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let tokens = fields
            .take("tokens")?
            .ok_or_else(|| ApiError::invalid("tokens", "tokens is required."))?;
        Ok(Self {
            model: fields.take("model")?,
            tokens,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(body: &str) -> Result<TokenizeRequest, ApiError> {
        TokenizeRequest::parse(body.as_bytes())
    }

    #[test]
    fn what_changes_a_chats_prompt_changes_its_tokens() {
        let body = r#"{"messages":[{"role":"user","content":"x"}],"chat_template":"t",
            "documents":[{"text":"d"}],"reasoning_effort":"low","truncate_prompt_tokens":-1,
            "continue_final_message":true,"add_generation_prompt":false}"#;
        let request = parse(body).unwrap();
        assert_eq!(request.truncation.most, Some(0));
        assert!(request.truncation.keep_last);
        let TokenizeInput::Messages {
            continue_final: true,
            template: Some(template),
            template_kwargs,
            ..
        } = request.input
        else {
            panic!("{:?}", request.input);
        };
        assert_eq!(template, "t");
        assert_eq!(template_kwargs["reasoning_effort"], "low");
        assert_eq!(template_kwargs["documents"][0]["text"], "d");
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (name, body) in [
            ("chat_template", r#"{"prompt":"a","chat_template":"t"}"#),
            ("tools", r#"{"prompt":"a","tools":[{"type":"function"}]}"#),
            (
                "truncation_side",
                r#"{"prompt":"a","truncation_side":"middle"}"#,
            ),
            (
                "truncate_prompt_tokens",
                r#"{"prompt":"a","truncate_prompt_tokens":-2}"#,
            ),
            (
                "continue_final_message",
                r#"{"prompt":"a","continue_final_message":true}"#,
            ),
        ] {
            assert_eq!(
                parse(body).unwrap_err().param.as_deref(),
                Some(name),
                "{body}"
            );
        }
    }
}
