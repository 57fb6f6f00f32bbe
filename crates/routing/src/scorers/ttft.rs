//! `ttft`: the predicted time to the first token, the shortest over each one.
//!
//! Seconds = (backlog + the prompt's tokens that are not cached) / prefill rate, and a decode step.

use super::{Candidate, Score, least_over_each};
use crate::Request;

#[derive(Debug)]
pub(crate) struct Ttft;

impl Score for Ttft {
    fn name(&self) -> &'static str {
        "ttft"
    }

    fn score(&self, request: &Request<'_>, candidates: &[Candidate<'_>]) -> Vec<f32> {
        let seconds = |one: &Candidate<'_>| {
            let tokens = one.load.backlog_tokens + request.prompt_tokens - one.cached_tokens;
            prefill(one, tokens) + decode_step(one, one.load.running)
        };
        least_over_each(&candidates.iter().map(seconds).collect::<Vec<_>>())
    }

    fn needs_prefixes(&self) -> bool {
        true
    }
}

/// Seconds in which this replica computes prompt tokens.
pub(super) fn prefill(one: &Candidate<'_>, tokens: f32) -> f32 {
    tokens / one.load.pace.prefill_tokens_per_s
}

/// Seconds of a decode step on this replica, with this request and so many others in it.
pub(super) fn decode_step(one: &Candidate<'_>, others: f32) -> f32 {
    let pace = &one.load.pace;
    pace.decode_s + pace.decode_s_per_sequence * others
}
