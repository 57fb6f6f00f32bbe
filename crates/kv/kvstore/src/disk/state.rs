//! State of one process for a directory: the index of files and the eviction order.

use std::collections::VecDeque;

use super::index::{Before, Candidate, Chunk, Index};
use super::layout;
use super::listing::Listing;
use super::ranking::{Name, Ranking, StoreCandidate};
use crate::eviction::Key;
use crate::key::{Digest, PartKey};

/// State that changes with every store and load.
pub(crate) struct DiskState {
    pub(crate) index: Index,
    pub(crate) ranking: Ranking,
    /// Bytes of files being written by this process.
    pub(crate) reserved: u64,
    /// Bytes that this process has reserved since the last listing.
    pub(crate) since_look: u64,
    /// Bytes left below the limit at the last listing.
    pub(crate) free_at_look: u64,
    /// Bytes in the quarantine.
    pub(crate) quarantined: u64,
    /// Whether the first full listing is done.
    pub(crate) complete: bool,
    /// Store number and digest of chunks that have left the tier and are not reported yet, oldest
    /// first.
    left: VecDeque<(usize, Digest)>,
}

/// Maximum number of unreported chunks; older ones are dropped.
const MOST_LEFT: usize = 1 << 16;

impl DiskState {
    /// An empty state.
    pub(crate) fn new(ranking: Ranking) -> Self {
        Self {
            index: Index::default(),
            ranking,
            reserved: 0,
            since_look: 0,
            free_at_look: 0,
            quarantined: 0,
            complete: false,
            left: VecDeque::new(),
        }
    }

    /// Bytes in use, including files being written.
    pub(crate) fn taken(&self) -> u64 {
        self.index.used() + self.reserved + self.quarantined
    }

    /// Records the bytes left below `limit` at a listing.
    pub(crate) fn note_free(&mut self, limit: u64) {
        self.since_look = 0;
        self.free_at_look = limit.saturating_sub(self.taken());
    }

    /// Adds a part stored, loaded or found by this process at `now`.
    pub(crate) fn insert(
        &mut self,
        store: usize,
        key: &PartKey,
        bytes: u64,
        now: u64,
        parent: Option<Digest>,
    ) {
        self.index.insert(store, key, bytes, now);
        self.enter(store, &key.digest, parent);
    }

    /// Removes a part whose file is gone.
    pub(crate) fn remove_part(&mut self, store: usize, key: &PartKey, bytes: u64) {
        let was_there = self.index.chunk(store, &key.digest).is_some();
        self.index.remove_part(store, key, bytes);
        if was_there && self.index.chunk(store, &key.digest).is_none() {
            self.ranking.policy.remove(&Name::new(store, &key.digest));
            self.note_left(store, key.digest);
        }
    }

    /// Removes a chunk; returns its parts, whose files are still to be deleted.
    pub(crate) fn remove(&mut self, store: usize, digest: &Digest) -> Option<Chunk> {
        self.ranking.policy.remove(&Name::new(store, digest));
        let chunk = self.index.remove(store, digest)?;
        self.note_left(store, *digest);
        Some(chunk)
    }

    /// Takes the chunks of a store that have left the tier since the last call.
    pub(crate) fn take_left(&mut self, store: usize, most: usize) -> Vec<Digest> {
        // skip chunks of other identities in the directory
        self.left.retain(|(of, _)| *of == store);
        let count = most.min(self.left.len());
        self.left.drain(..count).map(|(_, digest)| digest).collect()
    }

    fn note_left(&mut self, store: usize, digest: Digest) {
        if self.left.len() == MOST_LEFT {
            self.left.pop_front();
        }
        self.left.push_back((store, digest));
    }

    /// Counts a request for chunks of one prefix, given in prefix order.
    pub(crate) fn ask(&mut self, store: usize, digests: &[Digest]) {
        for digest in digests {
            let name = Name::new(store, digest);
            if self.index.chunk(store, digest).is_some() && !self.ranking.policy.has(&name) {
                self.enter(store, digest, None);
            }
        }
        let names: Vec<Name> = digests.iter().map(|d| Name::new(store, d)).collect();
        self.ranking.ask(&names);
    }

    /// Records that another process used a chunk at `used` (seconds since 1970).
    pub(crate) fn used_by_others(&mut self, candidate: &Candidate, used: u64) {
        let Candidate { store, digest, .. } = candidate;
        self.index.touch(*store, digest, used);
        self.ask(*store, std::slice::from_ref(digest));
    }

    /// Applies the listing of a shard directory. New chunks get the last-use time `found`; None if
    /// their file times are still to be read.
    pub(crate) fn apply(
        &mut self,
        at: (usize, usize),
        before: Before,
        listing: Listing,
        found: Option<u64>,
    ) {
        let (came, gone) = self.index.apply(at, before, listing, found);
        for digest in gone {
            self.ranking.policy.remove(&Name::new(at.0, &digest));
            self.note_left(at.0, digest);
        }
        for digest in came.iter().filter(|_| found.is_some()) {
            self.enter(at.0, digest, None);
        }
    }

    /// Whether all chunks are ranked.
    pub(crate) fn is_ranked(&self) -> bool {
        self.ranking.policy.len() == self.index.len()
    }

    /// Unranked chunks, least recently used first, in an order common to all processes.
    pub(crate) fn unranked(&self) -> Vec<Name> {
        let chunks = self.index.chunks();
        let mut waiting: Vec<(u64, Name)> = chunks
            .map(|(store, digest, chunk)| (chunk.last_use.unwrap_or(0), Name::new(store, digest)))
            .filter(|(_, name)| !self.ranking.policy.has(name))
            .collect();
        waiting.sort_unstable_by_key(|(used, name)| (*used, name.digest));
        waiting.into_iter().map(|(_, name)| name).collect()
    }

    /// Ranks `names`, a portion of the result of `unranked`; `later` is the number of chunks after
    /// this portion.
    pub(crate) fn rank(&mut self, names: &[Name], later: usize) {
        for (at, name) in names.iter().enumerate() {
            if let Some(bytes) = self.chunk_bytes(name.store as usize, &name.digest) {
                self.ranking
                    .found(*name, bytes, later + names.len() - 1 - at);
            }
        }
    }

    /// The next chunk to evict, from the salt group of `of` or from all.
    pub(crate) fn victim(&self, of: Option<&StoreCandidate>) -> Option<Candidate> {
        let group = of.map(|candidate| candidate.key.group());
        let name = self.ranking.policy.first(group)?;
        self.index.candidate(name.store as usize, &name.digest)
    }

    fn enter(&mut self, store: usize, digest: &Digest, parent: Option<Digest>) {
        if let Some(bytes) = self.chunk_bytes(store, digest) {
            self.ranking.enter(Name::new(store, digest), bytes, parent);
        }
    }

    /// Size in bytes of a known chunk with all its parts, whether stored or not. If the store's
    /// geometry is unknown, counts only stored parts.
    fn chunk_bytes(&self, store: usize, digest: &Digest) -> Option<u64> {
        let chunk = self.index.chunk(store, digest)?;
        let identity = self.index.stores()[store].identity.as_ref();
        let blocks = chunk.parts.first().map(|part| part.blocks);
        Some(match (identity, blocks) {
            (Some(identity), Some(blocks)) => layout::chunk_bytes(identity, blocks),
            _ => chunk.bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::ranking::Ranking;
    use super::*;

    /// A random operation on one of a few chunks.
    #[derive(Clone, Debug)]
    enum Act {
        Insert(u8, u16),
        RemovePart(u8, u16),
        Remove(u8),
        GiveUp,
        Ask(Vec<u8>),
        /// A listing of shard 0: its parts, their last use, and whether a change made it stale.
        Apply(Vec<(u8, u16)>, Option<u64>, bool),
        Rank,
    }

    fn acts() -> impl Strategy<Value = Act> {
        let (chunk, head) = (0_u8..9, 0_u16..3);
        let parts = proptest::collection::vec((chunk.clone(), head.clone()), 0..12);
        prop_oneof![
            4 => (chunk.clone(), head.clone()).prop_map(|(chunk, head)| Act::Insert(chunk, head)),
            3 => (chunk.clone(), head).prop_map(|(chunk, head)| Act::RemovePart(chunk, head)),
            1 => chunk.clone().prop_map(Act::Remove),
            1 => Just(Act::GiveUp),
            2 => proptest::collection::vec(chunk, 0..5).prop_map(Act::Ask),
            2 => (parts, proptest::option::of(Just(9)), any::<bool>())
                .prop_map(|(parts, found, stale)| Act::Apply(parts, found, stale)),
            1 => Just(Act::Rank),
        ]
    }

    fn key(chunk: u8, head: u16) -> PartKey {
        let mut digest = [0; 32];
        // Some chunks have a salt; all are in one shard.
        (digest[0], digest[31]) = (chunk % 3, chunk);
        PartKey {
            digest,
            blocks: 2,
            head,
            layers: (0, 4),
        }
    }

    fn apply(state: &mut DiskState, act: Act) {
        match act {
            Act::Insert(chunk, head) => {
                let parent = chunk.checked_sub(1).map(|before| key(before, 0).digest);
                state.insert(0, &key(chunk, head), 4096, 7, parent);
            }
            Act::RemovePart(chunk, head) => state.remove_part(0, &key(chunk, head), 4096),
            Act::Remove(chunk) => drop(state.remove(0, &key(chunk, 0).digest)),
            Act::GiveUp => {
                if let Some(victim) = state.victim(None) {
                    let name = Name::new(victim.store, &victim.digest);
                    state.ranking.policy.give_up(&name);
                    state.remove(victim.store, &victim.digest);
                }
            }
            Act::Ask(chunks) => {
                let digests: Vec<Digest> = chunks.iter().map(|&c| key(c, 0).digest).collect();
                state.ask(0, &digests);
            }
            Act::Apply(parts, found, stale) => {
                let before = state.index.before(0, 0);
                if stale {
                    state.insert(0, &key(8, 2), 4096, 7, None);
                    state.remove_part(0, &key(8, 2), 4096);
                }
                let mut listing = Listing::default();
                let parts = parts
                    .into_iter()
                    .map(|(chunk, head)| (key(chunk, head), 4096));
                listing.parts.extend(parts);
                state.apply((0, 0), before, listing, found);
            }
            Act::Rank => {
                let names = state.unranked();
                state.rank(&names, 0);
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_there_is_what_is_ranked(
            acts in proptest::collection::vec(acts(), 1..80),
            quota in proptest::option::of(1_u64..40_000),
        ) {
            let mut state = DiskState::new(Ranking::new(100_000, 4096, quota));
            state.index.store("0", || None);
            for act in acts {
                let ranks = matches!(act, Act::Rank);
                apply(&mut state, act);
                let there: Vec<Name> =
                    state.index.chunks().map(|(at, digest, _)| Name::new(at, digest)).collect();
                let ranked = there.iter().filter(|name| state.ranking.policy.has(name)).count();
                prop_assert_eq!(ranked, state.ranking.policy.len(), "a missing chunk is ranked");
                prop_assert_eq!(state.is_ranked(), ranked == there.len());
                prop_assert!(!ranks || state.is_ranked());
                prop_assert_eq!(state.unranked().len(), there.len() - ranked);
            }
        }
    }
}
