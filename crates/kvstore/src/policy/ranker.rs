//! The rules that compete, and the rank by which an entry leaves under one.
//!
//! The rank is the time until which an entry is worth its room: last use + (value - 1) x the age at
//! which entries leave lately. If the chance of being used again falls with age as 1/age, an entry
//! of twice the value is worth keeping to twice the age (hyperbolic caching: Blankstein, Sen,
//! Freedman, USENIX ATC 2017); a rank that is fixed at the last use says that in one heap. Where
//! all values are equal this is LRU.

use serde::Deserialize;

use super::key::Key;
use super::shelf::{Id, Shelf};
use super::sketch::Sketch;

/// Which rules may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleChoice {
    /// The one that saves most of those there are, judged while running.
    #[default]
    Auto,
    /// Least recently used leaves first, everybody let in.
    Lru,
}

/// One way to choose who comes and who leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rule {
    /// Newcomers have to be asked for more often than whom they displace.
    pub(super) gated: bool,
    /// How much longer an entry stays that is asked for again and again, in ages of leaving.
    pub(super) loyalty: f64,
    /// How much longer an entry stays that takes long to recompute: the exponent of its cost in its
    /// value.
    pub(super) cost_weight: f64,
}

impl RuleChoice {
    /// What the choice is between; the first is what the others are measured against.
    pub(super) fn rules(self) -> &'static [Rule] {
        match self {
            Self::Auto => &[OPEN, GATED],
            Self::Lru => &[LRU],
        }
    }
}

/// With these, more of the published conversation trace is found than by LRU, and more time saved,
/// at every capacity (benchmarks/kv_eviction.py); with larger ones less is found again.
const LOYALTY: f64 = 0.5;
const COST_WEIGHT: f64 = 0.2;

const LRU: Rule = Rule {
    gated: false,
    loyalty: 0.0,
    cost_weight: 0.0,
};

const OPEN: Rule = Rule {
    gated: false,
    loyalty: LOYALTY,
    cost_weight: COST_WEIGHT,
};

const GATED: Rule = Rule {
    gated: true,
    ..OPEN
};

/// Share of the latest departure in the mean age of leaving.
const NEWS: f64 = 0.01;
/// Bounds of a value by cost: what is a hundred times as costly is not kept a hundred times as
/// long.
const COST_RANGE: (f64, f64) = (0.25, 4.0);

/// Ranks under any rule; what it learns is the age at which entries leave and the mean cost of
/// room.
#[derive(Default)]
pub(super) struct Ranker {
    age: f64,
    mean_cost: f64,
}

impl Ranker {
    /// What recomputing an entry takes: `cost` unless that is 0, not known; then what others of the
    /// size take.
    pub(super) fn price(&self, cost: f32, size: u64) -> f32 {
        if cost > 0.0 {
            return cost;
        }
        let mean = if self.mean_cost > 0.0 {
            self.mean_cost
        } else {
            1.0
        };
        (mean * size as f64) as f32
    }

    /// An entry comes whose room costs so much to fill again (0: not known); returns what that
    /// makes it worth.
    pub(super) fn worth(&mut self, rule: Rule, cost: f32, size: u64) -> f32 {
        if cost <= 0.0 {
            return 1.0;
        }
        let cost = f64::from(cost) / size.max(1) as f64;
        let news = if self.mean_cost == 0.0 { 1.0 } else { NEWS };
        self.mean_cost += (cost - self.mean_cost) * news;
        if rule.cost_weight == 0.0 {
            return 1.0;
        }
        let ratio = (cost / self.mean_cost).clamp(COST_RANGE.0, COST_RANGE.1);
        ratio.powf(rule.cost_weight) as f32
    }

    /// An entry is used.
    pub(super) fn touch<K: Key>(
        &self,
        rule: Rule,
        shelf: &mut Shelf<K>,
        id: Id,
        now: f64,
        sketch: &Sketch,
    ) {
        shelf.use_at(id, now);
        if shelf.is_leaf(id) {
            self.rerank(rule, shelf, id, sketch);
        }
    }

    /// An entry leaves to make room.
    pub(super) fn evict<K: Key>(
        &mut self,
        rule: Rule,
        shelf: &mut Shelf<K>,
        id: Id,
        now: f64,
        sketch: &Sketch,
    ) {
        let age = now - shelf.used_at(id);
        let news = if self.age == 0.0 { 1.0 } else { NEWS };
        self.age += (age - self.age) * news;
        self.remove(rule, shelf, id, sketch);
    }

    /// An entry is gone for another reason.
    pub(super) fn remove<K: Key>(&self, rule: Rule, shelf: &mut Shelf<K>, id: Id, sketch: &Sketch) {
        if let Some(parent) = shelf.remove(id) {
            self.rerank(rule, shelf, parent, sketch);
        }
    }

    /// When an entry leaves, on the clock of its last use: the lowest first.
    pub(super) fn rank<K: Key>(
        &self,
        rule: Rule,
        shelf: &Shelf<K>,
        id: Id,
        sketch: &Sketch,
    ) -> f64 {
        let mut value = f64::from(shelf.facts(id).worth);
        if rule.loyalty > 0.0 {
            let count = sketch.count(shelf.key(id).words()[0]).max(1.0);
            value *= 1.0 + rule.loyalty * count.log2();
        }
        shelf.used_at(id) + (value - 1.0) * self.age
    }

    fn rerank<K: Key>(&self, rule: Rule, shelf: &mut Shelf<K>, id: Id, sketch: &Sketch) {
        let rank = self.rank(rule, shelf, id, sketch);
        shelf.set_rank(id, rank);
    }
}
