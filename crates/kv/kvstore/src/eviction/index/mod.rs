//! Index of the RAM tier: maps KV blocks, by digest, to slots of its memory. Every rank computes
//! the same mapping.

mod options;
#[cfg(test)]
mod tests;

use penstock_prefix::{Digest, Group, UNSALTED, group};

use self::options::check;
pub use self::options::{IndexError, IndexOptions, IndexStats};
use super::cache_policy::CachePolicy;
use super::key::{Named, Table};
use super::tree::{Chain, Id};

/// Result of [`TierIndex::admit`] for a block that is not admitted.
pub const REFUSED: i64 = -1;
/// Result of [`TierIndex::admit`] for a block that is already stored or being stored.
pub const PRESENT: i64 = -2;

/// State of one slot. `storing`, `pinned` and each hold count as one eviction lock each on the
/// slot's entry.
#[derive(Clone, Copy, Default)]
struct Slot {
    storing: bool,
    /// The block was removed while a store or load was in flight. Lookups skip the slot, and it is
    /// freed when the transfer ends.
    pending_free: bool,
    pinned: bool,
    holds: u32,
}

impl Slot {
    fn is_readable(self) -> bool {
        !self.storing && !self.pending_free
    }

    fn is_busy(self) -> bool {
        self.storing || self.holds > 0
    }

    fn locks(self) -> u32 {
        u32::from(self.storing) + u32::from(self.pinned) + self.holds
    }
}

/// An index of `slots` slots, numbered from 0.
///
/// A store has two steps: [`admit`](Self::admit) assigns a slot, [`commit`](Self::commit) makes it
/// readable. A slot with a store in flight, a hold or a pin is never reassigned. Operations take
/// O(log n) per block at most.
pub struct TierIndex {
    policy: CachePolicy<Digest>,
    slots: Vec<Slot>,
    limits: Limits,
    /// Pinned digests, whether or not their blocks are stored.
    pins: Table<Digest, ()>,
    evictions: u64,
    refused: u64,
    /// Scratch space for the entries of a chain.
    run: Vec<Id>,
    /// Digests that have left the tier since the last admission and are not reported yet.
    left: Vec<Digest>,
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    slots: usize,
    of_group: usize,
    pinned: usize,
}

impl TierIndex {
    /// # Errors
    /// `IndexError::Option` if a value is out of range.
    pub fn new(options: &IndexOptions) -> Result<Self, IndexError> {
        let &IndexOptions {
            slots,
            quota,
            pin_share,
            rule,
        } = options;
        let in_range = (1..=u32::MAX as usize / 2).contains(&slots);
        check("slots", slots as f64, in_range, "1 to 2^31")?;
        let in_range = quota > 0.0 && quota <= 1.0;
        check("quota", quota, in_range, "above 0, at most 1")?;
        let in_range = (0.0..=1.0).contains(&pin_share);
        check("pin_share", pin_share, in_range, "0 to 1")?;
        let limit = |share: f64| (slots as f64 * share) as usize;
        Ok(Self {
            policy: CachePolicy::new(rule, slots as u64, slots, quota < 1.0),
            slots: Vec::new(),
            limits: Limits {
                slots,
                of_group: limit(quota).max(1),
                pinned: limit(pin_share),
            },
            pins: Table::default(),
            evictions: 0,
            refused: 0,
            run: Vec::new(),
            left: Vec::new(),
        })
    }

    /// Puts the slots of the longest readable run of `digests` from `start` on into `found`. Counts
    /// one request for all of `digests`, so call it once per request. The caller has the first
    /// `start` blocks in another tier. Blocks that are also here are marked as used.
    pub fn lookup(&mut self, digests: &[Digest], start: usize, found: &mut Vec<u32>) {
        let start = start.min(digests.len());
        self.policy.asked(digests, start);
        found.clear();
        self.run.clear();
        let mut before = None;
        for (at, digest) in digests.iter().enumerate() {
            let readable = self.readable(digest);
            if let (Some(parent), Some(id)) = (before, readable) {
                self.policy.tree.adopt(parent, id);
            }
            before = readable;
            match readable {
                Some(id) => self.run.push(id),
                None if at < start => continue,
                None => break,
            }
            if at >= start {
                found.extend(readable);
            }
        }
        self.policy.used(&self.run);
    }

    /// Number of leading `digests` that are readable; does not count as a request.
    pub fn peek(&self, digests: &[Digest]) -> usize {
        let leading = digests.iter().map_while(|digest| self.readable(digest));
        leading.count()
    }

    /// Assigns a slot to each of `digests`, consecutive blocks of one salt group after `parent`.
    /// `answers` gets the slot, [`PRESENT`] or [`REFUSED`]. After a refused block all later ones
    /// are refused. `parent` may be absent from this tier and present only in the KV pool.
    /// `awaited` blocks (of a preempted sequence) bypass the admission filter. A group at its quota
    /// evicts its own entries; unsalted blocks have no quota.
    pub fn admit(
        &mut self,
        digests: &[Digest],
        parent: Option<&Digest>,
        awaited: bool,
        answers: &mut Vec<i64>,
    ) {
        answers.clear();
        self.left.clear();
        self.policy.tick();
        let chain = digests.iter().map(|&digest| (digest, 1));
        self.policy.computed(parent.copied(), chain);
        let parent = parent.and_then(|digest| self.policy.tree.find(digest));
        let mut chain = Chain::after(&mut self.policy.tree, parent);
        for digest in digests {
            let Some((id, answer)) = self.place(digest, awaited) else {
                break;
            };
            chain.push(&mut self.policy.tree, id);
            answers.push(answer);
        }
        chain.end(&mut self.policy.tree);
        self.refused += (digests.len() - answers.len()) as u64;
        answers.resize(digests.len(), REFUSED);
    }

    /// The entry of `digest`, locked for the chain, and the result for the caller; None if refused.
    fn place(&mut self, digest: &Digest, awaited: bool) -> Option<(Id, i64)> {
        let (id, answer) = match self.policy.tree.find(digest) {
            Some(id) if self.slots[id as usize].pending_free => return None,
            Some(id) => (id, PRESENT),
            None => {
                if !self.make_room(digest, awaited) {
                    return None;
                }
                // This lock belongs to the store in flight.
                let id = self.policy.tree.insert_locked(*digest, 1);
                let slot = Slot {
                    storing: true,
                    ..Slot::default()
                };
                if self.slots.len() <= id as usize {
                    self.slots.resize(id as usize + 1, Slot::default());
                }
                self.slots[id as usize] = slot;
                if self.pins.contains_key(&Named(*digest)) {
                    self.pin_entry(id, true);
                }
                (id, i64::from(id))
            }
        };
        self.policy.touch(id);
        self.policy.tree.lock(id);
        Some((id, answer))
    }

    /// Frees a slot if needed. Returns false if every candidate is held, pinned, in another group,
    /// or preferred by the filter.
    fn make_room(&mut self, digest: &Digest, awaited: bool) -> bool {
        let own = group(digest);
        let bounded = self.limits.of_group < self.limits.slots && own != UNSALTED;
        let over_quota = bounded && self.policy.size_of(own) >= self.limits.of_group as u64;
        if !over_quota && self.policy.len() < self.limits.slots {
            return true;
        }
        let Some(victim) = self.policy.tree.first(over_quota.then_some(own)) else {
            return false;
        };
        let wanted = awaited || self.pins.contains_key(&Named(*digest));
        if !wanted && !self.policy.admits(digest, &self.policy.tree.key(victim)) {
            return false;
        }
        self.evictions += 1;
        self.left.push(self.policy.tree.key(victim));
        self.policy.evict(victim);
        self.slots[victim as usize] = Slot::default();
        true
    }

    /// Makes `digests` readable, after their bytes were written.
    ///
    /// # Errors
    /// `NotStoring` if one of them has no store in flight; then nothing is changed.
    pub fn commit(&mut self, digests: &[Digest]) -> Result<(), IndexError> {
        self.end_stores(digests, true)
    }

    /// Frees the slots of `digests` after a failed store.
    ///
    /// # Errors
    /// `NotStoring` if one of them has no store in flight; then nothing is changed.
    pub fn abandon(&mut self, digests: &[Digest]) -> Result<(), IndexError> {
        self.end_stores(digests, false)
    }

    fn end_stores(&mut self, digests: &[Digest], done: bool) -> Result<(), IndexError> {
        let storing = |digest: &Digest| {
            let id = self.policy.tree.find(digest);
            id.filter(|&id| self.slots[id as usize].storing)
                .ok_or_else(|| {
                    let name = digest.iter().map(|byte| format!("{byte:02x}"));
                    IndexError::NotStoring(name.collect())
                })
        };
        let ids = digests.iter().map(storing).collect::<Result<Vec<_>, _>>()?;
        for id in ids {
            let slot = &mut self.slots[id as usize];
            slot.storing = false;
            let kept = done && !slot.pending_free;
            self.policy.tree.unlock(id);
            if done && !kept {
                self.left.push(self.policy.tree.key(id));
            }
            if !kept {
                self.free(id);
            }
        }
        Ok(())
    }

    /// Holds `slots` for loads in flight until they are released; holds are counted.
    ///
    /// # Errors
    /// `EmptySlot` if one is not readable; then nothing is changed.
    pub fn hold(&mut self, slots: &[u32]) -> Result<(), IndexError> {
        let readable = |slot: u32| {
            self.policy.tree.is_present(slot) && self.slots[slot as usize].is_readable()
        };
        if let Some(&slot) = slots.iter().find(|&&slot| !readable(slot)) {
            let slots = self.limits.slots;
            return Err(IndexError::EmptySlot { slot, slots });
        }
        for &slot in slots {
            self.slots[slot as usize].holds += 1;
            self.policy.tree.lock(slot);
        }
        Ok(())
    }

    /// Releases one hold of each of `slots`.
    ///
    /// # Errors
    /// `NotHeld` at the first slot without a hold. Slots earlier in the list stay released.
    pub fn release(&mut self, slots: &[u32]) -> Result<(), IndexError> {
        for &id in slots {
            let slot = self.slots.get_mut(id as usize);
            let Some(slot) = slot.filter(|slot| slot.holds > 0) else {
                return Err(IndexError::NotHeld { slot: id });
            };
            slot.holds -= 1;
            let is_free = slot.pending_free && !slot.is_busy();
            self.policy.tree.unlock(id);
            if is_free {
                self.free(id);
            }
        }
        Ok(())
    }

    /// Pins `digests`; absent ones are pinned once they are stored. Pass all blocks of a prefix,
    /// because a block is useless without its predecessors. Returns the number that is present now.
    ///
    /// # Errors
    /// `PinShare` if more blocks would be pinned than allowed; then nothing is changed.
    pub fn pin(&mut self, digests: &[Digest]) -> Result<usize, IndexError> {
        let is_new = |digest: &&Digest| !self.pins.contains_key(&Named(**digest));
        let wanted = self.pins.len() + digests.iter().filter(is_new).count();
        let most = self.limits.pinned;
        if wanted > most {
            return Err(IndexError::PinShare { wanted, most });
        }
        let mut present = 0;
        for digest in digests {
            self.pins.insert(Named(*digest), ());
            if let Some(id) = self.present(digest) {
                self.pin_entry(id, true);
                present += 1;
            }
        }
        Ok(present)
    }

    /// Unpins `digests`; a no-op for digests that are not pinned.
    pub fn unpin(&mut self, digests: &[Digest]) {
        for digest in digests {
            self.pins.remove(&Named(*digest));
            if let Some(id) = self.present(digest) {
                self.pin_entry(id, false);
            }
        }
    }

    /// Removes `digests`, pinned or not. A slot with a load or store in flight is freed when the
    /// transfer ends. Returns the number that were present.
    pub fn remove(&mut self, digests: &[Digest]) -> usize {
        let mut count = 0;
        for digest in digests {
            self.pins.remove(&Named(*digest));
            if let Some(id) = self.present(digest) {
                self.forget(id);
                count += 1;
            }
        }
        count
    }

    /// Removes all blocks and pins, or only those of the salt group `of`. Returns the number of
    /// blocks.
    pub fn clear(&mut self, of: Option<Group>) -> usize {
        let named = |digest: &Digest| of.is_none_or(|of| group(digest) == of);
        self.pins.retain(|pin, ()| !named(&pin.0));
        let tree = &self.policy.tree;
        let wanted = |id: &Id| named(&tree.key(*id)) && !self.slots[*id as usize].pending_free;
        let ids: Vec<Id> = tree.ids().filter(wanted).collect();
        ids.iter().for_each(|&id| self.forget(id));
        ids.len()
    }

    /// Takes the digests of the blocks that have left the tier since the last call. Each `admit`
    /// discards digests that were not taken before it.
    pub fn take_left(&mut self) -> Vec<Digest> {
        std::mem::take(&mut self.left)
    }

    /// Current state, and event counts since the start.
    pub fn stats(&self) -> IndexStats {
        IndexStats {
            used: self.policy.len(),
            pinned: self.slots.iter().filter(|slot| slot.pinned).count(),
            evictions: self.evictions,
            refused: self.refused,
            gated: self.policy.is_gated(),
        }
    }

    fn readable(&self, digest: &Digest) -> Option<Id> {
        let id = self.policy.tree.find(digest);
        id.filter(|&id| self.slots[id as usize].is_readable())
    }

    fn present(&self, digest: &Digest) -> Option<Id> {
        let id = self.policy.tree.find(digest);
        id.filter(|&id| !self.slots[id as usize].pending_free)
    }

    fn pin_entry(&mut self, id: Id, pinned: bool) {
        match (
            std::mem::replace(&mut self.slots[id as usize].pinned, pinned),
            pinned,
        ) {
            (false, true) => self.policy.tree.lock(id),
            (true, false) => self.policy.tree.unlock(id),
            _ => {}
        }
    }

    fn forget(&mut self, id: Id) {
        let digest = self.policy.tree.key(id);
        self.pins.remove(&Named(digest));
        if !self.slots[id as usize].storing {
            self.left.push(digest);
        }
        self.pin_entry(id, false);
        if self.slots[id as usize].is_busy() {
            self.slots[id as usize].pending_free = true;
        } else {
            self.free(id);
        }
    }

    fn free(&mut self, id: Id) {
        self.policy.tree.remove(id);
        self.slots[id as usize] = Slot::default();
    }

    /// Checks the invariants, for tests.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self) -> Result<(), String> {
        let (tree, limits) = (&self.policy.tree, self.limits);
        tree.audit()?;
        if tree.len() > limits.slots || self.pins.len() > limits.pinned {
            let (used, pins) = (tree.len(), self.pins.len());
            return Err(format!("{used} slots used, {pins} pinned, of {limits:?}"));
        }
        for (id, slot) in (0..).zip(&self.slots) {
            if !tree.is_present(id) {
                if slot.is_busy() || slot.pinned || slot.pending_free {
                    return Err(format!("slot {id} is empty and not free"));
                }
                continue;
            }
            let digest = tree.key(id);
            let pinned = self.pins.contains_key(&Named(digest));
            if tree.locks(id) != slot.locks()
                || id as usize >= limits.slots
                || (slot.pending_free && !slot.is_busy())
                || (pinned != slot.pinned && !slot.pending_free)
            {
                return Err(format!("slot {id}: {} locks, {pinned}", tree.locks(id)));
            }
            let (own, of_group) = (group(&digest), limits.of_group as u64);
            if own != UNSALTED && self.policy.size_of(own) > of_group {
                return Err(format!("group {own:?} has more than {of_group} slots"));
            }
        }
        Ok(())
    }
}
