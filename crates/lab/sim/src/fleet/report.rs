//! Results of a replay: columns with one value for each request, and samples of the fleet.

use serde::Serialize;

/// Times are in seconds; points in time count from the start of the trace. A missing value is NaN
/// (null in JSON).
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) sent: Vec<f64>,
    pub(super) ttft: Vec<f64>,
    /// Mean time per output token, without the first one.
    pub(super) tpot: Vec<f64>,
    pub(super) end: Vec<f64>,
    pub(super) replica: Vec<u32>,
    pub(super) prompt_tokens: Vec<u32>,
    pub(super) output_tokens: Vec<u32>,
    /// Number of prompt tokens that the replica had cached.
    pub(super) cached: Vec<u32>,
    /// Number of prompt tokens that the gateway expected the replica to have cached.
    pub(super) expected: Vec<f32>,
    /// TTFT that the gateway predicted at its choice of the replica.
    pub(super) foretold: Vec<f64>,
    /// Number of requests that ended for another reason than their length limit.
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
