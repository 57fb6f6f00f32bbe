//! Bodies of `/v1/kv`: a prefix of prompts, in the format of a generation request.

use super::common::take_cache_salt;
use super::completion::{Prompt, take_prompts};
use super::fields::Fields;
use super::messages::take_messages;
use super::tokenize::TokenizeInput;
use super::tools::Tools;
use crate::error::ApiError;

/// A validated request about a prefix of prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct KvRequest {
    pub model: Option<String>,
    pub input: KvInput,
    pub cache_salt: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum KvInput {
    /// Not empty.
    Tokens(Vec<u32>),
    Written(TokenizeInput),
}

impl KvRequest {
    /// Reads and validates a request body. Unlike in other requests, unknown fields are rejected: a
    /// typo would pin or clear the wrong prefix.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let request = Self {
            input: take_input(&mut fields)?,
            model: fields.take("model")?,
            cache_salt: take_cache_salt(&mut fields)?,
        };
        match fields.remaining().next() {
            None => Ok(request),
            Some((name, _)) => Err(ApiError::invalid(
                name.to_owned(),
                format!("{name} is not a field of this request: leave it out."),
            )),
        }
    }
}

const ONE_INPUT: &str = "exactly one of prompt, messages and prompt_token_ids is required.";

/// Takes the input from one of three fields. Fields that belong to the other two remain, and are
/// rejected later.
fn take_input(fields: &mut Fields<'_>) -> Result<KvInput, ApiError> {
    let given = ["prompt", "messages", "prompt_token_ids"].map(|name| fields.has(name));
    match given {
        [true, false, false] => take_prompt(fields),
        [false, true, false] => Ok(KvInput::Written(TokenizeInput::Messages {
            messages: take_messages(fields)?,
            add_generation_prompt: fields.flag("add_generation_prompt", true)?,
            continue_final: false,
            template: None,
            tools: Box::new(Tools::take(fields)?),
            template_kwargs: fields.take("chat_template_kwargs")?.unwrap_or_default(),
        })),
        [false, false, true] => match fields.take::<Vec<u32>>("prompt_token_ids")? {
            Some(tokens) if !tokens.is_empty() => Ok(KvInput::Tokens(tokens)),
            _ => Err(ApiError::invalid(
                "prompt_token_ids",
                "prompt_token_ids must not be empty.",
            )),
        },
        _ => Err(ApiError::invalid("prompt", ONE_INPUT)),
    }
}

fn take_prompt(fields: &mut Fields<'_>) -> Result<KvInput, ApiError> {
    let mut prompts = take_prompts(fields, "prompt")?;
    let add_special_tokens = fields.flag("add_special_tokens", true)?;
    match (prompts.pop(), prompts.is_empty()) {
        (Some(Prompt::Tokens(tokens)), true) => Ok(KvInput::Tokens(tokens)),
        (Some(Prompt::Text(text)), true) => Ok(KvInput::Written(TokenizeInput::Text {
            text,
            add_special_tokens,
        })),
        _ => Err(ApiError::invalid(
            "prompt",
            "prompt must be a single one: send a request for each.",
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(body: &str) -> Result<KvRequest, ApiError> {
        KvRequest::parse(body.as_bytes())
    }

    #[test]
    fn a_prefix_is_text_tokens_or_a_conversation() {
        let text = parse(r#"{"prompt":"a","cache_salt":"t","add_special_tokens":false}"#).unwrap();
        let written = TokenizeInput::Text {
            text: "a".into(),
            add_special_tokens: false,
        };
        assert_eq!(
            (text.input, text.cache_salt),
            (KvInput::Written(written), Some("t".into()))
        );
        for body in [r#"{"prompt":[1,2]}"#, r#"{"prompt_token_ids":[1,2]}"#] {
            assert_eq!(parse(body).unwrap().input, KvInput::Tokens(vec![1, 2]));
        }
        let chat = concat!(
            r#"{"messages":[{"role":"user","content":"x"}],"#,
            r#""add_generation_prompt":false,"model":"m"}"#
        );
        assert!(matches!(
            parse(chat).unwrap().input,
            KvInput::Written(TokenizeInput::Messages {
                add_generation_prompt: false,
                ..
            })
        ));
    }

    #[test]
    fn anything_else_is_refused_by_name() {
        for (body, param) in [
            (r#"{}"#, "prompt"),
            (r#"{"cache_salt":"t"}"#, "prompt"),
            (r#"{"prompt":null}"#, "prompt"),
            (r#"{"prompt":"a","prompt_token_ids":[1]}"#, "prompt"),
            (r#"{"prompt":["a","b"]}"#, "prompt"),
            (r#"{"prompt":[]}"#, "prompt"),
            (r#"{"prompt_token_ids":[]}"#, "prompt_token_ids"),
            (r#"{"prompt_token_ids":[-1]}"#, "prompt_token_ids"),
            (r#"{"messages":[]}"#, "messages"),
            (r#"{"prompt":"a","cache_salt":""}"#, "cache_salt"),
            (r#"{"prompt":"a","cachesalt":"t"}"#, "cachesalt"),
            (
                r#"{"prompt":"a","add_generation_prompt":true}"#,
                "add_generation_prompt",
            ),
        ] {
            let error = parse(body).unwrap_err();
            assert_eq!(
                (error.status, error.param.as_deref()),
                (400, Some(param)),
                "{body}: {error}"
            );
        }
    }
}
