//! Requests that are answered with vectors, or with numbers made of vectors: `/v1/embeddings`,
//! `/v1/score`, `/v1/rerank`, in OpenAI's, vLLM's and Jina's formats.

mod embedding;
mod pairs;
mod vector;

use serde::Serialize;
use serde_json::value::RawValue;

pub use embedding::{EmbeddingInput, EmbeddingRequest, Encoding};
pub use pairs::{RerankRequest, ScoreRequest};
pub use vector::{cosine, sigmoid, trimmed};

use super::common::{Truncation, is_string, take_cache_salt, take_priority};
use super::fields::{Fields, read};
use crate::error::ApiError;

/// Maximum number of inputs per request, as in OpenAI's API.
pub const MAX_INPUTS: usize = 2048;

/// Parameters common to all pooled requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Pooled {
    pub model: Option<String>,
    pub truncation: Truncation,
    pub add_special_tokens: bool,
    pub cache_salt: Option<String>,
    /// Lower values are served first, if the engine schedules by priority.
    pub priority: i32,
}

impl Pooled {
    fn take(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        Ok(Self {
            model: fields.take("model")?,
            truncation: Truncation::take(fields, "right")?,
            add_special_tokens: fields.flag("add_special_tokens", true)?,
            cache_salt: take_cache_salt(fields)?,
            priority: take_priority(fields)?,
        })
    }
}

/// Reads a text or a list of texts. Each text may also be the member `text` of an object.
fn texts(name: &'static str, raw: &RawValue) -> Result<Vec<String>, ApiError> {
    #[derive(serde::Deserialize)]
    #[serde(untagged, expecting = "expected a text, or an object with a text")]
    enum Text {
        Plain(String),
        Within { text: String },
    }
    let listed: Vec<Text> = match is_string(raw) {
        true => vec![Text::Plain(read(name, raw)?)],
        false => read(name, raw)?,
    };
    let plain = |text| match text {
        Text::Plain(text) | Text::Within { text } => text,
    };
    let texts: Vec<String> = listed.into_iter().map(plain).collect();
    check_count(name, texts.len())?;
    Ok(texts)
}

fn check_count(name: &'static str, count: usize) -> Result<(), ApiError> {
    match count {
        0 => Err(ApiError::invalid(
            name,
            format!("{name} must not be empty."),
        )),
        1..=MAX_INPUTS => Ok(()),
        _ => {
            let message = format!("{name} may hold at most {MAX_INPUTS} inputs, got {count}.");
            Err(ApiError::invalid(name, message))
        }
    }
}

/// Tokens of all inputs; pooled requests have no output tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolingUsage {
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
}

impl Serialize for PoolingUsage {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::json!({
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        })
        .serialize(serializer)
    }
}
