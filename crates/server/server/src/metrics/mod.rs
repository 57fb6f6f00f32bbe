//! Counters and histograms of the API server. The names are vLLM's, so that its dashboards and
//! autoscalers work.

mod buckets;
mod render;
pub(crate) mod span;
mod tiers;
mod timer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock_http::{Histogram, RequestCounts, escaped};
use penstock_wire::{StepStats, TierTokens};
pub(crate) use render::EngineView;
pub(crate) use timer::RequestTimer;

/// How a request ended, in vLLM's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Stop,
    Length,
    /// The client disconnected, or was dropped for reading too slowly.
    Abort,
    Error,
}

/// Reason for rejecting a request before it reached the engine's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejection {
    QueueFull,
    Draining,
    EngineUnavailable,
}

#[derive(Debug)]
pub(crate) struct Metrics {
    /// `model_name="...",engine="0"`, escaped.
    labels: String,
    /// Unix time of the start, in seconds.
    started: f64,
    version: String,
    /// Requests by handler, failed ones included.
    pub(crate) http: Arc<RequestCounts>,
    endings: [AtomicU64; 4],
    rejections: [AtomicU64; 3],
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    /// The part of `cached_tokens` from RAM, disk and remote tiers.
    tier_tokens: [AtomicU64; 3],
    generation_tokens: AtomicU64,
    first_token: Histogram,
    token_gap: Histogram,
    time_per_output_token: Histogram,
    end_to_end: Histogram,
    queue: Histogram,
    inference: Histogram,
    prefill: Histogram,
    decode: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    request_max_generation_tokens: Histogram,
    params_max_tokens: Histogram,
    params_n: Histogram,
    step_tokens: Histogram,
    step_seconds: Histogram,
}

impl Metrics {
    pub(crate) fn new(model: &str, version: &str) -> Self {
        use buckets::{
            CHOICES, FIRST_TOKEN, LATENCY, STEP_SECONDS, STEP_TOKENS, TOKEN_GAP, TOKENS,
        };
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            labels: format!("model_name=\"{}\",engine=\"0\"", escaped(model)),
            started: since_epoch.unwrap_or_default().as_secs_f64(),
            version: escaped(version),
            http: Arc::default(),
            endings: Default::default(),
            rejections: Default::default(),
            prompt_tokens: AtomicU64::new(0),
            cached_tokens: AtomicU64::new(0),
            tier_tokens: Default::default(),
            generation_tokens: AtomicU64::new(0),
            first_token: Histogram::new(FIRST_TOKEN),
            token_gap: Histogram::new(TOKEN_GAP),
            time_per_output_token: Histogram::new(TOKEN_GAP),
            end_to_end: Histogram::new(LATENCY),
            queue: Histogram::new(LATENCY),
            inference: Histogram::new(LATENCY),
            prefill: Histogram::new(LATENCY),
            decode: Histogram::new(LATENCY),
            request_prompt_tokens: Histogram::new(TOKENS),
            request_generation_tokens: Histogram::new(TOKENS),
            request_max_generation_tokens: Histogram::new(TOKENS),
            params_max_tokens: Histogram::new(TOKENS),
            params_n: Histogram::new(CHOICES),
            step_tokens: Histogram::new(STEP_TOKENS),
            step_seconds: Histogram::new(STEP_SECONDS),
        }
    }

    pub(crate) fn rejected(&self, reason: Rejection) {
        self.rejections[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the cached tokens of one prompt.
    fn cached(&self, all: u32, behind: TierTokens) {
        self.cached_tokens.fetch_add(all.into(), Ordering::Relaxed);
        let kinds = [behind.ram, behind.disk, behind.remote];
        for (counter, tokens) in self.tier_tokens.iter().zip(kinds) {
            counter.fetch_add(tokens.into(), Ordering::Relaxed);
        }
    }

    /// Records a step of the engine; a heartbeat has no batch tokens.
    pub(crate) fn stepped(&self, stats: &StepStats) {
        if stats.batch_tokens > 0 {
            self.step_tokens.observe(stats.batch_tokens.into());
            self.step_seconds.observe(f64::from(stats.step_ms) / 1e3);
        }
    }
}
