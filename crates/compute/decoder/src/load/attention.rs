//! Loads attention weights: this rank's heads, their norms, sinks and rotations.

use std::ops::Range;

use penstock_kernels::{AttentionMask, Linear, Norm, NormKind};

use super::{Loader, Part, missing, needed, role};
use crate::error::DecoderError;
use crate::model::{Attention, HeadProjections, KvGroup, Projected};
use crate::recipe::{LayerRecipes, Recipe};
use crate::rope::Rope;
use crate::shard::Inputs;
use crate::source::vector;
use crate::spec::{AttentionSpec, DecoderSpec, LatentSpec, RopeScaling, RopeSpec};

/// The KV groups of `spec`, each restricted to its layers in the range `own`. Layers without keys
/// and values are in no group.
pub(crate) fn kv_groups(spec: &DecoderSpec, own: Range<usize>) -> Vec<KvGroup> {
    let mut groups: Vec<KvGroup> = Vec::new();
    for layer in 0..spec.depth() {
        let Some(seen) = spec.seen(layer) else {
            continue;
        };
        let at = groups.iter().position(|g| g.seen == seen);
        let at = at.unwrap_or_else(|| {
            groups.push(KvGroup {
                layers: Vec::new(),
                seen,
            });
            groups.len() - 1
        });
        groups[at]
            .layers
            .extend(own.contains(&layer).then_some(layer));
    }
    groups
}

/// The distinct rotations of `spec`.
pub(super) fn ropes(spec: &DecoderSpec) -> Vec<RopeSpec> {
    let mut ropes: Vec<RopeSpec> = Vec::new();
    for rope in spec.kinds.iter().filter_map(|k| k.mixer.rope()) {
        if !ropes.contains(rope) {
            ropes.push(rope.clone());
        }
    }
    ropes
}

/// Converts a range of heads to a range of numbers in a row.
pub(super) fn times(heads: Range<usize>, head_dim: usize) -> Range<usize> {
    heads.start * head_dim..heads.end * head_dim
}

impl Loader<'_> {
    pub(super) fn grouped_attention(
        &self,
        i: usize,
        a: &AttentionSpec,
        weights: &LayerRecipes,
    ) -> Result<Attention, DecoderError> {
        let (kv_group, kv_index) = self.place(i);
        let bias = needed(a.out_bias, "o_bias", &weights.o_bias)?;
        let bias = bias.filter(|_| self.shard.rank == 0);
        Ok(Attention {
            kv_group,
            kv_index,
            seen: a.seen(),
            scale: a.scale(),
            softcap: a.softcap,
            sinks: self.sinks(a, weights)?,
            temperature: a.temperature,
            rope: self.rope(a.rope.as_ref()),
            projected: Projected::Heads(self.head_projections(a, weights)?),
            o: self.output(weights, bias)?,
        })
    }

    pub(super) fn latent_attention(
        &self,
        i: usize,
        a: &LatentSpec,
        weights: &LayerRecipes,
    ) -> Result<Attention, DecoderError> {
        let (kv_group, kv_index) = self.place(i);
        Ok(Attention {
            kv_group,
            kv_index,
            seen: AttentionMask::All,
            scale: a.scale(),
            softcap: None,
            sinks: None,
            temperature: None,
            rope: self.rope(a.rope.as_ref()),
            projected: Projected::Latent(Box::new(self.latent_projections(a, weights)?)),
            o: self.output(weights, None)?,
        })
    }

    /// KV group of layer `i`, and its index among this rank's layers of the group.
    fn place(&self, i: usize) -> (usize, usize) {
        let groups = self.kv_groups.iter().enumerate();
        groups
            .filter_map(|(g, group)| Some((g, group.layers.iter().position(|&l| l == i)?)))
            .next()
            .unwrap_or_default()
    }

    /// Index of `rope` among the model's rotations.
    fn rope(&self, rope: Option<&RopeSpec>) -> Option<usize> {
        let rope = rope?;
        self.ropes.iter().position(|other| other == rope)
    }

    /// This rank's columns of the output projection.
    fn output(
        &self,
        weights: &LayerRecipes,
        bias: Option<&Recipe>,
    ) -> Result<Linear, DecoderError> {
        let heads = self.spec.heads();
        let o = role("o", &weights.o)?;
        self.inputs(o, bias, heads.heads * heads.value_dim, &self.attended())
    }

    fn head_projections(
        &self,
        a: &AttentionSpec,
        weights: &LayerRecipes,
    ) -> Result<HeadProjections, DecoderError> {
        let shard = self.shard;
        let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let own_q = times(shard.query_heads(), a.head_dim);
        let own_kv = times(shard.kv_heads(self.spec), a.head_dim);
        let bias = |role, recipe| needed(a.qkv_bias, role, recipe);
        let qkv = [
            Part {
                recipe: role("q", &weights.q)?,
                bias: bias("q_bias", &weights.q_bias)?,
                whole: q,
                own: own_q,
            },
            Part {
                recipe: role("k", &weights.k)?,
                bias: bias("k_bias", &weights.k_bias)?,
                whole: kv,
                own: own_kv.clone(),
            },
            Part {
                recipe: role("v", &weights.v)?,
                bias: bias("v_bias", &weights.v_bias)?,
                whole: kv,
                own: own_kv,
            },
        ];
        Ok(HeadProjections {
            qkv: self.outputs(&qkv, self.spec.hidden)?,
            qk_norm: self.qk_norm(a, weights)?,
            norm_after: a.qk_norm_after.is_some(),
        })
    }

    /// The sinks of this rank's query heads.
    fn sinks(
        &self,
        a: &AttentionSpec,
        weights: &LayerRecipes,
    ) -> Result<Option<Vec<f32>>, DecoderError> {
        let Some(recipe) = needed(a.sinks, "sinks", &weights.sinks)? else {
            return Ok(None);
        };
        let sinks = vector(self.tensors, recipe, a.heads)?;
        Ok(Some(sinks[self.shard.query_heads()].to_vec()))
    }

    fn qk_norm(
        &self,
        a: &AttentionSpec,
        weights: &LayerRecipes,
    ) -> Result<Option<[Norm; 2]>, DecoderError> {
        if let Some(eps) = a.qk_norm_after {
            let plain = || Norm {
                kind: NormKind::Rms,
                weight: vec![1.0; a.head_dim],
                bias: None,
                eps,
            };
            return Ok(Some([plain(), plain()]));
        }
        let Some(norm) = &a.qk_norm else {
            return Ok(None);
        };
        let q = weights.q_norm.as_ref().ok_or_else(|| missing("q_norm"))?;
        let k = weights.k_norm.as_ref().ok_or_else(|| missing("k_norm"))?;
        let norm = |recipe| self.norm(norm, recipe, None, a.head_dim);
        Ok(Some([norm(q)?, norm(k)?]))
    }

    pub(super) fn attended(&self) -> Inputs {
        let a = self.spec.heads();
        let own = times(self.shard.query_heads(), a.value_dim);
        Inputs::around(own, a.heads * a.value_dim)
    }

    pub(super) fn rotations(&self, factors: Option<&Recipe>) -> Result<Vec<Rope>, DecoderError> {
        let head_dim = self.spec.heads().rope_dim;
        let of_rope = |rope: &RopeSpec| {
            let dims = rope.rotated(head_dim);
            let stored = match rope.scaling {
                Some(RopeScaling::Factors { .. }) => {
                    let recipe = factors.ok_or_else(|| missing("rope_factors"))?;
                    Some(vector(self.tensors, recipe, dims / 2)?)
                }
                _ => None,
            };
            Ok(Rope::new(rope, dims, stored.as_deref()))
        };
        self.ropes.iter().map(of_rope).collect()
    }
}
