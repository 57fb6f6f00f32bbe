//! A bounded set of keys with sizes and costs: who leaves next, and whether a newcomer is worth it.

use super::chooser::Chooser;
use super::key::Key;
use super::ranker::RuleChoice;
use super::shelf::{Facts, Id, Shelf};

/// What is to be kept.
#[derive(Clone, Copy, Debug)]
pub struct Item<K> {
    /// Its name.
    pub key: K,
    /// What it continues: that stays as long as this does.
    pub parent: Option<K>,
    /// In units of the capacity.
    pub size: u64,
    /// What recomputing it takes, in microseconds; 0: not known, then it counts as much as others
    /// of the size.
    pub cost_us: f32,
    /// Whose it is, where there are lanes: those that may have to make room for each other.
    pub lane: u32,
}

/// Chooses for a store that holds the values itself: it says what it holds, and asks what to give
/// up.
///
/// Every operation takes O(log n) at most for each key; a hit allocates nothing.
pub struct Policy<K> {
    shelf: Shelf<K>,
    chooser: Chooser,
    run: Vec<Id>,
}

impl<K: Key> Policy<K> {
    /// For a store of `capacity`, in units of the items' sizes, that holds about `entries` of them
    /// when full; with an order for each lane if asked.
    pub fn new(choice: RuleChoice, capacity: u64, entries: usize, with_lanes: bool) -> Self {
        Self {
            shelf: Shelf::new(with_lanes),
            chooser: Chooser::new(choice.rules(), capacity, entries),
            run: Vec::new(),
        }
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.shelf.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether an item is there.
    pub fn has(&self, key: &K) -> bool {
        self.shelf.find(key).is_some()
    }

    /// Sum of the sizes of a lane.
    pub fn size_of(&self, lane: u32) -> u64 {
        self.shelf.size_of(lane)
    }

    /// `keys`, each of which continues the one before, were asked for: those up to the first that
    /// is not there are used. Returns how many.
    pub fn ask(&mut self, keys: &[K]) -> usize {
        self.chooser.tick();
        self.chooser.asked(keys);
        self.chooser.contest_look(keys, 0);
        self.run.clear();
        self.run
            .extend(keys.iter().map_while(|key| self.shelf.find(key)));
        for &id in &self.run {
            self.chooser.touch(&mut self.shelf, id);
        }
        let shelf = &self.shelf;
        let known = self.run.iter().map(|&id| {
            let facts = shelf.facts(id);
            (shelf.key(id), facts.size, facts.cost)
        });
        self.chooser.contest_keep(None, known);
        self.run.len()
    }

    /// An item that was asked for is used now.
    pub fn renew(&mut self, key: &K) {
        self.chooser.tick();
        if let Some(id) = self.shelf.find(key) {
            self.chooser.touch(&mut self.shelf, id);
        }
    }

    /// Whether an item is worth more than the first that would leave for it, of its lane or of all.
    pub fn outweighs(&mut self, item: &Item<K>, of_lane: bool) -> bool {
        self.consider(item);
        let victim = self.first(of_lane.then_some(item.lane));
        victim.is_none_or(|victim| self.chooser.prefers(&item.key, &victim))
    }

    /// An item is there, whoever decided that; nothing is given up for it here.
    pub fn insert(&mut self, item: Item<K>) {
        self.chooser.tick();
        let id = self.place(&item);
        self.chooser.touch(&mut self.shelf, id);
        self.shelf.unlock(id);
    }

    /// An item was there before anything else was inserted or asked for, used before `later` others
    /// of its kind.
    pub fn found(&mut self, item: Item<K>, later: usize) {
        let id = self.place(&item);
        self.chooser
            .touch_at(&mut self.shelf, id, -(later as f64) - 1.0);
        self.shelf.unlock(id);
    }

    /// More is known of an item: what it continues, and what it costs.
    pub fn learn(&mut self, key: &K, parent: Option<K>, cost_us: f32) {
        let Some(id) = self.shelf.find(key) else {
            return;
        };
        let mut facts = self.shelf.facts(id);
        if facts.cost <= 0.0 && cost_us > 0.0 {
            facts.cost = cost_us;
            self.chooser.value(&mut facts);
            self.shelf.price(id, facts.cost, facts.worth);
        }
        if let Some(parent) = parent.and_then(|parent| self.shelf.find(&parent))
            && !self.continues(parent, id)
        {
            self.shelf.adopt(parent, id);
        }
    }

    /// What to give up next, of a lane or of all.
    pub fn first(&self, lane: Option<u32>) -> Option<K> {
        let first = match lane {
            Some(lane) => self.shelf.first_of(lane),
            None => self.shelf.first(),
        };
        first.map(|id| self.shelf.key(id))
    }

    /// An item leaves to make room.
    pub fn give_up(&mut self, key: &K) {
        if let Some(id) = self.shelf.find(key) {
            self.chooser.evict(&mut self.shelf, id);
        }
    }

    /// An item is gone for another reason. Returns whether it was there.
    pub fn remove(&mut self, key: &K) -> bool {
        let id = self.shelf.find(key);
        id.map(|id| self.chooser.remove(&mut self.shelf, id))
            .is_some()
    }

    /// An item does not leave to make room, for a while.
    pub fn hold(&mut self, key: &K) {
        if let Some(id) = self.shelf.find(key) {
            self.shelf.lock(id);
        }
    }

    /// The end of a `hold`.
    pub fn release(&mut self, key: &K) {
        if let Some(id) = self.shelf.find(key) {
            self.shelf.unlock(id);
        }
    }

    fn consider(&mut self, item: &Item<K>) {
        self.chooser.computed(&[item.key]);
        let step = (item.key, item.size, item.cost_us);
        self.chooser.contest_keep(item.parent, [step].into_iter());
    }

    /// The entry, with a lock.
    fn place(&mut self, item: &Item<K>) -> Id {
        self.consider(item);
        let id = match self.shelf.find(&item.key) {
            Some(id) => {
                self.shelf.lock(id);
                id
            }
            None => {
                let facts = Facts {
                    size: item.size,
                    cost: item.cost_us,
                    lane: item.lane,
                    ..Facts::default()
                };
                self.chooser.insert_locked(&mut self.shelf, item.key, facts)
            }
        };
        self.learn(&item.key, item.parent, item.cost_us);
        id
    }

    /// Whether an entry continues another, over any number of steps; names that somebody made up
    /// must not close a circle, of which nothing would leave.
    fn continues(&self, id: Id, other: Id) -> bool {
        let mut steps = std::iter::successors(Some(id), |&id| self.shelf.parent(id));
        !self.shelf.is_leaf(other) && steps.any(|step| step == other)
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
            lane: 0,
        }
    }

    /// Gives up what does not fit.
    fn fit(policy: &mut Policy<u64>, capacity: u64) {
        while policy.shelf.size() > capacity {
            let first = policy.first(None).unwrap();
            policy.give_up(&first);
        }
    }

    /// Share of the accesses found in a store of 1000; what is not found is stored if it is
    /// accepted. Key k has the size 1 + k % 5.
    fn hit_ratio(choice: RuleChoice, keys: impl Iterator<Item = u64>) -> f64 {
        let mut policy = Policy::new(choice, 1000, 333, false);
        let (mut hits, mut all) = (0, 0);
        for key in keys {
            let item = item(key, 1 + key % 5, 1.0);
            all += 1;
            if policy.ask(&[key]) == 1 {
                hits += 1;
            } else if policy.shelf.size() + item.size <= 1000 || policy.outweighs(&item, false) {
                policy.insert(item);
                fit(&mut policy, 1000);
            }
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
        let mut policy = Policy::new(RuleChoice::Auto, 100, 10, false);
        // Something has to have left before there is an age to compare with.
        (0..40).for_each(|key| policy.insert(item(key, 10, 500.0)));
        fit(&mut policy, 100);
        policy.insert(item(100, 10, 5000.0));
        policy.insert(item(101, 40, 50.0));
        (0..40).for_each(|key| {
            policy.remove(&key);
        });
        assert_eq!((policy.len(), policy.first(None)), (2, Some(101)));
    }

    #[test]
    fn a_cost_that_is_not_known_is_that_of_others() {
        let mut policy = Policy::new(RuleChoice::Auto, 100, 10, false);
        (0..40).for_each(|key| policy.insert(item(key, 10, 500.0)));
        fit(&mut policy, 100);
        policy.insert(item(100, 10, 0.0));
        policy.insert(item(101, 10, 500.0));
        policy.insert(item(102, 10, 50.0));
        (0..40).for_each(|key| {
            policy.remove(&key);
        });
        // In the order of their times but for the cheap one.
        assert_eq!(policy.first(None), Some(102));
        policy.learn(&100, None, 50_000.0);
        policy.renew(&100);
        policy.renew(&101);
        policy.give_up(&102);
        assert_eq!(policy.first(None), Some(101));
    }

    #[test]
    fn what_was_there_before_leaves_in_its_order_and_first() {
        let mut policy = Policy::new(RuleChoice::Auto, 100, 10, false);
        policy.insert(item(9, 10, 1.0));
        for (key, later) in [(3, 0), (1, 2), (2, 1)] {
            policy.found(item(key, 10, 0.0), later);
        }
        for key in [1, 2, 3, 9] {
            assert_eq!(policy.first(None), Some(key));
            policy.give_up(&key);
        }
    }

    #[test]
    fn a_lane_has_an_order_of_its_own() {
        let mut policy = Policy::new(RuleChoice::Lru, 100, 10, true);
        for key in 0..6 {
            policy.insert(Item {
                lane: key as u32 % 2,
                ..item(key, 10, 1.0)
            });
        }
        assert_eq!(
            (policy.first(None), policy.first(Some(1))),
            (Some(0), Some(1))
        );
        policy.hold(&1);
        assert_eq!(policy.first(Some(1)), Some(3));
        policy.release(&1);
        policy.give_up(&1);
        assert_eq!((policy.size_of(0), policy.size_of(1)), (30, 20));
        assert_eq!((policy.first(Some(2)), policy.size_of(2)), (None, 0));
        assert_eq!(policy.shelf.audit(), Ok(()));
    }

    #[test]
    fn a_circle_of_made_up_parents_is_not_believed() {
        let mut policy = Policy::new(RuleChoice::Lru, 100, 10, false);
        for key in 1..4 {
            let parent = (key > 1).then(|| key - 1);
            policy.insert(Item {
                parent,
                ..item(key, 1, 1.0)
            });
        }
        policy.learn(&1, Some(3), 0.0);
        policy.learn(&2, Some(2), 0.0);
        for key in [3, 2, 1] {
            assert_eq!(policy.first(None), Some(key));
            policy.give_up(&key);
        }
    }

    #[test]
    fn a_parent_leaves_after_what_continues_it() {
        let mut policy = Policy::new(RuleChoice::Lru, 2, 2, false);
        policy.insert(item(1, 1, 1.0));
        policy.insert(Item {
            parent: Some(1),
            ..item(2, 1, 1.0)
        });
        assert_eq!(
            (policy.len(), policy.has(&2), policy.has(&3)),
            (2, true, false)
        );
        policy.insert(item(3, 1, 1.0));
        for key in [2, 1] {
            assert_eq!(policy.first(None), Some(key));
            policy.give_up(&key);
        }
        assert!(policy.remove(&3) && !policy.remove(&3) && policy.is_empty());
    }
}
