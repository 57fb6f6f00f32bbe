//! Remote tiers, shared by all engines that can reach them.
//!
//! All kinds store the bytes of a disk tier's file (header, payload), under the same names:
//! `penstock-kv-1/<identity>/<digest>` for a chunk, `<blocks>.h<head>.l<first>-<end>` for each of
//! its parts.

mod names;
#[cfg(feature = "object-store")]
mod objects;
mod redis;
mod slices;
mod tls;

#[cfg(feature = "object-store")]
pub use objects::Objects;
pub use redis::{Redis, RedisLimits};
