//! What works on one position: feed-forwards, dense or of experts.

use serde::Deserialize;

use super::check_sizes;
use crate::error::DecoderError;

/// What works on one position.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum FeedForward {
    /// `down(activation(gate(x)) * up(x))`.
    Gated(MlpSpec),
    /// `down(activation(up(x)))`.
    Plain(MlpSpec),
    /// Mixture of experts.
    Moe(ExpertsSpec),
}

/// A dense feed-forward.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct MlpSpec {
    /// Inner width.
    pub intermediate: usize,
    /// Activation.
    pub activation: Activation,
    /// All matrices have biases.
    #[serde(default)]
    pub bias: bool,
    /// Bound of the inner numbers' magnitude.
    pub clamp: Option<f32>,
}

/// A mixture of experts: each token goes through the experts with the highest router scores.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ExpertsSpec {
    /// Routed experts.
    pub experts: usize,
    /// Experts that compute one token.
    pub experts_per_token: usize,
    /// Each expert.
    pub expert: Box<FeedForward>,
    /// Always-on expert.
    pub shared: Option<Box<FeedForward>>,
}

/// Function between the matrices of a feed-forward.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU by its tanh approximation (Hendrycks and Gimpel 2016); `gelu_new` of transformers.
    GeluTanh,
    /// GELU by the error function.
    Gelu,
}

impl FeedForward {
    /// How the kernels compute the inner numbers, where they can.
    pub(crate) fn activation(&self) -> Option<penstock_kernels::ActivationFn> {
        match self {
            Self::Gated(mlp) if mlp.activation == Activation::Silu => {
                Some(penstock_kernels::ActivationFn::SiluGated)
            }
            Self::Gated(mlp) if mlp.activation == Activation::GeluTanh => {
                Some(penstock_kernels::ActivationFn::GeluTanhGated)
            }
            Self::Plain(mlp) if mlp.activation == Activation::GeluTanh => {
                Some(penstock_kernels::ActivationFn::GeluTanh)
            }
            _ => None,
        }
    }

    pub(super) fn check(&self) -> Result<(), DecoderError> {
        match self {
            Self::Gated(mlp) | Self::Plain(mlp) => {
                check_sizes(&[("feed_forward.intermediate", mlp.intermediate)])
            }
            Self::Moe(_) => Ok(()),
        }
    }

    /// See `DecoderSpec::unsupported`.
    pub(super) fn unsupported(&self) -> Option<&'static str> {
        let mlp = match self {
            Self::Gated(mlp) | Self::Plain(mlp) => mlp,
            Self::Moe(_) => return Some("a mixture of experts"),
        };
        if mlp.clamp.is_some() {
            return Some("a clamped feed-forward");
        }
        let known = self.activation().is_some();
        (!known).then_some("this activation in this kind of feed-forward")
    }
}
