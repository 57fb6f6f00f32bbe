//! DecoderSpec: the declarative description of a decoder. Python's `model` package builds it from a
//! checkpoint's metadata; this crate reads it from JSON.
//!
//! Fields with default values are omitted, so that a new field changes neither the JSON nor the
//! cache identity of models that do not use it. Unknown fields are errors.

mod attention;
mod feed_forward;
mod mixer;
mod short_convolution;

use penstock_kernels::AttentionMask;
use serde::Deserialize;

pub(crate) use attention::Temperature;
pub use attention::{AttentionSpec, Heads, LatentSpec, RopeScaling, RopeSpec};
pub use feed_forward::{
    Activation, ClampSpec, ExpertsSpec, FeedForward, GroupScore, GroupsSpec, MlpSpec, RouterSpec,
    ScoreSpec,
};
pub use mixer::Mixer;
pub use short_convolution::ConvolutionSpec;

use crate::error::DecoderError;

/// Upper bound on every size in a spec.
const LARGEST: usize = 1 << 28;

/// Description of a decoder-only transformer.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct DecoderSpec {
    /// Name of the model family, for messages.
    pub family: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Vocabulary size in tokens.
    pub vocab: usize,
    /// Maximum sequence length that the positions allow.
    pub max_position: usize,
    /// Scale of the embeddings; `None` = 1.
    pub embed_scale: Option<f32>,
    /// Learned absolute positions: a row of a second table is added to each embedding.
    #[serde(default)]
    pub learned_positions: bool,
    /// The output head shares the embedding matrix.
    #[serde(default)]
    pub tied_embeddings: bool,
    /// Rows of the classification head; `None` = no such head.
    pub labels: Option<usize>,
    /// Norm before the output head.
    pub final_norm: NormSpec,
    /// `c` of `c * tanh(logit / c)`, which replaces each logit.
    pub final_softcap: Option<f32>,
    /// The distinct layers of the model.
    pub kinds: Vec<LayerSpec>,
    /// Index into `kinds` for each layer.
    pub layers: Vec<usize>,
}

/// A decoder layer: `x += after(mixer(before(x)))`, then the same with the feed-forward.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct LayerSpec {
    pub mixer_norms: Norms,
    /// Token mixer.
    pub mixer: Mixer,
    pub feed_forward_norms: Norms,
    /// Position-wise sublayer.
    pub feed_forward: FeedForward,
}

/// Norms of a sublayer's input and output.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Norms {
    pub before: Option<NormSpec>,
    pub after: Option<NormSpec>,
}

/// A norm over the last dimension.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct NormSpec {
    pub kind: NormKind,
    /// Added to the mean square or variance.
    pub eps: f32,
    /// A bias is added after the multiplication by the weight.
    #[serde(default)]
    pub bias: bool,
    /// The weight is the stored value plus 1 (Gemma's own files).
    #[serde(default)]
    pub unit_offset: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum NormKind {
    /// Root mean square (Zhang and Sennrich 2019).
    Rms,
    /// Mean and standard deviation (Ba et al. 2016).
    Layer,
}

impl DecoderSpec {
    /// Parses and checks a spec.
    ///
    /// # Errors
    /// Malformed JSON, unknown fields, impossible sizes, or an unsupported feature.
    pub fn parse(json: &str) -> Result<Self, DecoderError> {
        let spec: Self =
            serde_json::from_str(json).map_err(|e| DecoderError::Spec(e.to_string()))?;
        spec.check()?;
        match spec.unsupported() {
            Some(feature) => Err(DecoderError::Unsupported(feature)),
            None => Ok(spec),
        }
    }

    /// Number of decoder layers.
    pub fn depth(&self) -> usize {
        self.layers.len()
    }

    /// Description of layer `i`.
    pub fn layer(&self, i: usize) -> &LayerSpec {
        &self.kinds[self.layers[i]]
    }

    /// Heads and their sizes, equal in all layers with attention.
    ///
    /// # Panics
    /// No layer has attention; `parse` rejects such a spec.
    pub fn heads(&self) -> Heads {
        match self.all_heads().next() {
            Some(heads) => heads,
            None => panic!("a spec without attention layers"),
        }
    }

    /// Heads of each kind of layer with attention.
    fn all_heads(&self) -> impl Iterator<Item = Heads> {
        self.kinds.iter().filter_map(|kind| kind.mixer.heads())
    }

    /// The distinct inner widths of the feed-forwards, experts included, ascending.
    pub fn widths(&self) -> Vec<usize> {
        let of_kind = |kind: &LayerSpec| kind.feed_forward.widths();
        let mut widths: Vec<usize> = self.kinds.iter().flat_map(of_kind).collect();
        widths.sort_unstable();
        widths.dedup();
        widths
    }

    /// Number of routed experts per layer; `None` = no layer has any.
    pub fn experts(&self) -> Option<usize> {
        self.kinds.iter().find_map(LayerSpec::experts)
    }

    /// Attention mask of layer `i`; `None` if the layer has no keys and values.
    pub fn seen(&self, i: usize) -> Option<AttentionMask> {
        self.layer(i).mixer.seen()
    }

    fn check(&self) -> Result<(), DecoderError> {
        check_sizes(&[
            ("layers", self.layers.len()),
            ("hidden", self.hidden),
            ("vocab", self.vocab),
            ("max_position", self.max_position),
            ("kinds", self.kinds.len()),
        ])?;
        check_positive(&[
            ("embed_scale", self.embed_scale),
            ("final_softcap", self.final_softcap),
        ])?;
        if let Some(kind) = self.layers.iter().find(|&&kind| kind >= self.kinds.len()) {
            let kinds = self.kinds.len();
            return Err(DecoderError::Spec(format!(
                "a layer is of kind {kind}; there are {kinds} kinds"
            )));
        }
        self.kinds.iter().try_for_each(LayerSpec::check)
    }

    /// The first feature of the spec that this decoder does not support.
    fn unsupported(&self) -> Option<String> {
        let name = |feature: &str| feature.to_owned();
        let Some(heads) = self.all_heads().next() else {
            return Some(name("a model without attention layers"));
        };
        for kind in &self.kinds {
            if let Some(feature) = kind.unsupported() {
                return Some(name(feature));
            }
        }
        if self.final_norm.kind == NormKind::Rms && self.final_norm.bias {
            return Some(name("an RMS norm with a bias"));
        }
        if self.all_heads().any(|other| other != heads) {
            return Some(name("layers with different heads"));
        }
        let mut mixtures = self.kinds.iter().filter_map(LayerSpec::experts);
        let experts = mixtures.next();
        mixtures
            .any(|count| Some(count) != experts)
            .then(|| name("layers with different numbers of experts"))
    }
}

impl LayerSpec {
    /// Number of routed experts in the layer.
    fn experts(&self) -> Option<usize> {
        match &self.feed_forward {
            FeedForward::Moe(moe) => Some(moe.experts),
            _ => None,
        }
    }

    fn check(&self) -> Result<(), DecoderError> {
        self.mixer.check()?;
        self.feed_forward.check()
    }

    /// The first feature of the layer that this decoder does not support, if any.
    fn unsupported(&self) -> Option<&'static str> {
        let mixer = self.mixer.unsupported();
        mixer
            .or_else(|| self.feed_forward.unsupported())
            .or_else(|| self.norms_unsupported())
    }

    fn norms_unsupported(&self) -> Option<&'static str> {
        let norms = [self.mixer_norms, self.feed_forward_norms];
        let rms_bias = |n: NormSpec| n.kind == NormKind::Rms && n.bias;
        first(&[
            (
                norms.iter().any(|n| n.before.is_none()),
                "a sublayer without a norm before it",
            ),
            (
                norms
                    .iter()
                    .any(|n| [n.before, n.after].into_iter().flatten().any(rms_bias)),
                "an RMS norm with a bias",
            ),
        ])
    }
}

/// The first feature in `refusals` that is present.
fn first(refusals: &[(bool, &'static str)]) -> Option<&'static str> {
    let found = refusals.iter().find(|(found, _)| *found);
    found.map(|(_, feature)| *feature)
}

fn check_sizes(sizes: &[(&str, usize)]) -> Result<(), DecoderError> {
    match sizes.iter().find(|(_, v)| *v == 0 || *v > LARGEST) {
        Some((name, value)) => Err(DecoderError::Spec(format!(
            "{name} = {value} is out of range"
        ))),
        None => Ok(()),
    }
}

fn check_positive(numbers: &[(&str, Option<f32>)]) -> Result<(), DecoderError> {
    let wrong = |v: f32| !(v.is_finite() && v > 0.0);
    match numbers.iter().find(|(_, v)| v.is_some_and(wrong)) {
        Some((name, value)) => Err(DecoderError::Spec(format!(
            "{name} = {} is not a number over 0",
            value.unwrap_or_default()
        ))),
        None => Ok(()),
    }
}
