//! `queue`: prefers fewer waiting requests; the fewest score 1, the most 0.

use super::{Candidate, Score, least_is_best};
use crate::Request;

#[derive(Debug)]
pub(crate) struct Queue;

impl Score for Queue {
    fn name(&self) -> &'static str {
        "queue"
    }

    fn score(&self, _: &Request<'_>, candidates: &[Candidate<'_>]) -> Vec<f32> {
        let waiting = candidates.iter().map(|one| one.load.waiting);
        least_is_best(&waiting.collect::<Vec<_>>())
    }
}
