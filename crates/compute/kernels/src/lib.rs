//! CPU kernels: packed weights and matrix multiplication, paged attention, norms, rotary positions,
//! sampling, and a thread pool. The instruction set is selected at run time.
//!
//! Every kernel has a portable version. Matrix tiles and attention are hand-written for AVX-512 and
//! AVX2; other kernels are portable source compiled for each set. The crate works on shapes and
//! numbers and does not depend on models. It contains all `unsafe` code of the forward pass.

// Loops over lanes, rows and vectors of a register tile index several arrays at once.
#![allow(clippy::needless_range_loop)]

#[cfg(test)]
extern crate self as penstock_kernels;

mod activations;
#[cfg(target_arch = "x86_64")]
mod amx;
mod arena;
mod attn;
mod block_memory;
mod buffer;
mod cpu;
mod experts;
mod gemm;
mod heads;
mod isa;
mod kv;
#[cfg(test)]
mod on_tiles;
mod ops;
#[cfg(target_arch = "x86_64")]
mod ops_avx512;
mod packed;
mod sample;
mod short_convolution;
mod state;
mod tasks;
#[cfg(test)]
mod tests;
mod threads;

pub use activations::{ActivationFormat, Activations};
pub use attn::{
    Angles, AttentionMask, AttentionPlan, HeadNorms, HeadShape, KvPosition, Latent, LatentRows,
    Rotation, Scoring, Sequence,
};
pub use block_memory::{BlockBusy, BlockRead, BlockWrite, PoolHandle};
pub use buffer::{Aligned, Columns, HeadColumns};
pub use cpu::{ActivationFn, Clamp, Cpu, Linear, Norm, NormKind};
pub use experts::{Beside, Choice, Expert, ExpertBuffers, Experts, Groups, Routing, Score};
pub use gemm::Mode;
pub use isa::{Isa, IsaError};
pub use kv::{KvLayout, KvPool, KvType, RUN, SequenceBlocks, StepLease};
pub use packed::{GROUP, GroupRow, PANEL, Packed, RowSource, WeightFormat, microscale};
pub use sample::{Logprob, Sampling, argmax, logprob, sample};
pub use short_convolution::ShortConvolution;
pub use state::{SequenceStates, StateError, StateLayout, StateLease, StateMemory};
pub use threads::ThreadPool;
