//! Transfers and their answers (`python/penstock/core/transfer.py` in Rust).

use std::ops::{Deref, DerefMut};

use crate::key::{Digest, Group};

/// The KV pool as a mover sees it: blocks that are lent one by one.
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

/// Kind of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Tier -> pool.
    Load,
    /// Pool -> tier.
    Store,
    /// Which of several chunks a tier has.
    Probe,
    /// Forget chunks, in all chunk tiers.
    Remove,
    /// Cancel transfers. Not answered.
    Cancel,
    /// Forget a salt group, or everything, in all chunk tiers.
    Clear,
}

/// See the columns of the same names in Python.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    /// Names the transfer in its answer.
    pub id: u64,
    /// What is to be done.
    pub kind: Kind,
    /// 0 = RAM, then the chunk tiers.
    pub tier: usize,
    /// Blocks of the pool; those of one chunk for a chunk tier.
    pub blocks: Vec<i32>,
    /// RAM: the slot of each block.
    pub slots: Vec<i32>,
    /// Digests of chunks.
    pub keys: Vec<Digest>,
    /// Probe: blocks of each chunk.
    pub counts: Vec<i32>,
    /// Cancel: transfers.
    pub ids: Vec<u64>,
    /// Store to a chunk tier: the prefix that the chunk continues, if known.
    pub parent: Option<Digest>,
    /// Clear: the salt group; None: all.
    pub group: Option<Group>,
}

/// The answer to a transfer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moved {
    /// The transfer.
    pub id: u64,
    /// Whether all of it was done.
    pub done: bool,
    /// Probe: 1 for each chunk of which the tier has all of this rank's parts.
    pub found: Vec<u8>,
    /// Bytes moved.
    pub bytes: u64,
    /// Seconds of the movement alone.
    pub seconds: f64,
    /// Seconds in the queue.
    pub waited: f64,
    /// Why not, when not done; empty for what is missing or was cancelled.
    pub error: String,
    /// Store: whether room or the daily write budget was lacking.
    pub full: bool,
}

impl Moved {
    /// Not done, and nothing moved.
    pub(crate) fn refused(id: u64, error: impl Into<String>) -> Self {
        Self {
            id,
            error: error.into(),
            ..Self::default()
        }
    }
}
