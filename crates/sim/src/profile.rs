//! What an engine can hold and how fast it is: the profile file.

use serde::{Deserialize, Serialize};

use crate::timing::Timing;

/// The parameters of a modelled engine; a JSON object whose absent members have the default's
/// values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Profile {
    /// Prompt and answer together, in tokens.
    pub(crate) max_model_len: u32,
    /// Sequences that run at once.
    pub(crate) max_num_seqs: u32,
    /// Tokens of one step.
    pub(crate) max_num_batched_tokens: u32,
    /// Requests that may wait.
    pub(crate) max_queue: u32,
    /// Tokens of a KV block: a multiple of 16.
    pub(crate) block_size: u32,
    pub(crate) num_blocks: u32,
    pub(crate) prefix_caching: bool,
    /// Token ids are below it; with a model's tokenizer, the model's.
    pub(crate) vocab_size: u32,
    /// Numbers of a pooled request's vector.
    pub(crate) vector_size: u32,
    pub(crate) timing: Timing,
}

impl Default for Profile {
    /// SmolLM2-135M as Penstock serves it on two cores.
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
    /// A profile by name: `default`; `instant`, where nothing takes time and everything fits;
    /// `fast`, as that with steps of one millisecond; `h100`, a model of 8 billion parameters on
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

    /// Llama 3.1 8B in bf16 on one H100: worked out, not measured. Prefill at 49% of 990 TFLOPS,
    /// decoding at 80% of 3.35 TB/s, 50 GB of KV memory.
    fn h100() -> Self {
        Self {
            max_model_len: 131_072,
            max_num_seqs: 256,
            max_num_batched_tokens: 2048,
            max_queue: 1_000_000,
            block_size: 64,
            num_blocks: 6000,
            vocab_size: 128_256,
            timing: Timing {
                base_us: 1000.0,
                decode_us: vec![(1, 6000.0), (256, 9000.0)],
                prompt_us_per_token: 33.0,
                decode_us_per_context_ktoken: 50.0,
                prompt_us_per_context_ktoken: 1.3,
                jitter: 0.05,
            },
            ..Self::default()
        }
    }

    /// The complaint about a wrong value.
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

    /// 32 bytes that stand for what the KV of this engine would be: the parameters themselves.
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

    #[test]
    fn the_default_is_what_was_measured() {
        let timing = Profile::default().timing;
        let decode = |decodes: u32, context: u64| StepShape {
            decodes,
            decode_context: u64::from(decodes) * context,
            ..StepShape::default()
        };
        let chunk = |before: u64| StepShape {
            prompt_tokens: 256,
            prompt_context: 256 * before + 256 * 257 / 2,
            ..StepShape::default()
        };
        // Milliseconds of real steps: medians of ITL at these batches and contexts, and the chunks
        // of a long prompt.
        for (shape, measured) in [
            (decode(1, 192), 2.2),
            (decode(1, 4000), 5.4),
            (decode(8, 320), 7.2),
            (decode(32, 320), 19.8),
            (chunk(0), 53.8),
            (chunk(768), 75.7),
            (chunk(1792), 109.4),
        ] {
            let modelled = timing.cost(&shape, 0, 1).as_secs_f64() * 1e3;
            assert!(
                (modelled / measured - 1.0).abs() < 0.05,
                "{shape:?}: {modelled} ms"
            );
        }
    }
}
