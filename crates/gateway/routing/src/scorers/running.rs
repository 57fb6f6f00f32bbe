//! `running`: prefers fewer requests in flight, waiting or running.

use super::{Candidate, Score, least_is_best};
use crate::Request;

#[derive(Debug)]
pub(crate) struct Running;

impl Score for Running {
    fn name(&self) -> &'static str {
        "running"
    }

    fn score(&self, _: &Request<'_>, candidates: &[Candidate<'_>]) -> Vec<f32> {
        let inside = candidates
            .iter()
            .map(|one| one.load.running + one.load.waiting);
        least_is_best(&inside.collect::<Vec<_>>())
    }
}
