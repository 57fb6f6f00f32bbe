//! The tiers that options name.

use std::time::Duration;

use super::options::{Options, TierSpec};
use crate::disk::{Disk, DiskOptions};
use crate::remote::{Objects, Redis, RedisLimits};
use crate::tier::{StartError, Tier};

/// Opens one.
pub(super) fn open(spec: &TierSpec, options: &Options) -> Result<Box<dyn Tier>, StartError> {
    let identity = &options.identity;
    match spec {
        TierSpec::Disk(disk) => {
            let disk = DiskOptions {
                chunk_blocks: options.chunk_blocks(),
                ..disk.clone()
            };
            Ok(Box::new(Disk::open(disk, identity.clone())?))
        }
        TierSpec::Redis { url, ttl_s } => {
            let ttl = ttl_s.map(Duration::from_secs);
            let redis = Redis::open(url, ttl, RedisLimits::default(), identity)?;
            Ok(Box::new(redis))
        }
        TierSpec::Object { url, options } => Ok(Box::new(Objects::open(url, options, identity)?)),
    }
}
