//! Remote tiers, shared by all engines that can reach them.
//!
//! All remote tiers store the same bytes as the files of a disk tier (header, payload), and use the
//! same names: `penstock-kv-1/<identity>/<digest>` for a chunk, `<blocks>.h<head>.l<first>-<end>`
//! for each of its parts.

mod names;
#[cfg(feature = "object-store")]
mod objects;
mod redis;
mod slices;
mod tls;

#[cfg(feature = "object-store")]
pub use objects::Objects;
pub use redis::{Redis, RedisLimits};
