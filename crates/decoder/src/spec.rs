//! DecoderSpec: the declarative description of a decoder, made by Python's `model` room from a
//! checkpoint's metadata and read here from JSON.
//!
//! A field that has its default is left out, so that a new field changes neither the JSON nor the
//! cache identity of models that do not use it. Unknown fields are errors.

use serde::Deserialize;

use crate::error::DecoderError;

/// Largest number that a size may be.
const LARGEST: usize = 1 << 28;

/// Description of a decoder-only transformer.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct DecoderSpec {
    /// Name of the family, for messages.
    pub family: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Longest sequence the positions allow.
    pub max_position: usize,
    /// A row of a second table is added to each embedding, by absolute position.
    #[serde(default)]
    pub learned_positions: bool,
    /// The head is the embedding matrix.
    #[serde(default)]
    pub tied_embeddings: bool,
    /// Rows of the classification head; `None` = the model has none.
    pub labels: Option<usize>,
    /// Norm before the head.
    pub final_norm: NormSpec,
    /// The different layers of the model.
    pub kinds: Vec<LayerSpec>,
    /// Index into `kinds` for each layer.
    pub layers: Vec<usize>,
}

/// A decoder layer: `x += after(mixer(before(x)))`, then the same with the feed-forward.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct LayerSpec {
    /// Norms of the mixer.
    pub mixer_norms: Norms,
    /// What mixes positions.
    pub mixer: Mixer,
    /// Norms of the feed-forward.
    pub feed_forward_norms: Norms,
    /// What works on one position.
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
    /// What is normalised.
    pub kind: NormKind,
    /// Added to the mean square or variance.
    pub eps: f32,
    /// A bias is added after the weight.
    #[serde(default)]
    pub bias: bool,
}

/// Kind of norm.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum NormKind {
    /// Divided by the root mean square (Zhang and Sennrich 2019).
    Rms,
    /// Mean subtracted, divided by the standard deviation (Ba et al. 2016).
    Layer,
}

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

impl DecoderSpec {
    /// Reads and checks a spec.
    ///
    /// # Errors
    /// Malformed JSON, unknown fields, sizes that cannot be, or a feature that is not built.
    pub fn parse(json: &str) -> Result<Self, DecoderError> {
        let spec: Self =
            serde_json::from_str(json).map_err(|e| DecoderError::Spec(e.to_string()))?;
        spec.check()?;
        match spec.unsupported() {
            Some(feature) => Err(DecoderError::Unsupported(feature)),
            None => Ok(spec),
        }
    }

    /// Decoder layers.
    pub fn depth(&self) -> usize {
        self.layers.len()
    }

    /// Description of layer `i`.
    pub fn layer(&self, i: usize) -> &LayerSpec {
        &self.kinds[self.layers[i]]
    }

    /// Heads and head size, which all layers share.
    pub fn attention(&self) -> &AttentionSpec {
        self.kinds[0].attention()
    }

    /// Inner width of the feed-forward, which all layers share.
    pub fn intermediate(&self) -> usize {
        self.kinds[0].mlp().intermediate
    }

    /// Sliding window of layer `i`.
    pub fn window(&self, i: usize) -> Option<usize> {
        self.layer(i).attention().window
    }

    fn check(&self) -> Result<(), DecoderError> {
        check_sizes(&[
            ("layers", self.layers.len()),
            ("hidden", self.hidden),
            ("vocab", self.vocab),
            ("max_position", self.max_position),
            ("kinds", self.kinds.len()),
        ])?;
        if let Some(kind) = self.layers.iter().find(|&&kind| kind >= self.kinds.len()) {
            let kinds = self.kinds.len();
            return Err(DecoderError::Spec(format!(
                "a layer is of kind {kind}; there are {kinds} kinds"
            )));
        }
        self.kinds.iter().try_for_each(LayerSpec::check)
    }

    /// The first feature that the spec can express and this decoder cannot compute.
    fn unsupported(&self) -> Option<String> {
        let name = |feature: &str| feature.to_owned();
        for kind in &self.kinds {
            if let Some(feature) = kind.unsupported() {
                return Some(name(feature));
            }
        }
        if self.final_norm.kind == NormKind::Rms && self.final_norm.bias {
            return Some(name("an RMS norm with a bias"));
        }
        let (first, mut others) = (&self.kinds[0], self.kinds.iter());
        let shape = |kind: &LayerSpec| {
            let a = kind.attention();
            (a.heads, a.kv_heads, a.head_dim, kind.mlp().intermediate)
        };
        others
            .any(|kind| shape(kind) != shape(first))
            .then(|| name("layers with different heads or inner widths"))
    }
}

impl LayerSpec {
    /// The attention of a layer that [`DecoderSpec::parse`] accepted.
    pub(crate) fn attention(&self) -> &AttentionSpec {
        match &self.mixer {
            Mixer::Gqa(attention) => attention,
            Mixer::Mla(_) => unreachable!("refused by `unsupported`"),
        }
    }

    /// The dense feed-forward of a layer that [`DecoderSpec::parse`] accepted.
    pub(crate) fn mlp(&self) -> &MlpSpec {
        match &self.feed_forward {
            FeedForward::Gated(mlp) | FeedForward::Plain(mlp) => mlp,
            FeedForward::Moe(_) => unreachable!("refused by `unsupported`"),
        }
    }

    /// How the kernels compute the feed-forward's inner numbers, where they can.
    pub(crate) fn activation(&self) -> Option<penstock_kernels::ActivationFn> {
        match &self.feed_forward {
            FeedForward::Gated(mlp) if mlp.activation == Activation::Silu => {
                Some(penstock_kernels::ActivationFn::SiluGated)
            }
            FeedForward::Plain(mlp) if mlp.activation == Activation::GeluTanh => {
                Some(penstock_kernels::ActivationFn::GeluTanh)
            }
            _ => None,
        }
    }

    fn check(&self) -> Result<(), DecoderError> {
        if let Mixer::Gqa(a) = &self.mixer {
            a.check()?;
        }
        match &self.feed_forward {
            FeedForward::Gated(mlp) | FeedForward::Plain(mlp) => {
                check_sizes(&[("feed_forward.intermediate", mlp.intermediate)])
            }
            FeedForward::Moe(_) => Ok(()),
        }
    }

    /// See [`DecoderSpec::unsupported`].
    fn unsupported(&self) -> Option<&'static str> {
        let Mixer::Gqa(a) = &self.mixer else {
            return Some("multi-head latent attention");
        };
        let mlp = match &self.feed_forward {
            FeedForward::Gated(mlp) | FeedForward::Plain(mlp) => mlp,
            FeedForward::Moe(_) => return Some("a mixture of experts"),
        };
        let norms = [self.mixer_norms, self.feed_forward_norms];
        let before = norms.iter().filter_map(|n| n.before);
        let rms_bias = |n: NormSpec| n.kind == NormKind::Rms && n.bias;
        let rms = |n: NormSpec| n.kind == NormKind::Rms && !n.bias;
        let partial = |r: &RopeSpec| r.dims.is_some_and(|dims| dims != a.head_dim);
        let refusals = [
            (
                norms.iter().any(|n| n.after.is_some()),
                "a norm after a sublayer",
            ),
            (
                norms.iter().any(|n| n.before.is_none()),
                "a sublayer without a norm before it",
            ),
            (before.into_iter().any(rms_bias), "an RMS norm with a bias"),
            (a.chunk.is_some(), "chunked attention"),
            (a.sinks, "attention sinks"),
            (
                a.value_dim.is_some_and(|dim| dim != a.head_dim),
                "values of another size than keys",
            ),
            (
                a.qk_norm.is_some_and(|n| !rms(n)),
                "a query and key norm that is not plain RMS",
            ),
            (
                a.rope.as_ref().is_some_and(partial),
                "rotation of a part of the head",
            ),
            (mlp.clamp.is_some(), "a clamped feed-forward"),
            (
                self.activation().is_none(),
                "this activation in this kind of feed-forward",
            ),
        ];
        refusals
            .iter()
            .find(|(found, _)| *found)
            .map(|(_, feature)| *feature)
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
}

fn check_sizes(sizes: &[(&str, usize)]) -> Result<(), DecoderError> {
    match sizes.iter().find(|(_, v)| *v == 0 || *v > LARGEST) {
        Some((name, value)) => Err(DecoderError::Spec(format!(
            "{name} = {value} is out of range"
        ))),
        None => Ok(()),
    }
}
