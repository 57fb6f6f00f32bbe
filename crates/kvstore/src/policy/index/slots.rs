//! What happens in each slot beside being kept.

use crate::policy::shelf::Id;

/// One slot. Each of `storing`, `pinned` and a hold is one lock of its entry.
#[derive(Clone, Copy, Default)]
struct Slot {
    storing: bool,
    /// Forgotten, but a store or load is still at it: not found, and free when they have ended.
    doomed: bool,
    pinned: bool,
    holds: u32,
}

#[derive(Default)]
pub(super) struct Slots {
    all: Vec<Slot>,
    storing: usize,
    held: usize,
    pinned: usize,
}

impl Slots {
    pub(super) fn storing(&self) -> usize {
        self.storing
    }

    pub(super) fn held(&self) -> usize {
        self.held
    }

    pub(super) fn pinned(&self) -> usize {
        self.pinned
    }

    /// An entry came into the slot and is being stored.
    pub(super) fn start(&mut self, id: Id) {
        if self.all.len() <= id as usize {
            self.all.resize(id as usize + 1, Slot::default());
        }
        self.all[id as usize] = Slot {
            storing: true,
            ..Slot::default()
        };
        self.storing += 1;
    }

    pub(super) fn is_storing(&self, id: Id) -> bool {
        self.all[id as usize].storing
    }

    pub(super) fn is_doomed(&self, id: Id) -> bool {
        self.all[id as usize].doomed
    }

    pub(super) fn is_pinned(&self, id: Id) -> bool {
        self.all[id as usize].pinned
    }

    pub(super) fn is_held(&self, id: Id) -> bool {
        self.all.get(id as usize).is_some_and(|slot| slot.holds > 0)
    }

    /// Whether the bytes are there and may be found.
    pub(super) fn is_readable(&self, id: Id) -> bool {
        let slot = self.all[id as usize];
        !slot.storing && !slot.doomed
    }

    /// Whether a store or load is at it.
    pub(super) fn is_busy(&self, id: Id) -> bool {
        self.is_storing(id) || self.is_held(id)
    }

    pub(super) fn finish(&mut self, id: Id) {
        self.storing -= usize::from(std::mem::take(&mut self.all[id as usize].storing));
    }

    /// Nothing is in the slot any more.
    pub(super) fn clear(&mut self, id: Id) {
        self.all[id as usize] = Slot::default();
    }

    pub(super) fn doom(&mut self, id: Id) {
        self.all[id as usize].doomed = true;
    }

    pub(super) fn hold(&mut self, id: Id) {
        let slot = &mut self.all[id as usize];
        self.held += usize::from(slot.holds == 0);
        slot.holds += 1;
    }

    pub(super) fn release(&mut self, id: Id) {
        let slot = &mut self.all[id as usize];
        slot.holds -= 1;
        self.held -= usize::from(slot.holds == 0);
    }

    /// Returns whether that changed anything.
    pub(super) fn pin(&mut self, id: Id, pinned: bool) -> bool {
        let slot = &mut self.all[id as usize];
        if slot.pinned == pinned {
            return false;
        }
        slot.pinned = pinned;
        self.pinned = if pinned {
            self.pinned + 1
        } else {
            self.pinned - 1
        };
        true
    }

    /// Locks that its entry must have.
    pub(super) fn locks(&self, id: Id) -> u32 {
        let slot = self.all[id as usize];
        u32::from(slot.storing) + u32::from(slot.pinned) + slot.holds
    }

    pub(super) fn audit(&self, is_present: impl Fn(Id) -> bool) -> Result<(), String> {
        let count = |holds: fn(&Slot) -> bool| self.all.iter().filter(|slot| holds(slot)).count();
        let counted = [
            count(|slot| slot.storing),
            count(|slot| slot.holds > 0),
            count(|slot| slot.pinned),
        ];
        if counted != [self.storing, self.held, self.pinned] {
            return Err(format!(
                "storing, held, pinned: {counted:?}, says {} {} {}",
                self.storing, self.held, self.pinned
            ));
        }
        for (id, slot) in self.all.iter().enumerate() {
            let busy = slot.storing || slot.holds > 0;
            if (busy || slot.pinned || slot.doomed) && !is_present(id as Id) || slot.doomed && !busy
            {
                return Err(format!("slot {id} is empty and not free"));
            }
        }
        Ok(())
    }
}
