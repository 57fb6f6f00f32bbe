//! `adapter`: 1 if the adapter is loaded, 0.8 if there is room for it, else 0. Loading an adapter
//! takes longer than queueing for a loaded one.

use super::{Candidate, Score};
use crate::Request;

const ROOM: f32 = 0.8;

#[derive(Debug)]
pub(crate) struct Adapter;

impl Score for Adapter {
    fn name(&self) -> &'static str {
        "adapter"
    }

    /// 1 for all without an adapter.
    fn score(&self, request: &Request<'_>, candidates: &[Candidate<'_>]) -> Vec<f32> {
        let score = |one: &Candidate<'_>| {
            let loaded = &one.replica.adapters;
            match request.adapter {
                None => 1.0,
                Some(asked) if loaded.iter().any(|name| **name == *asked) => 1.0,
                Some(_) if loaded.len() < one.replica.max_adapters as usize => ROOM,
                Some(_) => 0.0,
            }
        };
        candidates.iter().map(score).collect()
    }
}
