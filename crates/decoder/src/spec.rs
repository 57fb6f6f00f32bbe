//! What a decoder looks like: declarative, made by the Python `model` room, read here from JSON.

use serde::Deserialize;

use crate::error::DecoderError;

/// Description of a decoder-only transformer.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct DecoderSpec {
    /// Name of the family, for messages.
    pub family: String,
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Longest sequence the positions allow.
    pub max_position: usize,
    /// Epsilon of every RMS norm.
    pub norm_eps: f32,
    /// Attention.
    pub attention: AttentionSpec,
    /// Rotary positions.
    pub rope: RopeSpec,
    /// Feed-forward part.
    pub mlp: MlpSpec,
    /// The head is the embedding matrix.
    pub tied_embeddings: bool,
}

/// Grouped-query attention.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// KV heads; divides `heads`.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_dim: usize,
    /// Query, key and value projections have biases.
    pub qkv_bias: bool,
    /// The output projection has a bias.
    pub out_bias: bool,
    /// Queries and keys are RMS-normalised per head.
    pub qk_norm: bool,
    /// Sliding window of each layer in tokens, null where there is none; null = none anywhere.
    pub windows: Option<Vec<Option<usize>>>,
}

/// Rotary position encoding (half-split).
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct RopeSpec {
    /// Base.
    pub theta: f64,
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
    /// Each frequency divided by an entry of the tensor with role `rope_factors`.
    Factors,
}

/// Gated feed-forward.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct MlpSpec {
    /// The one kind there is.
    pub kind: MlpKind,
    /// Inner width.
    pub intermediate: usize,
}

/// Kind of feed-forward.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum MlpKind {
    /// `down(silu(gate(x)) * up(x))`.
    Swiglu,
}

/// Names of the tensors in the checkpoint by role; `{i}` stands for the layer.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct WeightNames {
    /// Token embedding.
    pub embed: String,
    /// Norm before the head.
    pub final_norm: String,
    /// Output head; null when tied.
    pub head: Option<String>,
    /// Divisors of the rotary frequencies.
    pub rope_factors: Option<String>,
    /// Tensors of one layer.
    pub layer: LayerNames,
    /// Query and key rows are stored for interleaved rotation and must be put back into half-split
    /// order.
    pub rope_rows_interleaved: bool,
}

/// Names of a layer's tensors.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct LayerNames {
    pub attn_norm: String,
    pub q: String,
    pub k: String,
    pub v: String,
    pub o: String,
    pub mlp_norm: String,
    pub gate: String,
    pub up: String,
    pub down: String,
    #[serde(default)]
    pub q_bias: Option<String>,
    #[serde(default)]
    pub k_bias: Option<String>,
    #[serde(default)]
    pub v_bias: Option<String>,
    #[serde(default)]
    pub o_bias: Option<String>,
    #[serde(default)]
    pub q_norm: Option<String>,
    #[serde(default)]
    pub k_norm: Option<String>,
}

impl DecoderSpec {
    /// Reads and checks a spec.
    ///
    /// # Errors
    /// Malformed JSON, unknown fields, or sizes that cannot be.
    pub fn parse(json: &str) -> Result<Self, DecoderError> {
        let spec: Self =
            serde_json::from_str(json).map_err(|e| DecoderError::Spec(e.to_string()))?;
        spec.check()?;
        Ok(spec)
    }

    fn check(&self) -> Result<(), DecoderError> {
        let a = &self.attention;
        let sizes = [
            ("layers", self.layers),
            ("hidden", self.hidden),
            ("vocab", self.vocab),
            ("max_position", self.max_position),
            ("attention.heads", a.heads),
            ("attention.kv_heads", a.kv_heads),
            ("attention.head_dim", a.head_dim),
            ("mlp.intermediate", self.mlp.intermediate),
        ];
        if let Some((name, value)) = sizes.iter().find(|(_, v)| *v == 0 || *v > 1 << 28) {
            return Err(DecoderError::Spec(format!(
                "{name} = {value} is out of range"
            )));
        }
        if !a.heads.is_multiple_of(a.kv_heads) {
            return Err(DecoderError::Spec(format!(
                "{} query heads do not share {} KV heads evenly",
                a.heads, a.kv_heads
            )));
        }
        if !a.head_dim.is_multiple_of(2) {
            return Err(DecoderError::Spec(format!(
                "attention.head_dim = {} is odd; rotation needs pairs",
                a.head_dim
            )));
        }
        if let Some(windows) = &a.windows
            && (windows.len() != self.layers || windows.contains(&Some(0)))
        {
            let expected = format!("{} windows of at least one token", self.layers);
            return Err(DecoderError::Spec(format!(
                "attention.windows must name {expected}"
            )));
        }
        Ok(())
    }

    /// Sliding window of `layer`.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.attention.windows.as_ref().and_then(|w| w[layer])
    }
}
