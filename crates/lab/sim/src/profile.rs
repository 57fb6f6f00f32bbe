//! Profiles: capacity and speed of a modelled engine.

use serde::{Deserialize, Serialize};

use crate::timing::Timing;

/// Parameters of a modelled engine, from a JSON object; absent members have default values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Profile {
    /// Maximum number of tokens of prompt and answer together.
    pub(crate) max_model_len: u32,
    /// Maximum number of running sequences.
    pub(crate) max_num_seqs: u32,
    /// Maximum number of tokens per step.
    pub(crate) max_num_batched_tokens: u32,
    /// Maximum number of queued requests.
    pub(crate) max_queue: u32,
    /// Number of tokens per KV block, a multiple of 16.
    pub(crate) block_size: u32,
    pub(crate) num_blocks: u32,
    pub(crate) prefix_caching: bool,
    /// Number of token ids. A model's tokenizer replaces it by its own number.
    pub(crate) vocab_size: u32,
    /// Number of elements in the vector of a pooled request.
    pub(crate) vector_size: u32,
    pub(crate) timing: Timing,
}

impl Default for Profile {
    /// SmolLM2-135M, as Penstock serves it on two cores.
    fn default() -> Self {
        Self {
            max_model_len: 8192,
            max_num_seqs: 64,
            max_num_batched_tokens: 256,
            max_queue: 1024,
            block_size: 32,
            num_blocks: 2048,
            prefix_caching: true,
            vocab_size: 49152,
            vector_size: 576,
            timing: Timing::default(),
        }
    }
}

impl Profile {
    /// A profile by name: `default`; `instant`, whose steps take no time and whose capacity is
    /// large; `fast`, which differs from `instant` by steps of one millisecond; `h100`, Qwen3-8B on
    /// one H100.
    pub(crate) fn preset(name: &str) -> Option<Self> {
        let roomy = |timing| Self {
            max_num_seqs: 1024,
            max_num_batched_tokens: 65_536,
            max_queue: 65_536,
            num_blocks: 65_536,
            timing,
            ..Self::default()
        };
        match name {
            "default" => Some(Self::default()),
            "instant" => Some(roomy(Timing::instant())),
            "fast" => Some(roomy(Timing {
                base_us: 1000.0,
                ..Timing::instant()
            })),
            "h100" => Some(Self::h100()),
            _ => None,
        }
    }

    /// Qwen3-8B in bf16, as Penstock serves it on one H100, where steps with prompts launch kernels
    /// one by one. The tests compare it with measurements. `max_model_len` is the model's extended
    /// context.
    fn h100() -> Self {
        Self {
            max_model_len: 131_072,
            max_num_seqs: 256,
            max_num_batched_tokens: 8192,
            max_queue: 1_000_000,
            block_size: 64,
            num_blocks: 6000,
            vocab_size: 151_936,
            timing: Timing {
                base_us: 6300.0,
                decode_us: vec![(1, 100.0), (256, 300.0)],
                prompt_us_per_token: 21.7,
                prompt_floor_us: 15_000.0,
                decode_us_per_context_ktoken: 57.0,
                prompt_us_per_context_ktoken: 1.44,
                jitter: 0.05,
            },
            ..Self::default()
        }
    }

    /// Describes the first invalid value; `None` if all are valid.
    pub(crate) fn complaint(&self) -> Option<String> {
        let positive = [
            ("max_model_len", self.max_model_len),
            ("max_num_seqs", self.max_num_seqs),
            ("num_blocks", self.num_blocks),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Some(format!("{name} must be at least 1"));
        }
        if self.max_num_batched_tokens < self.max_num_seqs {
            return Some(format!(
                "max_num_batched_tokens ({}) must be at least max_num_seqs ({})",
                self.max_num_batched_tokens, self.max_num_seqs
            ));
        }
        if self.block_size == 0 || !self.block_size.is_multiple_of(penstock_prefix::UNIT as u32) {
            return Some(format!(
                "block_size must be a multiple of {}, not {}",
                penstock_prefix::UNIT,
                self.block_size
            ));
        }
        if !(16..=1 << 24).contains(&self.vocab_size) {
            return Some(format!(
                "vocab_size must be 16 to {}, not {}",
                1 << 24,
                self.vocab_size
            ));
        }
        if !(1..=1 << 16).contains(&self.vector_size) {
            let most = 1 << 16;
            return Some(format!(
                "vector_size must be 1 to {most}, not {}",
                self.vector_size
            ));
        }
        self.timing.complaint()
    }

    /// A synthetic identity of this engine's KV, derived from the profile: equal identities stand
    /// for equal KV.
    pub(crate) fn cache_identity(&self) -> penstock_prefix::Digest {
        let text = format!("simulated {} {}", self.vocab_size, self.block_size);
        penstock_prefix::root(&[0; 32], b"simengine", text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::timing::StepShape;

    #[test]
    fn absent_members_have_defaults_and_unknown_ones_are_refused() {
        let profile: Profile =
            serde_json::from_str(r#"{"max_num_seqs": 4, "timing": {"base_us": 7}}"#).unwrap();
        assert_eq!((profile.max_num_seqs, profile.block_size), (4, 32));
        assert_eq!(profile.timing.base_us, 7.0);
        assert_eq!(profile.timing.prompt_us_per_token, 192.0);
        let error = serde_json::from_str::<Profile>(r#"{"max_nun_seqs": 4}"#).unwrap_err();
        assert!(error.to_string().contains("max_nun_seqs"));
    }

    #[test]
    fn presets_are_valid_and_others_have_no_name() {
        for name in ["default", "instant", "fast", "h100"] {
            assert_eq!(Profile::preset(name).unwrap().complaint(), None, "{name}");
        }
        assert_eq!(Profile::preset("quick"), None);
    }

    #[test]
    fn wrong_values_are_named() {
        let complaint = |change: fn(&mut Profile)| {
            let mut profile = Profile::default();
            change(&mut profile);
            profile.complaint().unwrap_or_default()
        };
        assert!(complaint(|p| p.num_blocks = 0).contains("num_blocks"));
        assert!(complaint(|p| p.block_size = 24).contains("block_size"));
        assert!(complaint(|p| p.max_num_batched_tokens = 8).contains("max_num_batched_tokens"));
        assert!(complaint(|p| p.vocab_size = 3).contains("vocab_size"));
        assert!(complaint(|p| p.timing.jitter = 2.0).contains("jitter"));
    }

    fn decode(decodes: u32, context: u64) -> StepShape {
        StepShape {
            decodes,
            decode_context: u64::from(decodes) * context,
            ..StepShape::default()
        }
    }

    /// `count` chunks of `tokens` each, after `before` computed tokens.
    fn chunks(count: u64, tokens: u64, before: u64) -> StepShape {
        StepShape {
            prompt_tokens: (count * tokens) as u32,
            prompt_context: count * (tokens * before + tokens * (tokens + 1) / 2),
            ..StepShape::default()
        }
    }

    /// Asserts that modelled steps are within 5% of measured ones (in milliseconds).
    fn assert_measured(timing: &Timing, steps: &[(StepShape, f64)]) {
        let timing = Timing {
            jitter: 0.0,
            ..timing.clone()
        };
        for (shape, measured) in steps {
            let modelled = timing.cost(shape, 0, 1).as_secs_f64() * 1e3;
            assert!(
                (modelled / measured - 1.0).abs() < 0.05,
                "{shape:?}: {modelled} ms, measured {measured}"
            );
        }
    }

    /// Measured: median ITL in ms at some batch sizes and contexts, and the chunks of a long
    /// prompt.
    #[test]
    fn the_default_is_what_was_measured() {
        let steps = [
            (decode(1, 192), 2.2),
            (decode(1, 4000), 5.4),
            (decode(8, 320), 7.2),
            (decode(32, 320), 19.8),
            (chunks(1, 256, 0), 53.8),
            (chunks(1, 256, 768), 75.7),
            (chunks(1, 256, 1792), 109.4),
        ];
        assert_measured(&Profile::default().timing, &steps);
    }

    /// Measured (`benchmarks/results/gpu-h100-2026-11-26.md`): decode steps, prefill steps and
    /// times to the first token, in ms.
    #[test]
    fn the_h100_is_what_was_measured() {
        let steps = [
            (decode(1, 1024), 6.48),
            (decode(8, 1024), 6.94),
            (decode(32, 1024), 8.40),
            (decode(64, 1024), 10.16),
            (decode(128, 1024), 13.50),
            (decode(256, 1024), 21.11),
            (chunks(1, 128, 0), 15.02),
            (chunks(1, 2048, 0), 51.65),
            (chunks(8, 1024, 0), 190.33),
            (chunks(2, 4095, 0), 208.44),
        ];
        assert_measured(&Profile::h100().timing, &steps);
    }
}
