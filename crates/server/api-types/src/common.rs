//! Parameters common to the generation endpoints.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::MAX_LOGPROBS;
use super::fields::{Fields, Number, read, read_object};
use super::grammar::OutputGrammar;
use super::logits::LogitRules;
use super::resume::{self, Resume};
use crate::error::ApiError;

/// Upper bound on stop strings per request; each is searched for in every token's text.
const MAX_STOP_STRINGS: usize = 16;
const MAX_STOP_STRING_BYTES: usize = 1024;
const MAX_STOP_TOKEN_IDS: usize = 256;
const MAX_CACHE_SALT_BYTES: usize = 256;
/// Maximum number of choices per prompt.
const MAX_CHOICES: i64 = 128;

/// Validated parameters of a generation request. `None`: the server's default.
#[derive(Debug, Clone, PartialEq)]
pub struct Common {
    pub model: Option<String>,
    pub stream: bool,
    pub stream_options: StreamOptions,
    pub max_tokens: MaxTokens,
    pub min_tokens: u32,
    /// Finite, at least 0; 0 is greedy.
    pub temperature: Option<f32>,
    /// In (0, 1].
    pub top_p: Option<f32>,
    /// 0 is off.
    pub top_k: Option<i32>,
    pub seed: Option<i64>,
    pub logits: LogitRules,
    /// Grammar that constrains the output.
    pub grammar: Option<OutputGrammar>,
    /// Number of choices per prompt, at least 1.
    pub n: usize,
    pub stop: Vec<String>,
    /// Whether the text includes the stop string.
    pub include_stop: bool,
    pub stop_token_ids: Vec<u32>,
    pub ignore_eos: bool,
    pub skip_special_tokens: bool,
    pub return_token_ids: bool,
    pub truncation: Truncation,
    pub cache_salt: Option<String>,
    /// Lower values are served first, if the engine schedules by priority.
    pub priority: i32,
    /// Split cached tokens by tier in the usage even with a single tier.
    pub return_cached_tokens_by_tier: bool,
    /// The output so far of an interrupted stream to resume.
    pub resume: Option<Resume>,
}

/// Truncation of long prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncation {
    /// Number of tokens to keep of each prompt; 0: all that fit the context; `None`: longer prompts
    /// are rejected.
    pub most: Option<usize>,
    /// Keep the last tokens instead of the first.
    pub keep_last: bool,
}

impl Truncation {
    /// Takes the fields. `side` is the default of `truncation_side`, the side that is cut.
    pub(super) fn take(fields: &mut Fields<'_>, side: &'static str) -> Result<Self, ApiError> {
        let most = fields.integer("truncate_prompt_tokens", -1..=i64::from(i32::MAX))?;
        let given = fields.one_of("truncation_side", ["right", "left"])?;
        Ok(Self {
            most: most.map(|tokens| tokens.max(0) as usize),
            keep_last: given.unwrap_or(side) == "left",
        })
    }
}

/// The output's length limit in a request, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxTokens {
    /// The field was absent: the endpoint's default.
    Unset,
    /// `null`: whatever fits the context.
    Remaining,
    Exactly(u32),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StreamOptions {
    pub include_usage: bool,
    /// Usage on every chunk, as vLLM does with `continuous_usage_stats`.
    pub continuous_usage_stats: bool,
}

impl Common {
    /// Maximum number of prompt tokens before truncation, if `length` is the maximum after it.
    pub fn prompt_limit(&self, length: u32) -> u32 {
        self.truncation.most.map_or(length, |_| u32::MAX)
    }

    /// Takes the shared fields. `least_tokens` is the smallest `max_tokens` that the endpoint
    /// allows.
    pub(super) fn take(fields: &mut Fields<'_>, least_tokens: u32) -> Result<Self, ApiError> {
        let stream = fields.flag("stream", false)?;
        let max_tokens = take_max_tokens(fields, least_tokens)?;
        let n = fields.integer("n", 1..=MAX_CHOICES)?.unwrap_or(1) as usize;
        Ok(Self {
            model: fields.take("model")?,
            stream,
            stream_options: take_stream_options(fields, stream)?,
            max_tokens,
            min_tokens: take_min_tokens(fields, max_tokens)?,
            temperature: take_temperature(fields)?,
            top_p: take_top_p(fields)?,
            top_k: fields
                .integer("top_k", -1..=i64::from(i32::MAX))?
                .map(|k| k.max(0) as i32),
            seed: fields.integer("seed", i64::MIN..=i64::MAX)?,
            logits: LogitRules::take(fields)?,
            grammar: take_grammar(fields)?,
            n,
            stop: take_stop(fields)?,
            include_stop: fields.flag("include_stop_str_in_output", false)?,
            stop_token_ids: take_stop_token_ids(fields)?,
            ignore_eos: fields.flag("ignore_eos", false)?,
            skip_special_tokens: fields.flag("skip_special_tokens", true)?,
            return_token_ids: fields.flag("return_token_ids", false)?,
            truncation: Truncation::take(fields, "left")?,
            cache_salt: take_cache_salt(fields)?,
            priority: take_priority(fields)?,
            return_cached_tokens_by_tier: fields.flag("return_cached_tokens_by_tier", false)?,
            resume: take_resume(fields, stream, n)?,
        })
    }
}

/// Takes the number of alternatives per prompt token. As in vLLM, streams cannot have them.
pub(super) fn take_prompt_logprobs(
    fields: &mut Fields<'_>,
    stream: bool,
) -> Result<Option<u8>, ApiError> {
    let name = "prompt_logprobs";
    match fields.integer(name, 0..=i64::from(MAX_LOGPROBS))? {
        Some(_) if stream => Err(ApiError::invalid(
            name,
            "prompt_logprobs is only allowed when stream is false.",
        )),
        most => Ok(most.map(|n| n as u8)),
    }
}

fn take_resume(
    fields: &mut Fields<'_>,
    stream: bool,
    n: usize,
) -> Result<Option<Resume>, ApiError> {
    match Resume::take(fields)? {
        Some(_) if !stream => Err(resume::invalid("it needs stream")),
        Some(_) if n > 1 => Err(resume::invalid("it cannot be combined with n above 1")),
        resume => Ok(resume),
    }
}

fn take_stream_options(fields: &mut Fields<'_>, stream: bool) -> Result<StreamOptions, ApiError> {
    // Options, because a missing member and a null member both mean false.
    #[derive(Deserialize)]
    struct Wire {
        include_usage: Option<bool>,
        continuous_usage_stats: Option<bool>,
    }
    let Some(raw) = fields.take_raw("stream_options") else {
        return Ok(StreamOptions::default());
    };
    let wire: Wire = read_object("stream_options", raw, r#"{"include_usage": true}"#)?;
    if !stream {
        return Err(ApiError::invalid(
            "stream_options",
            "stream_options is only allowed when stream is true.",
        ));
    }
    Ok(StreamOptions {
        include_usage: wire.include_usage.unwrap_or(false),
        continuous_usage_stats: wire.continuous_usage_stats.unwrap_or(false),
    })
}

fn take_max_tokens(fields: &mut Fields<'_>, least: u32) -> Result<MaxTokens, ApiError> {
    let newer = fields.take_nullable::<Number>("max_completion_tokens")?;
    let older = fields.take_nullable::<Number>("max_tokens")?;
    let (name, number) = match (newer, older) {
        (Some(Some(number)), _) => ("max_completion_tokens", number),
        (_, Some(Some(number))) => ("max_tokens", number),
        (None, None) => return Ok(MaxTokens::Unset),
        _ => return Ok(MaxTokens::Remaining),
    };
    let range = i64::from(least)..=i64::from(u32::MAX);
    Ok(MaxTokens::Exactly(number.integer(name, range)? as u32))
}

fn take_min_tokens(fields: &mut Fields<'_>, max_tokens: MaxTokens) -> Result<u32, ApiError> {
    let min = fields
        .integer("min_tokens", 0..=i64::from(u32::MAX))?
        .unwrap_or(0) as u32;
    match max_tokens {
        MaxTokens::Exactly(max) if min > max => Err(ApiError::invalid(
            "min_tokens",
            format!("min_tokens ({min}) is more than max_tokens ({max})."),
        )),
        _ => Ok(min),
    }
}

/// Takes the grammar. Rejects a grammar with `ignore_eos`, because the grammar decides the end of
/// the output.
fn take_grammar(fields: &mut Fields<'_>) -> Result<Option<OutputGrammar>, ApiError> {
    let grammar = OutputGrammar::take(fields)?;
    match grammar {
        Some(grammar) if fields.peek("ignore_eos") == Some("true") => {
            let message = format!("ignore_eos cannot be combined with {}.", grammar.field);
            Err(ApiError::invalid("ignore_eos", message))
        }
        grammar => Ok(grammar),
    }
}

fn take_temperature(fields: &mut Fields<'_>) -> Result<Option<f32>, ApiError> {
    let fits = |t: f64| t >= 0.0 && (t as f32).is_finite();
    let value = fields.number("temperature", "at least 0 and finite", fits)?;
    Ok(value.map(|t| t as f32))
}

fn take_top_p(fields: &mut Fields<'_>) -> Result<Option<f32>, ApiError> {
    let value = fields.number("top_p", "in (0, 1]", |p| p > 0.0 && p <= 1.0)?;
    // Clamped, so a value that f32 would round to 0 still keeps the likeliest token.
    Ok(value.map(|p| (p as f32).max(f32::MIN_POSITIVE)))
}

fn take_stop(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let stop: Vec<String> = match fields.take_raw("stop") {
        None => return Ok(Vec::new()),
        Some(raw) if is_string(raw) => vec![read("stop", raw)?],
        Some(raw) => read("stop", raw)?,
    };
    if stop.len() > MAX_STOP_STRINGS {
        let message = format!(
            "stop may hold at most {MAX_STOP_STRINGS} strings, got {}.",
            stop.len()
        );
        return Err(ApiError::invalid("stop", message));
    }
    if stop
        .iter()
        .any(|s| s.is_empty() || s.len() > MAX_STOP_STRING_BYTES)
    {
        let message = format!("every stop string must have 1 to {MAX_STOP_STRING_BYTES} bytes.");
        return Err(ApiError::invalid("stop", message));
    }
    Ok(stop)
}

fn take_stop_token_ids(fields: &mut Fields<'_>) -> Result<Vec<u32>, ApiError> {
    let ids: Vec<u32> = fields.take("stop_token_ids")?.unwrap_or_default();
    if ids.len() > MAX_STOP_TOKEN_IDS {
        let message = format!(
            "stop_token_ids may hold at most {MAX_STOP_TOKEN_IDS} ids, got {}.",
            ids.len()
        );
        return Err(ApiError::invalid("stop_token_ids", message));
    }
    Ok(ids)
}

pub(super) fn take_priority(fields: &mut Fields<'_>) -> Result<i32, ApiError> {
    let priority = fields.integer("priority", i64::from(i32::MIN)..=i64::from(i32::MAX))?;
    Ok(priority.map_or(0, |priority| priority as i32))
}

pub(super) fn take_cache_salt(fields: &mut Fields<'_>) -> Result<Option<String>, ApiError> {
    let salt: Option<String> = fields.take("cache_salt")?;
    match salt {
        Some(s) if s.is_empty() || s.len() > MAX_CACHE_SALT_BYTES => {
            let message = format!("cache_salt must have 1 to {MAX_CACHE_SALT_BYTES} bytes.");
            Err(ApiError::invalid("cache_salt", message))
        }
        other => Ok(other),
    }
}

pub(super) fn is_string(raw: &RawValue) -> bool {
    raw.get().starts_with('"')
}
