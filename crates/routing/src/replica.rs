//! Replicas as routing sees them.

use std::sync::Arc;

/// Name of a replica within one fleet; never used again for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u32);

/// Whether a replica may get requests.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Condition {
    #[default]
    Ready,
    /// Slow start: it gets this share (0 to 1) of the requests that it would win.
    Warming(f32),
    /// It finishes what it has.
    Draining,
    /// Its circuit breaker is open, or it was ejected as an outlier.
    Ejected,
    /// Health checks fail.
    Unhealthy,
}

impl Condition {
    /// Whether it may get any.
    pub fn takes_requests(self) -> bool {
        matches!(self, Self::Ready | Self::Warming(_))
    }
}

/// How fast a replica is, learned from its answers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Prompt tokens a second, while prefill is what it does.
    pub prefill_tokens_per_s: f32,
    /// Seconds of a decode step with one sequence.
    pub decode_s: f32,
    /// Seconds that each further sequence adds to a decode step.
    pub decode_s_per_sequence: f32,
}

impl Default for Pace {
    /// Ratios matter more than values: all replicas start with these.
    fn default() -> Self {
        Self {
            prefill_tokens_per_s: 5_000.0,
            decode_s: 0.01,
            decode_s_per_sequence: 0.000_5,
        }
    }
}

/// A replica and its load at the moment of the decision: what it reported, and what was sent to it
/// since.
#[derive(Debug, Clone, PartialEq)]
pub struct Replica {
    pub id: ReplicaId,
    /// Where it listens, `host:port`.
    pub address: Arc<str>,
    pub condition: Condition,
    /// Requests that it has not begun.
    pub waiting: f32,
    /// Requests that it computes.
    pub running: f32,
    /// KV blocks in use, 0 to 1.
    pub kv_use: f32,
    /// Prompt tokens that it computes before those of a new request.
    pub backlog_tokens: f32,
    pub pace: Pace,
    /// Adapters that are loaded.
    pub adapters: Arc<[Arc<str>]>,
    /// Adapters that it can hold; 0: unknown, or none.
    pub max_adapters: u32,
    pub labels: Arc<[(Arc<str>, Arc<str>)]>,
}

impl Replica {
    /// An idle one.
    pub fn new(id: ReplicaId, address: impl Into<Arc<str>>) -> Self {
        Self {
            id,
            address: address.into(),
            condition: Condition::Ready,
            waiting: 0.0,
            running: 0.0,
            kv_use: 0.0,
            backlog_tokens: 0.0,
            pace: Pace::default(),
            adapters: Arc::default(),
            max_adapters: 0,
            labels: Arc::default(),
        }
    }
}
