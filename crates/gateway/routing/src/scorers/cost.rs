//! `cost`: the time in seconds that the request costs at a replica, for itself and for other
//! requests. A candidate's score is the lowest cost of all candidates divided by its own cost.
//!
//! Queues, cached prefixes, running sequences and KV use are converted to one unit, seconds, so no
//! weights between them are needed:
//!
//! ```text
//!  backlog + prompt                  the request's wait: tokens to compute before its first token
//!  + prompt x (0.5 + 0.05 running)   delay of others: later requests, and each running sequence
//!  + prompt x (regret + fill / 2)    recomputation of cached prompts that the request evicts
//!  + 20 decode steps                 the request's output, beside running and waiting requests
//!  + KV use x whole prompt           running sequences that the request may preempt
//! ```
//!
//! `backlog` and `prompt` (its uncached part) are in seconds at the replica's prefill rate. The
//! constants were tuned by replay (docs/routing.md).

use super::predicted::{prefill, tpot};
use super::{Candidate, Score, least_over_each};
use crate::Request;

/// Assumed delay that the prompt's prefill causes to requests that arrive later, as a fraction of
/// the prefill's duration.
const NEXT: f32 = 0.5;
/// Assumed delay that the prompt's prefill causes to each running sequence, as a fraction of the
/// prefill's duration.
const BESIDE: f32 = 0.05;
/// Number of decode steps of the response that are included in its cost. A full response has more,
/// but the load changes while it runs.
const STEPS: f32 = 20.0;

#[derive(Debug)]
pub(crate) struct Cost;

impl Score for Cost {
    fn name(&self) -> &'static str {
        "cost"
    }

    fn score(&self, request: &Request<'_>, candidates: &[Candidate<'_>]) -> Vec<f32> {
        let seconds = |one: &Candidate<'_>| {
            let load = &one.load;
            let prompt = prefill(one, request.prompt_tokens - one.cached_tokens);
            let cache = request.caches.get(one.place).copied();
            let evicted = cache.unwrap_or_default().pressure();
            prefill(one, load.backlog_tokens)
                + prompt * (1.0 + NEXT + BESIDE * load.running + evicted)
                + STEPS * tpot(one)
                + load.kv_use * prefill(one, request.prompt_tokens)
        };
        least_over_each(&candidates.iter().map(seconds).collect::<Vec<_>>())
    }

    fn needs_prefixes(&self) -> bool {
        true
    }
}
