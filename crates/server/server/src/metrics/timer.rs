//! Timestamps of one request, and their metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use penstock_api_types::{FinishReason, Usage};
use penstock_http::OpenSpan;
use penstock_wire::Output;
use tracing::{debug, trace};

use super::span::{self, Phases};
use super::{Ending, Metrics};
use crate::request_meta::RequestMeta;

/// Times one request from arrival to end. If dropped before [`RequestTimer::ended`], the request
/// counts as aborted.
pub(crate) struct RequestTimer {
    metrics: Arc<Metrics>,
    /// Metadata of the request. Its API key is charged for the generated tokens.
    arrival: RequestMeta,
    submitted: Instant,
    queued: Duration,
    first_token: Option<Instant>,
    last_token: Instant,
    prompt_tokens: u32,
    generated: u32,
    /// 0 for a pooled request, which generates nothing.
    max_tokens: u32,
    ended: bool,
    /// `None` unless its trace is exported.
    span: Option<OpenSpan>,
}

impl RequestTimer {
    /// Starts the timer after the request was submitted to the engine.
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
            span: None,
        }
    }

    /// Makes `span` end with the request.
    pub(crate) fn traced(mut self, span: Option<OpenSpan>) -> Self {
        self.span = span;
        self
    }

    /// Records tokens from the engine. The first call also records queue time and cached tokens.
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
        trace!(parent: &self.arrival.span, "{count} tokens");
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
            let after = now - self.arrival.at;
            metrics.first_token.observe(after.as_secs_f64());
            if let Some(record) = &self.arrival.record {
                record.change(|facts| _ = facts.first_token.get_or_insert(after));
            }
            metrics
                .prompt_tokens
                .fetch_add(self.prompt_tokens.into(), Ordering::Relaxed);
            metrics.cached(output.cached_tokens, output.tier_tokens);
        }
        self.last_token = now;
    }

    /// Records that a pooled request has ended with a vector.
    pub(crate) fn pooled(&mut self, output: &Output) {
        let metrics = &self.metrics;
        let queued = Duration::from_micros(output.queue_us.into());
        metrics.queue.observe(queued.as_secs_f64());
        metrics
            .prompt_tokens
            .fetch_add(self.prompt_tokens.into(), Ordering::Relaxed);
        metrics.cached(output.cached_tokens, output.tier_tokens);
        let usage = Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: output.cached_tokens,
            ..Usage::default()
        };
        self.record(usage, Usage::default(), None);
        self.ended(Ending::Stop);
    }

    /// Adds the difference of two token counts to the request's line in the access log. With
    /// several choices, the last `finish` is logged.
    pub(crate) fn record(&self, now: Usage, before: Usage, finish: Option<FinishReason>) {
        let Some(record) = &self.arrival.record else {
            return;
        };
        let add = |sum: &mut Option<u64>, now: u32, before: u32| {
            *sum = Some(sum.unwrap_or(0) + u64::from(now.saturating_sub(before)));
        };
        record.change(|facts| {
            let (prompt, cached) = (&mut facts.prompt_tokens, &mut facts.cached_tokens);
            add(prompt, now.prompt_tokens, before.prompt_tokens);
            add(cached, now.cached_tokens, before.cached_tokens);
            let output = &mut facts.completion_tokens;
            add(output, now.completion_tokens, before.completion_tokens);
            if let Some(reason) = finish {
                facts.finish_reason = Some(reason.word());
            }
        });
    }

    /// Records an end with an error.
    pub(crate) fn failed(&mut self) {
        self.ended(Ending::Error);
    }

    /// Records the end of the request. Later calls are no-ops.
    pub(crate) fn ended(&mut self, ending: Ending) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.metrics.endings[ending as usize].fetch_add(1, Ordering::Relaxed);
        debug!(
            parent: &self.arrival.span,
            "{ending:?} after {} tokens and {:.3} s, {:.3} s of them in the engine's queue",
            self.generated,
            self.arrival.at.elapsed().as_secs_f64(),
            self.queued.as_secs_f64()
        );
        if let Some(span) = self.span.take() {
            let phases = self.first_token.map(|first_token| Phases {
                arrived: self.arrival.at,
                submitted: self.submitted,
                scheduled: self.submitted + self.queued,
                first_token,
                last_token: self.last_token,
            });
            span::end(span, ending, (self.prompt_tokens, self.generated), phases);
        }
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
