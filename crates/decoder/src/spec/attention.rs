//! What mixes positions: attention and its rotary positions.

use serde::Deserialize;

use super::{LARGEST, NormKind, NormSpec, check_sizes, first};
use crate::error::DecoderError;

/// What mixes positions.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Mixer {
    /// Grouped-query attention (Ainslie et al. 2023).
    Gqa(AttentionSpec),
    /// Multi-head latent attention (DeepSeek-V2, 2024).
    Mla(LatentSpec),
}

/// Grouped-query attention.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// KV heads; divides `heads`.
    pub kv_heads: usize,
    /// Numbers of a query or key head.
    pub head_dim: usize,
    /// Numbers of a value head; `None` = `head_dim`.
    pub value_dim: Option<usize>,
    /// Tokens that a token sees, itself included; `None` = all.
    pub window: Option<usize>,
    /// A token sees only the tokens of its own chunk of this size.
    pub chunk: Option<usize>,
    /// A learned logit for each query head takes part in the softmax.
    #[serde(default)]
    pub sinks: bool,
    /// Norm over each query and key head, before rotation.
    pub qk_norm: Option<NormSpec>,
    /// Query, key and value projections have biases.
    #[serde(default)]
    pub qkv_bias: bool,
    /// The output projection has a bias.
    #[serde(default)]
    pub out_bias: bool,
    /// Rotary positions; `None` = no positions in this layer.
    pub rope: Option<RopeSpec>,
}

/// Multi-head latent attention.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct LatentSpec {
    pub heads: usize,
    /// Rank of the query projection; `None` = full.
    pub query_rank: Option<usize>,
    /// Numbers of the latent that keys and values are made of.
    pub kv_rank: usize,
    /// Numbers of a query and key head without and with rotation, and of a value head.
    pub plain_dim: usize,
    pub rope_dim: usize,
    pub value_dim: usize,
    pub rope: Option<RopeSpec>,
}

/// Rotary position encoding (Su et al. 2021), half-split.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct RopeSpec {
    /// Base.
    pub theta: f64,
    /// Numbers from a head's start that are rotated; `None` = all.
    pub dims: Option<usize>,
    /// Stretching of long positions.
    pub scaling: Option<RopeScaling>,
}

/// How frequencies are changed for longer contexts.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum RopeScaling {
    /// All frequencies divided by `factor`.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// Low frequencies divided by `factor`, high ones kept, a ramp between (Llama 3.1).
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Wavelengths over original / this are low frequencies.
        low_freq_factor: f64,
        /// Wavelengths under original / this are high frequencies.
        high_freq_factor: f64,
        /// Context the model was trained for before scaling.
        original_max_position: f64,
    },
    /// Each frequency divided by an entry of the vector `rope_factors` of the weights.
    Factors,
}

impl Mixer {
    pub(super) fn check(&self) -> Result<(), DecoderError> {
        match self {
            Self::Gqa(attention) => attention.check(),
            Self::Mla(_) => Ok(()),
        }
    }

    /// See `DecoderSpec::unsupported`.
    pub(super) fn unsupported(&self) -> Option<&'static str> {
        match self {
            Self::Gqa(attention) => attention.unsupported(),
            Self::Mla(_) => Some("multi-head latent attention"),
        }
    }
}

impl AttentionSpec {
    fn check(&self) -> Result<(), DecoderError> {
        check_sizes(&[
            ("mixer.heads", self.heads),
            ("mixer.kv_heads", self.kv_heads),
            ("mixer.head_dim", self.head_dim),
            ("mixer.window", self.window.unwrap_or(1).min(LARGEST)),
        ])?;
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(DecoderError::Spec(format!(
                "{} query heads do not share {} KV heads evenly",
                self.heads, self.kv_heads
            )));
        }
        if self.rope.is_some() && !self.head_dim.is_multiple_of(2) {
            return Err(DecoderError::Spec(format!(
                "mixer.head_dim = {} is odd; rotation needs pairs",
                self.head_dim
            )));
        }
        Ok(())
    }

    /// See `DecoderSpec::unsupported`.
    fn unsupported(&self) -> Option<&'static str> {
        let rms = |n: NormSpec| n.kind == NormKind::Rms && !n.bias;
        let partial = |r: &RopeSpec| r.dims.is_some_and(|dims| dims != self.head_dim);
        let refusals = [
            (self.chunk.is_some(), "chunked attention"),
            (self.sinks, "attention sinks"),
            (
                self.value_dim.is_some_and(|dim| dim != self.head_dim),
                "values of another size than keys",
            ),
            (
                self.qk_norm.is_some_and(|n| !rms(n)),
                "a query and key norm that is not plain RMS",
            ),
            (
                self.rope.as_ref().is_some_and(partial),
                "rotation of a part of the head",
            ),
        ];
        first(&refusals)
    }
}
