//! What works on one position: feed-forwards, dense or of experts.

use penstock_kernels::{ActivationFn, Clamp, Groups, Score};
use serde::Deserialize;

use super::{check_sizes, first};
use crate::error::DecoderError;

/// Most experts of a layer; published models have up to 512.
const MOST_EXPERTS: usize = 1 << 12;

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
    /// In place of the plain activation of a gated one with SiLU.
    pub clamp: Option<ClampSpec>,
}

/// `(up + offset) * gate * sigmoid(alpha * gate)`, with the gate at most `limit` and up within
/// `limit` of zero (gpt-oss).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ClampSpec {
    pub limit: f32,
    pub alpha: f32,
    pub offset: f32,
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
    /// How the experts of a token are chosen and weighted.
    pub router: RouterSpec,
    /// Always-on expert.
    pub shared: Option<Box<FeedForward>>,
    /// The always-on expert's output is multiplied by the sigmoid of a product with a vector.
    #[serde(default)]
    pub shared_gate: bool,
}

/// How experts are chosen and weighted: scores of the logits, `choice = score + correction`,
/// groups, the experts of the highest choice, their scores as weights, normalisation, scale.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct RouterSpec {
    /// Function from logits to scores.
    pub score: ScoreSpec,
    /// The logits are the choice; scores are computed among the chosen experts.
    #[serde(default)]
    pub after_choice: bool,
    /// The logits have a bias.
    #[serde(default)]
    pub bias: bool,
    /// A bias for each expert counts in the choice only.
    #[serde(default)]
    pub correction: bool,
    /// Experts are chosen from the best groups.
    pub groups: Option<GroupsSpec>,
    /// Weights are divided by their sum.
    #[serde(default)]
    pub normalise: bool,
    /// Added to the sum; `None` = 0.
    pub epsilon: Option<f32>,
    /// Factor of the weights; `None` = 1.
    pub scale: Option<f32>,
    /// The weight multiplies the expert's input, not its output.
    #[serde(default)]
    pub weight_on_input: bool,
}

/// Function from a router's logits to scores.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ScoreSpec {
    /// Exponentials that sum to 1.
    Softmax,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// The logits.
    None,
}

/// Contiguous groups of experts.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct GroupsSpec {
    /// Groups; divides the experts.
    pub count: usize,
    /// Groups that are kept.
    pub keep: usize,
    /// A group's score.
    pub by: GroupScore,
}

/// What the score of a group of experts is.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum GroupScore {
    /// Its highest choice.
    Max,
    /// The sum of its two highest choices.
    Top2Sum,
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
    /// A dense feed-forward's sizes; `None` for a mixture.
    pub(crate) fn mlp(&self) -> Option<&MlpSpec> {
        match self {
            Self::Gated(mlp) | Self::Plain(mlp) => Some(mlp),
            Self::Moe(_) => None,
        }
    }

    /// Its inner widths: of all its dense parts.
    pub(crate) fn widths(&self) -> Vec<usize> {
        match self {
            Self::Gated(mlp) | Self::Plain(mlp) => vec![mlp.intermediate],
            Self::Moe(moe) => moe.parts().flat_map(Self::widths).collect(),
        }
    }

    /// How the kernels compute the inner numbers, where they can.
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

    /// See `DecoderSpec::unsupported`.
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
    /// As the kernels take it, if its bound is one.
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
    /// Its experts, routed and shared.
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

    /// See `DecoderSpec::unsupported`.
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

    /// As the kernels take it.
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
    /// As the kernels take it.
    pub(crate) fn score(self) -> Score {
        match self {
            Self::Softmax => Score::Softmax,
            Self::Sigmoid => Score::Sigmoid,
            Self::None => Score::Logit,
        }
    }
}
