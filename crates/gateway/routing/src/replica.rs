//! State of a replica as used by routing.

use std::sync::Arc;

/// Id of a replica within one fleet; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u32);

/// Whether a replica may get requests.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Condition {
    #[default]
    Ready,
    /// Slow start: the replica accepts this share (0 to 1) of the requests for which it ranks
    /// first.
    Warming(f32),
    /// The replica finishes its requests and accepts no new ones.
    Draining,
    /// The circuit breaker is open, or the replica was ejected as an outlier.
    Ejected,
    /// Health checks fail.
    Unhealthy,
}

impl Condition {
    /// Whether the replica accepts requests, without restriction or during its slow start.
    pub fn takes_requests(self) -> bool {
        matches!(self, Self::Ready | Self::Warming(_))
    }

    /// The condition as one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Warming(_) => "warming",
            Self::Draining => "draining",
            Self::Ejected => "ejected",
            Self::Unhealthy => "unhealthy",
        }
    }

    /// Whether the replica accepts requests. `others`: whether any eligible replica does. If none
    /// does, ejected replicas are tried as a last resort: otherwise a request that makes replicas
    /// fail would block the pool for all clients.
    pub fn takes_beside(self, others: bool) -> bool {
        self.takes_requests() || (self == Self::Ejected && !others)
    }
}

/// Throughput of a replica, estimated from its responses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Prefill rate in tokens per second.
    pub prefill_tokens_per_s: f32,
    /// Duration in seconds of a decode step with one sequence.
    pub decode_s: f32,
    /// Seconds that each further sequence adds to a decode step.
    pub decode_s_per_sequence: f32,
}

impl Default for Pace {
    /// Initial values, equal for all replicas: only the ratios between replicas matter.
    fn default() -> Self {
        Self {
            prefill_tokens_per_s: 5_000.0,
            decode_s: 0.01,
            decode_s_per_sequence: 0.000_5,
        }
    }
}

/// Number of cache tiers behind a replica's KV pool: RAM, disk, shared storage.
pub const TIERS: usize = 3;
/// Default value of a cached token in RAM, on disk or in shared storage, relative to 1 in the KV
/// pool. Used for replicas that do not report load times. Means of data sheet values for models on
/// accelerators (docs/internals/gateway-measured.md).
const UNREPORTED: [f32; TIERS] = [0.9, 0.45, 0.2];

/// A replica with its current load: its last report plus the requests that this gateway has sent
/// since.
#[derive(Debug, Clone, PartialEq)]
pub struct Replica {
    pub id: ReplicaId,
    /// `host:port`.
    pub address: Arc<str>,
    pub condition: Condition,
    /// Number of requests that wait for their prefill.
    pub waiting: f32,
    /// Number of requests that the engine is computing.
    pub running: f32,
    /// Share of KV blocks in use, 0 to 1.
    pub kv_use: f32,
    /// Prompt tokens in the replica's queue. They are computed before a new request's prompt.
    pub backlog_tokens: f32,
    pub pace: Pace,
    /// Names of the loaded adapters.
    pub adapters: Arc<[Arc<str>]>,
    /// Maximum number of adapters loaded at the same time; 0: unknown, or no adapters.
    pub max_adapters: u32,
    /// Seconds to load one token's KV from RAM, disk, shared storage; `None`: unknown.
    pub load_s: [Option<f32>; TIERS],
    pub labels: Arc<[(Arc<str>, Arc<str>)]>,
}

impl Replica {
    /// Value of a cached token in the KV pool and in each tier behind it: the share of the token's
    /// compute time that is saved by loading it; 1 in the pool.
    pub fn worth(&self) -> [f32; 1 + TIERS] {
        let mut worth = [1.0; 1 + TIERS];
        let tiers = worth[1..].iter_mut().zip(self.load_s).zip(UNREPORTED);
        for ((worth, seconds), unreported) in tiers {
            let saved = |seconds: f32| 1.0 - seconds * self.pace.prefill_tokens_per_s;
            *worth = seconds.map_or(unreported, saved).clamp(0.0, 1.0);
        }
        worth
    }

    /// An idle replica.
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
        // at a replica that prefills faster, a load saves less
        replica.pace.prefill_tokens_per_s = 2_000.0;
        assert_eq!(replica.worth()[1], 0.5);
    }
}
