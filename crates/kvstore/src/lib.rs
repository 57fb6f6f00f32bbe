//! Keys and values that outlive the accelerator's memory: tiers of RAM, disk and remote stores.
//!
//! The engine decides what is kept where and says so by name; a rank's mover carries the bytes between its blocks of the KV pool and the tiers. A
//! tier knows parts: one KV head's keys and values of one chunk of a prefix, in the layers of one pipeline stage. So what a tier holds does not
//! depend on how many ranks share the heads.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod format;
mod key;
mod tier;

pub use key::{Digest, PartKey, StoreIdentity};
pub use tier::{Tier, TierError};
