//! Interface of the tiers that store chunks: disk, Redis, object store.

use std::fs::File;

use crate::key::{Digest, Group, PartKey};

/// Reads the payload of a part's open file; returns its CRC-64/NVME.
pub type Take<'a> = &'a mut dyn FnMut(&File) -> std::io::Result<u64>;

/// A store of KV parts (one KV head of one chunk each). Methods block; the mover calls them
/// concurrently from its own threads.
pub trait Tier: Send + Sync {
    /// Name for logs and metrics, such as `disk:/var/kv`.
    fn name(&self) -> &str;

    /// Fills `into`, one slice per block in order, with a part whose checksum was verified.
    ///
    /// # Errors
    /// `Missing`; `Damaged` if the checksum is wrong (the tier has quarantined and counted the
    /// part); the bytes in `into` are then unspecified. `Failed` if the tier did not respond.
    fn load(&self, key: &PartKey, into: &mut [&mut [u8]]) -> Result<(), TierError>;

    /// Stores a part; returns when it is visible to others. Idempotent for a part that already
    /// exists. `parent` is the prefix that the chunk continues, if known: it is evicted later than
    /// the chunk.
    ///
    /// # Errors
    /// `Full` if no space can be freed, otherwise `Failed`. A partial write is never visible.
    fn store(&self, key: &PartKey, from: &[u8], parent: Option<Digest>) -> Result<(), TierError>;

    /// Whether each of `keys` is stored. Must be cheap, as it runs for every prompt.
    ///
    /// # Errors
    /// `Failed` if the tier did not respond.
    fn probe(&self, keys: &[PartKey]) -> Result<Vec<bool>, TierError>;

    /// Removes all parts of a chunk.
    ///
    /// # Errors
    /// `Failed`. A missing chunk is not an error.
    fn remove(&self, digest: &Digest) -> Result<(), TierError>;

    /// Removes all parts of this store identity, or only those of one salt group.
    ///
    /// # Errors
    /// Same as for `remove`.
    fn clear(&self, group: Option<Group>) -> Result<(), TierError>;

    /// Upkeep between requests (eviction, listing changes by other processes); called about once a
    /// second from one thread.
    fn tick(&self) {}

    /// Takes up to `most` chunks that have left the tier, each once: evicted by any process,
    /// removed or damaged.
    fn take_left(&self, _most: usize) -> Vec<Digest> {
        Vec::new()
    }

    /// Loads a part from a disk tier with the caller's own reader. `take` reads `bytes` bytes of
    /// payload from the open file, starting at `disk::PAYLOAD_AT`, and returns their CRC-64/NVME.
    ///
    /// # Errors
    /// Same as for `load`. An error of `take` is `Failed`; a file that is too short, `Damaged`.
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
    /// The tier does not have the part.
    #[error("not in the tier")]
    Missing,
    /// Wrong checksum or header, with details and location.
    #[error("damaged: {0}")]
    Damaged(String),
    /// The tier has no room for the part, or does not admit it.
    #[error("full: {0}")]
    Full(String),
    /// No response, or an error of the tier, with location and remedy if known.
    #[error("{0}")]
    Failed(String),
}

/// Why a tier cannot be opened, with location and remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(pub String);
