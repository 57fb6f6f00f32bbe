//! `POST /v1/embeddings`.

use serde_json::{Map, Value};

use super::{Pooled, check_count};
use crate::completion::{Prompt, take_prompts};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::messages::take_messages;
use crate::neutral;

/// A validated request for embeddings.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingRequest {
    pub pooled: Pooled,
    pub input: EmbeddingInput,
    pub encoding: Encoding,
    /// How many leading numbers of each vector to keep, at least 1.
    pub dimensions: Option<usize>,
    /// Scale to length 1; `None`: the model's default.
    pub normalize: Option<bool>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum EmbeddingInput {
    /// 1 to [`super::MAX_INPUTS`].
    Prompts(Vec<Prompt>),
    /// A conversation, answered with one vector.
    Messages {
        messages: Value,
        add_generation_prompt: bool,
        template_kwargs: Map<String, Value>,
    },
}

/// Format of the vectors in the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Float,
    /// The bytes of f32 numbers, little-endian.
    Base64,
}

impl EmbeddingRequest {
    /// Reads and validates a request body.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let base64 = fields.one_of("encoding_format", ["float", "base64"])?;
        let dimensions = fields.integer("dimensions", 1..=i64::from(u32::MAX))?;
        let normalize: Option<bool> = fields.take("normalize")?;
        let request = Self {
            input: EmbeddingInput::take(&mut fields)?,
            encoding: match base64 {
                Some("base64") => Encoding::Base64,
                _ => Encoding::Float,
            },
            dimensions: dimensions.map(|n| n as usize),
            normalize: fields.take("use_activation")?.or(normalize),
            pooled: Pooled::take(&mut fields)?,
        };
        neutral::check_pooling(&fields)?;
        Ok(request)
    }
}

impl EmbeddingInput {
    fn take(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        if !fields.has("input") && fields.has("messages") {
            return Ok(Self::Messages {
                messages: take_messages(fields)?,
                add_generation_prompt: fields.flag("add_generation_prompt", false)?,
                template_kwargs: fields.take("chat_template_kwargs")?.unwrap_or_default(),
            });
        }
        let prompts = take_prompts(fields, "input")?;
        check_count("input", prompts.len())?;
        Ok(Self::Prompts(prompts))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(body: &str) -> Result<EmbeddingRequest, ApiError> {
        EmbeddingRequest::parse(body.as_bytes())
    }

    #[test]
    fn the_four_forms_of_input_and_a_conversation() {
        let text = |s: &str| Prompt::Text(s.into());
        for (input, prompts) in [
            (r#""a""#, vec![text("a")]),
            (r#"["a", "b"]"#, vec![text("a"), text("b")]),
            ("[1, 2]", vec![Prompt::Tokens(vec![1, 2])]),
            (
                "[[1], [2]]",
                vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2])],
            ),
        ] {
            let request = parse(&format!(r#"{{"input": {input}, "user": "u"}}"#)).unwrap();
            assert_eq!(request.input, EmbeddingInput::Prompts(prompts), "{input}");
            assert_eq!(request.encoding, Encoding::Float);
        }
        let chat = parse(r#"{"messages": [{"role": "user", "content": "x"}]}"#).unwrap();
        assert!(matches!(chat.input, EmbeddingInput::Messages { .. }));
    }

    #[test]
    fn fields_are_read_in_both_spellings() {
        let request = parse(
            r#"{"input": "a", "encoding_format": "base64", "dimensions": "64",
                "use_activation": false, "truncate_prompt_tokens": -1, "truncation_side": "left"}"#,
        )
        .unwrap();
        assert_eq!(
            (request.encoding, request.dimensions),
            (Encoding::Base64, Some(64))
        );
        assert_eq!(request.normalize, Some(false));
        let kept = request.pooled.truncation;
        assert_eq!((kept.most, kept.keep_last), (Some(0), true));
    }

    #[test]
    fn others_are_refused_by_name() {
        let many = format!(r#"{{"input": [{}"a"]}}"#, r#""a","#.repeat(2048));
        for (body, param) in [
            ("{}", "input"),
            (r#"{"input": []}"#, "input"),
            (r#"{"input": [[]]}"#, "input"),
            (r#"{"input": 5}"#, "input"),
            (&many, "input"),
            (
                r#"{"input": "a", "encoding_format": "bytes"}"#,
                "encoding_format",
            ),
            (r#"{"input": "a", "dimensions": 0}"#, "dimensions"),
            (
                r#"{"input": "a", "truncation_side": "both"}"#,
                "truncation_side",
            ),
            (r#"{"input": "a", "embed_dtype": "float16"}"#, "embed_dtype"),
            (r#"{"input": "a", "endianness": "big"}"#, "endianness"),
        ] {
            let error = parse(body).unwrap_err();
            let shown = &body[..body.len().min(80)];
            assert_eq!(error.param.as_deref(), Some(param), "{shown}: {error}");
        }
    }
}
