//! Attention and its rotary positions.

use penstock_kernels::AttentionMask;
use serde::Deserialize;

use super::{LARGEST, NormKind, NormSpec, check_positive, check_sizes, first};
use crate::error::DecoderError;

/// Grouped-query attention.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// KV heads; divides `heads`.
    pub kv_heads: usize,
    /// Numbers per query or key head.
    pub head_dim: usize,
    /// Numbers per value head; `None` = `head_dim`.
    pub value_dim: Option<usize>,
    /// Sliding window in tokens, including the token that attends; `None` = unlimited.
    pub window: Option<usize>,
    /// Chunk size in tokens: a token attends only to the tokens of its own chunk. `None` = no
    /// chunks.
    pub chunk: Option<usize>,
    /// Attention sinks: a learned logit per query head takes part in the softmax.
    #[serde(default)]
    pub sinks: bool,
    /// Norm of each query and key head, before rotation.
    pub qk_norm: Option<NormSpec>,
    /// Epsilon of an RMS norm without weights that is applied to each query and key head after
    /// rotation; `None` = no such norm.
    pub qk_norm_after: Option<f32>,
    /// Scale of the products of queries and keys; `None` = `head_dim ^ -0.5`.
    pub scale: Option<f32>,
    /// `c` in `c * tanh(score / c)`, which replaces the scaled score.
    pub softcap: Option<f32>,
    /// Position-dependent scale of the queries; `None` = 1.
    pub temperature: Option<Temperature>,
    /// Query, key and value projections have biases.
    #[serde(default)]
    pub qkv_bias: bool,
    /// The output projection has a bias.
    #[serde(default)]
    pub out_bias: bool,
    /// Rotary positions; `None` = no positions in this layer.
    pub rope: Option<RopeSpec>,
}

/// Multiplies queries by `1 + scale * ln(1 + floor((position + 1) / floor))` (Llama 4).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Temperature {
    pub floor: f32,
    pub scale: f32,
}

impl Temperature {
    /// Factor of the query at `position`.
    pub(crate) fn factor(self, position: usize) -> f32 {
        let steps = ((position + 1) as f32 / self.floor).floor();
        (1.0 + steps).ln() * self.scale + 1.0
    }
}

/// Multi-head latent attention. The KV cache holds each token's latent and a rope key that all
/// heads share.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct LatentSpec {
    pub heads: usize,
    /// Rank of the query projection; `None` = full rank.
    pub query_rank: Option<usize>,
    /// Size of the latent from which keys and values are projected.
    pub kv_rank: usize,
    /// `plain_dim` and `rope_dim`: numbers per query and key head without and with rotation.
    /// `value_dim`: numbers per value head.
    pub plain_dim: usize,
    pub rope_dim: usize,
    pub value_dim: usize,
    /// Norm of the latent and of the low-rank query.
    pub norm: NormSpec,
    /// Scale of the products of queries and keys; `None` = `(plain_dim + rope_dim) ^ -0.5`.
    pub scale: Option<f32>,
    /// Rotation of the `rope_dim` numbers of each query and key; `None` = no rotation.
    pub rope: Option<RopeSpec>,
}

/// Attention heads, equal in all layers that have attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub heads: usize,
    /// KV heads; divides `heads`.
    pub kv_heads: usize,
    /// Numbers per cached key, and per query when it is multiplied by the key.
    pub key_dim: usize,
    /// Numbers per head in the input of the output projection.
    pub value_dim: usize,
    /// Latent attention: the value consists of the first `latent` numbers of the cached key.
    pub latent: Option<usize>,
    /// Maximum numbers of a head that may be rotated.
    pub rope_dim: usize,
}

/// Rotary position encoding (Su et al. 2021), half-split: number `i` of a head is rotated together
/// with number `i + dims / 2`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct RopeSpec {
    /// Base of the frequencies: pair `i` has the frequency `theta ^ (-2 i / dims)` before scaling.
    pub theta: f64,
    /// Numbers at the start of a head that are rotated; `None` = all.
    pub dims: Option<usize>,
    /// Scaling for long contexts.
    pub scaling: Option<RopeScaling>,
}

/// Scaling of frequencies for longer contexts.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum RopeScaling {
    /// Divides all frequencies by `factor`.
    Linear {
        /// Divisor of the frequencies.
        factor: f64,
    },
    /// Divides low frequencies by `factor` and keeps high ones, with a ramp in between (Llama 3.1).
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Frequencies with wavelengths above `original_max_position / low_freq_factor` are low.
        low_freq_factor: f64,
        /// Frequencies with wavelengths below `original_max_position / high_freq_factor` are high.
        high_freq_factor: f64,
        /// Training context before scaling.
        original_max_position: f64,
    },
    /// Divides each frequency by its entry in the weights' vector `rope_factors`.
    Factors {
        /// Scale of cosines and sines.
        attention_factor: Option<f32>,
    },
    /// Divides each frequency by its entry in `divisors` (LongRoPE, Ding et al. 2024).
    Longrope {
        /// One divisor per pair of rotated numbers.
        divisors: Vec<f32>,
        /// Scale of cosines and sines.
        attention_factor: f32,
    },
    /// Divides pairs that turn less than `beta_slow` times within the original context by `factor`,
    /// and keeps pairs that turn more than `beta_fast` times, with a ramp over the pairs in between
    /// (YaRN, Peng et al. 2023).
    Yarn {
        /// Divisor of the frequencies.
        factor: f64,
        /// Training context before scaling.
        original_max_position: f64,
        /// Pairs with more turns than this keep their frequency.
        beta_fast: f64,
        /// Frequencies of pairs with fewer turns than this are divided by `factor`.
        beta_slow: f64,
        /// The ends of the ramp are not rounded to whole pairs (gpt-oss).
        #[serde(default)]
        fractional: bool,
        /// Scale of cosines and sines.
        attention_factor: f32,
    },
}

impl RopeSpec {
    /// Number of rotated numbers in a head of `head_dim`.
    pub(crate) fn rotated(&self, head_dim: usize) -> usize {
        self.dims.unwrap_or(head_dim)
    }

    fn check(&self, head_dim: usize) -> Result<(), DecoderError> {
        let dims = self.rotated(head_dim);
        if dims == 0 || dims > head_dim || !dims.is_multiple_of(2) {
            return Err(DecoderError::Spec(format!(
                "rotation of {dims} numbers of a head of {head_dim}; it needs pairs within the head"
            )));
        }
        let divisors = match &self.scaling {
            Some(RopeScaling::Longrope { divisors, .. }) => divisors.len(),
            _ => dims / 2,
        };
        if divisors != dims / 2 {
            return Err(DecoderError::Spec(format!(
                "{divisors} divisors for {} pairs of rotation",
                dims / 2
            )));
        }
        Ok(())
    }
}

impl LatentSpec {
    pub(super) fn check(&self) -> Result<(), DecoderError> {
        check_sizes(&[
            ("mixer.heads", self.heads),
            ("mixer.query_rank", self.query_rank.unwrap_or(1)),
            ("mixer.kv_rank", self.kv_rank),
            ("mixer.plain_dim", self.plain_dim),
            ("mixer.rope_dim", self.rope_dim),
            ("mixer.value_dim", self.value_dim),
        ])?;
        check_positive(&[("mixer.scale", self.scale)])?;
        let rope = self.rope.as_ref();
        rope.map_or(Ok(()), |rope| rope.check(self.rope_dim))
    }

    pub(super) fn heads(&self) -> Heads {
        Heads {
            heads: self.heads,
            kv_heads: 1,
            key_dim: self.kv_rank + self.rope_dim,
            value_dim: self.value_dim,
            latent: Some(self.kv_rank),
            rope_dim: self.rope_dim,
        }
    }

    /// Scale of the products of queries and keys.
    pub(crate) fn scale(&self) -> f32 {
        let dim = (self.plain_dim + self.rope_dim) as f32;
        self.scale.unwrap_or(1.0 / dim.sqrt())
    }

    /// The first feature that this decoder does not support, if any.
    pub(super) fn unsupported(&self) -> Option<&'static str> {
        let rms = self.norm.kind == NormKind::Rms && !self.norm.bias;
        first(&[(!rms, "a norm of the latent that is not plain RMS")])
    }
}

impl AttentionSpec {
    pub(super) fn check(&self) -> Result<(), DecoderError> {
        check_sizes(&[
            ("mixer.heads", self.heads),
            ("mixer.kv_heads", self.kv_heads),
            ("mixer.head_dim", self.head_dim),
            ("mixer.window", self.window.unwrap_or(1).min(LARGEST)),
            ("mixer.chunk", self.chunk.unwrap_or(1).min(LARGEST)),
        ])?;
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(DecoderError::Spec(format!(
                "{} query heads do not share {} KV heads evenly",
                self.heads, self.kv_heads
            )));
        }
        check_positive(&[
            ("mixer.scale", self.scale),
            ("mixer.softcap", self.softcap),
            ("mixer.temperature.floor", self.temperature.map(|t| t.floor)),
        ])?;
        let rope = self.rope.as_ref();
        rope.map_or(Ok(()), |rope| rope.check(self.head_dim))
    }

    pub(super) fn heads(&self) -> Heads {
        Heads {
            heads: self.heads,
            kv_heads: self.kv_heads,
            key_dim: self.head_dim,
            value_dim: self.head_dim,
            latent: None,
            rope_dim: self.head_dim,
        }
    }

    /// The attention mask.
    pub(crate) fn seen(&self) -> AttentionMask {
        match (self.window, self.chunk) {
            (Some(window), _) => AttentionMask::Window(window),
            (None, Some(chunk)) => AttentionMask::Chunk(chunk),
            (None, None) => AttentionMask::All,
        }
    }

    /// Scale of the products of queries and keys.
    pub(crate) fn scale(&self) -> f32 {
        self.scale.unwrap_or(1.0 / (self.head_dim as f32).sqrt())
    }

    /// The first feature that this decoder does not support, if any.
    pub(super) fn unsupported(&self) -> Option<&'static str> {
        let rms = |n: NormSpec| n.kind == NormKind::Rms && !n.bias;
        let refusals = [
            (
                self.window.is_some() && self.chunk.is_some(),
                "attention with a window and a chunk",
            ),
            (
                self.value_dim.is_some_and(|dim| dim != self.head_dim),
                "values of another size than keys",
            ),
            (
                self.qk_norm.is_some_and(|n| !rms(n)),
                "a query and key norm that is not plain RMS",
            ),
            (
                self.qk_norm.is_some() && self.qk_norm_after.is_some(),
                "norms of queries and keys before and after rotation",
            ),
        ];
        first(&refusals)
    }
}
