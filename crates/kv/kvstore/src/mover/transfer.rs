//! Transfers, their results, and the pool that they read and write.

use std::ops::{Deref, DerefMut};

pub(super) use penstock_wire::Fault;
pub use penstock_wire::{Transfer, TransferKind as Kind, TransferResult as Moved};

/// Stands in a load where a group needs no block: its tokens are behind the group's window.
pub(super) const NO_BLOCK: i32 = -1;

/// The KV pool of one group as a mover sees it: blocks that are lent one by one.
pub trait Pool: Send + Sync + 'static {
    /// A block lent for reading; given back when it is dropped.
    type Read: Deref<Target = [u8]> + Send + Sync + 'static;
    /// A block lent for writing; given back when it is dropped.
    type Write: DerefMut<Target = [u8]> + Send + Sync + 'static;

    /// `None` when the block is being written, or does not exist.
    fn read(&self, block: usize) -> Option<Self::Read>;
    /// `None` when the block is lent already, or does not exist.
    fn write(&self, block: usize) -> Option<Self::Write>;
    /// Bytes of a block: the extents of the rank's heads one after another.
    fn block_bytes(&self) -> usize;
}
