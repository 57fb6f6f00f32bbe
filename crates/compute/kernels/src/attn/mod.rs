//! Paged causal attention for mixed batches of prefill chunks and decodes.
//!
//! Keys are visited in splits of 256 tokens aligned to absolute positions. Within a split a row's
//! scores, their maximum, the probabilities, their sum and the weighted values are computed at
//! once; splits are then merged in ascending order (the online softmax of Milakov and Gimelshein
//! 2018, as in FlashAttention). A row's arithmetic depends on its position alone: not on the chunk
//! it came in, the rows beside it, the block size or whether its splits ran on one thread or
//! several.

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
pub use store::{Angles, HeadNorms, Place, Rotation};

/// Which of the tokens up to its own a token sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// All.
    All,
    /// The last ones: so many, itself included.
    Window(usize),
    /// Those of its own chunk: positions are cut into chunks of this size.
    Chunk(usize),
}

impl Seen {
    /// The first position that a token at `position` sees.
    pub fn first(self, position: usize) -> usize {
        match self {
            Self::All => 0,
            Self::Window(window) => (position + 1).saturating_sub(window),
            Self::Chunk(chunk) => position / chunk * chunk,
        }
    }
}

/// How the scores of one layer become weights.
#[derive(Clone, Copy, Debug)]
pub struct Scoring<'a> {
    /// The tokens that take part.
    pub seen: Seen,
    /// Factor of the products of queries and keys.
    pub scale: f32,
    /// `c` of `c * tanh(score / c)`, which replaces the scaled score (Gemma 2).
    pub softcap: Option<f32>,
    /// A learned score of each query head that takes part in the softmax and has no value
    /// (gpt-oss).
    pub sinks: Option<&'a [f32]>,
}

/// Tokens of a split.
pub(crate) const SPLIT: usize = 256;
/// Query rows that a kernel call handles at once on vectors, and at most.
pub(crate) const ROWS: usize = 6;
pub(crate) const MOST_ROWS: usize = 16;

/// The query rows (or probabilities) of one kernel call, each `dim` numbers. With bf16 keys AVX-512
/// and AMX read `bf16`; the others read `f32`, which then holds the same rounded
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

/// The first and the end of the keys of one split that a row sees, counted from the split's first.
pub(crate) type Span = (usize, usize);
