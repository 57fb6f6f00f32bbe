//! Entries in eviction order: only leaves of the prefix tree are evicted, lowest rank first.
//!
//! A block is useless without its predecessors, so an entry with children is never evicted. A hit
//! on a prefix of n blocks therefore moves one leaf in the order instead of n entries.

use std::collections::{BTreeSet, HashMap};

use super::key::{Key, Named, Table};
use super::sketch::Sketch;
use crate::key::Group;

/// Number of an entry while the entry is present; reused after its removal.
pub(super) type Id = u32;

struct Entry<K> {
    key: K,
    /// Size in units of the capacity: bytes, or 1 for a slot.
    size: u64,
    /// Incremented on removal, so that a child does not mistake a reused id for its parent.
    generation: u32,
    parent: Option<(Id, u32)>,
    children: u32,
    locks: u32,
    used_at: i64,
    rank: i64,
    /// The rank that orders the entry for eviction; None while the entry cannot be evicted.
    queued: Option<i64>,
    present: bool,
}

/// Bonus in the rank for each doubling of the request count, as a share of the mean lifetime.
const FREQUENCY_WEIGHT: f64 = 0.25;
/// Weight of the latest eviction in the moving average of lifetimes.
const NEWS: f64 = 0.01;

/// Entries by key. The rank is the time of the last use plus a bonus for frequency.
pub(super) struct EvictionTree<K> {
    entries: Vec<Entry<K>>,
    free: Vec<Id>,
    by_key: Table<K, Id>,
    order: BTreeSet<(i64, Id)>,
    /// Present if salt groups have quotas.
    groups: Option<Groups>,
    size: u64,
    /// `FREQUENCY_WEIGHT`, or 0 for plain LRU.
    weight: f64,
    /// Moving average of the time between an entry's last use and its eviction, in operations.
    lifetime: f64,
}

/// Sizes of the salt groups and an order of eviction within each.
#[derive(Default)]
struct Groups {
    order: BTreeSet<(Group, i64, Id)>,
    sizes: HashMap<Group, u64>,
}

/// A chain being inserted: each entry is locked until the next one is inserted, so that no entry
/// evicts its own parent.
pub(super) struct Chain(Option<Id>);

impl Chain {
    /// A chain that continues `parent`, if present.
    pub(super) fn after<K: Key>(tree: &mut EvictionTree<K>, parent: Option<Id>) -> Self {
        parent.iter().for_each(|&id| tree.lock(id));
        Self(parent)
    }

    /// Appends the entry `id`; the chain takes over one of its locks.
    pub(super) fn push<K: Key>(&mut self, tree: &mut EvictionTree<K>, id: Id) {
        if let Some(parent) = self.0.replace(id) {
            tree.adopt(parent, id);
            tree.unlock(parent);
        }
    }

    /// Ends the chain: unlocks its last entry.
    pub(super) fn end<K: Key>(self, tree: &mut EvictionTree<K>) {
        self.0.iter().for_each(|&id| tree.unlock(id));
    }
}

impl<K: Key> EvictionTree<K> {
    /// With `by_group`, also keeps an eviction order per salt group. With `weighted`, adds a bonus
    /// for frequency to the rank.
    pub(super) fn new(by_group: bool, weighted: bool) -> Self {
        Self {
            weight: if weighted { FREQUENCY_WEIGHT } else { 0.0 },
            lifetime: 0.0,
            entries: Vec::new(),
            free: Vec::new(),
            by_key: Table::default(),
            order: BTreeSet::new(),
            groups: by_group.then(Groups::default),
            size: 0,
        }
    }

    pub(super) fn find(&self, key: &K) -> Option<Id> {
        self.by_key.get(&Named(*key)).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Total size of all entries.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Total size of a group; 0 without quotas.
    pub(super) fn size_of(&self, group: Group) -> u64 {
        let sizes = self.groups.as_ref().map(|groups| &groups.sizes);
        sizes.and_then(|sizes| sizes.get(&group)).map_or(0, |&s| s)
    }

    pub(super) fn key(&self, id: Id) -> K {
        self.entries[id as usize].key
    }

    pub(super) fn size_at(&self, id: Id) -> u64 {
        self.entries[id as usize].size
    }

    pub(super) fn is_present(&self, id: Id) -> bool {
        let entry = self.entries.get(id as usize);
        entry.is_some_and(|entry| entry.present)
    }

    /// The next entry to evict: from a salt group, or from all if None.
    pub(super) fn first(&self, of: Option<Group>) -> Option<Id> {
        let Some(group) = of else {
            return self.order.first().map(|&(_, id)| id);
        };
        let order = &self.groups.as_ref()?.order;
        let first = order.range((group, i64::MIN, 0)..).next();
        first.filter(|first| first.0 == group).map(|first| first.2)
    }

    /// Adds an absent key with one lock. Ids are reused, so the vector of entries never exceeds the
    /// peak number of entries.
    pub(super) fn insert_locked(&mut self, key: K, size: u64) -> Id {
        let id = self.free.pop().unwrap_or(self.entries.len() as Id);
        let at = id as usize;
        let entry = Entry {
            key,
            size,
            generation: self.entries.get(at).map_or(0, |before| before.generation),
            parent: None,
            children: 0,
            locks: 1,
            used_at: 0,
            rank: 0,
            queued: None,
            present: true,
        };
        if at == self.entries.len() {
            self.entries.push(entry);
        } else {
            self.entries[at] = entry;
        }
        self.size += size;
        self.by_key.insert(Named(key), id);
        if let Some(groups) = &mut self.groups {
            *groups.sizes.entry(key.group()).or_default() += size;
        }
        id
    }

    /// Removes an entry, locked or not. Its children become roots.
    pub(super) fn remove(&mut self, id: Id) {
        if let Some(parent) = self.parent(id) {
            self.entries[parent as usize].children -= 1;
            self.settle(parent);
        }
        let entry = &mut self.entries[id as usize];
        entry.present = false;
        entry.generation = entry.generation.wrapping_add(1);
        (entry.parent, entry.children, entry.locks) = (None, 0, 0);
        let (key, size) = (entry.key, entry.size);
        self.settle(id);
        self.by_key.remove(&Named(key));
        self.size -= size;
        self.free.push(id);
        let Some(groups) = &mut self.groups else {
            return;
        };
        if let Some(left) = groups.sizes.get_mut(&key.group()) {
            *left -= size;
            if *left == 0 {
                groups.sizes.remove(&key.group());
            }
        }
    }

    /// Marks an entry as used at `now`.
    pub(super) fn touch(&mut self, id: Id, now: i64, sketch: &Sketch) {
        let mut rank = now;
        if self.weight * self.lifetime > 0.0 {
            let count = sketch.count(self.key(id).words()[0]).max(1.0);
            rank += (self.weight * self.lifetime * count.log2()) as i64;
        }
        let entry = &mut self.entries[id as usize];
        (entry.used_at, entry.rank) = (now, rank);
        self.settle(id);
    }

    /// Evicts an entry to free space.
    pub(super) fn evict(&mut self, id: Id, now: i64) {
        let lived = (now - self.entries[id as usize].used_at) as f64;
        let news = if self.lifetime == 0.0 { 1.0 } else { NEWS };
        self.lifetime += (lived - self.lifetime) * news;
        self.remove(id);
    }

    /// Makes `parent` the parent of `child`, unless it already has one.
    pub(super) fn adopt(&mut self, parent: Id, child: Id) {
        if self.parent(child).is_none() && parent != child {
            let generation = self.entries[parent as usize].generation;
            self.entries[child as usize].parent = Some((parent, generation));
            self.entries[parent as usize].children += 1;
            self.settle(parent);
        }
    }

    /// Locks an entry against eviction; locks are counted.
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

    /// Ids of all entries, ascending.
    pub(super) fn ids(&self) -> impl Iterator<Item = Id> {
        let entries = self.entries.iter().zip(0..);
        entries.filter_map(|(entry, id)| entry.present.then_some(id))
    }

    /// Whether the entry has no children.
    pub(super) fn is_leaf(&self, id: Id) -> bool {
        self.entries[id as usize].children == 0
    }

    pub(super) fn parent(&self, id: Id) -> Option<Id> {
        let (parent, generation) = self.entries[id as usize].parent?;
        (self.entries[parent as usize].generation == generation).then_some(parent)
    }

    /// Updates the eviction order, which contains an entry exactly while it can be evicted.
    fn settle(&mut self, id: Id) {
        let entry = &mut self.entries[id as usize];
        let may_leave = entry.present && entry.children == 0 && entry.locks == 0;
        let wanted = may_leave.then_some(entry.rank);
        let queued = std::mem::replace(&mut entry.queued, wanted);
        if queued == wanted {
            return;
        }
        let group = entry.key.group();
        if let Some(rank) = queued {
            self.order.remove(&(rank, id));
            if let Some(groups) = &mut self.groups {
                groups.order.remove(&(group, rank, id));
            }
        }
        if let Some(rank) = wanted {
            self.order.insert((rank, id));
            if let Some(groups) = &mut self.groups {
                groups.order.insert((group, rank, id));
            }
        }
    }

    /// Checks the invariants, for tests.
    ///
    /// # Errors
    /// The first violation.
    pub(super) fn audit(&self) -> Result<(), String> {
        let mut children = vec![0_u32; self.entries.len()];
        let mut sizes: HashMap<Group, u64> = HashMap::new();
        for id in self.ids() {
            if self.find(&self.key(id)) != Some(id) {
                return Err(format!("entry {id} is not found by its key"));
            }
            *sizes.entry(self.key(id).group()).or_default() += self.size_at(id);
            if let Some(parent) = self.parent(id) {
                children[parent as usize] += 1;
            }
        }
        for ((id, entry), count) in (0..).zip(&self.entries).zip(children) {
            let may_leave = entry.present && entry.children == 0 && entry.locks == 0;
            let queued = self.order.contains(&(entry.rank, id));
            if count != entry.children || may_leave != queued {
                let known = entry.children;
                return Err(format!("entry {id}: {count} children of {known}, {queued}"));
            }
        }
        let count = self.ids().count();
        let size: u64 = sizes.values().sum();
        if size != self.size
            || count != self.by_key.len()
            || count + self.free.len() != self.entries.len()
        {
            return Err(format!("{count} entries of {size}, not {}", self.size));
        }
        if let Some(groups) = &self.groups
            && (groups.sizes != sizes || groups.order.len() != self.order.len())
        {
            return Err(format!("groups of {sizes:?}, not {:?}", groups.sizes));
        }
        Ok(())
    }
}
