//! Room for what is stored next: several writers keep one bound without a lock.
//!
//! Each writer counts what it knows and looks at the directory again before it stores more than an
//! eighth of what was free when it looked last. So the bound holds for up to eight writers at once,
//! but for what each has just begun to write.
//!
//! Who comes and who leaves is the ranking's decision, made once for all parts of a chunk. Each
//! writer has a ranking of its own; of those who store parts of the same chunks it has heard the
//! same questions and so mostly the same answer. Where one let a chunk in, the others follow.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::directory::{Directory, failed, lock, unix_now};
use super::index::Candidate;
use super::layout;
use super::ranking::{Name, Newcomer};
use super::state::State;
use crate::key::PartKey;
use crate::tier::{About, TierError};

/// Eviction frees this share of the limit more than is needed, so that it does not run for every
/// part.
const SLACK: u64 = 256;
/// And room for so many files, which other writers may have begun meanwhile, where the limit is
/// that of many more.
const SLACK_FILES: u64 = 8;
const MANY: u64 = 16 * SLACK_FILES;
/// Chunks for which there is room beyond that where nobody is asked for its worth: more than
/// evictions of two ranks leave by chance, of which one may know and the other not yet.
const ROOMY: u64 = 3;
/// Share of the free room that one writer uses before it looks at what others did.
const SHARE: u64 = 8;
/// How long a store waits for the first look at a large directory.
const PATIENCE: Duration = Duration::from_secs(1);
/// Times of use that others have refreshed are looked at again so often before the order is taken
/// as it is.
const ROUNDS: usize = 3;

/// Room that is taken until it is given back or becomes a committed part.
pub(crate) struct Reservation<'a> {
    directory: &'a Directory,
    bytes: u64,
}

impl Reservation<'_> {
    /// The part was committed.
    pub(crate) fn commit(self, store: usize, key: &PartKey, about: &About) {
        let mut state = self.directory.state();
        state.insert(store, key, self.bytes, unix_now(), about);
        // Dropping the reservation takes its bytes out of `reserved`; the lock must not be held
        // then.
        drop(state);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.directory.state().reserved -= self.bytes;
    }
}

impl Directory {
    /// Takes room for a file of the newcomer, evicting what is worth least.
    ///
    /// # Errors
    /// `Full` when no room can be made, or the newcomer is worth less than what would have to
    /// leave; `Failed` when the directory cannot be read.
    pub(crate) fn reserve(
        &self,
        bytes: u64,
        newcomer: &Newcomer,
    ) -> Result<Reservation<'_>, TierError> {
        if !self.wait_for_scan(PATIENCE) {
            let root = self.root.display();
            return Err(TierError::Full(format!("{root} is still being counted")));
        }
        self.let_in(newcomer)?;
        if let Some(reservation) = self.take(bytes, true) {
            return Ok(reservation);
        }
        let mut upkeep = lock(&self.upkeep);
        // Another thread may have looked and made room while this one waited.
        if let Some(reservation) = self.take(bytes, true) {
            return Ok(reservation);
        }
        self.look(&mut upkeep, Some(unix_now()))
            .map_err(|error| failed("reading", &self.root, &error))?;
        if let Some(reservation) = self.take(bytes, false) {
            return Ok(reservation);
        }
        let goal = self.limit.saturating_sub(bytes + self.slack(bytes));
        self.evict(newcomer, None, |state| state.taken() <= goal);
        self.state().note_free(self.limit);
        self.take(bytes, false).ok_or_else(|| {
            let (limit, root) = (self.limit, self.root.display());
            TierError::Full(format!("no room for {bytes} of {limit} bytes in {root}"))
        })
    }

    /// Whether a chunk is stored at all is decided when the first of its parts comes, and its group
    /// makes room for all of it.
    fn let_in(&self, newcomer: &Newcomer) -> Result<(), TierError> {
        let decided = self.state().decided(newcomer);
        let admitted = decided.unwrap_or_else(|| self.decide(newcomer));
        let root = self.root.display();
        if !admitted {
            self.counts.refused_by_worth.fetch_add(1, Ordering::Relaxed);
            return Err(TierError::Full(format!(
                "what would have to leave {root} is worth more"
            )));
        }
        let over_quota = |state: &State| state.ranking.over_quota(newcomer);
        if over_quota(&self.state()).is_some() {
            let _turn = lock(&self.upkeep);
            self.evict(newcomer, Some(newcomer), |state| {
                over_quota(state).is_none()
            });
        }
        let quota = over_quota(&self.state());
        match quota {
            None => Ok(()),
            Some(quota) => {
                self.counts.refused_by_quota.fetch_add(1, Ordering::Relaxed);
                Err(TierError::Full(format!(
                    "a salt's quota of {quota} bytes in {root} is taken"
                )))
            }
        }
    }

    fn decide(&self, newcomer: &Newcomer) -> bool {
        let kept_free = self.slack(newcomer.bytes) + ROOMY * newcomer.bytes;
        let has_room = |state: &State| {
            state.taken() + kept_free <= self.limit && state.ranking.over_quota(newcomer).is_none()
        };
        let mut admitted = has_room(&self.state());
        if !admitted {
            self.rank_all();
            admitted = self.state().ranking.outweighs(newcomer);
        }
        if !admitted {
            admitted = self.others_have(newcomer);
        }
        self.state().ranking.decide(newcomer, admitted);
        admitted
    }

    /// Whether somebody else, with other heads, has let the chunk in: half of it would be of no
    /// use.
    fn others_have(&self, newcomer: &Newcomer) -> bool {
        let (store, digest) = (newcomer.name.store as usize, &newcomer.name.digest);
        let looked = self.look_at_shard(store, layout::shard_of(digest), Some(unix_now()));
        looked.is_ok() && self.state().index.chunk(store, digest).is_some()
    }

    fn slack(&self, bytes: u64) -> u64 {
        let share = self.limit / SLACK;
        if self.limit < MANY * bytes {
            return share;
        }
        share.max(SLACK_FILES * bytes)
    }

    /// Makes the file system's room: it is full though the limit is not reached.
    pub(crate) fn give_way(&self, bytes: u64, newcomer: &Newcomer) {
        let _turn = lock(&self.upkeep);
        let goal = self.state().taken().saturating_sub(2 * bytes);
        self.evict(newcomer, None, |state| state.taken() <= goal);
    }

    /// Evicts, of the newcomer's group or of all, until there is enough room or nothing is left
    /// that may leave.
    fn evict(
        &self,
        newcomer: &Newcomer,
        of: Option<&Newcomer>,
        is_enough: impl Fn(&State) -> bool,
    ) {
        self.rank_all();
        self.state().ranking.hold(newcomer);
        let chunks = self.state().index.len();
        for turn in 0..ROUNDS * chunks {
            let state = self.state();
            let victim = state.victim(of).filter(|_| !is_enough(&state));
            drop(state);
            let Some(victim) = victim else { break };
            if turn >= (ROUNDS - 1) * chunks || !self.was_used_meanwhile(&victim) {
                self.give_up(&victim);
            }
        }
        self.state().ranking.release(newcomer);
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

    /// Whether another process used a chunk after this one last knew; then that is known now.
    fn was_used_meanwhile(&self, candidate: &Candidate) -> bool {
        let Some(used) = self.last_use(candidate) else {
            return false;
        };
        let news = used > candidate.last_use.unwrap_or(0);
        if news {
            self.state().used_by_others(candidate, used);
        }
        news
    }

    fn give_up(&self, victim: &Candidate) {
        let name = Name::new(victim.store, &victim.digest);
        self.state().ranking.give_up(&name);
        if let Ok(bytes) = self.remove_chunk(victim.store, &victim.digest) {
            self.counts.evicted_chunks.fetch_add(1, Ordering::Relaxed);
            self.counts
                .evicted_bytes
                .fetch_add(bytes, Ordering::Relaxed);
        }
    }
}
