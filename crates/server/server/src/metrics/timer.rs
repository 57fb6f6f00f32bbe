//! The moments of one request, and what they add to the metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use penstock_wire::Output;

use super::{Ending, Metrics};
use crate::request_meta::RequestMeta;

/// Follows one request from arrival to its end. Dropped before [`RequestTimer::ended`], it counts
/// as aborted.
pub(crate) struct RequestTimer {
    metrics: Arc<Metrics>,
    /// The key's bearer pays for what is generated.
    arrival: RequestMeta,
    submitted: Instant,
    queued: Duration,
    first_token: Option<Instant>,
    last_token: Instant,
    prompt_tokens: u32,
    generated: u32,
    /// 0 of a pooled request, which generates nothing.
    max_tokens: u32,
    ended: bool,
}

impl RequestTimer {
    /// Starts when the request has been handed to the engine.
    pub(crate) fn new(
        metrics: Arc<Metrics>,
        arrival: RequestMeta,
        prompt_tokens: u32,
        max_tokens: u32,
    ) -> Self {
        let submitted = Instant::now();
        Self {
            metrics,
            arrival,
            submitted,
            queued: Duration::ZERO,
            first_token: None,
            last_token: submitted,
            prompt_tokens,
            generated: 0,
            max_tokens,
            ended: false,
        }
    }

    /// Tokens have come from the engine. Queue time and cached tokens count with the first of them.
    pub(crate) fn tokens(&mut self, output: &Output) {
        let count = output.tokens.len() as u32;
        if count == 0 {
            return;
        }
        let now = Instant::now();
        let metrics = &self.metrics;
        metrics
            .generation_tokens
            .fetch_add(count.into(), Ordering::Relaxed);
        self.generated += count;
        if let Some(caller) = &self.arrival.caller {
            caller.usage.spend(count);
        }
        if self.first_token.is_some() {
            metrics
                .token_gap
                .observe((now - self.last_token).as_secs_f64());
        } else {
            self.first_token = Some(now);
            self.queued = Duration::from_micros(output.queue_us.into());
            metrics
                .first_token
                .observe((now - self.arrival.at).as_secs_f64());
            metrics
                .prompt_tokens
                .fetch_add(self.prompt_tokens.into(), Ordering::Relaxed);
            metrics.cached(output.cached_tokens, output.tier_tokens);
        }
        self.last_token = now;
    }

    /// The request has ended with a vector.
    pub(crate) fn pooled(&mut self, output: &Output) {
        let metrics = &self.metrics;
        let queued = Duration::from_micros(output.queue_us.into());
        metrics.queue.observe(queued.as_secs_f64());
        metrics
            .prompt_tokens
            .fetch_add(self.prompt_tokens.into(), Ordering::Relaxed);
        metrics.cached(output.cached_tokens, output.tier_tokens);
        self.ended(Ending::Stop);
    }

    /// The request has ended with an error.
    pub(crate) fn failed(&mut self) {
        self.ended(Ending::Error);
    }

    /// The request has ended. Only the first call counts.
    pub(crate) fn ended(&mut self, ending: Ending) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.metrics.endings[ending as usize].fetch_add(1, Ordering::Relaxed);
        if !matches!(ending, Ending::Stop | Ending::Length) {
            return;
        }
        let metrics = &self.metrics;
        metrics
            .end_to_end
            .observe(self.arrival.at.elapsed().as_secs_f64());
        metrics
            .request_prompt_tokens
            .observe(self.prompt_tokens.into());
        if self.max_tokens == 0 {
            return;
        }
        metrics
            .request_generation_tokens
            .observe(self.generated.into());
        metrics
            .request_max_generation_tokens
            .observe(self.generated.into());
        metrics.params_max_tokens.observe(self.max_tokens.into());
        metrics.params_n.observe(1.0);
        self.phases();
    }

    fn phases(&self) {
        let Some(first) = self.first_token else {
            return;
        };
        let scheduled = self.submitted + self.queued;
        let decode = (self.last_token - first).as_secs_f64();
        self.metrics.queue.observe(self.queued.as_secs_f64());
        self.metrics
            .prefill
            .observe(first.saturating_duration_since(scheduled).as_secs_f64());
        self.metrics.decode.observe(decode);
        self.metrics.inference.observe(
            self.last_token
                .saturating_duration_since(scheduled)
                .as_secs_f64(),
        );
        if self.generated > 1 {
            self.metrics
                .time_per_output_token
                .observe(decode / f64::from(self.generated - 1));
        }
    }
}

impl Drop for RequestTimer {
    fn drop(&mut self) {
        self.ended(Ending::Abort);
    }
}
