//! One rank's weights, packed for the kernels.

use penstock_kernels::{
    ActivationFormat, AttentionMask, HeadNorms, HeadShape, Latent, Linear, Norm, Packed, Scoring,
};

use crate::feed_forward::FeedForward;
use crate::rope::Rope;
use crate::shard::{Inputs, Shard};
use crate::spec::{DecoderSpec, Temperature};

/// KV group: layers that share one block table and have the same attention mask (full, or the same
/// window or chunk). Groups are ordered by their first layer in the whole model, so the list is the
/// same on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KvGroup {
    /// This rank's layers in the group, as indices into the whole model; may be empty.
    pub(crate) layers: Vec<usize>,
    /// The attention mask.
    pub(crate) seen: AttentionMask,
}

/// One decoder layer.
pub(crate) struct Layer {
    pub(crate) mixer_norm: Norm,
    pub(crate) mixer: Mixer,
    /// Post-norm of the mixer's output.
    pub(crate) mixer_after: Option<Norm>,
    pub(crate) feed_forward_norm: Norm,
    pub(crate) feed_forward: FeedForward,
    /// Post-norm of the feed-forward's output.
    pub(crate) feed_forward_after: Option<Norm>,
}

impl Layer {
    fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.mixer
            .linears()
            .into_iter()
            .chain(self.feed_forward.linears())
    }
}

/// Token mixer of a layer.
pub(crate) enum Mixer {
    Attention(Attention),
}

impl Mixer {
    fn linears(&self) -> Vec<&Linear> {
        match self {
            Self::Attention(attention) => attention.linears(),
        }
    }

    /// Matrices that belong to a single head.
    fn of_heads(&self) -> impl Iterator<Item = &Packed> {
        let latent = match self {
            Self::Attention(attention) => attention.latent(),
        };
        latent
            .into_iter()
            .flat_map(|own| own.k_b.iter().chain(&own.v_b))
    }

    /// Activation format of the first projection.
    pub(crate) fn activation_format(&self) -> ActivationFormat {
        match self {
            Self::Attention(attention) => attention.activation_format(),
        }
    }

    /// Numbers per row of queries, keys and values side by side; 0 for other mixers and for latent
    /// attention, which has buffers of its own.
    pub(crate) fn qkv_width(&self) -> usize {
        match self {
            Self::Attention(attention) => attention.width(),
        }
    }
}

/// Attention: grouped-query or latent.
pub(crate) struct Attention {
    /// Index of the KV group; `kv_index` is the layer's index among this rank's layers of the
    /// group.
    pub(crate) kv_group: usize,
    pub(crate) kv_index: usize,
    /// The attention mask.
    pub(crate) seen: AttentionMask,
    /// Scale of the products of queries and keys.
    pub(crate) scale: f32,
    pub(crate) softcap: Option<f32>,
    /// Attention sinks: one extra logit in the softmax per query head of this rank.
    pub(crate) sinks: Option<Vec<f32>>,
    pub(crate) temperature: Option<Temperature>,
    /// Index into [`Model::ropes`]; `None` = no rotation.
    pub(crate) rope: Option<usize>,
    pub(crate) projected: Projected,
    pub(crate) o: Linear,
}

/// Projections to queries, keys and values.
pub(crate) enum Projected {
    Heads(HeadProjections),
    Latent(Box<LatentProjections>),
}

/// Projections of grouped-query attention.
pub(crate) struct HeadProjections {
    /// Query, key and value projections side by side.
    pub(crate) qkv: Linear,
    /// Per-head norms of queries and keys.
    pub(crate) qk_norm: Option<[Norm; 2]>,
    /// Whether `qk_norm` is applied after the rotation.
    pub(crate) norm_after: bool,
}

/// Projections of latent attention.
pub(crate) struct LatentProjections {
    pub(crate) shape: Latent,
    /// Projection to the queries (or their low-rank form), the latent and the rope key, side by
    /// side.
    pub(crate) down: Linear,
    /// Norm of the low-rank queries, and their up projection.
    pub(crate) q_b: Option<(Norm, Linear)>,
    pub(crate) norm: Norm,
    /// For each head of this rank, the matrix from its query into the latent space.
    pub(crate) k_b: Vec<Packed>,
    /// For each head of this rank, the matrix from the latent space to its value.
    pub(crate) v_b: Vec<Packed>,
}

impl LatentProjections {
    fn up(&self) -> Option<&Linear> {
        self.q_b.as_ref().map(|(_, linear)| linear)
    }

    /// Number of outputs of `down` before the latent.
    pub(crate) fn before_latent(&self) -> usize {
        self.down.n() - self.shape.rank - self.shape.rope
    }
}

impl Attention {
    fn linears(&self) -> Vec<&Linear> {
        let mut linears = match &self.projected {
            Projected::Heads(heads) => vec![&heads.qkv],
            Projected::Latent(latent) => [&latent.down].into_iter().chain(latent.up()).collect(),
        };
        linears.push(&self.o);
        linears
    }

    fn latent(&self) -> Option<&LatentProjections> {
        match &self.projected {
            Projected::Heads(_) => None,
            Projected::Latent(latent) => Some(latent),
        }
    }

    pub(crate) fn scoring(&self) -> Scoring<'_> {
        Scoring {
            seen: self.seen,
            scale: self.scale,
            softcap: self.softcap,
            sinks: self.sinks.as_deref(),
        }
    }

    /// Numbers per row of queries, keys and values side by side; 0 for latent attention.
    fn width(&self) -> usize {
        match &self.projected {
            Projected::Heads(heads) => heads.qkv.n(),
            Projected::Latent(_) => 0,
        }
    }

    fn activation_format(&self) -> ActivationFormat {
        match &self.projected {
            Projected::Heads(heads) => heads.qkv.activation_format(),
            Projected::Latent(latent) => latent.down.activation_format(),
        }
    }
}

impl HeadProjections {
    pub(crate) fn norms(&self) -> Option<HeadNorms<'_>> {
        let [query, key] = self.qk_norm.as_ref()?;
        Some(HeadNorms {
            query: &query.weight,
            key: &key.weight,
            eps: query.eps,
            after: self.norm_after,
        })
    }
}

/// One rank's weights.
pub(crate) struct Model {
    pub(crate) spec: DecoderSpec,
    pub(crate) shard: Shard,
    /// This rank's query heads.
    pub(crate) heads: HeadShape,
    /// Input columns of the attention's output projection on this rank.
    pub(crate) attended: Inputs,
    /// This rank's rows of the token embedding, on stages that embed or have a tied head.
    pub(crate) embed: Option<Linear>,
    /// This rank's rows of the output head, on stages that have one; `None` if it is tied.
    pub(crate) head: Option<Linear>,
    /// Learned positions, max_position x hidden, on stages that embed.
    pub(crate) positions: Option<Vec<f32>>,
    pub(crate) final_norm: Norm,
    /// Classification head, labels x hidden, on stages with the output head.
    pub(crate) score: Option<Vec<f32>>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) kv_groups: Vec<KvGroup>,
    /// The distinct rotations of the model.
    pub(crate) ropes: Vec<Rope>,
}

impl Model {
    /// The model's KV groups with this rank's layers in them.
    pub(crate) fn kv_groups(&self) -> &[KvGroup] {
        &self.kv_groups
    }

    /// This rank's part of the output head; `None` if another stage has it.
    pub(crate) fn head(&self) -> Option<&Linear> {
        let has_head = self.shard.has_head();
        let linear = self.head.as_ref().or(self.embed.as_ref());
        linear.filter(|_| has_head)
    }

    /// Writes the embedding of `token` at `position` to `out`, or zeros if the token's row is on
    /// another rank. Returns `false` if another stage embeds.
    pub(crate) fn embed(&self, token: usize, position: usize, out: &mut [f32]) -> bool {
        let (Some(embed), true) = (&self.embed, self.shard.embeds()) else {
            return false;
        };
        let own = self.shard.vocabulary();
        if !own.contains(&token) {
            out.fill(0.0);
            return true;
        }
        embed.parts[0].row_f32(token - own.start, out);
        if let Some(scale) = self.spec.embed_scale {
            out.iter_mut().for_each(|x| *x *= scale);
        }
        if let Some(positions) = &self.positions {
            let learned = &positions[position * out.len()..];
            out.iter_mut().zip(learned).for_each(|(x, p)| *x += p);
        }
        true
    }

    /// Logits of the classification labels for a pooled hidden state; the hidden state itself if
    /// the model has no labels.
    pub(crate) fn labelled(&self, pooled: Vec<f32>) -> Vec<f32> {
        let Some(score) = &self.score else {
            return pooled;
        };
        let product = |(w, x): (&f32, &f32)| f64::from(*w) * f64::from(*x);
        let rows = score.chunks_exact(pooled.len());
        rows.map(|row| row.iter().zip(&pooled).map(product).sum::<f64>() as f32)
            .collect()
    }

    /// All packed matrices except the routers, whose format is always f32.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &Packed> {
        let layers = self.layers.iter().flat_map(Layer::linears);
        let whole = layers.chain(&self.embed).chain(&self.head);
        let heads = self.layers.iter().flat_map(|layer| layer.mixer.of_heads());
        whole.flat_map(|linear| &linear.parts).chain(heads)
    }

    /// The routers of mixtures of experts.
    pub(crate) fn routers(&self) -> impl Iterator<Item = &Packed> {
        let layers = self.layers.iter();
        layers.flat_map(|layer| layer.feed_forward.router())
    }
}
