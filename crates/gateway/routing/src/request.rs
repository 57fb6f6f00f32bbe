//! A request as used by routing.

use crate::ReplicaId;
use crate::load::amount;

/// A request. The default is an empty prompt without restrictions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request<'a> {
    /// Prompt length in tokens; an estimate without a tokenizer.
    pub prompt_tokens: f32,
    /// Estimated number of the prompt's tokens cached at each replica, in the order of the replicas
    /// passed to [`crate::pick`]; missing entries are 0.
    pub cached_tokens: &'a [f32],
    /// State of each replica's prefix cache, in the same order; missing entries are empty caches.
    pub caches: &'a [CacheState],
    /// The end of the prompt, which no replica has cached. `None` if the end is empty or has no
    /// key.
    pub unknown: Option<Unknown>,
    /// Priority. Above 0: critical; below 0: sheddable.
    pub priority: i32,
    /// Latency targets, if any.
    pub slo: Slo,
    /// Hash of the session id, if any.
    pub session: Option<u64>,
    /// Requested adapter.
    pub adapter: Option<&'a str>,
    /// Replicas that have already failed this request.
    pub tried: &'a [ReplicaId],
    /// The only eligible replicas; `None`: all.
    pub subset: Option<&'a [ReplicaId]>,
    /// A number that is different for each request: the seed of random choices and of round robin.
    pub ticket: u64,
}

/// Service level objectives of a request: target latencies in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Slo {
    pub ttft_s: Option<f32>,
    pub tpot_s: Option<f32>,
}

impl Slo {
    /// These targets, or those of `other` if this request has none.
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
    /// Share of the cache's capacity that is used, 0 to 1.
    pub fill: f32,
    /// Share of evicted blocks that are requested again, 0 to 1.
    pub regret: f32,
}

/// Expected number of tokens that other prompts must recompute, per token that enters a full cache.
/// This term spreads prompts over the replicas' caches before one of them is full. Tuned by replay.
const FILL: f32 = 0.5;

impl CacheState {
    /// Expected number of tokens that other prompts must recompute, per token that this prompt adds
    /// to the cache.
    pub(crate) fn pressure(self) -> f32 {
        let share = |value: f32| amount(value).min(1.0);
        share(self.regret) + FILL * share(self.fill)
    }
}

/// The end of a prompt, after the longest prefix that some replica is estimated to have cached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unknown {
    /// Key of the first of these tokens. Equal prompts have equal keys at all gateways.
    pub key: u64,
    pub tokens: f32,
    /// Share of the replicas' requests that other gateways sent, 0 to 1.
    pub others: f32,
}

/// Pseudo-random number in [0, 1), determined by a ticket and a salt.
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
