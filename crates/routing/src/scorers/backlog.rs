//! `backlog`: fewer prompt tokens to compute before this request's are better.

use super::{Candidate, Score, least_is_best};
use crate::Request;

#[derive(Debug)]
pub(crate) struct Backlog;

impl Score for Backlog {
    fn name(&self) -> &'static str {
        "backlog"
    }

    fn score(&self, _: &Request<'_>, candidates: &[Candidate<'_>]) -> Vec<f32> {
        let tokens = candidates.iter().map(|one| one.replica.backlog_tokens);
        least_is_best(&tokens.collect::<Vec<_>>())
    }
}
