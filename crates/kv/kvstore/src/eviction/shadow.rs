//! Shadow caches: two caches of sampled keys without values, with and without the admission filter,
//! which measure whether the filter raises the hit rate.
//!
//! Keys are sampled by their bits, as in Waldspurger, Saemundsson, Ahmad, Park: "Cache Modeling and
//! Optimization using Miniature Simulations", USENIX ATC 2017. The sampled keys of a prefix still
//! form a prefix: a lookup matches them up to the first miss.

use super::key::{Key, mix};
use super::sketch::Sketch;
use super::tree::{Chain, EvictionTree, Id};

/// Maximum number of entries in a shadow cache; larger tiers are sampled.
const SAMPLE: usize = 1 << 12;
/// Factor by which each request reduces the score of a shadow cache, so that old hits fade.
const DECAY: f64 = 0.998;
/// The admission filter is active while the score with it is more than this multiple of the score
/// without it.
const MARGIN: f64 = 1.1;

/// A sampled key: the first word of the key, and its size.
type Step = (u64, u64);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Sampled(u64);

impl Key for Sampled {
    fn words(&self) -> [u64; 2] {
        [self.0, mix(self.0)]
    }
}

/// The keys that a tier would hold, with or without the filter.
struct Shadow {
    gated: bool,
    tree: EvictionTree<Sampled>,
    score: f64,
}

impl Shadow {
    fn new(gated: bool) -> Self {
        Self {
            gated,
            tree: EvictionTree::new(false, true),
            score: 0.0,
        }
    }

    /// Adds to the score the sizes of the entries of `chain` that are present. The first `start`
    /// keys do not count, because the caller has them in another tier.
    fn look(&mut self, chain: &[Step], start: usize, now: i64, sketch: &Sketch) {
        self.score *= DECAY;
        for (at, &(word, _)) in chain.iter().enumerate() {
            match self.tree.find(&Sampled(word)) {
                Some(id) => {
                    let size = if at < start { 0 } else { self.tree.size_at(id) };
                    self.score += size as f64;
                    self.tree.touch(id, now, sketch);
                }
                None if at < start => continue,
                None => break,
            }
        }
    }

    /// Admits a computed chain after `parent`, subject to the filter.
    fn keep(
        &mut self,
        parent: Option<u64>,
        chain: &[Step],
        capacity: f64,
        now: i64,
        sketch: &Sketch,
    ) {
        let parent = parent.and_then(|word| self.tree.find(&Sampled(word)));
        let mut kept = Chain::after(&mut self.tree, parent);
        for &step in chain {
            let Some(id) = self.find_or_admit(step, capacity, now, sketch) else {
                break;
            };
            self.tree.touch(id, now, sketch);
            kept.push(&mut self.tree, id);
        }
        kept.end(&mut self.tree);
    }

    /// The entry of a sampled key, locked; added if absent. None if the filter rejects the key or
    /// nothing can be evicted.
    fn find_or_admit(
        &mut self,
        (word, size): Step,
        capacity: f64,
        now: i64,
        sketch: &Sketch,
    ) -> Option<Id> {
        if let Some(id) = self.tree.find(&Sampled(word)) {
            self.tree.lock(id);
            return Some(id);
        }
        while (self.tree.size() + size) as f64 > capacity {
            let victim = self.tree.first(None)?;
            if self.gated && !sketch.prefers(word, self.tree.key(victim).0) {
                return None;
            }
            self.tree.evict(victim, now);
        }
        Some(self.tree.insert_locked(Sampled(word), size))
    }
}

/// The shadow caches without (`open`) and with (`gated`) the admission filter.
pub(super) struct ShadowCaches {
    open: Shadow,
    gated: Shadow,
    capacity: f64,
    /// Keys with a second word up to this value are sampled.
    threshold: u64,
    sampled: Vec<Step>,
}

impl ShadowCaches {
    /// Creates the caches for a tier of `capacity` (total size) with about `entries` entries.
    pub(super) fn new(capacity: u64, entries: usize) -> Self {
        let rate = (SAMPLE as f64 / entries.max(1) as f64).min(1.0);
        Self {
            open: Shadow::new(false),
            gated: Shadow::new(true),
            capacity: capacity as f64 * rate,
            threshold: (rate * u64::MAX as f64) as u64,
            sampled: Vec::new(),
        }
    }

    /// Whether the cache with the filter has had the higher hit rate recently.
    pub(super) fn prefer_gate(&self) -> bool {
        self.gated.score > MARGIN * self.open.score
    }

    /// Looks up a prefix in both caches; the caller has its first `start` keys in another tier.
    pub(super) fn look<K: Key>(&mut self, keys: &[K], start: usize, now: i64, sketch: &Sketch) {
        let within = |key: &&K| key.words()[1] <= self.threshold;
        let start = keys[..start].iter().filter(within).count();
        self.sampled.clear();
        let sampled = keys.iter().filter(within).map(|key| (key.words()[0], 0));
        self.sampled.extend(sampled);
        self.open.look(&self.sampled, start, now, sketch);
        self.gated.look(&self.sampled, start, now, sketch);
    }

    /// Adds a chain that was computed or found, by key and size, after `parent`.
    pub(super) fn keep<K: Key>(
        &mut self,
        parent: Option<K>,
        chain: impl Iterator<Item = (K, u64)>,
        now: i64,
        sketch: &Sketch,
    ) {
        self.sampled.clear();
        let within = chain.filter(|(key, _)| key.words()[1] <= self.threshold);
        let sampled = within.map(|(key, size)| (key.words()[0], size));
        self.sampled.extend(sampled);
        let parent = parent.map(|key| key.words()[0]);
        let Self {
            sampled, capacity, ..
        } = self;
        self.open.keep(parent, sampled, *capacity, now, sketch);
        self.gated.keep(parent, sampled, *capacity, now, sketch);
    }
}
