//! Slots for what is to be stored.

use super::{IndexError, PRESENT, REFUSED, TierIndex};
use crate::key::{self, Digest, UNSALTED};
use crate::policy::key::Named;
use crate::policy::shelf::{Facts, Id};

/// Why there is no slot for a block.
enum Refusal {
    /// What would have to leave is worth more.
    Worth,
    /// Nothing may leave.
    Crowd,
}

/// Who brings blocks.
#[derive(Clone, Copy)]
struct Bringer {
    group: u32,
    /// Whether they will be asked for again whatever else is.
    awaited: bool,
}

impl TierIndex {
    /// Finds a slot for each of `digests`, consecutive blocks that continue `parent`, and puts into
    /// `answers` where to store it, [`PRESENT`] or [`REFUSED`]. `costs_us` is what recomputing each
    /// took. Once a block is refused, so are those that continue it. A parent that is here stays as
    /// long as they do; one that is not may be in the pool, and is no reason to refuse them.
    ///
    /// What is `awaited` will be asked for again whatever else is: it need not be worth more than
    /// what leaves for it.
    ///
    /// A group that has its quota gives up entries of its own; what has no salt has no quota. All
    /// of `digests` are of one group, as a chain is.
    ///
    /// # Errors
    /// `Lengths`.
    pub fn admit(
        &mut self,
        digests: &[Digest],
        costs_us: &[f32],
        parent: Option<&Digest>,
        awaited: bool,
        answers: &mut Vec<i64>,
    ) -> Result<(), IndexError> {
        answers.clear();
        if digests.len() != costs_us.len() {
            return Err(IndexError::Lengths {
                digests: digests.len(),
                costs: costs_us.len(),
            });
        }
        let Some(group) = digests.first().map(key::group) else {
            return Ok(());
        };
        self.chooser.tick();
        self.chooser.computed(digests);
        let steps = digests.iter().zip(costs_us);
        self.chooser.contest_keep(
            parent.copied(),
            steps.map(|(&digest, &cost)| (digest, 1, cost)),
        );
        self.curve.keep(digests);
        let group = self.groups.open(group);
        let known = parent.and_then(|digest| self.shelf.find(digest));
        let bringer = Bringer { group, awaited };
        self.admit_chain(digests, costs_us, bringer, known, answers);
        self.groups.refuse(group, digests.len() - answers.len());
        self.groups.close(group);
        answers.resize(digests.len(), REFUSED);
        Ok(())
    }

    /// Answers for the blocks up to the first that is refused.
    fn admit_chain(
        &mut self,
        digests: &[Digest],
        costs: &[f32],
        bringer: Bringer,
        parent: Option<Id>,
        answers: &mut Vec<i64>,
    ) {
        // Each is locked while the next is placed, so that no block pushes out what it continues.
        let mut last = parent;
        last.iter().for_each(|&id| self.shelf.lock(id));
        for (digest, &cost) in digests.iter().zip(costs) {
            match self.place(digest, cost, bringer) {
                Ok((id, answer)) => {
                    self.shelf.lock(id);
                    if let Some(parent) = last.replace(id) {
                        self.shelf.adopt(parent, id);
                        self.shelf.unlock(parent);
                    }
                    answers.push(answer);
                }
                Err(refusal) => {
                    let rest = (digests.len() - answers.len()) as u64;
                    match refusal {
                        Refusal::Worth => self.counts.refused += rest,
                        Refusal::Crowd => self.counts.crowded += rest,
                    }
                    break;
                }
            }
        }
        if let Some(id) = last {
            self.chooser.touch(&mut self.shelf, id);
            self.shelf.unlock(id);
        }
    }

    fn place(
        &mut self,
        digest: &Digest,
        cost: f32,
        bringer: Bringer,
    ) -> Result<(Id, i64), Refusal> {
        let group = bringer.group;
        if let Some(id) = self.shelf.find(digest) {
            if self.slots.is_doomed(id) {
                return Err(Refusal::Crowd);
            }
            self.chooser.touch(&mut self.shelf, id);
            return Ok((id, PRESENT));
        }
        self.make_room(digest, bringer)?;
        let facts = Facts {
            size: 1,
            cost,
            lane: group,
            ..Facts::default()
        };
        // Its lock is that of the store.
        let id = self.chooser.insert_locked(&mut self.shelf, *digest, facts);
        self.slots.start(id);
        self.groups.add(group);
        if self.pins.contains_key(&Named(*digest)) {
            self.pin_one(id);
        }
        Ok((id, i64::from(id)))
    }

    fn make_room(&mut self, digest: &Digest, bringer: Bringer) -> Result<(), Refusal> {
        let Bringer { group, awaited } = bringer;
        let bounded = self.limits.of_group < self.limits.slots && key::group(digest) != UNSALTED;
        let own = bounded && self.groups.used(group) >= self.limits.of_group;
        if !own && self.shelf.len() < self.limits.slots {
            return Ok(());
        }
        let victim = if own {
            self.shelf.first_of(group)
        } else {
            self.shelf.first()
        };
        let victim = victim.ok_or(Refusal::Crowd)?;
        let wanted = awaited || self.pins.contains_key(&Named(*digest));
        if !wanted && !self.chooser.prefers(digest, &self.shelf.key(victim)) {
            return Err(Refusal::Worth);
        }
        self.counts.evictions += 1;
        self.chooser.evict(&mut self.shelf, victim);
        self.vacate(victim, true, Some(group));
        Ok(())
    }

    /// The bytes of `digests` are in their slots: lookups find them.
    ///
    /// # Errors
    /// `NotStoring`; then nothing has changed.
    pub fn commit(&mut self, digests: &[Digest]) -> Result<(), IndexError> {
        self.end_stores(digests, true)
    }

    /// The bytes did not arrive: the slots of `digests` are free.
    ///
    /// # Errors
    /// `NotStoring`; then nothing has changed.
    pub fn abandon(&mut self, digests: &[Digest]) -> Result<(), IndexError> {
        self.end_stores(digests, false)
    }

    fn end_stores(&mut self, digests: &[Digest], done: bool) -> Result<(), IndexError> {
        let storing = |digest: &&Digest| {
            self.shelf
                .find(digest)
                .is_some_and(|id| self.slots.is_storing(id))
        };
        if let Some(digest) = digests.iter().find(|digest| !storing(digest)) {
            let name = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            return Err(IndexError::NotStoring(name));
        }
        for digest in digests {
            let Some(id) = self
                .shelf
                .find(digest)
                .filter(|&id| self.slots.is_storing(id))
            else {
                continue;
            };
            self.slots.finish(id);
            self.shelf.unlock(id);
            if done && !self.slots.is_doomed(id) {
                self.counts.stored += 1;
            } else {
                self.free(id);
            }
        }
        Ok(())
    }

    /// Forgets the entry of a slot at which nothing is any more.
    pub(super) fn free(&mut self, id: Id) {
        self.chooser.remove(&mut self.shelf, id);
        self.vacate(id, false, None);
    }

    /// The entry of the slot is gone. The group `open` stays open, whatever it has.
    fn vacate(&mut self, id: Id, evicted: bool, open: Option<u32>) {
        // Facts of the entry that was there stay until another comes.
        let group = self.shelf.facts(id).lane;
        self.slots.pin(id, false);
        self.slots.clear(id);
        self.groups.drop_one(group, evicted);
        if open != Some(group) {
            self.groups.close(group);
        }
    }
}
