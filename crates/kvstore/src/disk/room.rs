//! Room for what is stored next: several writers keep one bound without a lock.
//!
//! Each writer counts what it knows and looks at the directory again before it stores more than an eighth of what was free when it looked last. So
//! the bound holds for up to eight writers at once, but for what each has just begun to write.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Resident;
use super::directory::{Directory, failed, lock};
use super::index::Candidate;
use crate::key::PartKey;
use crate::tier::TierError;

/// Eviction frees this share of the limit more than is needed, so that it does not run for every part.
const SLACK: u64 = 64;
/// And room for so many files, which other writers may have begun meanwhile, where the limit is that of many more.
const SLACK_FILES: u64 = 8;
const MANY: u64 = 16 * SLACK_FILES;
/// Share of the free room that one writer uses before it looks at what others did.
const SHARE: u64 = 8;
/// How long a store waits for the first look at a large directory.
const PATIENCE: Duration = Duration::from_secs(1);
/// Times of use that others have refreshed are looked at again so often before the order is taken as it is.
const ROUNDS: usize = 3;

/// Room that is taken until it is given back or becomes a committed part.
pub(crate) struct Reservation<'a> {
    directory: &'a Directory,
    bytes: u64,
}

impl Reservation<'_> {
    /// The part was committed.
    pub(crate) fn commit(self, store: usize, key: &PartKey, now: u64) {
        let mut state = self.directory.state();
        state.index.insert(store, key, self.bytes, now);
        // Dropping the reservation takes its bytes out of `reserved`; the lock must not be held then.
        drop(state);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.directory.state().reserved -= self.bytes;
    }
}

impl Directory {
    /// Takes room for a file, evicting what is worth least.
    ///
    /// # Errors
    /// `Full` when no room can be made, `Failed` when the directory cannot be read.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<Reservation<'_>, TierError> {
        if !self.wait_for_scan(PATIENCE) {
            let root = self.root.display();
            return Err(TierError::Full(format!("{root} is still being counted")));
        }
        if let Some(reservation) = self.take(bytes, true) {
            return Ok(reservation);
        }
        let mut upkeep = lock(&self.upkeep);
        // Another thread may have looked and made room while this one waited.
        if let Some(reservation) = self.take(bytes, true) {
            return Ok(reservation);
        }
        self.look(&mut upkeep, Some(super::directory::unix_now()))
            .map_err(|error| failed("reading", &self.root, &error))?;
        if let Some(reservation) = self.take(bytes, false) {
            return Ok(reservation);
        }
        self.evict_to(self.limit.saturating_sub(bytes + self.slack(bytes)));
        self.state().note_free(self.limit);
        self.take(bytes, false).ok_or_else(|| {
            let (limit, root) = (self.limit, self.root.display());
            TierError::Full(format!("no room for {bytes} of {limit} bytes in {root}"))
        })
    }

    fn slack(&self, bytes: u64) -> u64 {
        let share = self.limit / SLACK;
        if self.limit < MANY * bytes {
            return share;
        }
        share.max(SLACK_FILES * bytes)
    }

    /// Makes the file system's room: it is full though the limit is not reached.
    pub(crate) fn give_way(&self, bytes: u64) {
        let _turn = lock(&self.upkeep);
        let taken = self.state().taken();
        self.evict_to(taken.saturating_sub(2 * bytes));
    }

    /// Evicts until at most `goal` bytes are taken, or nothing is left that may leave.
    pub(crate) fn evict_to(&self, goal: u64) {
        self.learn_times();
        for round in 1..=ROUNDS {
            for candidate in self.ranked() {
                if self.state().taken() <= goal {
                    return;
                }
                if round < ROUNDS && self.was_used_meanwhile(&candidate) {
                    continue;
                }
                self.evict(&candidate);
            }
        }
    }

    fn take(&self, bytes: u64, careful: bool) -> Option<Reservation<'_>> {
        let mut state = self.state();
        let fits = state.taken() + bytes <= self.limit;
        let unseen = state.since_look + bytes > state.free_at_look / SHARE;
        if !fits || (careful && unseen) {
            return None;
        }
        state.reserved += bytes;
        state.since_look += bytes;
        drop(state);
        Some(Reservation {
            directory: self,
            bytes,
        })
    }

    /// All chunks that may leave, those worth least first.
    fn ranked(&self) -> Vec<Candidate> {
        let candidates = self.state().index.candidates();
        let mut ranked: Vec<_> = candidates
            .into_iter()
            .map(|candidate| (self.worth_of(&candidate), candidate))
            .filter(|(worth, _)| *worth < f64::INFINITY)
            .collect();
        ranked.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        ranked.into_iter().map(|(_, candidate)| candidate).collect()
    }

    fn worth_of(&self, candidate: &Candidate) -> f64 {
        (self.worth)(&Resident {
            digest: &candidate.digest,
            bytes: candidate.bytes,
            last_use: candidate.last_use.unwrap_or(0),
        })
    }

    /// Whether another process used a chunk after this one last knew; then that is known now.
    fn was_used_meanwhile(&self, candidate: &Candidate) -> bool {
        let Some(used) = self.last_use(candidate) else {
            return false;
        };
        let news = used > candidate.last_use.unwrap_or(0);
        if news {
            self.state()
                .index
                .touch(candidate.store, &candidate.digest, used);
        }
        news
    }

    fn evict(&self, candidate: &Candidate) {
        if let Ok(bytes) = self.remove_chunk(candidate.store, &candidate.digest) {
            self.counts.evicted_chunks.fetch_add(1, Ordering::Relaxed);
            self.counts
                .evicted_bytes
                .fetch_add(bytes, Ordering::Relaxed);
        }
    }
}
