//! Keys and values that outlive the accelerator's memory: tiers of RAM, disk and remote stores.
//!
//! The engine decides what is kept where and says so by name; a rank's mover carries the bytes
//! between its blocks of the KV pool and the tiers. A tier knows parts: one KV head's keys and
//! values of one chunk of a prefix, in the layers of one pipeline stage. So what a tier holds does
//! not depend on how many ranks share the heads.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod disk;
pub mod eviction;
mod format;
mod key;
mod mover;
mod remote;
mod tier;

pub use disk::{Direct, Disk, DiskOptions};
pub use format::Checksum;
pub use key::{Digest, Group, PartKey, StoreIdentity, group};
pub use mover::{Kind, Moved, Mover, Options, Pool, TierSpec, Transfer};
pub use remote::{Objects, Redis, RedisLimits};
pub use tier::{StartError, Tier, TierError};
