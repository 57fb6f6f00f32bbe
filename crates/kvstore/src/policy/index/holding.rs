//! Slots that may not be emptied, and slots that have to be.

use super::{IndexError, TierIndex};
use crate::key::{self, Digest, Group};
use crate::policy::key::Named;
use crate::policy::shelf::Id;

impl TierIndex {
    /// Keeps what is in `slots` until it is released; holds are counted. For loads in flight.
    ///
    /// # Errors
    /// `EmptySlot` when one holds nothing that a lookup could have found; then nothing has changed.
    pub fn hold(&mut self, slots: &[u32]) -> Result<(), IndexError> {
        let readable = |slot: u32| self.shelf.is_present(slot) && self.slots.is_readable(slot);
        if let Some(&slot) = slots.iter().find(|&&slot| !readable(slot)) {
            return Err(IndexError::EmptySlot {
                slot,
                slots: self.limits.slots,
            });
        }
        for &slot in slots {
            self.slots.hold(slot);
            self.shelf.lock(slot);
        }
        Ok(())
    }

    /// Ends one hold of each of `slots`.
    ///
    /// # Errors
    /// `NotHeld`; those before it in the list are released.
    pub fn release(&mut self, slots: &[u32]) -> Result<(), IndexError> {
        for &slot in slots {
            if !self.slots.is_held(slot) {
                return Err(IndexError::NotHeld { slot });
            }
            self.slots.release(slot);
            self.shelf.unlock(slot);
            if self.slots.is_doomed(slot) && !self.slots.is_busy(slot) {
                self.free(slot);
            }
        }
        Ok(())
    }

    /// Keeps `digests` from the moment they are here until they are unpinned. Give all blocks of a
    /// prefix: one that is here keeps those before it. Returns how many of them are here.
    ///
    /// # Errors
    /// `PinShare` when more blocks would be pinned, here or not, than may be; then nothing has
    /// changed.
    pub fn pin(&mut self, digests: &[Digest]) -> Result<usize, IndexError> {
        let new = digests
            .iter()
            .filter(|digest| !self.pins.contains_key(&Named(**digest)))
            .count();
        let (wanted, most) = (self.pins.len() + new, self.limits.pinned);
        if wanted > most {
            return Err(IndexError::PinShare { wanted, most });
        }
        let mut here = 0;
        for digest in digests {
            self.pins.insert(Named(*digest), ());
            if let Some(id) = self.present(digest) {
                self.pin_one(id);
                here += 1;
            }
        }
        Ok(here)
    }

    /// Lets them leave again. What is not pinned stays as it is.
    pub fn unpin(&mut self, digests: &[Digest]) {
        for digest in digests {
            self.pins.remove(&Named(*digest));
            if let Some(id) = self.present(digest) {
                self.unpin_one(id);
            }
        }
    }

    /// Forgets `digests`, pinned ones too: no lookup finds them from now on. A slot with a load or
    /// store in flight is free when that ends. Returns how many were there.
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

    /// Forgets all that a group has with its pins, those of absent blocks too; or everything.
    /// Returns how many blocks that were.
    pub fn clear(&mut self, group: Option<Group>) -> usize {
        let named = |digest: &Digest| group.is_none_or(|group| key::group(digest) == group);
        self.pins.retain(|pin, ()| !named(&pin.0));
        let wanted = |id: &Id| named(&self.shelf.key(*id)) && !self.slots.is_doomed(*id);
        let ids: Vec<Id> = self.shelf.ids().filter(wanted).collect();
        ids.iter().for_each(|&id| self.forget(id));
        ids.len()
    }

    fn present(&self, digest: &Digest) -> Option<Id> {
        self.shelf
            .find(digest)
            .filter(|&id| !self.slots.is_doomed(id))
    }

    pub(super) fn pin_one(&mut self, id: Id) {
        if self.slots.pin(id, true) {
            self.shelf.lock(id);
        }
    }

    fn unpin_one(&mut self, id: Id) {
        if self.slots.pin(id, false) {
            self.shelf.unlock(id);
        }
    }

    fn forget(&mut self, id: Id) {
        self.pins.remove(&Named(self.shelf.key(id)));
        self.unpin_one(id);
        if self.slots.is_busy(id) {
            self.slots.doom(id);
        } else {
            self.free(id);
        }
    }
}
