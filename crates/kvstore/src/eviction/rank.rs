//! The rank by which an entry leaves: the time of its last use, moved on by its frequency.

use super::key::Key;
use super::sketch::Sketch;
use super::tree::{EvictionTree, Id};

/// Share of a mean lifetime by which each doubling of its frequency keeps an entry.
const FREQUENCY_WEIGHT: f64 = 0.25;
/// Share of the latest eviction in the mean lifetime.
const NEWS: f64 = 0.01;

/// Ranks of entries, from the mean lifetime of those that left.
pub(super) struct Ranker {
    weight: f64,
    lifetime: f64,
}

impl Ranker {
    /// Ranks by last use, moved on by frequency if `weighted`.
    pub(super) fn new(weighted: bool) -> Self {
        Self {
            weight: if weighted { FREQUENCY_WEIGHT } else { 0.0 },
            lifetime: 0.0,
        }
    }

    /// Marks an entry as used at `now`.
    pub(super) fn touch<K: Key>(
        &self,
        tree: &mut EvictionTree<K>,
        id: Id,
        now: i64,
        sketch: &Sketch,
    ) {
        let mut rank = now;
        if self.weight * self.lifetime > 0.0 {
            let count = sketch.count(tree.key(id).words()[0]).max(1.0);
            rank += (self.weight * self.lifetime * count.log2()) as i64;
        }
        tree.touch(id, now, rank);
    }

    /// Removes an entry that makes room.
    pub(super) fn evict<K: Key>(&mut self, tree: &mut EvictionTree<K>, id: Id, now: i64) {
        let lived = (now - tree.used_at(id)) as f64;
        let news = if self.lifetime == 0.0 { 1.0 } else { NEWS };
        self.lifetime += (lived - self.lifetime) * news;
        tree.remove(id);
    }
}
