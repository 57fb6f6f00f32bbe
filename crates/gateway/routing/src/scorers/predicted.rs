//! Predicted times of a request on a candidate, by the pace that the fleet learns online for each
//! class of replica.

use super::Candidate;
use crate::Request;

/// Seconds to the first token: (backlog + the prompt's tokens that are not cached) / prefill rate,
/// and a decode step.
pub(super) fn ttft(request: &Request<'_>, one: &Candidate<'_>) -> f32 {
    let tokens = one.load.backlog_tokens + request.prompt_tokens - one.cached_tokens;
    prefill(one, tokens) + decode_step(one, one.load.running)
}

/// Seconds of an output token: a decode step with those that run and wait there now.
pub(super) fn tpot(one: &Candidate<'_>) -> f32 {
    decode_step(one, one.load.running + one.load.waiting)
}

/// Seconds in which a replica computes prompt tokens.
pub(super) fn prefill(one: &Candidate<'_>, tokens: f32) -> f32 {
    tokens / one.load.pace.prefill_tokens_per_s
}

/// Seconds of a decode step on a replica, with this request and so many others in it.
fn decode_step(one: &Candidate<'_>, others: f32) -> f32 {
    let pace = &one.load.pace;
    pace.decode_s + pace.decode_s_per_sequence * others
}
