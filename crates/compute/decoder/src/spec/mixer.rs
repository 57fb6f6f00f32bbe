//! Token mixers: the sublayers that combine positions.

use penstock_kernels::AttentionMask;
use serde::Deserialize;

use super::{AttentionSpec, ConvolutionSpec, Heads, LatentSpec, RopeSpec};
use crate::error::DecoderError;

/// Token mixer: the sublayer that combines positions.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Mixer {
    /// Grouped-query attention (Ainslie et al. 2023).
    Gqa(AttentionSpec),
    /// Multi-head latent attention (DeepSeek-V2, 2024).
    Mla(LatentSpec),
    /// Gated short convolution (LFM2, 2025).
    Conv(ConvolutionSpec),
}

impl Mixer {
    pub(super) fn check(&self) -> Result<(), DecoderError> {
        match self {
            Self::Gqa(attention) => attention.check(),
            Self::Mla(latent) => latent.check(),
            Self::Conv(convolution) => convolution.check(),
        }
    }

    /// See [`Heads`]; `None` for a mixer without attention.
    pub(crate) fn heads(&self) -> Option<Heads> {
        match self {
            Self::Gqa(attention) => Some(attention.heads()),
            Self::Mla(latent) => Some(latent.heads()),
            Self::Conv(_) => None,
        }
    }

    /// The attention mask; `None` for a mixer without keys and values.
    pub(crate) fn seen(&self) -> Option<AttentionMask> {
        match self {
            Self::Gqa(attention) => Some(attention.seen()),
            Self::Mla(_) => Some(AttentionMask::All),
            Self::Conv(_) => None,
        }
    }

    pub(crate) fn rope(&self) -> Option<&RopeSpec> {
        match self {
            Self::Gqa(attention) => attention.rope.as_ref(),
            Self::Mla(latent) => latent.rope.as_ref(),
            Self::Conv(_) => None,
        }
    }

    /// The first feature that this decoder does not support, if any.
    pub(super) fn unsupported(&self) -> Option<&'static str> {
        match self {
            Self::Gqa(attention) => attention.unsupported(),
            Self::Mla(latent) => latent.unsupported(),
            Self::Conv(_) => Some("a short convolution"),
        }
    }
}
