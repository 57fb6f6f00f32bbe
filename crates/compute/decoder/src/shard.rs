//! A rank's shard of a decoder.
//!
//! Tensor parallel (Shoeybi et al. 2019, Megatron-LM): the ranks of a stage partition the query
//! heads with their KV heads, the inner columns of the feed-forwards, and the rows of the
//! vocabulary. The outputs of attention and feed-forwards are summed over the ranks. Expert
//! parallel: ranks have whole experts instead of columns of all experts. Pipeline parallel: every
//! stage has a range of layers; the first stage embeds, the last has the output head. Partitions
//! may be uneven. A KV head whose query heads are on two ranks is replicated on both.

use std::ops::Range;

use penstock_kernels::{GROUP, HeadShape};
use serde::Deserialize;

use crate::error::DecoderError;
use crate::spec::DecoderSpec;

/// One rank's shard. Each list of cuts divides a total among the ranks: it ascends from 0 to the
/// total, and rank `r` has `cuts[r]..cuts[r + 1]`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// Rank in the tensor-parallel group.
    pub rank: usize,
    /// Pipeline stage, and number of stages.
    pub stage: [usize; 2],
    /// First layer of the stage, and the one after its last; a stage may have no layers.
    pub layers: [usize; 2],
    /// Cuts of the query heads.
    pub heads: Vec<usize>,
    /// Cuts of the feed-forwards' inner columns, one list per distinct inner width.
    pub mlp: Vec<Vec<usize>>,
    /// Cuts of the experts if ranks have whole ones; `None` = each rank has columns of all experts.
    pub experts: Option<Vec<usize>>,
    /// Cuts of the vocabulary.
    pub vocab: Vec<usize>,
}

impl Shard {
    /// The whole decoder on one rank.
    pub fn whole(spec: &DecoderSpec) -> Self {
        Self {
            rank: 0,
            stage: [0, 1],
            layers: [0, spec.depth()],
            heads: vec![0, spec.heads().heads],
            mlp: spec.widths().into_iter().map(|w| vec![0, w]).collect(),
            experts: None,
            vocab: vec![0, spec.vocab],
        }
    }

    /// Parses a shard of `spec`.
    ///
    /// # Errors
    /// Malformed JSON, or cuts that do not cover the decoder.
    pub fn parse(json: &str, spec: &DecoderSpec) -> Result<Self, DecoderError> {
        let shard: Self =
            serde_json::from_str(json).map_err(|e| DecoderError::Spec(format!("shard: {e}")))?;
        let [stage, stages] = shard.stage;
        if stage >= stages {
            return Err(DecoderError::Spec(format!(
                "shard.stage = {stage} of {stages}"
            )));
        }
        let [from, to] = shard.layers;
        if from > to || to > spec.depth() {
            let layers = spec.depth();
            return Err(DecoderError::Spec(format!(
                "shard.layers = {from}..{to} of {layers} layers"
            )));
        }
        shard.check_cuts(spec)?;
        if shard.rank >= shard.ranks() {
            let (rank, ranks) = (shard.rank, shard.ranks());
            return Err(DecoderError::Spec(format!(
                "shard.rank = {rank} of {ranks}"
            )));
        }
        Ok(shard)
    }

    fn check_cuts(&self, spec: &DecoderSpec) -> Result<(), DecoderError> {
        let widths = spec.widths();
        let parts = self.mlp.iter().zip(&widths);
        let mut cuts = vec![
            ("heads", &self.heads, spec.heads().heads),
            ("vocab", &self.vocab, spec.vocab),
        ];
        cuts.extend(parts.map(|(cuts, width)| ("mlp", cuts, *width)));
        if let Some(experts) = &self.experts {
            cuts.push(("experts", experts, spec.experts().unwrap_or(0)));
        }
        for (name, cuts, whole) in cuts {
            let ascending = cuts.windows(2).all(|pair| pair[0] < pair[1]);
            let ends = cuts.first() == Some(&0) && cuts.last() == Some(&whole);
            if !ascending || !ends || cuts.len() < 2 || cuts.len() != self.heads.len() {
                let ranks = self.heads.len().saturating_sub(1);
                return Err(DecoderError::Spec(format!(
                    "shard.{name} = {cuts:?} does not cut 0..{whole} into {ranks} parts, \
                     none of them empty"
                )));
            }
        }
        if self.mlp.len() != widths.len() {
            return Err(DecoderError::Spec(format!(
                "shard.mlp cuts {} inner widths; the decoder has {widths:?}",
                self.mlp.len()
            )));
        }
        Ok(())
    }

    /// Number of ranks in the tensor-parallel group.
    pub fn ranks(&self) -> usize {
        self.heads.len() - 1
    }

    fn part(&self, cuts: &[usize]) -> Range<usize> {
        cuts[self.rank]..cuts[self.rank + 1]
    }

    pub(crate) fn layers(&self) -> Range<usize> {
        self.layers[0]..self.layers[1]
    }

    /// This rank's query heads.
    pub(crate) fn query_heads(&self) -> Range<usize> {
        self.part(&self.heads)
    }

    /// The KV heads that this rank's query heads read.
    pub(crate) fn kv_heads(&self, spec: &DecoderSpec) -> Range<usize> {
        let group = spec.heads().heads / spec.heads().kv_heads;
        let heads = self.query_heads();
        heads.start / group..heads.end.div_ceil(group)
    }

    pub(crate) fn head_shape(&self, spec: &DecoderSpec) -> HeadShape {
        let group = spec.heads().heads / spec.heads().kv_heads;
        let heads = self.query_heads();
        HeadShape {
            heads: heads.len(),
            group,
            skipped: heads.start % group,
            head_dim: spec.heads().key_dim,
            value_dim: spec.heads().latent.unwrap_or(spec.heads().value_dim),
        }
    }

    /// This rank's inner columns of a feed-forward with `width` columns.
    pub(crate) fn columns(&self, width: usize) -> Range<usize> {
        let cuts = self.mlp.iter().find(|cuts| cuts.last() == Some(&width));
        cuts.map_or(0..width, |cuts| self.part(cuts))
    }

    /// This rank's routed experts out of `count`, and its inner columns of each of them.
    pub(crate) fn experts(&self, count: usize, width: usize) -> (Range<usize>, Range<usize>) {
        match &self.experts {
            Some(cuts) => (self.part(cuts), 0..width),
            None => (0..count, self.columns(width)),
        }
    }

    pub(crate) fn vocabulary(&self) -> Range<usize> {
        self.part(&self.vocab)
    }

    /// True if this rank's stage starts with the embedding.
    pub(crate) fn embeds(&self) -> bool {
        self.stage[0] == 0
    }

    /// True if this rank's stage ends with the head.
    pub(crate) fn has_head(&self) -> bool {
        self.stage[0] + 1 == self.stage[1]
    }
}

/// A rank's inputs of a matrix, extended to whole groups of 32, because each group shares a scale.
/// The additional inputs at both ends belong to other ranks and are zero in this rank's
/// activations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inputs {
    /// The columns of the matrix that this rank reads.
    pub(crate) columns: Range<usize>,
    /// Leading columns that belong to other ranks.
    pub(crate) lead: usize,
}

impl Inputs {
    /// The inputs `own` of a matrix with `whole` inputs, extended to whole groups.
    pub(crate) fn around(own: Range<usize>, whole: usize) -> Self {
        let start = own.start / GROUP * GROUP;
        Self {
            columns: start..own.end.next_multiple_of(GROUP).min(whole),
            lead: own.start - start,
        }
    }

    /// Number of columns.
    pub(crate) fn len(&self) -> usize {
        self.columns.len()
    }
}
