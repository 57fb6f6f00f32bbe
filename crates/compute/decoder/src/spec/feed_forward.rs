//! Position-wise sublayers: feed-forwards, dense or mixtures of experts.

use penstock_kernels::{ActivationFn, Clamp, Groups, Score};
use serde::Deserialize;

use super::{check_sizes, first};
use crate::error::DecoderError;

/// Maximum experts per layer; published models have up to 512.
const MOST_EXPERTS: usize = 1 << 12;

/// Position-wise sublayer.
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
    /// Width of the inner activations.
    pub intermediate: usize,
    pub activation: Activation,
    /// All matrices have biases.
    #[serde(default)]
    pub bias: bool,
    /// Clamped SwiGLU, which replaces SiLU in a gated feed-forward.
    pub clamp: Option<ClampSpec>,
}

/// `(up + offset) * gate * sigmoid(alpha * gate)`, with `gate` clamped to at most `limit` and `up`
/// to [-limit, limit] (gpt-oss).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ClampSpec {
    pub limit: f32,
    pub alpha: f32,
    pub offset: f32,
}

/// A mixture of experts: each token passes through the experts with the highest router scores.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ExpertsSpec {
    /// Number of routed experts.
    pub experts: usize,
    pub experts_per_token: usize,
    /// The feed-forward of each expert.
    pub expert: Box<FeedForward>,
    /// Choice and weights of a token's experts.
    pub router: RouterSpec,
    /// Shared expert, through which every token passes; `None` = no such expert.
    pub shared: Option<Box<FeedForward>>,
    /// The shared expert's output is multiplied by the sigmoid of a learned logit.
    #[serde(default)]
    pub shared_gate: bool,
}

/// Rule for the choice and weights of a token's experts, in this order: logits become scores;
/// `choice = score + correction`; only experts of the best groups stay eligible; the eligible
/// experts with the highest `choice` are chosen; their scores, normalised and scaled, are the
/// weights.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct RouterSpec {
    /// Function from logits to scores.
    pub score: ScoreSpec,
    /// Choose by logit; scores are computed over the chosen experts only.
    #[serde(default)]
    pub after_choice: bool,
    /// The router's logits have a bias.
    #[serde(default)]
    pub bias: bool,
    /// Each expert has a bias that affects its choice, but not its weight.
    #[serde(default)]
    pub correction: bool,
    /// Groups of experts; only the best groups are eligible.
    pub groups: Option<GroupsSpec>,
    /// Divide the weights of a token's experts by their sum.
    #[serde(default)]
    pub normalise: bool,
    /// Added to the sum that `normalise` divides by; `None` = 0.
    pub epsilon: Option<f32>,
    /// Scale of the weights; `None` = 1.
    pub scale: Option<f32>,
    /// The weight multiplies the expert's input instead of its output.
    #[serde(default)]
    pub weight_on_input: bool,
}

/// Function from a router's logits to scores.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ScoreSpec {
    Softmax,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// The logit itself.
    None,
}

/// Contiguous groups of experts.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct GroupsSpec {
    /// Number of groups; divides the number of experts.
    pub count: usize,
    /// Number of eligible groups.
    pub keep: usize,
    /// A group's score.
    pub by: GroupScore,
}

/// Score of a group of experts.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum GroupScore {
    /// Its highest choice value.
    Max,
    /// The sum of its two highest choice values.
    Top2Sum,
}

/// Function between the matrices of a feed-forward.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU, tanh approximation (Hendrycks and Gimpel 2016); `gelu_new` in transformers.
    GeluTanh,
    /// GELU with the error function.
    Gelu,
}

impl FeedForward {
    /// A dense feed-forward's sizes; `None` for a mixture.
    pub(crate) fn mlp(&self) -> Option<&MlpSpec> {
        match self {
            Self::Gated(mlp) | Self::Plain(mlp) => Some(mlp),
            Self::Moe(_) => None,
        }
    }

    /// Inner widths of all dense feed-forwards that this one contains, experts included.
    pub(crate) fn widths(&self) -> Vec<usize> {
        match self {
            Self::Gated(mlp) | Self::Plain(mlp) => vec![mlp.intermediate],
            Self::Moe(moe) => moe.parts().flat_map(Self::widths).collect(),
        }
    }

    /// The kernels' activation function; `None` if they do not support it.
    pub(crate) fn activation(&self) -> Option<ActivationFn> {
        if let Some(clamp) = self.mlp()?.clamp {
            return clamp.activation().filter(|_| self.is_swiglu());
        }
        match self {
            Self::Gated(mlp) if mlp.activation == Activation::Silu => Some(ActivationFn::SiluGated),
            Self::Gated(mlp) if mlp.activation == Activation::GeluTanh => {
                Some(ActivationFn::GeluTanhGated)
            }
            Self::Plain(mlp) if mlp.activation == Activation::GeluTanh => {
                Some(ActivationFn::GeluTanh)
            }
            _ => None,
        }
    }

    fn is_swiglu(&self) -> bool {
        matches!(self, Self::Gated(mlp) if mlp.activation == Activation::Silu)
    }

    pub(super) fn check(&self) -> Result<(), DecoderError> {
        match self {
            Self::Gated(mlp) | Self::Plain(mlp) => {
                check_sizes(&[("feed_forward.intermediate", mlp.intermediate)])
            }
            Self::Moe(moe) => moe.check(),
        }
    }

    /// The first feature that this decoder does not support, if any.
    pub(super) fn unsupported(&self) -> Option<&'static str> {
        match self {
            Self::Gated(mlp) | Self::Plain(mlp) => first(&[
                (
                    mlp.clamp.is_some() && self.activation().is_none(),
                    "a clamped feed-forward of another activation",
                ),
                (
                    self.activation().is_none(),
                    "this activation in this kind of feed-forward",
                ),
            ]),
            Self::Moe(moe) => moe.unsupported(),
        }
    }
}

impl ClampSpec {
    /// Conversion for the kernels; `None` if the clamp is not valid.
    fn activation(self) -> Option<ActivationFn> {
        let Self {
            limit,
            alpha,
            offset,
        } = self;
        let sound = limit > 0.0 && [limit, alpha, offset].iter().all(|v| v.is_finite());
        sound.then_some(ActivationFn::Clamped(Clamp {
            limit,
            alpha,
            offset,
        }))
    }
}

impl ExpertsSpec {
    /// The feed-forward of the routed experts, and the one of the shared expert if there is one.
    fn parts(&self) -> impl Iterator<Item = &FeedForward> {
        std::iter::once(&*self.expert).chain(self.shared.as_deref())
    }

    fn check(&self) -> Result<(), DecoderError> {
        let (experts, chosen) = (self.experts, self.experts_per_token);
        let wrong = |what: String| Err(DecoderError::Spec(what));
        if experts == 0 || experts > MOST_EXPERTS {
            return wrong(format!("feed_forward.experts = {experts} is out of range"));
        }
        if chosen == 0 || chosen > experts {
            return wrong(format!(
                "feed_forward.experts_per_token = {chosen} of {experts} experts"
            ));
        }
        if let Some(groups) = self.router.groups {
            groups.check(experts, chosen)?;
        }
        let factors = [self.router.scale, self.router.epsilon];
        if let Some(factor) = factors.into_iter().flatten().find(|f| !f.is_finite()) {
            return wrong(format!("feed_forward.router has the factor {factor}"));
        }
        self.parts().try_for_each(FeedForward::check)
    }

    /// The first feature that this decoder does not support, if any.
    fn unsupported(&self) -> Option<&'static str> {
        let nested = self.parts().any(|part| matches!(part, FeedForward::Moe(_)));
        let gate = self.shared_gate && self.shared.is_none();
        let refusals = first(&[
            (nested, "experts that are mixtures themselves"),
            (gate, "a gate of a shared expert that is not there"),
        ]);
        refusals.or_else(|| self.parts().find_map(FeedForward::unsupported))
    }
}

impl GroupsSpec {
    fn check(self, experts: usize, chosen: usize) -> Result<(), DecoderError> {
        let Self { count, keep, .. } = self;
        let divides = count > 0 && experts.is_multiple_of(count);
        if divides && (1..=count).contains(&keep) && keep * (experts / count) >= chosen {
            return Ok(());
        }
        Err(DecoderError::Spec(format!(
            "feed_forward.router.groups: {keep} of {count} groups of {experts} experts do not give \
             {chosen} experts"
        )))
    }

    /// Conversion for the kernels.
    pub(crate) fn groups(self) -> Groups {
        Groups {
            count: self.count,
            keep: self.keep,
            best: match self.by {
                GroupScore::Max => 1,
                GroupScore::Top2Sum => 2,
            },
        }
    }
}

impl ScoreSpec {
    /// Conversion for the kernels.
    pub(crate) fn score(self) -> Score {
        match self {
            Self::Softmax => Score::Softmax,
            Self::Sigmoid => Score::Sigmoid,
            Self::None => Score::Logit,
        }
    }
}
