//! Loads a checkpoint's tensors into a [`Model`]. For each weight role, the loader reads the tensor
//! that the recipe names, takes this rank's part and packs the part for the kernels.

mod attention;
mod feed_forward;
mod latent;
mod order;

use std::ops::Range;

use penstock_checkpoint::ReadAhead;
use penstock_kernels::{
    ActivationFormat, Cpu, Linear, Norm, NormKind, Packed, RowSource, WeightFormat,
};

use crate::error::DecoderError;
use crate::model::{KvGroup, Layer, Mixer, Model};
use crate::options::Numerics;
use crate::recipe::{LayerRecipes, Recipe, WeightRecipes};
use crate::shard::{Inputs, Shard};
use crate::source::{MatrixRows, vector};
use crate::spec::{self, DecoderSpec, NormSpec, RopeSpec};

pub(crate) use attention::kv_groups;
pub(crate) use order::add_in_order;

impl Model {
    /// Packs this rank's part of every tensor that the spec implies.
    ///
    /// # Errors
    /// A tensor is missing, damaged or of the wrong shape, or its file cannot be read.
    pub(crate) fn load(
        cpu: &Cpu,
        tensors: &ReadAhead<'_>,
        spec: DecoderSpec,
        weights: &WeightRecipes,
        numerics: Numerics,
        shard: Shard,
    ) -> Result<Self, DecoderError> {
        let loader = Loader {
            cpu,
            tensors,
            numerics,
            spec: &spec,
            shard: &shard,
            kv_groups: kv_groups(&spec, shard.layers()),
            ropes: attention::ropes(&spec),
        };
        let layers = shard
            .layers()
            .map(|i| loader.layer(i, &weights.layers[i]))
            .collect::<Result<_, _>>()?;
        let has_head = shard.has_head();
        let head = match (&weights.head, spec.tied_embeddings) {
            (Some(head), false) if has_head => Some(loader.vocabulary(head)?),
            (None, false) => return Err(missing("head")),
            _ => None,
        };
        let embeds = shard.embeds() || has_head && spec.tied_embeddings;
        let embed = embeds.then(|| loader.vocabulary(&weights.embed));
        let positions = (spec.learned_positions && shard.embeds())
            .then(|| loader.table("positions", weights.positions.as_ref(), spec.max_position));
        let score = (spec.labels.filter(|_| has_head))
            .map(|labels| loader.table("score", weights.score.as_ref(), labels));
        let bias = weights.final_norm_bias.as_ref();
        Ok(Self {
            heads: shard.head_shape(&spec),
            attended: loader.attended(),
            embed: embed.transpose()?,
            head,
            positions: positions.transpose()?,
            score: score.transpose()?,
            final_norm: loader.norm(&spec.final_norm, &weights.final_norm, bias, spec.hidden)?,
            layers,
            ropes: loader.rotations(weights.rope_factors.as_ref())?,
            kv_groups: loader.kv_groups,
            shard,
            spec,
        })
    }
}

struct Loader<'a> {
    cpu: &'a Cpu,
    tensors: &'a ReadAhead<'a>,
    numerics: Numerics,
    spec: &'a DecoderSpec,
    shard: &'a Shard,
    kv_groups: Vec<KvGroup>,
    ropes: Vec<RopeSpec>,
}

/// One of several matrices that are packed side by side: its recipe, its total number of rows
/// (`whole`), and this rank's range of those rows (`own`).
struct Part<'a> {
    recipe: &'a Recipe,
    bias: Option<&'a Recipe>,
    whole: usize,
    own: Range<usize>,
}

impl Loader<'_> {
    fn layer(&self, i: usize, weights: &LayerRecipes) -> Result<Layer, DecoderError> {
        let (kind, hidden) = (self.spec.layer(i), self.spec.hidden);
        let norm = |norm: Option<NormSpec>, weight, bias: &Option<Recipe>| {
            let norm = norm.ok_or_else(|| missing("norm before a sublayer"))?;
            self.norm(&norm, weight, bias.as_ref(), hidden)
        };
        let after = |norm: Option<NormSpec>, role, weight: &Option<Recipe>| {
            let needed = norm.map(|norm| Ok((norm, weight.as_ref().ok_or_else(|| missing(role))?)));
            let loaded = needed.map(|n| n.and_then(|(norm, w)| self.norm(&norm, w, None, hidden)));
            loaded.transpose()
        };
        let layer = Layer {
            mixer_after: after(
                kind.mixer_norms.after,
                "mixer_norm_after",
                &weights.mixer_norm_after,
            )?,
            feed_forward_after: after(
                kind.feed_forward_norms.after,
                "feed_forward_norm_after",
                &weights.feed_forward_norm_after,
            )?,
            mixer_norm: norm(
                kind.mixer_norms.before,
                &weights.mixer_norm,
                &weights.mixer_norm_bias,
            )?,
            mixer: self.mixer(i, weights)?,
            feed_forward_norm: norm(
                kind.feed_forward_norms.before,
                &weights.feed_forward_norm,
                &weights.feed_forward_norm_bias,
            )?,
            feed_forward: self.feed_forward(&kind.feed_forward, weights)?,
        };
        // Release the file's pages after each layer: a large checkpoint and its packed weights must
        // not be resident at the same time.
        self.tensors.release();
        Ok(layer)
    }

    fn mixer(&self, i: usize, weights: &LayerRecipes) -> Result<Mixer, DecoderError> {
        match &self.spec.layer(i).mixer {
            spec::Mixer::Gqa(a) => Ok(Mixer::Attention(self.grouped_attention(i, a, weights)?)),
            spec::Mixer::Mla(a) => Ok(Mixer::Attention(self.latent_attention(i, a, weights)?)),
            spec::Mixer::Conv(_) => Err(DecoderError::Unsupported("a short convolution".into())),
        }
    }

    /// This rank's rows of the embedding or of the output head.
    fn vocabulary(&self, recipe: &Recipe) -> Result<Linear, DecoderError> {
        let part = Part {
            recipe,
            bias: None,
            whole: self.spec.vocab,
            own: self.shard.vocabulary(),
        };
        self.outputs(&[part], self.spec.hidden)
    }

    /// A matrix of `rows` x hidden size as f32 numbers, not packed.
    fn table(
        &self,
        role: &'static str,
        recipe: Option<&Recipe>,
        rows: usize,
    ) -> Result<Vec<f32>, DecoderError> {
        let hidden = self.spec.hidden;
        let recipe = recipe.ok_or_else(|| missing(role))?;
        let source = MatrixRows::open(self.tensors, recipe, rows, hidden)?;
        let mut table = vec![0.0; rows * hidden];
        let each = table.chunks_exact_mut(hidden).enumerate();
        each.for_each(|(row, out)| source.fill_f32(row, out));
        source.check()?;
        Ok(table)
    }

    fn norm(
        &self,
        spec: &NormSpec,
        weight: &Recipe,
        bias: Option<&Recipe>,
        n: usize,
    ) -> Result<Norm, DecoderError> {
        let bias = match (spec.bias, bias) {
            (true, Some(bias)) => Some(vector(self.tensors, bias, n)?),
            (true, None) => return Err(missing("norm's bias")),
            (false, _) => None,
        };
        Ok(Norm {
            kind: match spec.kind {
                spec::NormKind::Rms => NormKind::Rms,
                spec::NormKind::Layer => NormKind::Layer,
            },
            weight: self.norm_weight(spec, weight, n)?,
            bias,
            eps: spec.eps,
        })
    }

    fn norm_weight(
        &self,
        spec: &NormSpec,
        weight: &Recipe,
        n: usize,
    ) -> Result<Vec<f32>, DecoderError> {
        let mut weight = vector(self.tensors, weight, n)?;
        if spec.unit_offset {
            weight.iter_mut().for_each(|w| *w += 1.0);
        }
        Ok(weight)
    }

    /// Packs this rank's outputs of several matrices with the same `k` inputs.
    fn outputs(&self, parts: &[Part<'_>], k: usize) -> Result<Linear, DecoderError> {
        let sources = parts
            .iter()
            .map(|part| MatrixRows::open(self.tensors, part.recipe, part.whole, k))
            .collect::<Result<Vec<_>, _>>()?;
        let mut forms: Vec<WeightFormat> = sources
            .iter()
            .map(|source| self.numerics.form(source.native()))
            .collect();
        if forms
            .iter()
            .any(|f| ActivationFormat::of(*f) != ActivationFormat::of(forms[0]))
        {
            // Matrices with the same input share one quantised copy of it, so they need the same
            // activation format. If the formats differ, unquantised matrices are quantised to 8
            // bits.
            forms
                .iter_mut()
                .filter(|f| ActivationFormat::of(**f) != ActivationFormat::Int8)
                .for_each(|f| *f = WeightFormat::W8);
        }
        let pack = |((source, part), form): ((MatrixRows<'_>, &Part<'_>), WeightFormat)| {
            let rows = source.skip_rows(part.own.start);
            self.pack(form, part.own.len(), k, &rows)
        };
        let packed = sources
            .into_iter()
            .zip(parts)
            .zip(forms)
            .map(pack)
            .collect::<Result<_, _>>()?;
        let mut bias = Vec::new();
        for part in parts {
            if let Some(recipe) = part.bias {
                bias.extend(&vector(self.tensors, recipe, part.whole)?[part.own.clone()]);
            }
        }
        Ok(Linear {
            parts: packed,
            bias: (!bias.is_empty()).then_some(bias),
        })
    }

    fn pack(
        &self,
        form: WeightFormat,
        n: usize,
        k: usize,
        rows: &MatrixRows<'_>,
    ) -> Result<Packed, DecoderError> {
        let packed = Packed::pack(self.cpu.threads(), form, n, k, rows);
        rows.check()?;
        Ok(packed)
    }

    /// Packs all outputs of a matrix for a part of its `k` inputs. The sum over the ranks must
    /// include the bias exactly once, so only one rank passes the bias.
    fn inputs(
        &self,
        recipe: &Recipe,
        bias: Option<&Recipe>,
        k: usize,
        inputs: &Inputs,
    ) -> Result<Linear, DecoderError> {
        let hidden = self.spec.hidden;
        let source = MatrixRows::open(self.tensors, recipe, hidden, k)?;
        let form = self.numerics.form(source.native());
        let rows = source.columns(&inputs.columns);
        let packed = self.pack(form, hidden, inputs.len(), &rows)?;
        let bias = bias.map(|recipe| vector(self.tensors, recipe, hidden));
        Ok(Linear {
            parts: vec![packed],
            bias: bias.transpose()?,
        })
    }
}

fn missing(role: &str) -> DecoderError {
    DecoderError::Spec(format!("the spec needs a weight recipe for the {role}"))
}

/// The recipe of a role that the spec requires.
fn role<'a>(role: &str, recipe: &'a Option<Recipe>) -> Result<&'a Recipe, DecoderError> {
    recipe.as_ref().ok_or_else(|| missing(role))
}

/// The recipe of a role, if the spec requires it.
fn needed<'a>(
    needed: bool,
    role: &str,
    recipe: &'a Option<Recipe>,
) -> Result<Option<&'a Recipe>, DecoderError> {
    match (needed, recipe) {
        (true, None) => Err(missing(role)),
        (true, recipe) => Ok(recipe.as_ref()),
        (false, _) => Ok(None),
    }
}

impl Numerics {
    /// The weight format for a matrix whose stored numbers have the form `native`, or none.
    fn form(self, native: Option<WeightFormat>) -> WeightFormat {
        match self {
            Self::Exact => WeightFormat::F32,
            Self::Int8 => WeightFormat::W8,
            Self::Int4 => match native {
                Some(form @ (WeightFormat::Mx4 | WeightFormat::S4)) => form,
                _ => WeightFormat::W4,
            },
            Self::AsStored { floats } => native.unwrap_or(floats),
        }
    }
}
