//! Entries with their order of leaving: only leaves of the tree of prefixes leave, the lowest rank
//! first.
//!
//! A block is of no use without the blocks before it, so one that others continue is no candidate
//! while they are there; an interior entry is in no heap at all, and a hit on a prefix of n blocks
//! moves one leaf instead of n entries. Its rank is set anew when it becomes a leaf.

use super::heap::{Heap, NOWHERE};
use super::key::{Key, Named, Table};

/// An entry: its place in the shelf, good as long as it is there.
pub(super) type Id = u32;

/// What is known of an entry when it comes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts {
    /// In units of the capacity: bytes, or 1 for each slot.
    pub(super) size: u64,
    /// What recomputing it takes, in microseconds; 0: not known.
    pub(super) cost: f32,
    /// What its cost makes it worth, beside the others that came lately.
    pub(super) worth: f32,
    /// Whose it is: an order of its own within the whole, where the shelf has lanes.
    pub(super) lane: u32,
}

struct Entry<K> {
    key: K,
    facts: Facts,
    /// Raised when the place is emptied, so that a child does not take a newcomer for its parent.
    generation: u32,
    parent: Option<(Id, u32)>,
    children: u32,
    locks: u32,
    rank: f64,
    used_at: f64,
    present: bool,
}

/// Entries by key.
pub(super) struct Shelf<K> {
    entries: Vec<Entry<K>>,
    free: Vec<Id>,
    by_key: Table<K, Id>,
    order: Heap,
    places: Vec<u32>,
    /// One for each lane, where lanes are asked for.
    lanes: Vec<Heap>,
    lane_places: Vec<u32>,
    lane_sizes: Vec<u64>,
    with_lanes: bool,
    size: u64,
}

impl<K: Key> Shelf<K> {
    pub(super) fn new(with_lanes: bool) -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            by_key: Table::default(),
            order: Heap::default(),
            places: Vec::new(),
            lanes: Vec::new(),
            lane_places: Vec::new(),
            lane_sizes: Vec::new(),
            with_lanes,
            size: 0,
        }
    }

    pub(super) fn find(&self, key: &K) -> Option<Id> {
        self.by_key.get(&Named(*key)).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Sum of all sizes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Sum of the sizes of a lane; 0 where there are no lanes.
    pub(super) fn size_of(&self, lane: u32) -> u64 {
        self.lane_sizes.get(lane as usize).copied().unwrap_or(0)
    }

    pub(super) fn key(&self, id: Id) -> K {
        self.entries[id as usize].key
    }

    pub(super) fn facts(&self, id: Id) -> Facts {
        self.entries[id as usize].facts
    }

    /// When it was last used, on the clock of who gave the ranks.
    pub(super) fn used_at(&self, id: Id) -> f64 {
        self.entries[id as usize].used_at
    }

    pub(super) fn is_present(&self, id: Id) -> bool {
        self.entries
            .get(id as usize)
            .is_some_and(|entry| entry.present)
    }

    /// The next to leave.
    pub(super) fn first(&self) -> Option<Id> {
        self.order.first()
    }

    /// The next of a lane to leave.
    pub(super) fn first_of(&self, lane: u32) -> Option<Id> {
        self.lanes.get(lane as usize).and_then(Heap::first)
    }

    /// A key that is not there yet, used at `now`; it has one lock. Ids count from 0 and are used
    /// again; there are never more than entries at one time.
    pub(super) fn insert_locked(&mut self, key: K, facts: Facts, now: f64) -> Id {
        let id = self.free.pop().unwrap_or_else(|| self.grow(key));
        let entry = &mut self.entries[id as usize];
        entry.key = key;
        entry.facts = facts;
        entry.present = true;
        entry.locks = 1;
        entry.used_at = now;
        self.size += facts.size;
        self.by_key.insert(Named(key), id);
        if self.with_lanes {
            let lane = facts.lane as usize;
            if self.lanes.len() <= lane {
                self.lanes.resize_with(lane + 1, Heap::default);
                self.lane_sizes.resize(lane + 1, 0);
            }
            self.lane_sizes[lane] += facts.size;
        }
        id
    }

    /// Forgets an entry, whatever holds it. What continues it stays, as a root. Returns what it
    /// continued, if that is a leaf now: its rank is old.
    pub(super) fn remove(&mut self, id: Id) -> Option<Id> {
        let parent = self.parent(id);
        if let Some(parent) = parent {
            self.entries[parent as usize].children -= 1;
            self.settle(parent);
        }
        let entry = &mut self.entries[id as usize];
        let facts = entry.facts;
        self.by_key.remove(&Named(entry.key));
        entry.parent = None;
        entry.present = false;
        entry.generation = entry.generation.wrapping_add(1);
        entry.children = 0;
        entry.locks = 0;
        entry.rank = 0.0;
        self.size -= facts.size;
        if self.with_lanes {
            self.lane_sizes[facts.lane as usize] -= facts.size;
        }
        self.settle(id);
        self.free.push(id);
        parent.filter(|&parent| self.is_leaf(parent))
    }

    /// Whether nothing here continues it.
    pub(super) fn is_leaf(&self, id: Id) -> bool {
        self.entries[id as usize].children == 0
    }

    /// Used at `now`.
    pub(super) fn use_at(&mut self, id: Id, now: f64) {
        self.entries[id as usize].used_at = now;
    }

    /// What an entry costs is known better; its rank is old.
    pub(super) fn price(&mut self, id: Id, cost: f32, worth: f32) {
        let facts = &mut self.entries[id as usize].facts;
        (facts.cost, facts.worth) = (cost, worth);
    }

    /// Leaves by `rank` from here on.
    pub(super) fn set_rank(&mut self, id: Id, rank: f64) {
        self.entries[id as usize].rank = rank;
        self.settle(id);
    }

    /// `child` continues `parent`, unless it has a parent already.
    pub(super) fn adopt(&mut self, parent: Id, child: Id) {
        if self.parent(child).is_none() && parent != child {
            self.entries[child as usize].parent =
                Some((parent, self.entries[parent as usize].generation));
            self.entries[parent as usize].children += 1;
            self.settle(parent);
        }
    }

    /// Locks are counted; a locked entry does not leave.
    pub(super) fn lock(&mut self, id: Id) {
        self.entries[id as usize].locks += 1;
        self.settle(id);
    }

    pub(super) fn unlock(&mut self, id: Id) {
        let entry = &mut self.entries[id as usize];
        entry.locks = entry.locks.saturating_sub(1);
        self.settle(id);
    }

    pub(super) fn locks(&self, id: Id) -> u32 {
        self.entries[id as usize].locks
    }

    /// Entries in the order of their ids.
    pub(super) fn ids(&self) -> impl Iterator<Item = Id> {
        let places = self.entries.iter().enumerate();
        places
            .filter(|(_, entry)| entry.present)
            .map(|(id, _)| id as Id)
    }

    pub(super) fn parent(&self, id: Id) -> Option<Id> {
        let (parent, generation) = self.entries[id as usize].parent?;
        (self.entries[parent as usize].generation == generation).then_some(parent)
    }

    fn grow(&mut self, key: K) -> Id {
        let id = self.entries.len() as Id;
        self.entries.push(Entry {
            key,
            facts: Facts::default(),
            generation: 0,
            parent: None,
            children: 0,
            locks: 0,
            rank: 0.0,
            used_at: 0.0,
            present: false,
        });
        self.places.push(NOWHERE);
        self.lane_places.push(NOWHERE);
        id
    }

    /// In the heaps exactly when it may leave.
    fn settle(&mut self, id: Id) {
        let entry = &self.entries[id as usize];
        let (lane, rank) = (entry.facts.lane as usize, entry.rank);
        if entry.present && entry.children == 0 && entry.locks == 0 {
            self.order.put(&mut self.places, id, rank);
            if self.with_lanes {
                self.lanes[lane].put(&mut self.lane_places, id, rank);
            }
        } else if self.places[id as usize] != NOWHERE {
            self.order.take(&mut self.places, id);
            if self.with_lanes {
                self.lanes[lane].take(&mut self.lane_places, id);
            }
        }
    }

    /// What is wrong with the shelf itself, for tests: counts, links, heaps.
    pub(super) fn audit(&self) -> Result<(), String> {
        let mut children = vec![0_u32; self.entries.len()];
        let mut size = 0;
        for id in self.ids() {
            if self.find(&self.key(id)) != Some(id) {
                return Err(format!("entry {id} is not found by its key"));
            }
            size += self.facts(id).size;
            if let Some(parent) = self.parent(id) {
                children[parent as usize] += 1;
            }
        }
        for (id, entry) in self.entries.iter().enumerate() {
            let free = entry.present && entry.children == 0 && entry.locks == 0;
            let heaped = self.places[id] != NOWHERE;
            if children[id] != entry.children || free != heaped {
                let (counted, kept) = (children[id], entry.children);
                return Err(format!(
                    "entry {id}: {counted} children, says {kept}; may leave: {free}, in the heap: {heaped}"
                ));
            }
        }
        let count = self.ids().count();
        if size != self.size || count != self.len() || count + self.free.len() != self.entries.len()
        {
            return Err(format!(
                "{count} entries of {size}, says {} of {}",
                self.len(),
                self.size
            ));
        }
        let sizes: u64 = self.lane_sizes.iter().sum();
        if self.with_lanes && sizes != self.size {
            return Err(format!("lanes of {sizes}, all of {}", self.size));
        }
        let in_lanes: usize = self.lanes.iter().map(Heap::len).sum();
        if self.with_lanes && in_lanes != self.order.len() {
            return Err(format!(
                "{in_lanes} entries in lanes, {} in all",
                self.order.len()
            ));
        }
        Ok(())
    }
}
