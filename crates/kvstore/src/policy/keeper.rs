//! A bounded set of keys with sizes and costs: who leaves next, and whether a newcomer is worth it.

use super::chooser::Chooser;
use super::key::Key;
use super::ranker::RuleChoice;
use super::shelf::{Facts, Shelf};

/// What is to be kept.
#[derive(Clone, Copy, Debug)]
pub struct Item<K> {
    /// Its name.
    pub key: K,
    /// What it continues: that stays as long as this does.
    pub parent: Option<K>,
    /// In units of the capacity.
    pub size: u64,
    /// What recomputing it takes, in microseconds; equal ones when it is not known.
    pub cost_us: f32,
}

/// Chooses for a store that holds the values itself: it says what it holds, and asks what to give up.
///
/// Every operation takes O(log n) at most; a hit allocates nothing.
pub struct Policy<K> {
    shelf: Shelf<K>,
    chooser: Chooser,
    capacity: u64,
}

impl<K: Key> Policy<K> {
    /// For a store of `capacity`, in units of the items' sizes, that holds about `entries` of them when full.
    pub fn new(choice: RuleChoice, capacity: u64, entries: usize) -> Self {
        Self {
            shelf: Shelf::new(false),
            chooser: Chooser::new(choice.rules(), capacity, entries),
            capacity,
        }
    }

    /// Sum of the sizes of what is there.
    pub fn used(&self) -> u64 {
        self.shelf.size()
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.shelf.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `key` was asked for. Returns whether it is there.
    pub fn touch(&mut self, key: K) -> bool {
        self.chooser.tick();
        self.chooser.asked(&[key]);
        self.chooser.contest_look(&[key], 0);
        let Some(id) = self.shelf.find(&key) else {
            return false;
        };
        self.chooser.touch(&mut self.shelf, id);
        let facts = self.shelf.facts(id);
        self.chooser
            .contest_keep(None, [(key, facts.size, facts.cost)].into_iter());
        true
    }

    /// Whether an item is worth more than what has to leave for it. Says yes while there is room.
    pub fn accepts(&mut self, item: &Item<K>) -> bool {
        self.chooser.computed(&[item.key]);
        self.chooser.contest_keep(
            item.parent,
            [(item.key, item.size, item.cost_us)].into_iter(),
        );
        let room = self.used() + item.size <= self.capacity;
        let victim = self.shelf.first().map(|id| self.shelf.key(id));
        item.size <= self.capacity
            && (room || victim.is_none_or(|victim| self.chooser.prefers(&item.key, &victim)))
    }

    /// An item is there, whoever decided that; nothing is given up for it here.
    pub fn insert(&mut self, item: Item<K>) {
        self.chooser.tick();
        self.chooser.computed(&[item.key]);
        self.chooser.contest_keep(
            item.parent,
            [(item.key, item.size, item.cost_us)].into_iter(),
        );
        let id = match self.shelf.find(&item.key) {
            Some(id) => {
                self.shelf.lock(id);
                id
            }
            None => {
                let facts = Facts {
                    size: item.size,
                    cost: item.cost_us,
                    ..Facts::default()
                };
                self.chooser.insert_locked(&mut self.shelf, item.key, facts)
            }
        };
        if let Some(parent) = item.parent.and_then(|parent| self.shelf.find(&parent)) {
            self.shelf.adopt(parent, id);
        }
        self.chooser.touch(&mut self.shelf, id);
        self.shelf.unlock(id);
    }

    /// What to give up next while the store is over its capacity; `None` when it is not.
    pub fn excess(&self) -> Option<K> {
        let first = self.shelf.first().filter(|_| self.used() > self.capacity);
        first.map(|id| self.shelf.key(id))
    }

    /// What an item is worth beside the others, for a store that orders them itself: the lowest leaves first. `None` when it is not there.
    pub fn worth(&self, key: &K) -> Option<f64> {
        let id = self.shelf.find(key)?;
        Some(self.chooser.rank(&self.shelf, id))
    }

    /// Takes the next to leave, whether or not there is room.
    pub fn pop(&mut self) -> Option<K> {
        let id = self.shelf.first()?;
        let key = self.shelf.key(id);
        self.chooser.evict(&mut self.shelf, id);
        Some(key)
    }

    /// An item is gone. Returns whether it was there.
    pub fn remove(&mut self, key: &K) -> bool {
        let id = self.shelf.find(key);
        id.map(|id| self.chooser.remove(&mut self.shelf, id))
            .is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(key: u64, size: u64, cost_us: f32) -> Item<u64> {
        Item {
            key,
            parent: None,
            size,
            cost_us,
        }
    }

    /// Share of the accesses found in a store of 1000; what is not found is stored if it is accepted. Key k has the size 1 + k % 5.
    fn hit_ratio(choice: RuleChoice, keys: impl Iterator<Item = u64>) -> f64 {
        let mut policy = Policy::new(choice, 1000, 333);
        let (mut hits, mut all) = (0, 0);
        for key in keys {
            let item = item(key, 1 + key % 5, 1.0);
            all += 1;
            if policy.touch(key) {
                hits += 1;
            } else if policy.accepts(&item) {
                policy.insert(item);
                while policy.excess().is_some() {
                    policy.pop();
                }
            }
            assert!(policy.used() <= 1000);
        }
        assert_eq!(policy.shelf.audit(), Ok(()));
        f64::from(hits) / f64::from(all)
    }

    #[test]
    fn a_loop_and_popular_keys_are_found_where_lru_fails() {
        let keys = || (0..14_000_u64).map(|turn| turn % 700);
        assert_eq!(hit_ratio(RuleChoice::Lru, keys()), 0.0);
        assert!(hit_ratio(RuleChoice::Auto, keys()) > 0.4);
        let popular = || {
            let draw = |turn| (crate::policy::key::mix(turn) >> 11) as f64 / (1_u64 << 53) as f64;
            (0..20_000).map(move |turn| 3000_f64.powf(draw(turn)) as u64)
        };
        let (auto, lru) = (
            hit_ratio(RuleChoice::Auto, popular()),
            hit_ratio(RuleChoice::Lru, popular()),
        );
        assert!(auto > lru, "{auto} is not above {lru}");
    }

    #[test]
    fn what_is_cheap_for_its_size_is_worth_less() {
        let mut policy = Policy::new(RuleChoice::Auto, 100, 10);
        // Something has to have left before there is an age to compare with.
        (0..40).for_each(|key| policy.insert(item(key, 10, 500.0)));
        while policy.excess().is_some() {
            policy.pop();
        }
        policy.insert(item(100, 10, 5000.0));
        policy.insert(item(101, 40, 50.0));
        assert!(policy.worth(&100) > policy.worth(&101));
        assert_eq!(policy.worth(&0), None);
        assert!(!policy.accepts(&item(102, 101, 1.0)));
    }

    #[test]
    fn a_parent_leaves_after_what_continues_it() {
        let mut policy = Policy::new(RuleChoice::Lru, 2, 2);
        policy.insert(item(1, 1, 1.0));
        policy.insert(Item {
            parent: Some(1),
            ..item(2, 1, 1.0)
        });
        assert_eq!((policy.len(), policy.excess()), (2, None));
        policy.insert(item(3, 1, 1.0));
        assert_eq!(policy.excess(), Some(2));
        assert_eq!((policy.pop(), policy.pop()), (Some(2), Some(1)));
        assert!(policy.remove(&3) && !policy.remove(&3) && policy.is_empty());
    }
}
