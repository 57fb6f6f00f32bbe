//! What is replayed: JSON made by `penstock_lab.bench.fleet`.

use penstock_routing::ProfileSpec;
use serde::Deserialize;

use crate::config::ProfileChoice;

/// A fleet, what arrives, and how replicas are chosen.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Setup {
    /// One for each replica.
    pub(super) engines: Vec<ProfileChoice>,
    pub(super) policy: PolicyChoice,
    /// Seconds between two readings of a replica's metrics.
    pub(super) poll_s: f64,
    /// Whether what was sent counts before metrics show it; otherwise they are all that counts.
    pub(super) reservations: bool,
    /// Gateways that share the arrivals at random, and tell one another nothing.
    #[serde(default = "one")]
    pub(super) gateways: usize,
    /// Tokens of a block of `Arrival::blocks`.
    pub(super) block_tokens: u32,
    pub(super) seed: u64,
    /// Ascending in time.
    pub(super) arrivals: Vec<Arrival>,
}

fn one() -> usize {
    1
}

/// How replicas are chosen.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PolicyChoice {
    Profile(ProfileSpec),
    CacheAware,
    Oracle,
}

/// A request of a trace.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arrival {
    /// Seconds after the first.
    pub(super) at: f64,
    pub(super) input_tokens: u32,
    pub(super) output_tokens: u32,
    /// A name for each block of the prompt. Empty: it shares nothing.
    pub(super) blocks: Vec<u64>,
}
