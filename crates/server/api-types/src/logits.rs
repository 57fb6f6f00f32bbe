//! Fields that modify the logits before sampling.

use std::collections::BTreeMap;

use super::fields::Fields;
use crate::error::ApiError;

/// Maximum numbers of entries in `logit_bias` and `allowed_token_ids`, and of strings in
/// `bad_words`.
const MAX_BIASED: usize = 1024;
const MAX_ALLOWED: usize = 1024;
const MAX_BAD_WORDS: usize = 128;
const MAX_BAD_WORD_BYTES: usize = 64;

/// Validated changes of the logits. `None` leaves the choice to the server's defaults.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LogitRules {
    /// In [0, 1]; 0 is off.
    pub min_p: Option<f32>,
    /// Above 0; 1 is off.
    pub repetition_penalty: Option<f32>,
    /// In [-2, 2]; 0 is off.
    pub presence_penalty: f32,
    /// In [-2, 2]; 0 is off.
    pub frequency_penalty: f32,
    /// Token ids, and the numbers in [-100, 100] added to their logits.
    pub logit_bias: Vec<(u32, f32)>,
    /// Allow-list of tokens; empty: all.
    pub allowed_token_ids: Vec<u32>,
    /// Texts that the output must not contain. Only the tokenizer's token sequences for them are
    /// banned, so other sequences may still spell them.
    pub bad_words: Vec<String>,
}

impl LogitRules {
    pub(super) fn take(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let above = |p: f64| p as f32 > 0.0 && (p as f32).is_finite();
        let repetition = fields.number("repetition_penalty", "above 0, in 32 bits", above)?;
        let two = |p: f64| (-2.0..=2.0).contains(&p);
        let penalty = |value: Option<f64>| value.unwrap_or_default() as f32;
        Ok(Self {
            min_p: fields
                .number("min_p", "in [0, 1]", |p| (0.0..=1.0).contains(&p))?
                .map(|p| p as f32),
            repetition_penalty: repetition.map(|p| p as f32),
            presence_penalty: penalty(fields.number("presence_penalty", "in [-2, 2]", two)?),
            frequency_penalty: penalty(fields.number("frequency_penalty", "in [-2, 2]", two)?),
            logit_bias: take_bias(fields)?,
            allowed_token_ids: take_allowed(fields)?,
            bad_words: take_bad_words(fields)?,
        })
    }
}

fn take_bias(fields: &mut Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
    let name = "logit_bias";
    let given: BTreeMap<String, f64> = fields.take(name)?.unwrap_or_default();
    at_most(name, given.len(), MAX_BIASED)?;
    let entry = |(token, bias): (String, f64)| {
        let wrong = |what| ApiError::invalid(name, format!("logit_bias: {token:?} {what}."));
        let id = token.parse().map_err(|_| wrong("is not a token id"))?;
        let in_range = (-100.0..=100.0).contains(&bias);
        let biased = in_range.then_some((id, bias as f32));
        biased.ok_or_else(|| wrong("has a bias outside [-100, 100]"))
    };
    given.into_iter().map(entry).collect()
}

fn take_allowed(fields: &mut Fields<'_>) -> Result<Vec<u32>, ApiError> {
    let name = "allowed_token_ids";
    let Some(ids) = fields.take::<Vec<u32>>(name)? else {
        return Ok(Vec::new());
    };
    at_most(name, ids.len(), MAX_ALLOWED)?;
    if ids.is_empty() {
        let message = "allowed_token_ids must not be empty: no token could be drawn.";
        return Err(ApiError::invalid(name, message));
    }
    Ok(ids)
}

fn take_bad_words(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let name = "bad_words";
    let words: Vec<String> = fields.take(name)?.unwrap_or_default();
    at_most(name, words.len(), MAX_BAD_WORDS)?;
    let wrong = |word: &String| word.trim().is_empty() || word.len() > MAX_BAD_WORD_BYTES;
    if words.iter().any(wrong) {
        let message = format!("every bad word must have 1 to {MAX_BAD_WORD_BYTES} bytes.");
        return Err(ApiError::invalid(name, message));
    }
    Ok(words)
}

fn at_most(name: &'static str, entries: usize, most: usize) -> Result<(), ApiError> {
    if entries <= most {
        return Ok(());
    }
    let message = format!("{name} may hold at most {most} entries, got {entries}.");
    Err(ApiError::invalid(name, message))
}
