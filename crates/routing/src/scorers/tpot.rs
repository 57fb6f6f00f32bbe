//! `tpot`: the predicted time of an output token, the shortest over each one.

use super::ttft::decode_step;
use super::{Candidate, Score, least_over_each};
use crate::Request;

#[derive(Debug)]
pub(crate) struct Tpot;

impl Score for Tpot {
    fn name(&self) -> &'static str {
        "tpot"
    }

    fn score(&self, _: &Request<'_>, candidates: &[Candidate<'_>]) -> Vec<f32> {
        least_over_each(&candidates.iter().map(decode_step).collect::<Vec<_>>())
    }
}
