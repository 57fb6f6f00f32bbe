//! The paged KV pool: the layout of its blocks, their memory, and leases of them.

mod layout;
mod lease;
mod memory;

pub use layout::{KvLayout, KvType, RUN};
pub use lease::{KvPool, SequenceBlocks, StepLease};
pub use memory::{BlockBusy, BlockRead, BlockWrite, PoolHandle};
