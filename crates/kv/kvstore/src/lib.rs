//! KV cache tiers behind the GPU pool: RAM, disk and remote stores.
//!
//! The engine decides the placement of blocks. On each rank a mover copies between the rank's part
//! of the KV pool and the tiers. A tier stores parts: one KV head of one chunk of a prefix, for the
//! layers of one KV group and pipeline stage. The contents of a tier thus do not depend on how many
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
#[cfg(feature = "object-store")]
pub use remote::Objects;
pub use remote::{Redis, RedisLimits};
pub use tier::{StartError, Take, Tier, TierError};
