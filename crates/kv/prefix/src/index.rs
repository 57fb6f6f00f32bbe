//! Prefix index: estimates how much of a prompt each replica has in its cache.
//!
//! Each holder (a replica) has its own LRU list, as long as its cache. Entries are removed lazily:
//! a use appends to the holder's log, and a log entry is valid only while it is the latest use of
//! its link.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use crate::ghosts::{Ghosts, Regret};
use crate::keyed::Keyed;

/// Prefix links, each a hash of a prompt up to some point, and the replicas that hold them.
#[derive(Debug, Default)]
pub struct PrefixIndex {
    links: Links,
    holders: HashMap<u32, Holder>,
    ghosts: Ghosts,
    uses: u64,
}

type Links = HashMap<u64, Having, Keyed>;

/// A holder, with the number of its latest use.
type Use = (u32, u64);

/// The holders of one link. The common case of a single holder needs no extra allocation.
#[derive(Debug)]
struct Having {
    first: Use,
    others: Vec<Use>,
}

impl Having {
    fn new(first: Use) -> Self {
        let others = Vec::new();
        Self { first, others }
    }

    fn iter(&self) -> impl Iterator<Item = &Use> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Records a use; returns whether the holder is new.
    fn note(&mut self, (holder, used): Use) -> bool {
        let mut all = std::iter::once(&mut self.first).chain(&mut self.others);
        let same = all.find(|one| one.0 == holder);
        let is_new = same.is_none();
        match same {
            Some(one) => one.1 = used,
            None => self.others.push((holder, used)),
        }
        is_new
    }

    /// Removes the holder at position `at`; returns whether it was the only one.
    fn take(&mut self, at: usize) -> bool {
        match at.checked_sub(1) {
            Some(other) => {
                self.others.swap_remove(other);
            }
            None => match self.others.pop() {
                Some(other) => self.first = other,
                None => return true,
            },
        }
        false
    }
}

#[derive(Debug, Default)]
struct Holder {
    /// Links in order of use, oldest first, with the number of the use.
    log: VecDeque<(u64, u64)>,
    /// Number of links held.
    live: usize,
    regret: Regret,
}

impl PrefixIndex {
    /// Number of leading links of `chain` that each of `holders` has.
    pub fn matches(&self, chain: &[u64], holders: &[u32]) -> Vec<usize> {
        let mut matched = vec![0; holders.len()];
        let mut alive: Vec<usize> = (0..holders.len()).collect();
        for (depth, link) in chain.iter().enumerate() {
            let Some(having) = self.links.get(link) else {
                break;
            };
            alive.retain(|at| having.iter().any(|(holder, _)| *holder == holders[*at]));
            if alive.is_empty() {
                break;
            }
            alive.iter().for_each(|at| matched[*at] = depth + 1);
        }
        matched
    }

    /// Records that `holder` computes `chain`. The holder keeps its `capacity` most recently used
    /// links; the end of a chain is evicted before its start.
    pub fn insert(&mut self, holder: u32, chain: &[u64], capacity: usize) {
        let mut missed = Vec::new();
        let held = self.holders.entry(holder).or_default();
        held.log.reserve(chain.len().min(capacity));
        for link in chain.iter().take(capacity).rev() {
            self.uses += 1;
            let now = (holder, self.uses);
            let is_new = match self.links.entry(*link) {
                Entry::Occupied(mut having) => having.get_mut().note(now),
                Entry::Vacant(place) => {
                    place.insert(Having::new(now));
                    missed.extend(self.ghosts.take(*link));
                    true
                }
            };
            held.live += usize::from(is_new);
            held.log.push_back((*link, self.uses));
        }
        while held.live > capacity {
            let Some((link, used)) = held.log.pop_front() else {
                break;
            };
            if drop_use(&mut self.links, link, holder, Some(used)) {
                held.live -= 1;
                held.regret.evicted(capacity);
                if !self.links.contains_key(&link) {
                    self.ghosts.add(link, holder, self.links.len());
                }
            }
        }
        if held.log.len() > 2 * held.live + 1024 {
            let links = &self.links;
            held.log.retain(|(link, used)| {
                let having = links.get(link);
                having.is_some_and(|having| having.iter().any(|one| *one == (holder, *used)))
            });
        }
        for evicted_by in missed {
            if let Some(held) = self.holders.get_mut(&evicted_by) {
                held.regret.missed();
            }
        }
    }

    /// Removes a holder whose cache is gone.
    pub fn clear(&mut self, holder: u32) {
        for (link, _) in self.holders.remove(&holder).unwrap_or_default().log {
            drop_use(&mut self.links, link, holder, None);
        }
    }

    /// Regret of the cache size, 0 to 1: of the links that `holder` evicted recently as their last
    /// holder, the share that was requested again. This share is the cost of each link inserted
    /// beyond the capacity.
    pub fn regret(&self, holder: u32) -> f32 {
        let held = self.holders.get(&holder);
        held.map_or(0.0, |held| held.regret.share())
    }

    /// Number of links of `holder`.
    pub fn len_of(&self, holder: u32) -> usize {
        self.holders.get(&holder).map_or(0, |held| held.live)
    }
}

/// Removes `holder` from a link if its latest use is `used`; if `used` is None, always. Returns
/// whether it was removed.
fn drop_use(links: &mut Links, link: u64, holder: u32, used: Option<u64>) -> bool {
    let Entry::Occupied(mut having) = links.entry(link) else {
        return false;
    };
    let same = |one: &Use| one.0 == holder && used.is_none_or(|used| one.1 == used);
    let found = having.get().iter().position(same);
    if found.is_some_and(|at| having.get_mut().take(at)) {
        having.remove();
    }
    found.is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The plain model: for each holder, links in order of their latest use.
    #[derive(Default)]
    struct Model(HashMap<u32, Vec<u64>>);

    impl Model {
        fn insert(&mut self, holder: u32, chain: &[u64], capacity: usize) {
            let held = self.0.entry(holder).or_default();
            for link in chain.iter().take(capacity).rev() {
                held.retain(|one| one != link);
                held.push(*link);
            }
            let over = held.len().saturating_sub(capacity);
            held.drain(..over);
        }

        fn matches(&self, chain: &[u64], holder: u32) -> usize {
            let held = self.0.get(&holder);
            let has = |link: &&u64| held.is_some_and(|held| held.contains(link));
            chain.iter().take_while(has).count()
        }
    }

    /// Holder, first link, length, and whether the holder is cleared instead.
    fn ask() -> impl Strategy<Value = (u32, u64, usize, bool)> {
        (0u32..4, 0u64..12, 0usize..9, prop::bool::weighted(0.05))
    }

    proptest! {
        #[test]
        fn it_does_what_lists_do(
            asks in prop::collection::vec(ask(), 1..300),
            capacity in 1usize..12,
        ) {
            let (mut index, mut model) = (PrefixIndex::default(), Model::default());
            for (holder, first, length, cleared) in asks {
                // chains that share their beginnings
                let link = |at| first / (at + 1) * 100 + at;
                let chain: Vec<u64> = (0..length as u64).map(link).collect();
                let found = index.matches(&chain, &[0, 1, 2, 3]);
                let wanted: Vec<usize> = (0..4).map(|one| model.matches(&chain, one)).collect();
                prop_assert_eq!(found, wanted);
                if cleared {
                    index.clear(holder);
                    model.0.remove(&holder);
                } else {
                    index.insert(holder, &chain, capacity);
                    model.insert(holder, &chain, capacity);
                }
                let held = model.0.get(&holder).map_or(0, Vec::len);
                prop_assert_eq!(index.len_of(holder), held);
            }
        }
    }

    /// Chains of ten links in a cycle, in a cache of 50.
    fn cycled(index: &mut PrefixIndex, holder: u32, chains: u64, rounds: u64) {
        for n in 0..chains * rounds {
            let first = u64::from(holder) * 1_000_000 + n % chains * 10;
            index.insert(holder, &(first..first + 10).collect::<Vec<_>>(), 50);
        }
    }

    #[test]
    fn regret_is_the_share_of_evicted_links_that_are_asked_for_again() {
        let mut index = PrefixIndex::default();
        // five chains fit, six do not: an LRU evicts each link before it is asked for
        cycled(&mut index, 1, 5, 20);
        cycled(&mut index, 2, 6, 20);
        assert_eq!((index.regret(1), index.regret(9)), (0.0, 0.0));
        assert!(index.regret(2) > 0.9, "{}", index.regret(2));
        // links that never come again
        for n in 0..100 {
            let first = 5_000_000 + n * 10;
            index.insert(3, &(first..first + 10).collect::<Vec<_>>(), 50);
        }
        assert_eq!(index.regret(3), 0.0);
        // after 1000 links that do not come again, the old regret has faded
        for n in 0..100 {
            let first = 9_000_000 + n * 10;
            index.insert(2, &(first..first + 10).collect::<Vec<_>>(), 50);
        }
        assert!(index.regret(2) < 0.1, "{}", index.regret(2));
        index.clear(2);
        assert_eq!(index.regret(2), 0.0);
    }

    #[test]
    fn what_another_holder_has_is_evicted_without_regret() {
        let mut index = PrefixIndex::default();
        let chain: Vec<u64> = (0..50).collect();
        index.insert(1, &chain, 50);
        for n in 0..40 {
            let first = 1000 + n * 100;
            index.insert(2, &chain[..10], 50);
            index.insert(2, &(first..first + 50).collect::<Vec<_>>(), 50);
        }
        assert_eq!(index.matches(&chain, &[1, 2]), [50, 0]);
        assert_eq!(index.regret(2), 0.0);
    }

    #[test]
    fn memory_is_bounded_by_the_links_that_are_held() {
        let mut index = PrefixIndex::default();
        let chain: Vec<u64> = (0..100).collect();
        (0..1000).for_each(|_| index.insert(1, &chain, 100));
        (0..1000).for_each(|n| index.insert(2, &[1000 + n], 10));
        assert_eq!(index.links.len(), 110);
        assert!(index.holders[&1].log.len() <= 1324);
        index.clear(1);
        index.clear(2);
        assert!(index.links.is_empty() && index.holders.is_empty());
        assert!(index.ghosts.len() <= 110, "{}", index.ghosts.len());
    }
}
