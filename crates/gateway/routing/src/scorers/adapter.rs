//! `adapter`: scores 1 if the request's adapter is loaded, 0.8 if there is room to load it, else 0.
//! The differences are large because loading an adapter takes longer than waiting at a replica that
//! has already loaded it.

use super::{Candidate, Score};
use crate::Request;

const ROOM: f32 = 0.8;

#[derive(Debug)]
pub(crate) struct Adapter;

impl Score for Adapter {
    fn name(&self) -> &'static str {
        "adapter"
    }

    /// All candidates score 1 if the request has no adapter.
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
