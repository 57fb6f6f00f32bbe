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

    /// Whether it may get any where `others` says whether a replica in question takes requests.
    /// Where none does, those that failed are tried: a request that they fail would else be
    /// refused unseen, and one that makes replicas fail would close them for all.
    pub fn takes_beside(self, others: bool) -> bool {
        self.takes_requests() || (self == Self::Ejected && !others)
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

/// Tiers behind a replica's pool.
pub const TIERS: usize = 3;
/// What a token in RAM, on a disk or in shared storage is worth where the time of a load is not
/// reported: means of what data sheets give for models on accelerators
/// (docs/internals/gateway.md).
const UNREPORTED: [f32; TIERS] = [0.9, 0.45, 0.2];

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
    /// Seconds to load a token of KV from RAM, a disk, shared storage; `None`: unknown.
    pub load_s: [Option<f32>; TIERS],
    pub labels: Arc<[(Arc<str>, Arc<str>)]>,
}

impl Replica {
    /// What a cached token is worth by where it is, the pool first: the share of the time to
    /// compute it that a load saves.
    pub fn worth(&self) -> [f32; 1 + TIERS] {
        let mut worth = [1.0; 1 + TIERS];
        let tiers = worth[1..].iter_mut().zip(self.load_s).zip(UNREPORTED);
        for ((worth, seconds), unreported) in tiers {
            let saved = |seconds: f32| 1.0 - seconds * self.pace.prefill_tokens_per_s;
            *worth = seconds.map_or(unreported, saved).clamp(0.0, 1.0);
        }
        worth
    }

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
            load_s: [None; TIERS],
            labels: Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_token_is_worth_what_its_load_saves() {
        let mut replica = Replica::new(ReplicaId(1), "r:1");
        assert_eq!(replica.worth(), [1.0, 0.9, 0.45, 0.2]);
        replica.pace.prefill_tokens_per_s = 1_000.0;
        replica.load_s = [Some(0.000_25), None, Some(0.002)];
        assert_eq!(replica.worth(), [1.0, 0.75, 0.45, 0.0]);
        // a faster replica saves less
        replica.pace.prefill_tokens_per_s = 2_000.0;
        assert_eq!(replica.worth()[1], 0.5);
    }
}
