//! Meaning of each engine's metrics. Penstock uses vLLM's names.

use std::sync::Arc;

use penstock_routing::TIERS;

use super::text::{Sample, samples};
use crate::load::Reported;

/// Prefixes of metric names, one for each engine.
const PREFIXES: [&str; 5] = ["vllm:", "sglang:", "trtllm_", "llamacpp:", "nv_trt_llm_"];
/// Maximum number of adapters listed for each replica; further ones are ignored.
const MAX_ADAPTERS: usize = 1024;
/// Maximum length in bytes of a load stream's path.
const MAX_PATH: usize = 256;
/// Minimum number of tokens loaded from a tier before its mean load time is used.
const LEAST_LOADED: f64 = 512.0;
/// Upper bound for reported numbers of requests and KV tokens.
const MOST: f64 = 1e9;

/// Meaning of a sample's value for the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Waiting,
    Running,
    KvUse,
    /// KV cache size in tokens: the product of two labels of an info metric.
    KvTokens(&'static str, &'static str),
    /// KV cache size as two separate metrics: tokens per block, and number of blocks.
    KvBlockTokens,
    KvBlocks,
    /// KV cache size in tokens as one value.
    KvSize,
    Adapters,
    /// A counter that never decreases while the engine runs.
    Work,
    ProcessStart,
    /// The value of this label selects the meaning.
    Triton(&'static str),
    /// Total seconds of loads from a KV tier, and total tokens loaded.
    LoadSeconds,
    LoadTokens,
    /// A label has the path on which the replica streams its load.
    LoadStream,
}

/// Meaning of a metric by its name; `None`: the metric is ignored.
fn meaning(name: &str) -> Option<Meaning> {
    use Meaning::{
        Adapters, KvBlockTokens, KvBlocks, KvSize, KvTokens, KvUse, Running, Triton, Waiting, Work,
    };
    Some(match name {
        "vllm:num_requests_waiting"
        | "sglang:num_queue_reqs"
        | "trtllm_num_requests_waiting"
        | "llamacpp:requests_deferred" => Waiting,
        "vllm:num_requests_running"
        | "sglang:num_running_reqs"
        | "trtllm_num_requests_running"
        | "llamacpp:requests_processing" => Running,
        // vLLM before 0.10 uses the second name
        "vllm:kv_cache_usage_perc"
        | "vllm:gpu_cache_usage_perc"
        | "sglang:token_usage"
        | "trtllm_kv_cache_utilization"
        | "llamacpp:kv_cache_usage_ratio" => KvUse,
        "vllm:cache_config_info" => KvTokens("block_size", "num_gpu_blocks"),
        "sglang:max_total_num_tokens" => KvSize,
        // used if the metric above is absent
        "sglang:cache_config_info" => KvTokens("page_size", "num_pages"),
        "trtllm_kv_cache_tokens_per_block" => KvBlockTokens,
        "trtllm_kv_cache_max_blocks" => KvBlocks,
        "vllm:lora_requests_info" => Adapters,
        "vllm:prefix_cache_queries_total"
        | "sglang:prompt_tokens_total"
        | "trtllm_request_success_total"
        | "llamacpp:prompt_tokens_total" => Work,
        // exported by prometheus_client for its own process
        "process_start_time_seconds" => Meaning::ProcessStart,
        "nv_trt_llm_request_metrics" => Triton("request_type"),
        "nv_trt_llm_kv_cache_block_metrics" => Triton("kv_cache_block_type"),
        "penstock:kv_tier_load_seconds_sum" => Meaning::LoadSeconds,
        "penstock:kv_tier_hit_tokens_total" => Meaning::LoadTokens,
        "penstock:load_stream_info" => Meaning::LoadStream,
        _ => return None,
    })
}

/// Meaning of one sample of a metric; `None`: the sample is ignored.
fn meaning_of(meaning: Meaning, sample: &Sample<'_>) -> Option<Meaning> {
    if let Meaning::Triton(label) = meaning {
        return Some(match (label, sample.label(label)?.as_ref()) {
            ("request_type", "waiting") => Meaning::Waiting,
            ("request_type", "scheduled") => Meaning::Running,
            ("kv_cache_block_type", "fraction") => Meaning::KvUse,
            ("kv_cache_block_type", "tokens_per") => Meaning::KvBlockTokens,
            ("kv_cache_block_type", "max") => Meaning::KvBlocks,
            _ => return None,
        });
    }
    let part = sample.name.starts_with("sglang:") && is_part(sample);
    (!part).then_some(meaning)
}

/// Whether another sample already includes the value of this SGLang sample: this one covers a
/// single priority or a later pipeline stage.
fn is_part(sample: &Sample<'_>) -> bool {
    let some = |name, nothing: &str| {
        let label = sample.label(name);
        label.is_some_and(|label| label.as_ref() != nothing)
    };
    some("priority", "") || some("pp_rank", "0")
}

/// The load in a metrics page; `None` if it has no load metrics. Samples of several engines behind
/// one server (data parallel ranks) are summed; their KV use is averaged.
pub(crate) fn reported(page: &str) -> Option<Reported> {
    let mut sums = Sums::default();
    for (meaning, sample) in samples(page, meaning) {
        if let Some(meaning) = meaning_of(meaning, &sample) {
            sums.add(meaning, &sample);
            let engine = PREFIXES.iter().find(|one| sample.name.starts_with(**one));
            sums.engine = engine.copied().unwrap_or(sums.engine);
        }
    }
    sums.reported()
}

#[derive(Default)]
struct Sums {
    engine: &'static str,
    waiting: Option<f64>,
    running: Option<f64>,
    kv_use: f64,
    kv_uses: f64,
    kv_tokens: f64,
    kv_size: f64,
    block_tokens: f64,
    blocks: f64,
    /// Unix time, maximum number of adapters, comma-separated names; the latest sample wins.
    adapters: Option<(f64, f64, String)>,
    work: Option<f64>,
    process_start: Option<f64>,
    /// Seconds and tokens of the loads from each tier.
    loads: [(f64, f64); TIERS],
    load_stream: Option<Arc<str>>,
}

impl Sums {
    fn add(&mut self, meaning: Meaning, sample: &Sample<'_>) {
        let value = sample.value().filter(|value| *value >= 0.0);
        match (meaning, value) {
            (Meaning::KvTokens(each, count), _) => {
                let factors = sample.number(each).zip(sample.number(count));
                self.kv_tokens += factors.map_or(0.0, |(each, count)| each * count);
            }
            (_, None) => {}
            (Meaning::Waiting, Some(value)) => *self.waiting.get_or_insert(0.0) += value,
            (Meaning::Running, Some(value)) => *self.running.get_or_insert(0.0) += value,
            (Meaning::KvUse, Some(value)) => {
                self.kv_use += value.min(1.0);
                self.kv_uses += 1.0;
            }
            (Meaning::KvSize, Some(value)) => self.kv_size += value,
            (Meaning::KvBlockTokens, Some(value)) => self.block_tokens = value,
            (Meaning::KvBlocks, Some(value)) => self.blocks += value,
            (Meaning::Adapters, Some(at)) => self.saw_adapters(at, sample),
            (Meaning::Work, Some(value)) => *self.work.get_or_insert(0.0) += value,
            (Meaning::ProcessStart, start) => self.process_start = start,
            (Meaning::LoadSeconds, Some(value)) => self.tier(sample).0 += value,
            (Meaning::LoadTokens, Some(value)) => self.tier(sample).1 += value,
            (Meaning::LoadStream, Some(_)) => self.load_stream = path(sample),
            // already resolved by `meaning_of`
            (Meaning::Triton(_), _) => {}
        }
    }

    /// Sums of the sample's tier, chosen by the start of its name; tiers other than RAM and disk
    /// count as shared storage.
    fn tier(&mut self, sample: &Sample<'_>) -> &mut (f64, f64) {
        let name = sample.label("tier").unwrap_or_default();
        let known = ["ram", "disk:"]
            .iter()
            .position(|one| name.starts_with(one));
        &mut self.loads[known.unwrap_or(TIERS - 1)]
    }

    fn saw_adapters(&mut self, at: f64, sample: &Sample<'_>) {
        if self
            .adapters
            .as_ref()
            .is_some_and(|(latest, ..)| *latest >= at)
        {
            return;
        }
        let names = |label| sample.label(label).unwrap_or_default();
        let most = sample.number("max_lora").unwrap_or(0.0);
        let both = ["running_lora_adapters", "waiting_lora_adapters"].map(names);
        self.adapters = Some((at, most, both.join(",")));
    }

    fn reported(self) -> Option<Reported> {
        if self.waiting.is_none() && self.running.is_none() {
            return None;
        }
        let ways = [
            self.kv_size,
            self.kv_tokens,
            self.block_tokens * self.blocks,
        ];
        let tokens = ways.into_iter().find(|one| *one > 0.0).unwrap_or(0.0);
        let (_, most, names) = self.adapters.unwrap_or_default();
        Some(Reported {
            engine: self.engine,
            waiting: self.waiting.unwrap_or(0.0).min(MOST) as f32,
            running: self.running.unwrap_or(0.0).min(MOST) as f32,
            kv_use: (self.kv_uses > 0.0).then(|| (self.kv_use / self.kv_uses) as f32),
            kv_tokens: (tokens > 0.0).then(|| tokens.min(MOST) as f32),
            adapters: adapters(&names),
            max_adapters: most.min(MOST) as u32,
            process_start: self.process_start,
            work: self.work,
            load_s: self.loads.map(|(seconds, tokens)| {
                (tokens >= LEAST_LOADED).then(|| (seconds / tokens).min(MOST) as f32)
            }),
            load_stream: self.load_stream,
        })
    }
}

fn path(sample: &Sample<'_>) -> Option<Arc<str>> {
    let path = sample.label("path")?;
    let fits = path.starts_with('/') && path.len() <= MAX_PATH;
    fits.then(|| path.as_ref().into())
}

/// Splits comma-separated names and drops duplicates.
fn adapters(names: &str) -> Arc<[Arc<str>]> {
    let mut found: Vec<&str> = names.split(',').map(str::trim).collect();
    found.retain(|name| !name.is_empty());
    found.sort_unstable();
    found.dedup();
    found.truncate(MAX_ADAPTERS);
    found.into_iter().map(Arc::from).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VLLM: &str = include_str!("../../tests/fixtures/vllm.txt");
    const RECORDED_VLLM: &str = include_str!("../../tests/fixtures/vllm-0.32.0.txt");
    const SGLANG: &str = include_str!("../../tests/fixtures/sglang.txt");
    const NEWER_SGLANG: &str = include_str!("../../tests/fixtures/sglang-0.5.23.txt");
    const TRTLLM: &str = include_str!("../../tests/fixtures/trtllm-serve.txt");
    const TRITON: &str = include_str!("../../tests/fixtures/triton-trtllm.txt");
    const LLAMACPP: &str = include_str!("../../tests/fixtures/llamacpp.txt");

    fn load(page: &str) -> (f32, f32, Option<f32>, Option<f32>) {
        let reported = reported(page).unwrap();
        assert!(page.contains(reported.engine) && !reported.engine.is_empty());
        let Reported {
            waiting,
            running,
            kv_use,
            kv_tokens,
            ..
        } = reported;
        (waiting, running, kv_use, kv_tokens)
    }

    #[test]
    fn each_engine_s_page_is_understood() {
        assert_eq!(load(VLLM), (3.0, 7.0, Some(0.25), Some(16.0 * 27_000.0)));
        let (waiting, running, kv_use, kv_tokens) = load(RECORDED_VLLM);
        assert_eq!((waiting, running), (4.0, 8.0));
        assert!((kv_use.unwrap() - 0.0303).abs() < 1e-4);
        assert_eq!(kv_tokens, Some(128.0 * 364.0));
        assert_eq!(load(SGLANG), (2.0, 5.0, Some(0.28), Some(64.0 * 6_250.0)));
        let newer = load(NEWER_SGLANG);
        assert_eq!(newer, (2.0, 5.0, Some(0.28), Some(400_000.0)));
        assert_eq!(load(TRTLLM), (4.0, 9.0, Some(0.5), Some(32.0 * 2_048.0)));
        assert_eq!(load(TRITON), (1.0, 6.0, Some(0.125), Some(64.0 * 1_000.0)));
        assert_eq!(load(LLAMACPP), (1.0, 4.0, Some(0.5), None));
    }

    #[test]
    fn the_latest_sample_names_the_adapters() {
        let reported = reported(VLLM).unwrap();
        let names: Vec<&str> = reported.adapters.iter().map(AsRef::as_ref).collect();
        assert_eq!(names, ["chat", "sql"]);
        assert_eq!(reported.max_adapters, 4);
    }

    #[test]
    fn what_changes_with_a_restart_is_found() {
        assert_eq!(reported(VLLM).unwrap().work, Some(1_048_576.0));
        assert_eq!(reported(LLAMACPP).unwrap().work, Some(9164.0));
        assert_eq!(reported(TRTLLM).unwrap().work, Some(40.0));
        let page = format!("process_start_time_seconds 1.7e+09\n{SGLANG}");
        let reported = reported(&page).unwrap();
        assert_eq!(reported.process_start, Some(1.7e9));
        assert_eq!(reported.engine, "sglang:");
    }

    #[test]
    fn the_time_of_a_loaded_token_is_that_of_its_tier() {
        let sum = "penstock:kv_tier_load_seconds_sum";
        let tokens = "penstock:kv_tier_hit_tokens_total";
        let page = format!(
            "vllm:num_requests_running 1\n\
             {sum}{{engine=\"0\",tier=\"ram\"}} 0.5\n{sum}{{tier=\"disk:/a\"}} 3\n\
             {sum}{{tier=\"disk:/b\"}} 1\n{sum}{{tier=\"redis://x\"}} 9\n\
             {tokens}{{tier=\"ram\"}} 1000\n{tokens}{{tier=\"disk:/a\"}} 1500\n\
             {tokens}{{tier=\"disk:/b\"}} 500\n{tokens}{{tier=\"redis://x\"}} 511\n"
        );
        let few = None;
        let load_s = [Some(0.000_5), Some(0.002), few];
        assert_eq!(reported(&page).unwrap().load_s, load_s);
        assert_eq!(reported(VLLM).unwrap().load_s, [None; 3]);
    }

    #[test]
    fn a_stream_of_the_load_has_a_path() {
        let stream = |path: &str| {
            let page = format!(
                "vllm:num_requests_running 1\npenstock:load_stream_info{{path=\"{path}\"}} 1\n"
            );
            reported(&page).unwrap().load_stream
        };
        assert_eq!(
            stream("/metrics/stream").as_deref(),
            Some("/metrics/stream")
        );
        assert_eq!(stream("http://elsewhere"), None);
        assert_eq!(stream(&format!("/{}", "x".repeat(256))), None);
        assert_eq!(reported(VLLM).unwrap().load_stream, None);
    }

    #[test]
    fn engines_behind_one_server_are_added() {
        let page = "vllm:num_requests_waiting{engine=\"0\"} 1\n\
                    vllm:num_requests_waiting{engine=\"1\"} 2\n\
                    vllm:kv_cache_usage_perc{engine=\"0\"} 0.2\n\
                    vllm:kv_cache_usage_perc{engine=\"1\"} 0.4\n";
        let (waiting, running, kv_use, _) = load(page);
        assert_eq!((waiting, running), (3.0, 0.0));
        assert!((kv_use.unwrap() - 0.3).abs() < 1e-6);
    }

    #[test]
    fn pipeline_stages_of_one_sglang_are_not_added() {
        let page = NEWER_SGLANG.replace("pp_rank=\"0\"", "pp_rank=\"1\"") + NEWER_SGLANG;
        assert_eq!(load(&page), load(NEWER_SGLANG));
        let ranks = NEWER_SGLANG.replace("tp_rank=\"0\"", "dp_rank=\"1\"") + NEWER_SGLANG;
        assert_eq!(load(&ranks), (4.0, 10.0, Some(0.28), Some(800_000.0)));
    }

    #[test]
    fn pages_without_load_state_none() {
        for page in [
            "",
            "<html>",
            "go_goroutines 3\n",
            "vllm:num_requests_waiting NaN\n",
        ] {
            assert_eq!(reported(page), None, "{page}");
        }
    }

    proptest! {
        #[test]
        fn values_stay_in_bounds(value in any::<f64>(), label in "\\PC{0,12}") {
            let page = format!(
                "vllm:num_requests_running {value}\nvllm:num_requests_waiting 1\n\
                 vllm:kv_cache_usage_perc {value}\n\
                 vllm:cache_config_info{{block_size=\"{label}\",num_gpu_blocks=\"{value}\"}} 1\n\
                 vllm:lora_requests_info{{max_lora=\"{value}\",\
                 running_lora_adapters=\"{label}\"}} 1\n",
            );
            let reported = reported(&page).unwrap();
            prop_assert!((0.0..=1e9).contains(&reported.running));
            prop_assert!(reported.kv_use.is_none_or(|share| (0.0..=1.0).contains(&share)));
            prop_assert!(reported.kv_tokens.is_none_or(|all| (0.0..=1e9).contains(&all)));
        }
    }
}
