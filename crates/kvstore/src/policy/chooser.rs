//! Who is let in and who leaves: what a tier asks while it serves.

use super::contest::{Contest, Step};
use super::key::Key;
use super::ranker::{Ranker, Rule};
use super::shelf::{Facts, Id, Shelf};
use super::sketch::Sketch;

/// Entries that the contest keeps under each rule, at most: beyond, it sees a sample.
const SAMPLE: usize = 1 << 12;

/// Counts, contest and clock of one tier.
pub(super) struct Chooser {
    sketch: Sketch,
    /// Of several rules; `only` is in force without one.
    contest: Option<Contest>,
    only: Rule,
    ranker: Ranker,
    /// Second words below this are in the sample.
    threshold: u64,
    /// Operations so far.
    now: f64,
    sampled: Vec<Step>,
}

impl Chooser {
    /// For a tier of `capacity` that holds about `entries`; one rule at least.
    pub(super) fn new(rules: &[Rule], capacity: u64, entries: usize) -> Self {
        let rate = (SAMPLE as f64 / entries.max(1) as f64).min(1.0);
        let contest = (rules.len() > 1).then(|| Contest::new(rules, capacity as f64 * rate));
        Self {
            sketch: Sketch::new(entries),
            contest,
            only: rules[0],
            ranker: Ranker::default(),
            threshold: (rate * u64::MAX as f64) as u64,
            now: 0.0,
            sampled: Vec::new(),
        }
    }

    /// Time passes, by one for each operation; all entries of one operation are equally old.
    pub(super) fn tick(&mut self) {
        self.now += 1.0;
    }

    /// The rule in force.
    pub(super) fn rule(&self) -> Rule {
        self.contest.as_ref().map_or(self.only, Contest::leader)
    }

    /// These keys were asked for, in the order of their prefix.
    pub(super) fn asked<K: Key>(&mut self, keys: &[K]) {
        for key in keys {
            self.sketch.add(key.words()[0]);
        }
    }

    /// These keys are there now; one that nobody has asked for counts as asked for once.
    pub(super) fn computed<K: Key>(&mut self, keys: &[K]) {
        for key in keys {
            let word = key.words()[0];
            if self.sketch.count(word) < 1.0 {
                self.sketch.add(word);
            }
        }
    }

    /// Lets the contest look for a prefix, of which the first `start` keys are known elsewhere.
    pub(super) fn contest_look<K: Key>(&mut self, keys: &[K], start: usize) {
        let Some(contest) = &mut self.contest else {
            return;
        };
        let threshold = self.threshold;
        let within = |key: &&K| key.words()[1] <= threshold;
        let start = keys[..start].iter().filter(within).count();
        self.sampled.clear();
        let steps = keys.iter().filter(within).map(|key| Step {
            word: key.words()[0],
            size: 1,
            cost: 0.0,
        });
        self.sampled.extend(steps);
        contest.look(&self.sampled, start, self.now, &self.sketch);
    }

    /// Lets the contest keep what of a prefix was computed or is known, by key, size and cost; it
    /// continues `parent`.
    pub(super) fn contest_keep<K: Key>(
        &mut self,
        parent: Option<K>,
        steps: impl Iterator<Item = (K, u64, f32)>,
    ) {
        let Some(contest) = &mut self.contest else {
            return;
        };
        let threshold = self.threshold;
        self.sampled.clear();
        let within = steps.filter(|(key, ..)| key.words()[1] <= threshold);
        self.sampled.extend(within.map(|(key, size, cost)| Step {
            word: key.words()[0],
            size,
            cost,
        }));
        let parent = parent.map(|key| key.words()[0]);
        contest.keep(parent, &self.sampled, self.now, &self.sketch);
    }

    /// Whether `key` is worth more than `victim`, as far as the rule cares.
    pub(super) fn prefers<K: Key>(&self, key: &K, victim: &K) -> bool {
        !self.rule().gated || self.sketch.prefers(key.words()[0], victim.words()[0])
    }

    /// An entry is used.
    pub(super) fn touch<K: Key>(&self, shelf: &mut Shelf<K>, id: Id) {
        self.touch_at(shelf, id, self.now);
    }

    /// An entry comes, with a lock.
    pub(super) fn insert_locked<K: Key>(
        &mut self,
        shelf: &mut Shelf<K>,
        key: K,
        mut facts: Facts,
    ) -> Id {
        self.value(&mut facts);
        shelf.insert_locked(key, facts, self.now)
    }

    /// What an entry's cost makes it worth.
    pub(super) fn value(&mut self, facts: &mut Facts) {
        facts.worth = self.ranker.worth(self.rule(), facts.cost, facts.size);
    }

    /// An entry was used at another time than now.
    pub(super) fn touch_at<K: Key>(&self, shelf: &mut Shelf<K>, id: Id, moment: f64) {
        self.ranker
            .touch(self.rule(), shelf, id, moment, &self.sketch);
    }

    /// An entry leaves to make room.
    pub(super) fn evict<K: Key>(&mut self, shelf: &mut Shelf<K>, victim: Id) {
        let rule = self.rule();
        self.ranker
            .evict(rule, shelf, victim, self.now, &self.sketch);
    }

    /// An entry is gone for another reason.
    pub(super) fn remove<K: Key>(&self, shelf: &mut Shelf<K>, id: Id) {
        self.ranker.remove(self.rule(), shelf, id, &self.sketch);
    }
}
