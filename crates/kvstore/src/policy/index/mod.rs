//! Who has which slot of a tier of equal slots: the RAM tier, of which every rank has the same
//! slots.

mod groups;
mod holding;
#[cfg(test)]
mod model;
mod slots;
mod storing;
#[cfg(test)]
mod tests;

use serde::Deserialize;

pub use self::groups::GroupStats;
use self::groups::Groups;
use self::slots::Slots;
use super::chooser::Chooser;
use super::curve::{Curve, CurvePoint};
use super::key::{Named, Table};
use super::ranker::{Rule, RuleChoice};
use super::shelf::{Id, Shelf};
use crate::key::Digest;

/// Answer of [`TierIndex::admit`] for a block that is not to be stored.
pub const REFUSED: i64 = -1;
/// Answer of [`TierIndex::admit`] for a block that is there, or on its way.
pub const PRESENT: i64 = -2;

/// Size and bounds of an index.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexOptions {
    /// Slots, at least 1.
    pub slots: usize,
    /// Share of the slots that one salted group may have, above 0; 1: no bound.
    pub quota: f64,
    /// Share of the slots that may be pinned.
    pub pin_share: f64,
    /// Rules that may be used.
    #[serde(default)]
    pub rule: RuleChoice,
}

/// Why the index refused a call; nothing was changed.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum IndexError {
    /// An option out of its range.
    #[error("{name} is {value}; expected {expected}")]
    Option {
        name: &'static str,
        value: f64,
        expected: &'static str,
    },
    /// `admit` needs a cost for each digest.
    #[error("{digests} digests, but {costs} costs; one for each")]
    Lengths { digests: usize, costs: usize },
    /// The slot holds nothing.
    #[error("slot {slot} holds nothing; there are {slots} slots")]
    EmptySlot { slot: u32, slots: usize },
    /// More releases than holds.
    #[error("slot {slot} is not held")]
    NotHeld { slot: u32 },
    /// Nothing is being stored under this name.
    #[error("{0} is not being stored: it was not admitted, or its store has ended already")]
    NotStoring(String),
    /// Pins are bounded.
    #[error(
        "{wanted} pinned blocks, {most} are allowed; unpin something or allow pins a larger share of the tier"
    )]
    PinShare { wanted: usize, most: usize },
}

/// Counters since the start, and what is there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IndexStats {
    pub slots: usize,
    /// Slots that hold something, or are being stored to.
    pub used: usize,
    pub storing: usize,
    pub held: usize,
    pub pinned: usize,
    pub lookups: u64,
    /// Blocks looked up that were found, and those that were not.
    pub hits: u64,
    pub misses: u64,
    pub stored: u64,
    pub evictions: u64,
    /// Blocks not let in, because what they would displace is worth more.
    pub refused: u64,
    /// Blocks not let in, because nothing may leave: all is held, pinned, or another group's.
    pub crowded: u64,
    /// Whether newcomers have to be asked for more often than what they displace, at present.
    pub gated: bool,
    /// Groups with most slots, descending.
    pub groups: Vec<GroupStats>,
}

/// An index of `slots` slots, numbered from 0.
///
/// A digest is stored in two steps: [`admit`](Self::admit) gives it a slot,
/// [`commit`](Self::commit) says that the bytes are there; until then it is not found. A slot that
/// is stored to, held by a load, or pinned is never given to another digest. Operations take O(log
/// n) for each block at most.
pub struct TierIndex {
    shelf: Shelf<Digest>,
    slots: Slots,
    groups: Groups,
    chooser: Chooser,
    curve: Curve,
    limits: Limits,
    /// Names that are to stay, whether they are here or not.
    pins: Table<Digest, ()>,
    counts: IndexStats,
    /// Entries of the chain at hand.
    run: Vec<Id>,
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    slots: usize,
    of_group: usize,
    pinned: usize,
}

impl TierIndex {
    /// # Errors
    /// `Option` when a value is out of its range.
    pub fn new(options: &IndexOptions) -> Result<Self, IndexError> {
        Self::with_rules(options, options.rule.rules())
    }

    fn with_rules(options: &IndexOptions, rules: &[Rule]) -> Result<Self, IndexError> {
        let slots = options.slots;
        let limit = |share: f64| (slots as f64 * share) as usize;
        check(
            "slots",
            slots as f64,
            (1..=u32::MAX as usize / 2).contains(&slots),
            "1 to 2^31",
        )?;
        check(
            "quota",
            options.quota,
            options.quota > 0.0 && options.quota <= 1.0,
            "above 0, at most 1",
        )?;
        check(
            "pin_share",
            options.pin_share,
            (0.0..=1.0).contains(&options.pin_share),
            "0 to 1",
        )?;
        Ok(Self {
            shelf: Shelf::new(options.quota < 1.0),
            slots: Slots::default(),
            groups: Groups::default(),
            chooser: Chooser::new(rules, slots as u64, slots),
            curve: Curve::new(slots),
            limits: Limits {
                slots,
                of_group: limit(options.quota).max(1),
                pinned: limit(options.pin_share),
            },
            pins: Table::default(),
            counts: IndexStats {
                slots,
                ..IndexStats::default()
            },
            run: Vec::new(),
        })
    }

    /// Puts the slots of the longest run of `digests` from `start` on that is here into `found`.
    /// This counts as a use of the run and as a request for all of `digests`, so it belongs to each
    /// request once. The first `start` blocks are those that the caller has elsewhere; of them,
    /// what is here is used and what is missing ends nothing.
    pub fn lookup(&mut self, digests: &[Digest], start: usize, found: &mut Vec<u32>) {
        let start = start.min(digests.len());
        self.chooser.tick();
        self.chooser.asked(digests);
        self.chooser.contest_look(digests, start);
        self.curve.look(digests, start);
        found.clear();
        self.run.clear();
        let mut before = None;
        for (at, digest) in digests.iter().enumerate() {
            let here = self.readable(digest);
            if let (Some(parent), Some(id)) = (before, here) {
                self.shelf.adopt(parent, id);
            }
            before = here;
            match here {
                Some(id) => self.run.push(id),
                None if at < start => continue,
                None => break,
            }
            if at >= start {
                found.extend(here);
            }
        }
        self.use_run();
        self.count_lookup(digests.len() - start, found);
    }

    /// How many leading `digests` are here. Not a use: for whom who asks what a lookup would find.
    pub fn peek(&self, digests: &[Digest]) -> usize {
        digests
            .iter()
            .take_while(|digest| self.readable(digest).is_some())
            .count()
    }

    /// Counters since the start, with the `top` largest groups.
    pub fn stats(&self, top: usize) -> IndexStats {
        IndexStats {
            used: self.shelf.len(),
            storing: self.slots.storing(),
            held: self.slots.held(),
            pinned: self.slots.pinned(),
            gated: self.chooser.rule().gated,
            groups: self.groups.largest(top),
            ..self.counts.clone()
        }
    }

    /// The hit ratio that an LRU tier of other capacities would have had lately, from a sixteenth
    /// of the slots up to eight times as many.
    ///
    /// Under a rule that beats LRU, the tier's own ratio is above the curve.
    pub fn curve(&self) -> Vec<CurvePoint> {
        self.curve.points()
    }

    /// Share of the blocks looked up lately that `extra` slots more would have had in addition;
    /// negative for what fewer slots would lose.
    pub fn saved(&self, extra: i64) -> f64 {
        let slots = self.limits.slots as f64;
        self.curve.ratio(slots + extra as f64) - self.curve.ratio(slots)
    }

    fn readable(&self, digest: &Digest) -> Option<Id> {
        self.shelf
            .find(digest)
            .filter(|&id| self.slots.is_readable(id))
    }

    fn use_run(&mut self) {
        for &id in &self.run {
            self.chooser.touch(&mut self.shelf, id);
        }
        let shelf = &self.shelf;
        let known = self
            .run
            .iter()
            .map(|&id| (shelf.key(id), 1, shelf.facts(id).cost));
        self.chooser.contest_keep(None, known);
    }

    fn count_lookup(&mut self, wanted: usize, found: &[u32]) {
        self.counts.lookups += 1;
        self.counts.hits += found.len() as u64;
        self.counts.misses += (wanted - found.len()) as u64;
        for &id in found {
            self.groups.hit(self.shelf.facts(id).lane);
        }
    }

    /// What is wrong, for tests.
    ///
    /// # Errors
    /// A sentence about the first contradiction.
    pub fn check(&self) -> Result<(), String> {
        self.shelf.audit()?;
        if self.shelf.len() > self.limits.slots || self.pins.len() > self.limits.pinned {
            return Err(format!(
                "{} slots used, {} pinned, of {:?}",
                self.shelf.len(),
                self.pins.len(),
                self.limits
            ));
        }
        for id in self.shelf.ids() {
            let (locks, wanted) = (self.shelf.locks(id), self.slots.locks(id));
            if locks != wanted || id as usize >= self.limits.slots {
                return Err(format!("slot {id} has {locks} locks, expected {wanted}"));
            }
            let pinned = self.pins.contains_key(&Named(self.shelf.key(id)));
            if pinned != self.slots.is_pinned(id) && !self.slots.is_doomed(id) {
                return Err(format!(
                    "slot {id} is pinned by name: {pinned}, and not so itself"
                ));
            }
        }
        self.slots.audit(|id| self.shelf.is_present(id))?;
        let lanes = self.shelf.ids().map(|id| self.shelf.facts(id).lane);
        self.groups.audit(lanes, self.limits.of_group)
    }
}

fn check(
    name: &'static str,
    value: f64,
    holds: bool,
    expected: &'static str,
) -> Result<(), IndexError> {
    if holds {
        Ok(())
    } else {
        Err(IndexError::Option {
            name,
            value,
            expected,
        })
    }
}
