//! `ttft`: scores by predicted time to first token: the shortest time of all candidates divided by
//! the candidate's.

use super::predicted::ttft;
use super::{Candidate, Score, least_over_each};
use crate::Request;

#[derive(Debug)]
pub(crate) struct Ttft;

impl Score for Ttft {
    fn name(&self) -> &'static str {
        "ttft"
    }

    fn score(&self, request: &Request<'_>, candidates: &[Candidate<'_>]) -> Vec<f32> {
        let seconds = candidates.iter().map(|one| ttft(request, one));
        least_over_each(&seconds.collect::<Vec<_>>())
    }

    fn needs_prefixes(&self) -> bool {
        true
    }
}
