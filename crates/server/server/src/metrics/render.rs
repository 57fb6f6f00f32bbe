//! The Prometheus text of `GET /metrics`.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock_engine_client::EngineHistory;
use penstock_http::{Page, Tracer, write_process};
use penstock_wire::{Ready, StepStats};

use super::{Metrics, tiers};
use crate::load::LOAD_STREAM;

/// Snapshot of the engine's state for a scrape.
pub(crate) struct EngineView<'a> {
    pub(crate) stats: StepStats,
    /// `None` while no engine is ready.
    pub(crate) ready: Option<&'a Ready>,
    /// `None` before the engine's first report.
    pub(crate) tiers: Option<Arc<str>>,
    /// Requests in flight in the API server, whatever the engine's state.
    pub(crate) in_flight: usize,
    pub(crate) history: EngineHistory,
    /// Number of ranks of an engine.
    pub(crate) ranks: u32,
    /// `None`: no traces are exported.
    pub(crate) tracer: Option<&'a Tracer>,
}

impl Metrics {
    /// Renders the whole page.
    pub(crate) fn render(&self, engine: &EngineView<'_>) -> String {
        let mut page = Page::new(&self.labels);
        self.gauges(&mut page, engine);
        health(&mut page, engine);
        self.counters(&mut page, &engine.stats);
        self.sources(&mut page);
        tiers::render(&mut page, engine.tiers.as_deref());
        self.histograms(&mut page);
        if let Some(tracer) = engine.tracer {
            tracer.render(&mut page);
        }
        self.http.render(&mut page.out);
        self.process(&mut page);
        page.out
    }

    fn gauges(&self, page: &mut Page<'_>, engine: &EngineView<'_>) {
        let stats = &engine.stats;
        let usage = f64::from(stats.blocks_used) / f64::from(stats.blocks_total.max(1));
        page.gauge(
            "vllm:num_requests_running",
            "Requests in execution batches.",
            stats.running,
        );
        page.gauge(
            "vllm:num_requests_waiting",
            "Requests waiting to be scheduled.",
            stats.waiting,
        );
        page.gauge(
            "vllm:kv_cache_usage_perc",
            "KV cache in use; 1 is all of it.",
            usage,
        );
        page.head(
            "vllm:num_requests_waiting_by_reason",
            "gauge",
            "Requests waiting, by reason.",
        );
        for (reason, waiting) in [("capacity", stats.waiting), ("deferred", 0)] {
            let reason = format!(",reason=\"{reason}\"");
            page.sample("vllm:num_requests_waiting_by_reason", &reason, waiting);
        }
        let awake = u8::from(engine.ready.is_some());
        page.head(
            "vllm:engine_sleep_state",
            "gauge",
            "awake is 1 while an engine takes requests; engines do not sleep.",
        );
        for (state, value) in [
            ("awake", awake),
            ("weights_offloaded", 0),
            ("discard_all", 0),
        ] {
            let state = format!(",sleep_state=\"{state}\"");
            page.sample("vllm:engine_sleep_state", &state, value);
        }
        page.gauge(
            "penstock:requests_in_flight",
            "Admitted requests that have not ended.",
            engine.in_flight,
        );
        page.gauge(
            "penstock:engine_ready",
            "1 while an engine takes requests.",
            u8::from(engine.ready.is_some()),
        );
        if let Some(ready) = engine.ready {
            page.head(
                "vllm:cache_config_info",
                "gauge",
                "The KV cache's geometry.",
            );
            let geometry = format!(
                ",block_size=\"{}\",num_gpu_blocks=\"{}\"",
                ready.block_size, ready.num_blocks
            );
            page.sample("vllm:cache_config_info", &geometry, 1);
        }
        page.head(
            "penstock:load_stream_info",
            "gauge",
            "Where the load is streamed as it changes.",
        );
        let path = format!(",path=\"{LOAD_STREAM}\"");
        page.sample("penstock:load_stream_info", &path, 1);
        page.head(
            "vllm:lora_requests_info",
            "gauge",
            "Adapters in use: none are supported.",
        );
        let adapters = ",max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"";
        page.sample("vllm:lora_requests_info", adapters, self.started);
    }

    fn counters(&self, page: &mut Page<'_>, stats: &StepStats) {
        page.counter(
            "vllm:num_preemptions_total",
            "Preemptions by the engine.",
            stats.preemptions_total,
        );
        let (queries, hits) = (
            stats.prefix_query_tokens_total,
            stats.prefix_hit_tokens_total,
        );
        page.counter(
            "vllm:prefix_cache_queries_total",
            "Prefix cache queries, in tokens.",
            queries,
        );
        page.counter(
            "vllm:prefix_cache_hits_total",
            "Prefix cache hits, in tokens.",
            hits,
        );
        for name in ["vllm:mm_cache_queries_total", "vllm:mm_cache_hits_total"] {
            page.counter(name, "Inputs are text: nothing to look up.", 0);
        }
        page.counter(
            "penstock:grammar_masks_total",
            "Token masks of grammars, computed beside the steps.",
            stats.masks_total,
        );
        page.counter(
            "penstock:grammar_mask_seconds_total",
            "Time that computing them took.",
            stats.mask_seconds_total,
        );
        page.counter(
            "penstock:grammar_mask_wait_seconds_total",
            "Time that rows waited for their masks, which lengthens steps.",
            stats.mask_wait_seconds_total,
        );
        page.counter(
            "vllm:prompt_tokens_total",
            "Prompt tokens prefilled.",
            load(&self.prompt_tokens),
        );
        page.counter(
            "vllm:prompt_tokens_cached_total",
            "Prompt tokens from the cache.",
            load(&self.cached_tokens),
        );
        page.counter(
            "vllm:generation_tokens_total",
            "Tokens generated.",
            load(&self.generation_tokens),
        );
        let [stop, length, abort, error] = self.endings.each_ref().map(load);
        page.counters(
            "vllm:request_success_total",
            "Requests ended, by reason.",
            "finished_reason",
            [
                ("stop", stop),
                ("length", length),
                ("abort", abort),
                ("error", error),
            ],
        );
        let [full, draining, unavailable] = self.rejections.each_ref().map(load);
        page.counters(
            "vllm:admission_rejections_total",
            "Requests turned away, by reason.",
            "reason",
            [
                ("queue_full", full),
                ("draining", draining),
                ("engine_unavailable", unavailable),
            ],
        );
    }

    /// Prompt tokens by source, with vLLM's labels.
    fn sources(&self, page: &mut Page<'_>) {
        let [ram, disk, remote] = self.tier_tokens.each_ref().map(load);
        let behind = ram + disk + remote;
        let cached = load(&self.cached_tokens).max(behind);
        let prompt = load(&self.prompt_tokens).max(cached);
        page.counters(
            "vllm:prompt_tokens_by_source_total",
            "Prompt tokens by source.",
            "source",
            [
                ("local_compute", prompt - cached),
                ("local_cache_hit", cached - behind),
                ("external_kv_transfer", behind),
            ],
        );
        page.counters(
            "vllm:prompt_tokens_cached_by_source_total",
            "Prompt tokens from the cache, by the kind of tier: device is the pool.",
            "source",
            [
                ("device", cached - behind),
                ("host", ram),
                ("disk", disk),
                ("p2p", 0),
                ("external_unspecified", remote),
            ],
        );
    }

    fn histograms(&self, page: &mut Page<'_>) {
        let all = [
            (
                "vllm:time_to_first_token_seconds",
                "Arrival to first token.",
                &self.first_token,
            ),
            (
                "vllm:inter_token_latency_seconds",
                "Between tokens of one request.",
                &self.token_gap,
            ),
            (
                "vllm:request_time_per_output_token_seconds",
                "Mean time per output token after the first.",
                &self.time_per_output_token,
            ),
            (
                "vllm:e2e_request_latency_seconds",
                "Arrival to end.",
                &self.end_to_end,
            ),
            (
                "vllm:request_queue_time_seconds",
                "Waiting in the engine.",
                &self.queue,
            ),
            (
                "vllm:request_inference_time_seconds",
                "First schedule to last token.",
                &self.inference,
            ),
            (
                "vllm:request_prefill_time_seconds",
                "First schedule to first token.",
                &self.prefill,
            ),
            (
                "vllm:request_decode_time_seconds",
                "First token to last.",
                &self.decode,
            ),
            (
                "vllm:request_prompt_tokens",
                "Prompt tokens of a request.",
                &self.request_prompt_tokens,
            ),
            (
                "vllm:request_generation_tokens",
                "Tokens generated for a request.",
                &self.request_generation_tokens,
            ),
            (
                "vllm:request_max_num_generation_tokens",
                "Most tokens generated for one choice of a request.",
                &self.request_max_generation_tokens,
            ),
            (
                "vllm:request_params_max_tokens",
                "max_tokens of a request.",
                &self.params_max_tokens,
            ),
            ("vllm:request_params_n", "n of a request.", &self.params_n),
            (
                "vllm:iteration_tokens_total",
                "Tokens computed in one engine step.",
                &self.step_tokens,
            ),
            (
                "penstock:engine_step_seconds",
                "Wall time of one engine step.",
                &self.step_seconds,
            ),
        ];
        for (name, help, histogram) in all {
            page.histogram(name, help, histogram);
        }
    }

    fn process(&self, page: &mut Page<'_>) {
        write_process(&mut page.out);
        page.head("penstock:build_info", "gauge", "The version that runs.");
        let _ = writeln!(
            page.out,
            "penstock:build_info{{version=\"{}\"}} 1",
            self.version
        );
    }
}

/// Restarts, stalls and ranks of the engine.
fn health(page: &mut Page<'_>, engine: &EngineView<'_>) {
    let (history, ranks) = (&engine.history, engine.ranks);
    page.counter(
        "penstock:engine_restarts_total",
        "Engines that became ready after another one was lost.",
        history.restarts,
    );
    page.counter(
        "penstock:engine_stalls_total",
        "Silences of more than 10 s of a ready engine, without step and heartbeat.",
        history.stalls,
    );
    if let Some(silence) = history.silence {
        page.gauge(
            "penstock:engine_report_age_seconds",
            "Time since the engine's last step or heartbeat.",
            silence.as_secs_f64(),
        );
    }
    page.gauge(
        "penstock:engine_ranks_expected",
        "Ranks of the engine.",
        ranks,
    );
    let up = if engine.ready.is_some() { ranks } else { 0 };
    page.gauge(
        "penstock:engine_ranks_up",
        "Ranks that run: all, or none, because an engine ends with any of its ranks.",
        up,
    );
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
