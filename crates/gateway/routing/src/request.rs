//! The routing view of requests.

use crate::ReplicaId;
use crate::load::amount;

/// A request. The default is an empty prompt without restrictions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request<'a> {
    /// Prompt length in tokens; an estimate without a tokenizer.
    pub prompt_tokens: f32,
    /// Estimated cached tokens of the prompt, in the order of the replicas; missing entries are 0.
    pub cached_tokens: &'a [f32],
    /// State of each replica's prefix cache, in the order of the replicas; missing entries are
    /// empty.
    pub caches: &'a [CacheState],
    /// The part of the prompt cached on no replica; `None` if it is empty or has no key.
    pub unknown: Option<Unknown>,
    /// Above 0: critical; below 0: sheddable.
    pub priority: i32,
    /// Latency targets, if any.
    pub slo: Slo,
    /// Hash of the session id, if any.
    pub session: Option<u64>,
    /// Requested adapter.
    pub adapter: Option<&'a str>,
    /// Replicas that have failed this request.
    pub tried: &'a [ReplicaId],
    /// The only eligible replicas; `None`: all.
    pub subset: Option<&'a [ReplicaId]>,
    /// Number of the request: the seed of random choices and of round robin.
    pub ticket: u64,
}

/// Service level objectives of a request: target latencies in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Slo {
    pub ttft_s: Option<f32>,
    pub tpot_s: Option<f32>,
}

impl Slo {
    /// These targets, or `other` if there are none.
    pub(crate) fn or(self, other: Self) -> Self {
        match self == Self::default() {
            true => other,
            false => self,
        }
    }
}

/// Estimated state of a replica's prefix cache.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CacheState {
    /// Used share of its capacity, 0 to 1.
    pub fill: f32,
    /// Share of evicted blocks that are requested again, 0 to 1.
    pub regret: f32,
}

/// Expected recomputed tokens per token that enters a cache, at full fill; spreads prompts over the
/// caches before one is full. Tuned by replay.
const FILL: f32 = 0.5;

impl CacheState {
    /// Expected recomputed tokens of other prompts per computed token.
    pub(crate) fn pressure(self) -> f32 {
        let share = |value: f32| amount(value).min(1.0);
        share(self.regret) + FILL * share(self.fill)
    }
}

/// The part of a prompt after the longest prefix estimated to be cached on a replica.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unknown {
    /// Key of its start; equal prompts have equal keys at all gateways.
    pub key: u64,
    pub tokens: f32,
    /// Share of the replicas' requests sent by other gateways, 0 to 1.
    pub others: f32,
}

/// Pseudo-random number in [0, 1) from a ticket and a salt (`SplitMix64` of their sum).
pub(crate) fn draw(ticket: u64, salt: u64) -> f32 {
    (mix(ticket.wrapping_add(mix(salt))) >> 40) as f32 / (1u64 << 24) as f32
}

/// `SplitMix64`'s output function (Steele et al., 2014).
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
