//! KV tiers behind the pool: RAM, disk and remote stores.
//!
//! The engine decides which block goes where; the mover of each rank carries the bytes between its
//! blocks of the KV pool and the tiers. A tier holds parts: one KV head of one chunk of a prefix,
//! in the layers of one KV group and pipeline stage. So its contents do not depend on how many
//! ranks share the heads.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod disk;
pub mod eviction;
mod format;
mod key;
mod mover;
mod remote;
mod tier;

pub use disk::{Disk, DiskOptions};
pub use format::Checksum;
pub use key::{Digest, Group, PartKey, StoreIdentity, group};
pub use mover::{
    HostBlocks, HostRead, HostWrite, Kind, Moved, Mover, Options, Pool, TierSpec, Transfer,
};
pub use remote::{Objects, Redis, RedisLimits};
pub use tier::{StartError, Take, Tier, TierError};
