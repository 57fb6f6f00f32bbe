//! `POST /tokenize` and `POST /detokenize`, in vLLM's shape.

use serde_json::{Map, Value};

use super::fields::Fields;
use super::messages::take_messages;
use super::tools::Tools;
use crate::error::ApiError;

/// Text, or a conversation to be rendered first.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizeRequest {
    pub model: Option<String>,
    pub input: TokenizeInput,
    pub return_token_strs: bool,
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
        tools: Tools,
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
            None => TokenizeInput::Messages {
                messages: take_messages(&mut fields).map_err(|e| {
                    ApiError::invalid("prompt", format!("prompt or messages is required: {e}"))
                })?,
                add_generation_prompt: fields.flag("add_generation_prompt", true)?,
                tools: Tools::take(&mut fields)?,
                template_kwargs: fields.take("chat_template_kwargs")?.unwrap_or_default(),
            },
        };
        Ok(Self {
            model: fields.take("model")?,
            input,
            return_token_strs: fields.flag("return_token_strs", false)?,
        })
    }
}

/// Token ids to be turned into text, special tokens included.
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
