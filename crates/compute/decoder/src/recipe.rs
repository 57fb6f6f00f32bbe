//! Weight recipes: for each role of a weight (for example, a layer's query projection), where its
//! values are in a checkpoint's tensors. Python's `model` package builds them from the checkpoint's
//! tensor names; this crate constructs no names.

use serde::Deserialize;

use crate::error::DecoderError;

/// Source of a matrix `[outputs, inputs]` or of a vector. In JSON, the recipe of a whole tensor is
/// the tensor's name, a plain string.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(from = "Written")]
pub struct Recipe {
    /// Tensor name in the checkpoint.
    pub tensor: String,
    /// Rows `[start, end)` to take, after transposition; `None` = all.
    pub rows: Option<[usize; 2]>,
    /// Columns `[start, end)` to take, after transposition; `None` = all.
    pub cols: Option<[usize; 2]>,
    /// Index into the outermost dimension of a tensor that stacks experts.
    pub expert: Option<usize>,
    /// The tensor is stored as `[inputs, outputs]`.
    pub transposed: bool,
    /// Name of the tensor of scales, for a tensor of MXFP4 codes (16 bytes per 32 inputs) or of
    /// 8-bit floats (one scale per 128 x 128 block).
    pub scales: Option<String>,
    /// Rows per block (head), if the two halves of each block are stored interleaved, as for
    /// interleaved rotation. `rows` counts in the order after deinterleaving: the first half of a
    /// block, then the second.
    pub interleaved: Option<usize>,
    /// Rows at the start of each block that are not interleaved; `None` = 0.
    pub unrotated: Option<usize>,
    /// The tensor holds integer codes. Rows then count weights, not words.
    pub codes: Option<Codes>,
}

/// Form of a tensor of integer codes: a weight is `(code - zero point) * scale`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Codes {
    pub layout: CodeLayout,
    /// Bits of a code.
    pub bits: usize,
    /// Name of the tensor of scales.
    pub scales: String,
    /// Outputs that share a scale; `None` = all.
    pub rows: Option<usize>,
    /// Inputs that share a scale; `None` = all.
    pub cols: Option<usize>,
    /// Name of the tensor of zero points; `None` = half of the codes' range.
    pub zeros: Option<String>,
    /// Name of the tensor with the group of each input; `None` = groups are contiguous.
    pub groups: Option<String>,
    /// Name of the tensor with the matrix's shape.
    pub shape: Option<String>,
}

/// Order of codes in words of 32 bits, for a matrix of N outputs and K inputs.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum CodeLayout {
    /// Words `[K / 8, N]` of 8 inputs (or 4 of 8 bits), the lowest first. Zero points
    /// `[groups, N / 8]` are stored less 1.
    Gptq,
    /// As `Gptq`, with zero points that are not stored less 1.
    GptqV2,
    /// Words `[K, N / 8]` of 8 outputs in AWQ's order; zero points likewise.
    Awq,
    /// compressed-tensors: words `[N, K / 8]`, the lowest first; zero points `[N / 8, groups]`.
    Packed,
}

/// JSON form of a [`Recipe`].
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Name(String),
    Parts(Box<Parts>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parts {
    tensor: String,
    rows: Option<[usize; 2]>,
    cols: Option<[usize; 2]>,
    expert: Option<usize>,
    #[serde(default)]
    transposed: bool,
    scales: Option<String>,
    interleaved: Option<usize>,
    unrotated: Option<usize>,
    codes: Option<Codes>,
}

impl From<Written> for Recipe {
    fn from(written: Written) -> Self {
        match written {
            Written::Name(tensor) => Self {
                tensor,
                ..Self::default()
            },
            Written::Parts(parts) => {
                let p = *parts;
                Self {
                    tensor: p.tensor,
                    rows: p.rows,
                    cols: p.cols,
                    expert: p.expert,
                    transposed: p.transposed,
                    scales: p.scales,
                    interleaved: p.interleaved,
                    unrotated: p.unrotated,
                    codes: p.codes,
                }
            }
        }
    }
}

/// The weights of a decoder by role.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct WeightRecipes {
    /// Token embedding `[vocab, hidden]`.
    pub embed: Recipe,
    /// Learned positions `[max_position, hidden]`.
    pub positions: Option<Recipe>,
    pub final_norm: Recipe,
    pub final_norm_bias: Option<Recipe>,
    /// Output head `[vocab, hidden]`; `None` when tied.
    pub head: Option<Recipe>,
    /// Classification head `[labels, hidden]`.
    pub score: Option<Recipe>,
    /// Divisors of the rotary frequencies.
    pub rope_factors: Option<Recipe>,
    /// One entry per layer of the model.
    pub layers: Vec<LayerRecipes>,
}

/// The weights of a layer by role; matrices are `[outputs, inputs]`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct LayerRecipes {
    pub mixer_norm: Recipe,
    pub mixer_norm_bias: Option<Recipe>,
    /// Norm of the mixer's output.
    pub mixer_norm_after: Option<Recipe>,
    /// Attention: query projection; in latent attention from the low-rank query, if there is one.
    pub q: Option<Recipe>,
    pub k: Option<Recipe>,
    pub v: Option<Recipe>,
    pub o: Option<Recipe>,
    /// Latent attention: the down projection of queries, and its norm.
    pub q_a: Option<Recipe>,
    pub q_a_norm: Option<Recipe>,
    /// Latent and rope key, `[kv_rank + rope_dim, hidden]`, and the latent's norm.
    pub kv_a: Option<Recipe>,
    pub kv_a_norm: Option<Recipe>,
    /// Keys and values of all heads from the latent, `[heads * (plain_dim + value_dim), kv_rank]`.
    pub kv_b: Option<Recipe>,
    /// Alternative to `kv_b`: `k_b` stacks a matrix `[kv_rank, plain_dim]` per head, `v_b` a matrix
    /// `[value_dim, kv_rank]` per head.
    pub k_b: Option<Recipe>,
    pub v_b: Option<Recipe>,
    pub q_bias: Option<Recipe>,
    pub k_bias: Option<Recipe>,
    pub v_bias: Option<Recipe>,
    pub o_bias: Option<Recipe>,
    pub q_norm: Option<Recipe>,
    pub k_norm: Option<Recipe>,
    /// Attention sinks: one logit per query head.
    pub sinks: Option<Recipe>,
    pub feed_forward_norm: Recipe,
    pub feed_forward_norm_bias: Option<Recipe>,
    /// Norm of the feed-forward's output.
    pub feed_forward_norm_after: Option<Recipe>,
    /// Matrices of a dense feed-forward, or of each expert ([`Recipe::of_expert`]).
    pub gate: Option<Recipe>,
    pub up: Recipe,
    pub down: Recipe,
    pub gate_bias: Option<Recipe>,
    pub up_bias: Option<Recipe>,
    pub down_bias: Option<Recipe>,
    /// Router `[experts, hidden]`.
    pub router: Option<Recipe>,
    pub router_bias: Option<Recipe>,
    /// Bias of the router scores, `[experts]`; affects the choice of experts but not their weights.
    pub router_correction: Option<Recipe>,
    pub shared_gate: Option<Recipe>,
    pub shared_up: Option<Recipe>,
    pub shared_down: Option<Recipe>,
    /// Weights of the shared expert's gate logit, `[hidden]`.
    pub shared_factor: Option<Recipe>,
}

/// Placeholder for an expert's number in a tensor name.
const EXPERT: &str = "{e}";

impl Recipe {
    /// The recipe of one expert. The expert's number replaces `{e}` in the tensor's name, or is the
    /// index into a tensor of stacked experts.
    pub(crate) fn of_expert(self, expert: usize) -> Self {
        if self.tensor.contains(EXPERT) {
            let named = |name: String| name.replace(EXPERT, &expert.to_string());
            return Self {
                tensor: named(self.tensor),
                scales: self.scales.map(named),
                codes: self.codes.map(|codes| codes.renamed(named)),
                ..self
            };
        }
        let expert = Some(expert);
        Self { expert, ..self }
    }
}

impl Codes {
    fn renamed(self, named: impl Fn(String) -> String) -> Self {
        Self {
            scales: named(self.scales),
            zeros: self.zeros.map(&named),
            groups: self.groups.map(&named),
            shape: self.shape.map(&named),
            ..self
        }
    }

    /// Names of the tensors beside the codes.
    pub(crate) fn others(&self) -> impl Iterator<Item = &str> {
        let rest = [&self.zeros, &self.groups, &self.shape];
        let rest = rest.into_iter().filter_map(Option::as_deref);
        std::iter::once(self.scales.as_str()).chain(rest)
    }
}

impl WeightRecipes {
    /// Parses the recipes of a decoder with `layers` layers.
    ///
    /// # Errors
    /// Malformed JSON, or a different number of layers.
    pub fn parse(json: &str, layers: usize) -> Result<Self, DecoderError> {
        let weights: Self = serde_json::from_str(json)
            .map_err(|e| DecoderError::Spec(format!("weight recipes: {e}")))?;
        if weights.layers.len() != layers {
            return Err(DecoderError::Spec(format!(
                "weight recipes of {} layers for a decoder of {layers}",
                weights.layers.len()
            )));
        }
        Ok(weights)
    }
}
