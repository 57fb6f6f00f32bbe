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
