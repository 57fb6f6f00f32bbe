//! Results of a replay: columns with one value per request, and samples of the fleet.

use serde::Serialize;

/// Times are seconds of the trace; NaN (null in JSON) if missing.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) sent: Vec<f64>,
    pub(super) ttft: Vec<f64>,
    /// Time per output token after the first.
    pub(super) tpot: Vec<f64>,
    pub(super) end: Vec<f64>,
    pub(super) replica: Vec<u32>,
    pub(super) prompt_tokens: Vec<u32>,
    pub(super) output_tokens: Vec<u32>,
    /// Prompt tokens that were cached on the replica.
    pub(super) cached: Vec<u32>,
    /// Prompt tokens that the gateway expected to be cached there.
    pub(super) expected: Vec<f32>,
    /// TTFT that the gateway predicted for the chosen replica.
    pub(super) foretold: Vec<f64>,
    /// Number of requests that did not end by length.
    pub(super) failed: usize,
    pub(super) preemptions: u64,
    /// KV use of each replica, in [0, 1], sampled every second.
    pub(super) kv_use: Vec<Vec<f32>>,
}

impl Report {
    pub(super) fn with_requests(requests: usize) -> Self {
        Self {
            sent: vec![f64::NAN; requests],
            ttft: vec![f64::NAN; requests],
            tpot: vec![f64::NAN; requests],
            end: vec![f64::NAN; requests],
            replica: vec![0; requests],
            prompt_tokens: vec![0; requests],
            output_tokens: vec![0; requests],
            cached: vec![0; requests],
            expected: vec![0.0; requests],
            foretold: vec![f64::NAN; requests],
            ..Self::default()
        }
    }
}
