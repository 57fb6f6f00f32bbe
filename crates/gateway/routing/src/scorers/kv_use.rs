//! `kv-use`: scores a replica by the share of its KV blocks that are free.

use super::{Candidate, Score};
use crate::Request;

#[derive(Debug)]
pub(crate) struct KvUse;

impl Score for KvUse {
    fn name(&self) -> &'static str {
        "kv-use"
    }

    fn score(&self, _: &Request<'_>, candidates: &[Candidate<'_>]) -> Vec<f32> {
        let free = candidates.iter().map(|one| 1.0 - one.load.kv_use);
        free.map(|share| share.clamp(0.0, 1.0)).collect()
    }
}
