//! Cache policy of a full store: which entry is evicted first, and which new entry is admitted.
//!
//! The eviction rank is the time of the last use plus a bonus for frequency: an entry with n
//! requests stays `log2(n)` / 4 mean lifetimes longer than one with a single request (after
//! hyperbolic caching: Blankstein, Sen, Freedman, USENIX ATC 2017). The admission filter is TinyLFU
//! (Einziger, Friedman, Manes, ACM Transactions on Storage 13, 2017): a new entry is admitted if it
//! has more requests than the entry to evict. The filter is active while it raises the hit rate, as
//! measured by shadow caches.

use super::key::Key;
use super::shadow::ShadowCaches;
use super::sketch::Sketch;
use super::tree::{EvictionTree, Id};
use crate::key::Group;

/// Eviction rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// LRU weighted by request frequency, with the admission filter while that raises the hit rate.
    #[default]
    Auto,
    /// Plain LRU without admission filter: the baseline of measurements.
    Lru,
}

/// An entry to be added.
#[derive(Clone, Copy, Debug)]
pub struct Item<K> {
    pub key: K,
    /// The preceding entry of the prefix, which is never evicted before this one.
    pub parent: Option<K>,
    /// Size in units of the store's capacity: bytes, or 1 for a slot.
    pub size: u64,
}

/// Cache policy for a store that holds the values itself: the store reports its contents to the
/// policy, and the policy selects the entry to evict. Operations take O(log n) per key; a hit does
/// not allocate.
pub struct CachePolicy<K> {
    pub(super) tree: EvictionTree<K>,
    sketch: Sketch,
    /// None under [`Rule::Lru`].
    shadows: Option<ShadowCaches>,
    /// Logical clock that counts operations: entries of one operation have the same age.
    now: i64,
    run: Vec<Id>,
}

impl<K: Key> CachePolicy<K> {
    /// Creates a policy for a store of `capacity`, in units of the items' sizes, with about
    /// `entries` items when full. With `by_group`, also keeps an eviction order per salt group, for
    /// quotas.
    pub fn new(rule: Rule, capacity: u64, entries: usize, by_group: bool) -> Self {
        let auto = rule == Rule::Auto;
        Self {
            tree: EvictionTree::new(by_group, auto),
            sketch: Sketch::new(entries),
            shadows: auto.then(|| ShadowCaches::new(capacity, entries)),
            now: 0,
            run: Vec::new(),
        }
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.tree.len()
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether an item is present.
    pub fn has(&self, key: &K) -> bool {
        self.tree.find(key).is_some()
    }

    /// Total size of a salt group's items; 0 if the policy was not made `by_group`.
    pub fn size_of(&self, group: Group) -> u64 {
        self.tree.size_of(group)
    }

    /// Whether the admission filter is active.
    pub fn is_gated(&self) -> bool {
        self.shadows.as_ref().is_some_and(ShadowCaches::prefer_gate)
    }

    /// Counts a request for `keys`, consecutive entries of a prefix. Marks the keys before the
    /// first absent one as used, and returns their number.
    pub fn ask(&mut self, keys: &[K]) -> usize {
        self.asked(keys, 0);
        let mut run = std::mem::take(&mut self.run);
        run.clear();
        run.extend(keys.iter().map_while(|key| self.tree.find(key)));
        self.used(&run);
        self.run = run;
        self.run.len()
    }

    /// Counts a request for `keys`. The caller already has the first `start` keys in another tier,
    /// so hits on these do not score in the shadow caches.
    pub(super) fn asked(&mut self, keys: &[K], start: usize) {
        self.now += 1;
        let sketch = &mut self.sketch;
        keys.iter().for_each(|key| sketch.add(key.words()[0]));
        if let Some(shadows) = &mut self.shadows {
            shadows.look(keys, start, self.now, sketch);
        }
    }

    /// Marks the entries `run`, which a lookup has found, as used.
    pub(super) fn used(&mut self, run: &[Id]) {
        run.iter().for_each(|&id| self.touch(id));
        if let Some(shadows) = &mut self.shadows {
            let known = run
                .iter()
                .map(|&id| (self.tree.key(id), self.tree.size_at(id)));
            shadows.keep(None, known, self.now, &self.sketch);
        }
    }

    /// Counts keys that were computed as a continuation of `parent`. A key without an earlier
    /// request gets a count of one.
    pub(super) fn computed(
        &mut self,
        parent: Option<K>,
        chain: impl Iterator<Item = (K, u64)> + Clone,
    ) {
        for (key, _) in chain.clone() {
            let word = key.words()[0];
            if self.sketch.count(word) < 1.0 {
                self.sketch.add(word);
            }
        }
        if let Some(shadows) = &mut self.shadows {
            shadows.keep(parent, chain, self.now, &self.sketch);
        }
    }

    /// Advances the logical clock.
    pub(super) fn tick(&mut self) {
        self.now += 1;
    }

    /// Marks an entry as used now.
    pub(super) fn touch(&mut self, id: Id) {
        self.tree.touch(id, self.now, &self.sketch);
    }

    /// Whether the admission filter prefers `key` to `victim`; true if the filter is inactive.
    pub(super) fn admits(&self, key: &K, victim: &K) -> bool {
        !self.is_gated() || self.sketch.prefers(key.words()[0], victim.words()[0])
    }

    /// Evicts an entry to free space.
    pub(super) fn evict(&mut self, id: Id) {
        self.tree.evict(id, self.now);
    }

    /// Marks an item as used now.
    pub fn renew(&mut self, key: &K) {
        self.now += 1;
        if let Some(id) = self.tree.find(key) {
            self.touch(id);
        }
    }

    /// Whether an item would be admitted in place of the next victim, taken from `group`, or from
    /// the whole store if None.
    pub fn outweighs(&mut self, item: &Item<K>, group: Option<Group>) -> bool {
        self.computed(item.parent, [(item.key, item.size)].into_iter());
        let victim = self.first(group);
        victim.is_none_or(|victim| self.admits(&item.key, &victim))
    }

    /// Adds an item, without eviction.
    pub fn insert(&mut self, item: Item<K>) {
        self.now += 1;
        self.place(&item, self.now);
    }

    /// Adds an item that was in the store before the first operation. `later` is the number of such
    /// items with a more recent use.
    pub fn found(&mut self, item: Item<K>, later: usize) {
        self.place(&item, -(later as i64) - 1);
    }

    fn place(&mut self, item: &Item<K>, used_at: i64) {
        self.computed(item.parent, [(item.key, item.size)].into_iter());
        let id = match self.tree.find(&item.key) {
            Some(id) => {
                self.tree.lock(id);
                id
            }
            None => self.tree.insert_locked(item.key, item.size),
        };
        self.continues(&item.key, item.parent);
        self.tree.touch(id, used_at, &self.sketch);
        self.tree.unlock(id);
    }

    /// Sets the parent of an item, if both are present. Parents come from files that other programs
    /// may have written, so cycles are rejected: their items could never be evicted.
    pub fn continues(&mut self, key: &K, parent: Option<K>) {
        let id = self.tree.find(key);
        let Some((id, parent)) = id.zip(parent.and_then(|parent| self.tree.find(&parent))) else {
            return;
        };
        let mut ancestors = std::iter::successors(Some(parent), |&id| self.tree.parent(id));
        if self.tree.is_leaf(id) || !ancestors.any(|ancestor| ancestor == id) {
            self.tree.adopt(parent, id);
        }
    }

    /// The next item to evict: from a salt group, or from all if None.
    pub fn first(&self, group: Option<Group>) -> Option<K> {
        self.tree.first(group).map(|id| self.tree.key(id))
    }

    /// Evicts an item to free space.
    pub fn give_up(&mut self, key: &K) {
        if let Some(id) = self.tree.find(key) {
            self.evict(id);
        }
    }

    /// Removes an item for a reason other than lack of space, so that the mean lifetime is not
    /// updated. Returns whether the item was present.
    pub fn remove(&mut self, key: &K) -> bool {
        let id = self.tree.find(key);
        id.map(|id| self.tree.remove(id)).is_some()
    }

    /// Protects an item from eviction until it is released.
    pub fn hold(&mut self, key: &K) {
        if let Some(id) = self.tree.find(key) {
            self.tree.lock(id);
        }
    }

    /// Reverts a `hold`.
    pub fn release(&mut self, key: &K) {
        if let Some(id) = self.tree.find(key) {
            self.tree.unlock(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Digest;

    fn item(key: u64, size: u64) -> Item<u64> {
        Item {
            key,
            parent: None,
            size,
        }
    }

    /// Evicts items until the rest fits into `capacity`.
    fn fit(policy: &mut CachePolicy<u64>, capacity: u64) {
        while policy.tree.size() > capacity {
            let first = policy.first(None).unwrap();
            policy.give_up(&first);
        }
    }

    /// Share of accesses that hit in a store of capacity 1000. A missed item is stored if it fits
    /// or is admitted. Key k has the size 1 + k % 5.
    fn hit_ratio(choice: Rule, keys: impl Iterator<Item = u64>) -> f64 {
        let mut policy = CachePolicy::new(choice, 1000, 333, false);
        let (mut hits, mut all) = (0, 0);
        for key in keys {
            let item = item(key, 1 + key % 5);
            all += 1;
            if policy.ask(&[key]) == 1 {
                hits += 1;
            } else if policy.tree.size() + item.size <= 1000 || policy.outweighs(&item, None) {
                policy.insert(item);
                fit(&mut policy, 1000);
            }
        }
        assert_eq!(policy.tree.audit(), Ok(()));
        f64::from(hits) / f64::from(all)
    }

    #[test]
    fn a_loop_and_popular_keys_are_found_where_lru_fails() {
        let keys = || (0..14_000_u64).map(|turn| turn % 700);
        assert_eq!(hit_ratio(Rule::Lru, keys()), 0.0);
        let auto = hit_ratio(Rule::Auto, keys());
        assert!(auto > 0.4, "{auto}");
        let popular = || {
            let draw = |turn| (crate::eviction::key::mix(turn) >> 11) as f64 / (1_u64 << 53) as f64;
            (0..20_000).map(move |turn| 3000_f64.powf(draw(turn)) as u64)
        };
        let (auto, lru) = (
            hit_ratio(Rule::Auto, popular()),
            hit_ratio(Rule::Lru, popular()),
        );
        assert!(auto > lru, "{auto} is not above {lru}");
    }

    #[test]
    fn what_was_there_before_leaves_in_its_order_and_first() {
        let mut policy = CachePolicy::new(Rule::Auto, 100, 10, false);
        policy.insert(item(9, 10));
        for (key, later) in [(3, 0), (1, 2), (2, 1)] {
            policy.found(item(key, 10), later);
        }
        for key in [1, 2, 3, 9] {
            assert_eq!(policy.first(None), Some(key));
            policy.give_up(&key);
        }
    }

    /// A digest whose first four bytes, its salt group, are `salt`.
    fn of_group(salt: u8, number: u8) -> Digest {
        let mut digest = [number; 32];
        digest[..4].fill(salt);
        digest
    }

    #[test]
    fn a_salt_group_has_an_order_of_its_own() {
        let mut policy = CachePolicy::new(Rule::Lru, 100, 10, true);
        let keys: Vec<_> = (0..6).map(|key| of_group(key % 2, key)).collect();
        for &key in &keys {
            policy.insert(Item {
                key,
                parent: None,
                size: 10,
            });
        }
        let (even, odd, none) = ([0; 4], [1; 4], [2; 4]);
        assert_eq!(policy.first(None), Some(keys[0]));
        assert_eq!(policy.first(Some(odd)), Some(keys[1]));
        policy.hold(&keys[1]);
        assert_eq!(policy.first(Some(odd)), Some(keys[3]));
        policy.release(&keys[1]);
        policy.give_up(&keys[1]);
        assert_eq!((policy.size_of(even), policy.size_of(odd)), (30, 20));
        assert_eq!((policy.first(Some(none)), policy.size_of(none)), (None, 0));
        assert_eq!(policy.tree.audit(), Ok(()));
    }

    #[test]
    fn a_circle_of_made_up_parents_is_not_believed() {
        let mut policy = CachePolicy::new(Rule::Lru, 100, 10, false);
        for key in 1..4 {
            let parent = (key > 1).then(|| key - 1);
            policy.insert(Item {
                parent,
                ..item(key, 1)
            });
        }
        policy.continues(&1, Some(3));
        policy.continues(&2, Some(2));
        for key in [3, 2, 1] {
            assert_eq!(policy.first(None), Some(key));
            policy.give_up(&key);
        }
    }

    #[test]
    fn what_is_asked_for_often_stays_longer() {
        let mut policy = CachePolicy::new(Rule::Auto, 100, 100, false);
        (0..40).for_each(|key| policy.insert(item(key, 10)));
        fit(&mut policy, 100);
        for _ in 0..8 {
            policy.ask(&[35]);
        }
        (100..105).for_each(|key| policy.insert(item(key, 10)));
        for key in (30..40).filter(|key| *key != 35) {
            assert_eq!(policy.first(None), Some(key));
            policy.give_up(&key);
        }
        assert_eq!(policy.first(None), Some(100));
    }

    #[test]
    fn a_parent_leaves_after_what_continues_it() {
        let mut policy = CachePolicy::new(Rule::Lru, 2, 2, false);
        policy.insert(item(1, 1));
        policy.insert(Item {
            parent: Some(1),
            ..item(2, 1)
        });
        assert_eq!(
            (policy.len(), policy.has(&2), policy.has(&3)),
            (2, true, false)
        );
        policy.insert(item(3, 1));
        for key in [2, 1] {
            assert_eq!(policy.first(None), Some(key));
            policy.give_up(&key);
        }
        assert!(policy.remove(&3) && !policy.remove(&3) && policy.is_empty());
    }
}
