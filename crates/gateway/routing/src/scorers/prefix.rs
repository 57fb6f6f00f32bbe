//! `prefix`: scores a replica by the share of the prompt that it has cached.

use super::{Candidate, Score};
use crate::Request;

#[derive(Debug)]
pub(crate) struct Prefix;

impl Score for Prefix {
    fn name(&self) -> &'static str {
        "prefix"
    }

    fn score(&self, request: &Request<'_>, candidates: &[Candidate<'_>]) -> Vec<f32> {
        let share = |one: &Candidate<'_>| one.cached_tokens / request.prompt_tokens.max(1.0);
        candidates
            .iter()
            .map(|one| share(one).clamp(0.0, 1.0))
            .collect()
    }

    fn needs_prefixes(&self) -> bool {
        true
    }
}
