//! The setup of a replay: JSON from `penstock_lab.bench.fleet`.

use penstock_routing::ProfileSpec;
use serde::Deserialize;

use crate::config::ProfileChoice;

/// A fleet, the requests that arrive, and the routing policy.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Setup {
    /// The engine of each replica.
    pub(super) engines: Vec<ProfileChoice>,
    pub(super) policy: PolicyChoice,
    /// Interval between two polls of a replica's metrics, in seconds.
    pub(super) poll_s: f64,
    /// Whether the load includes requests in flight that metrics do not show yet. If not, the load
    /// is taken only from metrics.
    pub(super) reservations: bool,
    /// Number of gateways. Each arrival goes to a random one; they do not communicate.
    #[serde(default = "one")]
    pub(super) gateways: usize,
    /// Number of tokens in each block that `Arrival::blocks` names.
    pub(super) block_tokens: u32,
    pub(super) seed: u64,
    /// In ascending order of time.
    pub(super) arrivals: Vec<Arrival>,
}

fn one() -> usize {
    1
}

/// Method of choosing a replica for each request.
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
    /// Arrival time in seconds after the first arrival.
    pub(super) at: f64,
    pub(super) input_tokens: u32,
    pub(super) output_tokens: u32,
    /// A name for each block of the prompt: equal names stand for equal blocks. Empty: the prompt
    /// shares no prefix.
    pub(super) blocks: Vec<u64>,
}
