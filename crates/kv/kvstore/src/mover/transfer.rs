//! Transfers, their results, and the pool that they read and write.

use std::ops::{Deref, DerefMut};

pub(super) use penstock_wire::Fault;
pub use penstock_wire::{Transfer, TransferKind as Kind, TransferResult as Moved};

/// Placeholder in a load for a block that a group does not need, because its tokens are outside the
/// group's attention window.
pub(super) const NO_BLOCK: i32 = -1;

/// The KV pool of one group, as used by a mover: blocks are borrowed individually.
pub trait Pool: Send + Sync + 'static {
    /// A block borrowed for reading; returned on drop.
    type Read: Deref<Target = [u8]> + Send + Sync + 'static;
    /// A block borrowed for writing; returned on drop.
    type Write: DerefMut<Target = [u8]> + Send + Sync + 'static;

    /// `None` if the block is being written or does not exist.
    fn read(&self, block: usize) -> Option<Self::Read>;
    /// `None` if the block is already borrowed or does not exist.
    fn write(&self, block: usize) -> Option<Self::Write>;
    /// Bytes per block of the rank's KV heads, stored one head after another.
    fn block_bytes(&self) -> usize;
}
