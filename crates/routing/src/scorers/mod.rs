//! Scorers: how well each candidate suits a request, in [0, 1]; more is better.

mod adapter;
mod backlog;
mod kv_use;
mod prefix;
mod queue;
mod running;
mod session;
mod tpot;
mod ttft;

use std::fmt::Debug;

use crate::{Replica, Request};

/// A replica that may get the request.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    pub replica: &'a Replica,
    /// Its place in the view.
    pub place: usize,
    /// Tokens of the prompt whose KV it is believed to hold; at most the prompt's.
    pub cached_tokens: f32,
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
pub const SCORERS: [&str; 9] = [
    "queue", "running", "backlog", "kv-use", "prefix", "session", "adapter", "ttft", "tpot",
];

/// The scorer of that name.
pub(crate) fn scorer(name: &str) -> Option<Box<dyn Score>> {
    Some(match name {
        "queue" => Box::new(queue::Queue),
        "running" => Box::new(running::Running),
        "backlog" => Box::new(backlog::Backlog),
        "kv-use" => Box::new(kv_use::KvUse),
        "prefix" => Box::new(prefix::Prefix),
        "session" => Box::new(session::Session),
        "adapter" => Box::new(adapter::Adapter),
        "ttft" => Box::new(ttft::Ttft),
        "tpot" => Box::new(tpot::Tpot),
        _ => return None,
    })
}

/// 1 for the least, 0 for the greatest value, linear between; all equal: 1.
pub(crate) fn least_is_best(values: &[f32]) -> Vec<f32> {
    let least = values.iter().copied().fold(f32::INFINITY, f32::min);
    let most = values.iter().copied().fold(0.0, f32::max);
    let spread = most - least;
    let scored = values.iter().map(|value| match spread > 0.0 {
        true => ((most - value) / spread).clamp(0.0, 1.0),
        false => 1.0,
    });
    scored.collect()
}

/// The least cost over each one: twice the least cost is 0.5. Costs are not negative.
pub(crate) fn least_over_each(costs: &[f32]) -> Vec<f32> {
    let least = costs.iter().copied().fold(f32::INFINITY, f32::min);
    let scored = costs.iter().map(|cost| match *cost > 0.0 {
        true => (least / cost).clamp(0.0, 1.0),
        false => 1.0,
    });
    scored.collect()
}
