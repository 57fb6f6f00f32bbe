//! Scorers: how well each candidate suits a request, in [0, 1]; more is better.

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

/// A replica that may get the request.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    pub replica: &'a Replica,
    /// Its place in the view.
    pub place: usize,
    /// Its load, without numbers that are none.
    pub load: Load,
    /// Tokens of the prompt whose KV it is believed to hold; from 0 to the prompt's.
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

/// A scorer. Scores depend on the request and the candidates alone.
pub trait Score: Debug + Send + Sync {
    /// As profiles, headers and metrics spell it.
    fn name(&self) -> &'static str;

    /// One number in [0, 1] for each candidate, in their order.
    fn score(&self, request: &Request<'_>, candidates: &[Candidate<'_>]) -> Vec<f32>;

    /// Whether it looks at `cached_tokens`.
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

/// The scorer of that name; `slo`: targets of requests that have none.
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

/// 1 for the least, 0 for the greatest value, linear between; all equal: 1. Absurd values get 0 and
/// are no measure of the others.
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

/// The least cost over each one: twice the least cost is 0.5. Costs are finite and not negative.
pub(crate) fn least_over_each(costs: &[f32]) -> Vec<f32> {
    let least = costs.iter().copied().fold(f32::INFINITY, f32::min);
    let scored = costs.iter().map(|cost| match *cost > 0.0 {
        true => (least / cost).clamp(0.0, 1.0),
        false => 1.0,
    });
    scored.collect()
}
