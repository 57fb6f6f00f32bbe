//! Rules tried in miniature: each keeps the keys it would keep, of a sample, and what they save is
//! counted.
//!
//! Spatial sampling by key as in Waldspurger, Saemundsson, Ahmad, Park: "Cache Modeling and
//! Optimization using Miniature Simulations", USENIX ATC
//! 2017. A sampled prefix is still a prefix: its keys are found up to the first that is missing.

use super::key::{Key, mix};
use super::ranker::{Ranker, Rule};
use super::shelf::{Facts, Id, Shelf};
use super::sketch::Sketch;

/// One key of a request, in the order of the prefix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// The key's first word.
    pub(super) word: u64,
    pub(super) size: u64,
    /// 0: not known.
    pub(super) cost: f32,
}

/// The first word of a key, as a key.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Sampled(u64);

impl Key for Sampled {
    fn words(&self) -> [u64; 2] {
        [self.0, mix(self.0)]
    }
}

/// Share of the score that is left after a request.
const DECAY: f64 = 0.998;
/// How much better than the first rule another has to be.
const MARGIN: f64 = 1.1;

/// The keys that a tier under one rule would hold.
struct Ghost {
    rule: Rule,
    shelf: Shelf<Sampled>,
    ranker: Ranker,
    capacity: f64,
    score: f64,
}

impl Ghost {
    fn new(rule: Rule, capacity: f64) -> Self {
        Self {
            rule,
            shelf: Shelf::new(false),
            ranker: Ranker::default(),
            capacity,
            score: 0.0,
        }
    }

    /// A prefix is asked for, of which the first `start` keys are known elsewhere; scores what is
    /// found of the others.
    fn look(&mut self, chain: &[Step], start: usize, now: f64, sketch: &Sketch) {
        self.score *= DECAY;
        for (at, step) in chain.iter().enumerate() {
            let found = self.shelf.find(&Sampled(step.word));
            let Some(id) = found else {
                if at < start {
                    continue;
                }
                break;
            };
            if at >= start {
                self.score += f64::from(self.shelf.facts(id).cost);
            }
            self.ranker
                .touch(self.rule, &mut self.shelf, id, now, sketch);
        }
    }

    /// A prefix was computed, or its end after `parent`; what is let in of it comes in.
    fn keep(&mut self, parent: Option<u64>, chain: &[Step], now: f64, sketch: &Sketch) {
        // Each is locked while the next comes, so that no newcomer pushes out what it continues.
        let mut last = parent.and_then(|word| self.shelf.find(&Sampled(word)));
        last.iter().for_each(|&id| self.shelf.lock(id));
        for step in chain {
            let Some(id) = self.find_or_admit(step, now, sketch) else {
                break;
            };
            if let Some(parent) = last.replace(id) {
                self.shelf.adopt(parent, id);
                self.shelf.unlock(parent);
            }
        }
        if let Some(id) = last {
            self.ranker
                .touch(self.rule, &mut self.shelf, id, now, sketch);
            self.shelf.unlock(id);
        }
    }

    /// The entry, with a lock.
    fn find_or_admit(&mut self, step: &Step, now: f64, sketch: &Sketch) -> Option<Id> {
        if let Some(id) = self.shelf.find(&Sampled(step.word)) {
            self.shelf.use_at(id, now);
            self.shelf.lock(id);
            return Some(id);
        }
        while (self.shelf.size() + step.size) as f64 > self.capacity {
            let victim = self.shelf.first()?;
            if self.rule.gated && !sketch.prefers(step.word, self.shelf.key(victim).0) {
                return None;
            }
            self.ranker
                .evict(self.rule, &mut self.shelf, victim, now, sketch);
        }
        let facts = Facts {
            size: step.size,
            cost: self.ranker.price(step.cost, step.size),
            worth: self.ranker.worth(self.rule, step.cost, step.size),
            lane: 0,
        };
        Some(self.shelf.insert_locked(Sampled(step.word), facts, now))
    }
}

/// All rules side by side.
pub(super) struct Contest {
    ghosts: Vec<Ghost>,
    leader: usize,
}

impl Contest {
    /// `capacity` is that of the sample. The first rule is what others are measured against, and in
    /// force until one of them is better.
    pub(super) fn new(rules: &[Rule], capacity: f64) -> Self {
        let ghosts = rules
            .iter()
            .map(|&rule| Ghost::new(rule, capacity))
            .collect();
        Self { ghosts, leader: 0 }
    }

    /// The rule that has saved most lately.
    pub(super) fn leader(&self) -> Rule {
        self.ghosts[self.leader].rule
    }

    pub(super) fn look(&mut self, chain: &[Step], start: usize, now: f64, sketch: &Sketch) {
        for ghost in &mut self.ghosts {
            ghost.look(chain, start, now, sketch);
        }
        self.leader = 0;
        let mut best = self.ghosts[0].score * MARGIN;
        for (at, ghost) in self.ghosts.iter().enumerate().skip(1) {
            if ghost.score > best {
                (self.leader, best) = (at, ghost.score);
            }
        }
    }

    pub(super) fn keep(&mut self, parent: Option<u64>, chain: &[Step], now: f64, sketch: &Sketch) {
        for ghost in &mut self.ghosts {
            ghost.keep(parent, chain, now, sketch);
        }
    }
}
