//! Scorers rate how well each candidate suits a request, in [0, 1]; higher is better.

mod adapter;
mod cost;
mod criticality;
mod kv_use;
mod predicted;
mod prefix;
mod queue;
mod running;
mod session;
mod slo;
mod tpot;
mod ttft;

use std::fmt::Debug;

use crate::load::{Load, MOST};
use crate::{Replica, Request, Slo};

/// A replica that passed the filters, as the input of scorers.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    pub replica: &'a Replica,
    /// Index of the replica in the slice passed to [`crate::pick`].
    pub place: usize,
    /// The replica's sanitised load.
    pub load: Load,
    /// Estimated number of the prompt's tokens that the replica has cached, from 0 to the prompt's
    /// length.
    pub cached_tokens: f32,
}

impl<'a> Candidate<'a> {
    pub(crate) fn new(replica: &'a Replica, place: usize, cached_tokens: f32) -> Self {
        Self {
            replica,
            place,
            load: Load::of(replica),
            cached_tokens,
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.replica.address
    }
}

/// A scorer. Its scores depend only on the request and the candidates.
pub trait Score: Debug + Send + Sync {
    /// Name of the scorer in profiles, headers and metrics.
    fn name(&self) -> &'static str;

    /// One score in [0, 1] for each candidate, in the order of `candidates`.
    fn score(&self, request: &Request<'_>, candidates: &[Candidate<'_>]) -> Vec<f32>;

    /// Whether the scorer uses [`Candidate::cached_tokens`].
    fn needs_prefixes(&self) -> bool {
        false
    }
}

/// Names of the scorers.
pub const SCORERS: [&str; 11] = [
    "queue",
    "running",
    "kv-use",
    "prefix",
    "session",
    "adapter",
    "criticality",
    "ttft",
    "tpot",
    "slo",
    "cost",
];

/// The scorer with that name. `slo` has the default latency targets.
pub(crate) fn scorer(name: &str, slo: Slo) -> Option<Box<dyn Score>> {
    Some(match name {
        "queue" => Box::new(queue::Queue),
        "running" => Box::new(running::Running),
        "kv-use" => Box::new(kv_use::KvUse),
        "prefix" => Box::new(prefix::Prefix),
        "session" => Box::new(session::Session),
        "adapter" => Box::new(adapter::Adapter),
        "criticality" => Box::new(criticality::Criticality),
        "ttft" => Box::new(ttft::Ttft),
        "tpot" => Box::new(tpot::Tpot),
        "slo" => Box::new(slo::Headroom { usual: slo }),
        "cost" => Box::new(cost::Cost),
        _ => return None,
    })
}

/// Linear scores from 1 for the smallest value to 0 for the largest; 1 for all if the values are
/// equal. Invalid values (`MOST`) score 0 and do not affect the scale.
pub(crate) fn least_is_best(values: &[f32]) -> Vec<f32> {
    let least = values.iter().copied().fold(f32::INFINITY, f32::min);
    let sane = values.iter().copied().filter(|value| *value < MOST);
    let spread = sane.fold(0.0, f32::max) - least;
    let scored = values.iter().map(|value| match spread > 0.0 {
        true => (1.0 - (value - least) / spread).clamp(0.0, 1.0),
        false => f32::from(u8::from(*value <= least)),
    });
    scored.collect()
}

/// The lowest cost divided by each cost: a candidate at twice the lowest cost scores 0.5. Costs
/// must be finite and not negative.
pub(crate) fn least_over_each(costs: &[f32]) -> Vec<f32> {
    let least = costs.iter().copied().fold(f32::INFINITY, f32::min);
    let scored = costs.iter().map(|cost| match *cost > 0.0 {
        true => (least / cost).clamp(0.0, 1.0),
        false => 1.0,
    });
    scored.collect()
}
