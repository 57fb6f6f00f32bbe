//! Requests as routing sees them.

use crate::ReplicaId;
use crate::load::amount;

/// What routing knows of a request. The default is an empty prompt that may go anywhere.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request<'a> {
    /// Tokens of the prompt; an estimate where no tokenizer is at hand.
    pub prompt_tokens: f32,
    /// Tokens of the prompt whose KV a replica is believed to hold, in the order of the replicas;
    /// replicas beyond the end have none.
    pub cached_tokens: &'a [f32],
    /// State of each replica's prefix cache, in the order of the replicas; beyond the end: empty.
    pub caches: &'a [CacheState],
    /// What of the prompt no replica is believed to hold; `None`: nothing, or it has no name.
    pub unknown: Option<Unknown>,
    /// Above 0: critical; below 0: sheddable.
    pub priority: i32,
    /// Its objectives, where it has some.
    pub slo: Slo,
    /// Hash of what names the session, if something does.
    pub session: Option<u64>,
    /// Adapter that it asks for.
    pub adapter: Option<&'a str>,
    /// Replicas that have failed it.
    pub tried: &'a [ReplicaId],
    /// The only replicas that may answer; `None`: all.
    pub subset: Option<&'a [ReplicaId]>,
    /// Number of the request: the source of all that is random or takes turns.
    pub ticket: u64,
}

/// Service level objectives of a request: targets in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Slo {
    pub ttft_s: Option<f32>,
    pub tpot_s: Option<f32>,
}

impl Slo {
    /// These, or those of another where there are none.
    pub(crate) fn or(self, other: Self) -> Self {
        match self == Self::default() {
            true => other,
            false => self,
        }
    }
}

/// A replica's prefix cache as a gateway believes it to be.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CacheState {
    /// Share of its capacity that is taken, 0 to 1.
    pub fill: f32,
    /// Share of what it evicts that is asked for again, 0 to 1.
    pub regret: f32,
}

/// Tokens that are computed again for each token that enters a cache, of its fill: prompts spread
/// over caches before one of them is full. Chosen by replay.
const FILL: f32 = 0.5;

impl CacheState {
    /// Tokens of other prompts that are computed again for each token that it computes.
    pub(crate) fn pressure(self) -> f32 {
        let share = |value: f32| amount(value).min(1.0);
        share(self.regret) + FILL * share(self.fill)
    }
}

/// The part of a prompt behind the longest prefix that a replica is believed to hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unknown {
    /// Name of where it begins: equal prompts have equal ones at all gateways.
    pub key: u64,
    pub tokens: f32,
    /// Share of the requests at the replicas that other gateways sent, 0 to 1.
    pub others: f32,
}

/// A number in [0, 1) from a ticket and the name of its use (`SplitMix64` of their sum).
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
