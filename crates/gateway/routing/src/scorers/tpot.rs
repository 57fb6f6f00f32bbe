//! `tpot`: scores by predicted time per output token (TPOT): the shortest time of all candidates
//! divided by the candidate's.

use super::predicted::tpot;
use super::{Candidate, Score, least_over_each};
use crate::Request;

#[derive(Debug)]
pub(crate) struct Tpot;

impl Score for Tpot {
    fn name(&self) -> &'static str {
        "tpot"
    }

    fn score(&self, _: &Request<'_>, candidates: &[Candidate<'_>]) -> Vec<f32> {
        least_over_each(&candidates.iter().map(tpot).collect::<Vec<_>>())
    }
}
