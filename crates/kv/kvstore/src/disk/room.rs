//! Space accounting of the disk tier: several writers keep to one size limit without a lock.
//!
//! Each writer counts its own changes and lists the directory again before it stores more than an
//! eighth of the space that was free at its last listing. The limit therefore holds for up to eight
//! concurrent writers; only a file that a writer has just begun may exceed it.
//!
//! Admission is decided at the first part (KV head) of a chunk. If the chunk is not admitted, the
//! writer stores none of its parts. Each writer ranks chunks independently, but writers of the same
//! chunks have received the same requests, so their decisions mostly agree. A chunk that one writer
//! has admitted is accepted by the others.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::directory::{Directory, failed, lock, unix_now};
use super::index::Candidate;
use super::layout;
use super::ranking::{Name, StoreCandidate};
use super::state::DiskState;
use crate::key::{Digest, PartKey};
use crate::tier::TierError;

/// Eviction frees 1/256 of the limit more than needed, so that it does not run for every part.
const SLACK: u64 = 256;
/// Minimum number of files for which eviction frees space, if the limit holds many more files:
/// other writers may have begun files in the meantime.
const SLACK_FILES: u64 = 8;
const MANY: u64 = 16 * SLACK_FILES;
/// Free space, in chunks, from which on the admission filter is bypassed. Larger than the space
/// that concurrent evictions by two ranks can free by coincidence.
const ROOMY: u64 = 3;
/// A writer uses at most 1/8 of the free space before it lists the directory again.
const SHARE: u64 = 8;
/// How long a store waits for the first listing of a large directory.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum eviction rounds per chunk. All but the last round spare chunks that other processes have
/// used in the meantime.
const ROUNDS: usize = 3;

/// Reserved bytes, released on drop or turned into a committed part.
pub(crate) struct Reservation<'a> {
    directory: &'a Directory,
    bytes: u64,
}

impl Reservation<'_> {
    /// Commits the part.
    pub(crate) fn commit(self, store: usize, key: &PartKey, parent: Option<Digest>) {
        let mut state = self.directory.state();
        state.insert(store, key, self.bytes, unix_now(), parent);
        // The drop of the reservation locks the state again.
        drop(state);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.directory.state().reserved -= self.bytes;
    }
}

/// Enforces the limit of a directory: reserves space for new files and evicts chunks.
pub(crate) struct Room(pub(crate) Arc<Directory>);

impl Room {
    /// Reserves space for a file of the candidate, evicting if needed.
    ///
    /// # Errors
    /// `Full` if no space can be freed or the candidate is not admitted; `Failed` if the directory
    /// cannot be read.
    pub(crate) fn reserve(
        &self,
        bytes: u64,
        candidate: &StoreCandidate,
    ) -> Result<Reservation<'_>, TierError> {
        if !self.0.wait_for_scan(PATIENCE) {
            let root = self.0.root.display();
            return Err(TierError::Full(format!("{root} is still being counted")));
        }
        self.admit(candidate)?;
        if let Some(reservation) = self.take(bytes, true) {
            return Ok(reservation);
        }
        let mut upkeep = lock(&self.0.upkeep);
        // Another thread may have freed space while this one waited for the lock.
        if let Some(reservation) = self.take(bytes, true) {
            return Ok(reservation);
        }
        self.0
            .look(&mut upkeep, Some(unix_now()))
            .map_err(|error| failed("reading", &self.0.root, &error))?;
        if let Some(reservation) = self.take(bytes, false) {
            return Ok(reservation);
        }
        let goal = self.0.limit.saturating_sub(bytes + self.slack(bytes));
        self.evict(candidate, None, |state| state.taken() <= goal);
        self.0.state().note_free(self.0.limit);
        self.take(bytes, false).ok_or_else(|| {
            let (limit, root) = (self.0.limit, self.0.root.display());
            TierError::Full(format!("no room for {bytes} of {limit} bytes in {root}"))
        })
    }

    /// Decides at a chunk's first part whether to admit the chunk. If the chunk would put its salt
    /// group over the quota, evicts chunks of that group until the whole chunk fits.
    fn admit(&self, candidate: &StoreCandidate) -> Result<(), TierError> {
        let root = self.0.root.display();
        if !self.admits(candidate) {
            return Err(TierError::Full(format!(
                "what would have to leave {root} is worth more"
            )));
        }
        let over_quota = |state: &DiskState| state.ranking.over_quota(candidate);
        if over_quota(&self.0.state()).is_some() {
            let _turn = lock(&self.0.upkeep);
            self.evict(candidate, Some(candidate), |state| {
                over_quota(state).is_none()
            });
        }
        match over_quota(&self.0.state()) {
            None => Ok(()),
            Some(quota) => Err(TierError::Full(format!(
                "a salt's quota of {quota} bytes in {root} is taken"
            ))),
        }
    }

    fn admits(&self, candidate: &StoreCandidate) -> bool {
        let kept_free = self.slack(candidate.size) + ROOMY * candidate.size;
        let has_room = |state: &DiskState| {
            state.taken() + kept_free <= self.0.limit
                && state.ranking.over_quota(candidate).is_none()
        };
        if self.has(candidate) || has_room(&self.0.state()) {
            return true;
        }
        self.0.rank_all();
        let outweighs = self.0.state().ranking.outweighs(candidate);
        outweighs || self.others_have(candidate)
    }

    /// Whether a part of the chunk is present.
    fn has(&self, candidate: &StoreCandidate) -> bool {
        let Name { store, digest } = &candidate.key;
        self.0
            .state()
            .index
            .chunk(*store as usize, digest)
            .is_some()
    }

    /// Whether another rank has admitted the chunk. If so, this rank admits it too, because a chunk
    /// is useful only with all heads.
    fn others_have(&self, candidate: &StoreCandidate) -> bool {
        let (store, digest) = (candidate.key.store as usize, &candidate.key.digest);
        let looked = self
            .0
            .look_at_shard(store, layout::shard_of(digest), Some(unix_now()));
        looked.is_ok() && self.has(candidate)
    }

    fn slack(&self, bytes: u64) -> u64 {
        let share = self.0.limit / SLACK;
        if self.0.limit < MANY * bytes {
            return share;
        }
        share.max(SLACK_FILES * bytes)
    }

    /// Evicts chunks because the file system is full before the size limit is reached.
    pub(crate) fn give_way(&self, bytes: u64, candidate: &StoreCandidate) {
        let _turn = lock(&self.0.upkeep);
        let goal = self.0.state().taken().saturating_sub(2 * bytes);
        self.evict(candidate, None, |state| state.taken() <= goal);
    }

    /// Evicts chunks until the goal is met or nothing is evictable: from the salt group of `of`, or
    /// from all groups if None.
    fn evict(
        &self,
        candidate: &StoreCandidate,
        of: Option<&StoreCandidate>,
        is_enough: impl Fn(&DiskState) -> bool,
    ) {
        self.0.rank_all();
        self.0.state().ranking.hold(candidate);
        let chunks = self.0.state().index.len();
        for turn in 0..ROUNDS * chunks {
            let state = self.0.state();
            let victim = state.victim(of).filter(|_| !is_enough(&state));
            drop(state);
            let Some(victim) = victim else { break };
            if turn >= (ROUNDS - 1) * chunks || !self.was_used_meanwhile(&victim) {
                self.give_up(&victim);
            }
        }
        self.0.state().ranking.release(candidate);
    }

    fn take(&self, bytes: u64, careful: bool) -> Option<Reservation<'_>> {
        let mut state = self.0.state();
        let fits = state.taken() + bytes <= self.0.limit;
        let unseen = state.since_look + bytes > state.free_at_look / SHARE;
        if !fits || (careful && unseen) {
            return None;
        }
        state.reserved += bytes;
        state.since_look += bytes;
        drop(state);
        Some(Reservation {
            directory: &self.0,
            bytes,
        })
    }

    /// Whether another process has used a chunk since its known last use. Updates the last use if
    /// so.
    fn was_used_meanwhile(&self, candidate: &Candidate) -> bool {
        let Some(used) = self.0.last_use(candidate) else {
            return false;
        };
        let news = used > candidate.last_use.unwrap_or(0);
        if news {
            self.0.state().used_by_others(candidate, used);
        }
        news
    }

    fn give_up(&self, victim: &Candidate) {
        let name = Name::new(victim.store, &victim.digest);
        self.0.state().ranking.policy.give_up(&name);
        if self.0.remove_chunk(victim.store, &victim.digest).is_ok() {
            self.0.counts.evicted_chunks.fetch_add(1, Ordering::Relaxed);
        }
    }
}
