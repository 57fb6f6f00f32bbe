//! Interface of the chunk tiers.

use std::fs::File;

use crate::key::{Digest, Group, PartKey};

/// Reads the payload of an open file; returns its checksum.
pub type Take<'a> = &'a mut dyn FnMut(&File) -> std::io::Result<u64>;

/// A store of parts. Methods block; the mover calls them from its own threads, several at once.
pub trait Tier: Send + Sync {
    /// For logs and metrics: `disk:/var/kv`.
    fn name(&self) -> &str;

    /// Fills `into`, one slice for each block in order, with a part whose checksum was verified.
    ///
    /// # Errors
    /// `Missing`; `Damaged` when the checksum is wrong (the tier has put the part aside and counted
    /// it); contents of `into` are then unspecified. `Failed` when the tier did not answer.
    fn load(&self, key: &PartKey, into: &mut [&mut [u8]]) -> Result<(), TierError>;

    /// Keeps a part; returns when others can load it. A part that is stored already stays as it is.
    /// `parent` is the prefix that the chunk continues, if known: eviction keeps that longer.
    ///
    /// # Errors
    /// `Full` when there is no room for it and none can be made, `Failed` otherwise. Nothing
    /// half-written is ever found.
    fn store(&self, key: &PartKey, from: &[u8], parent: Option<Digest>) -> Result<(), TierError>;

    /// Whether each of `keys` is stored. Must be cheap: every prompt asks.
    ///
    /// # Errors
    /// `Failed` when the tier did not answer.
    fn probe(&self, keys: &[PartKey]) -> Result<Vec<bool>, TierError>;

    /// Forgets all parts of a chunk.
    ///
    /// # Errors
    /// `Failed`. A missing chunk is no error.
    fn remove(&self, digest: &Digest) -> Result<(), TierError>;

    /// Forgets everything of this identity, or one salt group.
    ///
    /// # Errors
    /// As `remove`.
    fn clear(&self, group: Option<Group>) -> Result<(), TierError>;

    /// Upkeep between requests (eviction, scanning what other processes wrote); called about every
    /// second from one thread.
    fn tick(&self) {}

    /// At most `most` chunks that have left the tier, however they did, each once: evicted by this
    /// process or another, removed, damaged.
    fn take_left(&self, _most: usize) -> Vec<Digest> {
        Vec::new()
    }

    /// `load` of a part of `bytes` of payload, which `take` reads from the open file of a disk tier
    /// (`disk::PAYLOAD_AT`); it returns the CRC-64/NVME of what arrived.
    ///
    /// # Errors
    /// As `load`. An error of `take` is `Failed`; a file that ends early, `Damaged`.
    fn load_by(&self, _key: &PartKey, _bytes: usize, _take: Take<'_>) -> Result<(), TierError> {
        Err(TierError::Failed("is no disk tier".into()))
    }

    /// Counters since the start, by name: `evicted_chunks`, `quarantined_chunks`, `used_bytes`, ...
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// Why a call of a tier failed.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// Not there.
    #[error("not in the tier")]
    Missing,
    /// The checksum or header is wrong: what was found, and where.
    #[error("damaged: {0}")]
    Damaged(String),
    /// No room.
    #[error("full: {0}")]
    Full(String),
    /// No answer, or an error of the tier: which, where, and the remedy if known.
    #[error("{0}")]
    Failed(String),
}

/// Why a tier cannot be opened: what is wrong, where, and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(pub String);
