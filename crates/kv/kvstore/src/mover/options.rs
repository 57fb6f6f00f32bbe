//! Options of a mover.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::disk::{Disk, DiskOptions};
use crate::key::StoreIdentity;
#[cfg(feature = "object-store")]
use crate::remote::Objects;
use crate::remote::{Redis, RedisLimits};
use crate::tier::{StartError, Tier};

/// One rank's tiers, and which part of the model the rank holds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Slots of the RAM tier, each with one block of every KV group; 0: no RAM tier.
    pub ram_slots: usize,
    /// Tiers that store chunks, in the order of their numbers in transfers, from 1.
    #[serde(default)]
    pub tiers: Vec<TierSpec>,
    /// Store identity: everything besides the tokens that determines the stored bytes.
    pub identity: StoreIdentity,
    /// This rank's KV heads, counted over the whole model, in the order of their extents in a
    /// block.
    pub heads: Vec<u16>,
    /// This rank's layers of each KV group: first layer and end (exclusive), counted group after
    /// group over the whole model.
    pub layers: Vec<(u16, u16)>,
    /// Tokens per full chunk.
    #[serde(default = "chunk_tokens")]
    pub chunk_tokens: usize,
}

fn chunk_tokens() -> usize {
    256
}

/// A tier that stores chunks.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum TierSpec {
    /// A directory, local or shared.
    Disk(DiskOptions),
    /// A Redis server.
    Redis {
        /// `redis://host:port/db`.
        url: String,
        /// Seconds after the last store to a chunk at which Redis removes the chunk; None: never.
        #[serde(default)]
        ttl_s: Option<u64>,
    },
    /// A bucket of an object store.
    Object {
        /// `s3://bucket/prefix` and similar.
        url: String,
        /// Further options of the `object_store` crate.
        #[serde(default)]
        options: BTreeMap<String, String>,
    },
}

impl Options {
    /// Bytes of one KV head in one block, for each KV group: its tiles in this rank's layers.
    pub fn extent_bytes(&self) -> Vec<usize> {
        let bytes = |&(first, end): &(u16, u16)| {
            usize::from(end.saturating_sub(first)) * self.identity.tile_bytes
        };
        self.layers.iter().map(bytes).collect()
    }

    /// Bytes of one block on this rank, for each KV group.
    pub fn block_bytes(&self) -> Vec<usize> {
        let extents = self.extent_bytes().into_iter();
        extents.map(|bytes| self.heads.len() * bytes).collect()
    }

    /// Blocks per full chunk.
    pub(crate) fn chunk_blocks(&self) -> u16 {
        let blocks = self.chunk_tokens / self.identity.block_tokens.max(1);
        u16::try_from(blocks).unwrap_or(u16::MAX).max(1)
    }
}

impl TierSpec {
    /// Opens the tier.
    pub(super) fn open(&self, options: &Options) -> Result<Box<dyn Tier>, StartError> {
        let identity = &options.identity;
        match self {
            Self::Disk(disk) => {
                let chunk_blocks = options.chunk_blocks();
                let disk = DiskOptions {
                    chunk_blocks,
                    ..disk.clone()
                };
                Ok(Box::new(Disk::open(disk, identity.clone())?))
            }
            Self::Redis { url, ttl_s } => {
                let ttl = ttl_s.map(Duration::from_secs);
                let redis = Redis::open(url, ttl, RedisLimits::default(), identity)?;
                Ok(Box::new(redis))
            }
            #[cfg(feature = "object-store")]
            Self::Object { url, options } => Ok(Box::new(Objects::open(url, options, identity)?)),
            #[cfg(not(feature = "object-store"))]
            Self::Object { url, .. } => Err(StartError(format!(
                "KV tier {url}: this build has no object stores: make install"
            ))),
        }
    }
}
