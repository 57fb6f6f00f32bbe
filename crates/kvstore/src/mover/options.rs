//! Options of a mover.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::disk::DiskOptions;
use crate::key::StoreIdentity;

/// One rank's tiers, and which part of the model the rank holds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Blocks that the RAM tier holds; 0 = no such tier.
    pub ram_slots: usize,
    /// Chunk tiers; a transfer counts them from 1.
    #[serde(default)]
    pub tiers: Vec<TierSpec>,
    /// Identity of the stores.
    pub identity: StoreIdentity,
    /// This rank's KV heads, counted over the whole model, in the order of their extents in a
    /// block.
    pub heads: Vec<u16>,
    /// This rank's layers of each KV group: the first and the one after the last, counted group
    /// after group over the whole model.
    pub layers: Vec<(u16, u16)>,
    /// Tokens of a full chunk.
    #[serde(default = "chunk_tokens")]
    pub chunk_tokens: usize,
    /// Threads that load and store, for each chunk tier.
    #[serde(default = "io_threads")]
    pub io_threads: usize,
    /// Seconds after which a call of a tier counts as stalled.
    #[serde(default = "stall_s")]
    pub stall_s: f64,
}

fn chunk_tokens() -> usize {
    256
}

fn io_threads() -> usize {
    4
}

fn stall_s() -> f64 {
    5.0
}

/// A chunk tier.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum TierSpec {
    /// A directory, of this machine or mounted by several.
    Disk(DiskOptions),
    /// A Redis server.
    Redis {
        /// `redis://host:port/db`.
        url: String,
        /// Seconds after which the server forgets a part.
        #[serde(default)]
        ttl_s: Option<u64>,
    },
    /// A bucket of an object store.
    Object {
        /// `s3://bucket/prefix` and the like.
        url: String,
        /// Further options of the `object_store` crate.
        #[serde(default)]
        options: BTreeMap<String, String>,
    },
}

impl Options {
    /// Bytes of one head's tiles of all layers in one block, by group.
    pub fn extent_bytes(&self) -> Vec<usize> {
        let bytes = |&(first, end): &(u16, u16)| {
            usize::from(end.saturating_sub(first)) * self.identity.tile_bytes
        };
        self.layers.iter().map(bytes).collect()
    }

    /// Bytes of a block, by group.
    pub fn block_bytes(&self) -> Vec<usize> {
        let extents = self.extent_bytes().into_iter();
        extents.map(|bytes| self.heads.len() * bytes).collect()
    }

    /// Blocks of a full chunk.
    pub(crate) fn chunk_blocks(&self) -> u16 {
        let blocks = self.chunk_tokens / self.identity.block_tokens.max(1);
        u16::try_from(blocks).unwrap_or(u16::MAX).max(1)
    }

    /// `stall_s`, as a duration.
    pub(crate) fn stall(&self) -> Duration {
        Duration::try_from_secs_f64(self.stall_s).unwrap_or(Duration::MAX)
    }
}
