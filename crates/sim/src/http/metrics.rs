//! `GET /metrics`: the names that dashboards and gateways read.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use penstock_wire::{Finish, Output, StepStats};

/// What one engine has done and is doing.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    stats: Mutex<StepStats>,
    prompt_tokens: AtomicU64,
    generation_tokens: AtomicU64,
    stop: AtomicU64,
    length: AtomicU64,
    abort: AtomicU64,
    error: AtomicU64,
    rejected: AtomicU64,
    slips: AtomicU64,
    slipped_us: AtomicU64,
}

impl Counters {
    pub(crate) fn set(&self, stats: &StepStats) {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = *stats;
    }

    pub(crate) fn asked(&self, prompt_tokens: u32) {
        self.prompt_tokens.fetch_add(prompt_tokens.into(), Relaxed);
    }

    pub(crate) fn output(&self, output: &Output) {
        self.generation_tokens
            .fetch_add(output.tokens.len() as u64, Relaxed);
        let ending = match output.finish {
            Finish::None => return,
            Finish::Stop => &self.stop,
            Finish::Length => &self.length,
            Finish::Cancelled => &self.abort,
            Finish::Error => &self.error,
            Finish::Rejected => &self.rejected,
        };
        ending.fetch_add(1, Relaxed);
    }

    pub(crate) fn slipped(&self, by: Duration) {
        self.slips.fetch_add(1, Relaxed);
        self.slipped_us.fetch_add(by.as_micros() as u64, Relaxed);
    }

    /// The page, in Prometheus' text format.
    pub(crate) fn page(&self, model: &str, block_size: u32) -> String {
        let stats = *self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let model = model
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        let mut page = Page {
            out: String::new(),
            labels: format!("model_name=\"{model}\",engine=\"0\""),
        };
        let usage = f64::from(stats.blocks_used) / f64::from(stats.blocks_total.max(1));
        page.gauge("vllm:num_requests_running", stats.running);
        page.gauge("vllm:num_requests_waiting", stats.waiting);
        page.gauge("vllm:kv_cache_usage_perc", usage);
        let cache = format!(
            ",block_size=\"{block_size}\",num_gpu_blocks=\"{}\"",
            stats.blocks_total
        );
        page.head("vllm:cache_config_info", "gauge");
        page.sample("vllm:cache_config_info", &cache, 1);
        page.counter("vllm:num_preemptions_total", stats.preemptions_total);
        page.counter(
            "vllm:prefix_cache_queries_total",
            stats.prefix_query_tokens_total,
        );
        page.counter(
            "vllm:prefix_cache_hits_total",
            stats.prefix_hit_tokens_total,
        );
        page.counter("vllm:prompt_tokens_total", self.prompt_tokens.load(Relaxed));
        page.counter(
            "vllm:generation_tokens_total",
            self.generation_tokens.load(Relaxed),
        );
        self.endings(&mut page);
        page.counter("penstock:sim_steps_total", stats.step);
        page.counter("penstock:sim_slips_total", self.slips.load(Relaxed));
        let seconds = self.slipped_us.load(Relaxed) as f64 / 1e6;
        page.counter("penstock:sim_slipped_seconds_total", seconds);
        page.out
    }

    fn endings(&self, page: &mut Page) {
        let endings = [
            ("stop", &self.stop),
            ("length", &self.length),
            ("abort", &self.abort),
            ("error", &self.error),
        ];
        page.head("vllm:request_success_total", "counter");
        for (reason, counter) in endings {
            let label = format!(",finished_reason=\"{reason}\"");
            page.sample("vllm:request_success_total", &label, counter.load(Relaxed));
        }
        page.head("vllm:admission_rejections_total", "counter");
        let label = ",reason=\"queue_full\"";
        page.sample(
            "vllm:admission_rejections_total",
            label,
            self.rejected.load(Relaxed),
        );
    }
}

struct Page {
    out: String,
    labels: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str) {
        let _ = writeln!(self.out, "# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, more: &str, value: impl Display) {
        let _ = writeln!(self.out, "{name}{{{}{more}}} {value}", self.labels);
    }

    fn gauge(&mut self, name: &str, value: impl Display) {
        self.head(name, "gauge");
        self.sample(name, "", value);
    }

    fn counter(&mut self, name: &str, value: impl Display) {
        self.head(name, "counter");
        self.sample(name, "", value);
    }
}
