//! Setup of a replay: JSON from `penstock_lab.bench.fleet`.

use penstock_routing::ProfileSpec;
use serde::Deserialize;

use crate::config::ProfileChoice;

/// A fleet, its arrivals, and the routing policy.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Setup {
    /// One per replica.
    pub(super) engines: Vec<ProfileChoice>,
    pub(super) policy: PolicyChoice,
    /// Interval between two polls of a replica's metrics, in seconds.
    pub(super) poll_s: f64,
    /// Whether requests in flight count before metrics include them; otherwise only metrics count.
    pub(super) reservations: bool,
    /// Number of gateways. They share the arrivals at random and do not communicate.
    #[serde(default = "one")]
    pub(super) gateways: usize,
    /// Tokens per block in `Arrival::blocks`.
    pub(super) block_tokens: u32,
    pub(super) seed: u64,
    /// In ascending order of time.
    pub(super) arrivals: Vec<Arrival>,
}

fn one() -> usize {
    1
}

/// Routing policy.
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
    /// Seconds after the first arrival.
    pub(super) at: f64,
    pub(super) input_tokens: u32,
    pub(super) output_tokens: u32,
    /// A name for each block of the prompt; empty = the prompt shares nothing.
    pub(super) blocks: Vec<u64>,
}
