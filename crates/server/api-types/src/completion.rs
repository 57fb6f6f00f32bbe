//! `POST /v1/completions`.

use serde_json::value::RawValue;

use super::MAX_LOGPROBS;
use super::common::{Common, MaxTokens, is_string, take_prompt_logprobs};
use super::fields::{Fields, read};
use super::neutral;
use crate::error::ApiError;

/// A validated completion request.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    pub common: Common,
    /// Not empty. The choices of the response are numbered prompt by prompt: `n` for each.
    pub prompts: Vec<Prompt>,
    /// Put the prompt's text before the output.
    pub echo: bool,
    /// Number of alternatives per token, 0 to 20; `None` for no log-probabilities at all.
    pub logprobs: Option<u8>,
    /// Number of alternatives per prompt token, 0 to 20; `None` for no log-probabilities of the
    /// prompt.
    pub prompt_logprobs: Option<u8>,
    /// Log-probabilities name tokens by id, `token_id:17`.
    pub tokens_as_ids: bool,
    /// Let the tokenizer add its BOS and the like to prompts given as text.
    pub add_special_tokens: bool,
}

/// One prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    Text(String),
    /// Not empty.
    Tokens(Vec<u32>),
}

impl CompletionRequest {
    /// Reads and validates a request body.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let prompts = take_prompts(&mut fields, "prompt")?;
        let echo = fields.flag("echo", false)?;
        let common = Common::take(&mut fields, u32::from(!echo))?;
        let request = Self {
            prompts,
            echo,
            prompt_logprobs: take_prompt_logprobs(&mut fields, common.stream)?,
            tokens_as_ids: fields.flag("return_tokens_as_token_ids", false)?,
            common,
            logprobs: fields
                .integer("logprobs", 0..=i64::from(MAX_LOGPROBS))?
                .map(|n| n as u8),
            add_special_tokens: fields.flag("add_special_tokens", true)?,
        };
        neutral::check(&fields)?;
        Ok(request)
    }

    /// Whether the request only echoes the prompt, with `max_tokens: 0` and `echo`.
    pub fn echo_only(&self) -> bool {
        self.common.max_tokens == MaxTokens::Exactly(0)
    }
}

/// Takes the prompts in the field `name`; there is at least one.
pub(super) fn take_prompts(
    fields: &mut Fields<'_>,
    name: &'static str,
) -> Result<Vec<Prompt>, ApiError> {
    let raw = fields.take_raw(name);
    let raw = raw.ok_or_else(|| ApiError::invalid(name, format!("{name} is required.")))?;
    let prompts = match form(raw) {
        Form::Text => vec![Prompt::Text(read(name, raw)?)],
        Form::Texts => read::<Vec<String>>(name, raw)?
            .into_iter()
            .map(Prompt::Text)
            .collect(),
        Form::Tokens => vec![Prompt::Tokens(read(name, raw)?)],
        Form::TokenLists => read::<Vec<Vec<u32>>>(name, raw)?
            .into_iter()
            .map(Prompt::Tokens)
            .collect(),
    };
    if prompts.is_empty() || prompts.iter().any(|p| *p == Prompt::Tokens(Vec::new())) {
        return Err(ApiError::invalid(
            name,
            format!("{name} must not be empty."),
        ));
    }
    Ok(prompts)
}

enum Form {
    Text,
    Texts,
    Tokens,
    TokenLists,
}

/// Detects the form of the prompt by its first characters. An untagged enum would buffer the whole
/// value and could not name the invalid token id.
fn form(raw: &RawValue) -> Form {
    if is_string(raw) {
        return Form::Text;
    }
    match raw
        .get()
        .strip_prefix('[')
        .and_then(|rest| rest.trim_start().chars().next())
    {
        Some('"') => Form::Texts,
        Some('[') => Form::TokenLists,
        _ => Form::Tokens,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(body: &str) -> Result<CompletionRequest, ApiError> {
        CompletionRequest::parse(body.as_bytes())
    }

    #[test]
    fn the_four_prompt_forms() {
        let text = |s: &str| Prompt::Text(s.into());
        assert_eq!(parse(r#"{"prompt":"a"}"#).unwrap().prompts, [text("a")]);
        assert_eq!(
            parse(r#"{"prompt":["a",""]}"#).unwrap().prompts,
            [text("a"), text("")]
        );
        assert_eq!(
            parse(r#"{"prompt":[1, 2]}"#).unwrap().prompts,
            [Prompt::Tokens(vec![1, 2])]
        );
        let lists = parse(r#"{"prompt":[ [1],[2,3]]}"#).unwrap().prompts;
        assert_eq!(lists, [Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])]);
    }

    #[test]
    fn bad_values_name_their_field() {
        for (body, param) in [
            (r#"{}"#, "prompt"),
            (r#"{"prompt":[]}"#, "prompt"),
            (r#"{"prompt":[[]]}"#, "prompt"),
            (r#"{"prompt":[1,-2]}"#, "prompt"),
            (r#"{"prompt":[1,"a"]}"#, "prompt"),
            (r#"{"prompt":{"a":1}}"#, "prompt"),
            (r#"{"prompt":"a","temperature":-1}"#, "temperature"),
            (r#"{"prompt":"a","temperature":"hot"}"#, "temperature"),
            (r#"{"prompt":"a","temperature":1e300}"#, "temperature"),
            (r#"{"prompt":"a","top_p":0}"#, "top_p"),
            (r#"{"prompt":"a","top_p":1.5}"#, "top_p"),
            (r#"{"prompt":"a","top_k":-2}"#, "top_k"),
            (
                r#"{"prompt":"a","repetition_penalty":1e-50}"#,
                "repetition_penalty",
            ),
            (
                r#"{"prompt":"a","repetition_penalty":1e39}"#,
                "repetition_penalty",
            ),
            (r#"{"prompt":"a","max_tokens":0}"#, "max_tokens"),
            (
                r#"{"prompt":"a","max_tokens":-1,"echo":true}"#,
                "max_tokens",
            ),
            (
                r#"{"prompt":"a","max_tokens":2,"min_tokens":3}"#,
                "min_tokens",
            ),
            (r#"{"prompt":"a","logprobs":21}"#, "logprobs"),
            (r#"{"prompt":"a","logprobs":true}"#, "logprobs"),
            (r#"{"prompt":"a","prompt_logprobs":21}"#, "prompt_logprobs"),
            (r#"{"prompt":"a","prompt_logprobs":-1}"#, "prompt_logprobs"),
            (
                r#"{"prompt":"a","prompt_logprobs":0,"stream":true}"#,
                "prompt_logprobs",
            ),
            (
                r#"{"prompt":"a","return_tokens_as_token_ids":1}"#,
                "return_tokens_as_token_ids",
            ),
            (r#"{"prompt":"a","stop":[""]}"#, "stop"),
            (r#"{"prompt":"a","stop":7}"#, "stop"),
            (
                r#"{"prompt":"a","stream_options":{"include_usage":true}}"#,
                "stream_options",
            ),
            (r#"{"prompt":"a","cache_salt":""}"#, "cache_salt"),
            (r#"{"prompt":"a","seed":1.5}"#, "seed"),
        ] {
            let error = parse(body).unwrap_err();
            assert_eq!(
                (error.status, error.param.as_deref()),
                (400, Some(param)),
                "{body}: {error}"
            );
        }
    }

    /// Such a `top_p` keeps one token, as any other small value does.
    #[test]
    fn a_share_below_32_bits_is_the_least_share() {
        let request = parse(r#"{"prompt":"a","top_p":1e-320}"#).unwrap();
        assert_eq!(request.common.top_p, Some(f32::MIN_POSITIVE));
    }

    #[test]
    fn max_tokens_zero_only_with_echo() {
        assert!(
            parse(r#"{"prompt":"a","max_tokens":0,"echo":true}"#)
                .unwrap()
                .echo_only()
        );
    }

    #[test]
    fn a_stream_without_prompt_logprobs_may_name_them() {
        let body = r#"{"prompt":"a","prompt_logprobs":null,"stream":true}"#;
        assert_eq!(parse(body).unwrap().prompt_logprobs, None);
    }

    #[test]
    fn null_is_absent_except_for_max_tokens() {
        let request =
            parse(r#"{"prompt":"a","temperature":null,"stop":null,"max_tokens":null,"seed":null}"#)
                .unwrap();
        assert_eq!(request.common.temperature, None);
        assert_eq!(request.common.max_tokens, MaxTokens::Remaining);
        assert_eq!(
            parse(r#"{"prompt":"a"}"#).unwrap().common.max_tokens,
            MaxTokens::Unset
        );
    }

    #[test]
    fn deep_nesting_is_an_error() {
        let deep = format!(
            r#"{{"prompt":"a","logit_bias":{}}}"#,
            "[".repeat(100_000) + &"]".repeat(100_000)
        );
        assert_eq!(
            parse(&deep).unwrap_err().param.as_deref(),
            Some("logit_bias")
        );
        assert_eq!(parse(&"[".repeat(1_000_000)).unwrap_err().status, 400);
        assert_eq!(parse(&"{\"a\":".repeat(1_000_000)).unwrap_err().status, 400);
    }
}
