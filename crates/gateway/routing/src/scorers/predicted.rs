//! Predicted latencies of a request on a candidate, from the throughput that the fleet estimates
//! online.

use super::Candidate;
use crate::Request;

/// Predicted time to first token in seconds: prefill of the replica's backlog and of the prompt's
/// uncached tokens, plus one decode step.
pub(super) fn ttft(request: &Request<'_>, one: &Candidate<'_>) -> f32 {
    let tokens = one.load.backlog_tokens + request.prompt_tokens - one.cached_tokens;
    prefill(one, tokens) + decode_step(one, one.load.running)
}

/// Predicted time per output token in seconds: one decode step with all running and waiting
/// requests.
pub(super) fn tpot(one: &Candidate<'_>) -> f32 {
    decode_step(one, one.load.running + one.load.waiting)
}

/// Seconds that the replica takes to prefill `tokens`.
pub(super) fn prefill(one: &Candidate<'_>, tokens: f32) -> f32 {
    tokens / one.load.pace.prefill_tokens_per_s
}

/// Duration in seconds of a decode step with this request and `others` more.
fn decode_step(one: &Candidate<'_>, others: f32) -> f32 {
    let pace = &one.load.pace;
    pace.decode_s + pace.decode_s_per_sequence * others
}
