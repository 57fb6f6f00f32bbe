//! The paged KV pool: the layout of its blocks, and leases of them.

mod layout;
mod lease;

pub use layout::{KvLayout, KvType, RUN};
pub use lease::{KvPool, SequenceBlocks, StepLease};
