//! `ttft`: the predicted time to the first token, the shortest over each one.
//!
//! Seconds = (backlog + the prompt's tokens that are not cached) / prefill rate, and a decode step.
//! Loads of a shared prefix and of queues meet in one unit, so no weights decide between them.

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
            let (replica, pace) = (one.replica, &one.replica.pace);
            let tokens = replica.backlog_tokens + request.prompt_tokens - one.cached_tokens;
            tokens / pace.prefill_tokens_per_s.max(1.0) + decode_step(one)
        };
        least_over_each(&candidates.iter().map(seconds).collect::<Vec<_>>())
    }

    fn needs_prefixes(&self) -> bool {
        true
    }
}

/// Seconds of a decode step on this replica, with this request in it.
pub(super) fn decode_step(one: &Candidate<'_>) -> f32 {
    let pace = &one.replica.pace;
    pace.decode_s + pace.decode_s_per_sequence * one.replica.running
}
