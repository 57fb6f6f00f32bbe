//! Tiers on other machines, shared by all engines that reach them.
//!
//! Both kinds keep the same bytes, those of a file of the disk tier (header, payload), under the
//! same names: `penstock-kv-1/<identity>/<digest>` for a chunk, `<blocks>.h<head>.l<first>-<end>`
//! for each of its parts.

mod names;
mod objects;
mod redis;
mod slices;
mod tls;

pub use objects::Objects;
pub use redis::{Redis, RedisLimits};
