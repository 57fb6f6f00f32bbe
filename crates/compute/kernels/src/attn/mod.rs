//! Paged causal attention for mixed batches of prefill chunks and decodes.
//!
//! Keys are processed in splits of 256 tokens aligned to absolute positions. Within a split, a
//! row's scores, their maximum, the probabilities, their sum and the weighted values are computed
//! together. Splits are then merged in ascending order (the online softmax of Milakov and
//! Gimelshein 2018, as in FlashAttention). A row's arithmetic depends only on its position, not on
//! its prefill chunk, the other rows, the block size, or the number of threads.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod generic;
mod latent;
mod plan;
mod split;
mod store;

pub use latent::{Latent, LatentRows};
pub use plan::{AttentionPlan, HeadShape, Sequence};
pub use store::{Angles, HeadNorms, KvPosition, Rotation};

/// Attention mask: which of the positions up to its own a token attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionMask {
    /// Full causal attention.
    All,
    /// Sliding window: a token attends to the given number of most recent tokens, itself included.
    Window(usize),
    /// Chunked attention: a token attends to earlier tokens of its own chunk. The value is the
    /// chunk size in tokens; chunks are aligned to absolute positions.
    Chunk(usize),
}

impl AttentionMask {
    /// First position that the token at `position` attends to.
    pub fn first(self, position: usize) -> usize {
        match self {
            Self::All => 0,
            Self::Window(window) => (position + 1).saturating_sub(window),
            Self::Chunk(chunk) => position / chunk * chunk,
        }
    }
}

/// Conversion of one layer's scores to attention weights.
#[derive(Clone, Copy, Debug)]
pub struct Scoring<'a> {
    /// The attention mask.
    pub seen: AttentionMask,
    /// Scale of the products of queries and keys.
    pub scale: f32,
    /// `c` of `c * tanh(score / c)`, which replaces the scaled score (Gemma 2).
    pub softcap: Option<f32>,
    /// Attention sink of each query head (gpt-oss): a learned score that is included in the
    /// softmax's denominator but has no value vector.
    pub sinks: Option<&'a [f32]>,
}

/// Tokens per split.
pub(crate) const SPLIT: usize = 256;
/// Maximum query rows per kernel call on vector units.
pub(crate) const ROWS: usize = 6;
/// Maximum query rows per kernel call on any unit (AMX tiles).
pub(crate) const MOST_ROWS: usize = 16;

/// The query rows (or probabilities) of one kernel call, `dim` numbers each. With bf16 keys,
/// AVX-512 and AMX read `bf16`; other kernels read `f32`, which holds the same rounded numbers.
pub(crate) struct Queries<'a> {
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(crate) bf16: &'a [u16],
    pub(crate) f32: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) dim: usize,
}

/// Runs of one split: K and V bytes, 16 tokens each.
pub(crate) type Runs<'a> = [(&'a [u8], &'a [u8])];

/// Range of keys that a row attends to in one split, relative to the start of the split.
pub(crate) type Span = (usize, usize);
