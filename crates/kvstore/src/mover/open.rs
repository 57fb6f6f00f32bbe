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
        TierSpec::Disk {
            path,
            limit_bytes,
            daily_write_bytes,
            direct,
            quota,
        } => {
            let disk = DiskOptions {
                path: path.into(),
                limit_bytes: *limit_bytes,
                daily_write_bytes: *daily_write_bytes,
                direct: *direct,
                chunk_blocks: options.chunk_blocks(),
                quota: *quota,
            };
            let disk = Disk::open(disk, identity.clone())?;
            Ok(Box::new(disk))
        }
        TierSpec::Redis { url, ttl_s } => {
            let ttl = ttl_s.map(Duration::from_secs);
            let redis = Redis::open(url, ttl, RedisLimits::default(), identity)?;
            Ok(Box::new(redis))
        }
        TierSpec::Object { url, options } => Ok(Box::new(Objects::open(url, options, identity)?)),
    }
}
