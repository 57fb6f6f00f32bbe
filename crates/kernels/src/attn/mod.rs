//! Paged causal attention for mixed batches of prefill chunks and decodes.
//!
//! Keys are visited in splits of 256 tokens aligned to absolute positions. Within a split a row's
//! scores, their maximum, the probabilities, their sum and the weighted values are computed at
//! once; splits are then merged in ascending order (the online softmax of Milakov and Gimelshein
//! 2018, as in FlashAttention). A row's arithmetic depends on its position alone: not on the chunk
//! it came in, the rows beside it, the block size or whether its splits ran on one thread or
//! several.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod generic;
mod plan;
mod split;

pub use plan::{AttentionPlan, HeadShape, Sequence};

/// Tokens of a split.
pub(crate) const SPLIT: usize = 256;
/// Query rows that a kernel call handles at once.
pub(crate) const ROWS: usize = 6;

/// The query rows (or probabilities) of one kernel call: up to [`ROWS`], each `dim` numbers. With
/// bf16 keys AVX-512 reads `bf16`; the others read `f32`, which then holds the same rounded
/// numbers.
pub(crate) struct Queries<'a> {
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(crate) bf16: &'a [u16],
    pub(crate) f32: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) dim: usize,
}

/// Runs of one split: K and V bytes of 16 tokens each.
pub(crate) type Runs<'a> = [(&'a [u8], &'a [u8])];
