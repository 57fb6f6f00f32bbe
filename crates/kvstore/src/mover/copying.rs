//! Copies between blocks and slots.

use std::ops::{Deref, DerefMut, Range};
use std::sync::{Mutex, PoisonError};

use super::memory::Reserved;

/// Bytes of a job from which a second thread pays for its start.
const WORTH_A_THREAD: usize = 4 << 20;

/// The slots of the RAM tier. Only the thread that copies has them.
pub(crate) struct Slots {
    memory: Reserved,
    slot_bytes: usize,
    threads: usize,
}

type Pair<'a> = (&'a mut [u8], &'a [u8]);

impl Slots {
    /// # Errors
    /// The system has no such range of addresses.
    pub(crate) fn new(slots: usize, slot_bytes: usize, threads: usize) -> std::io::Result<Self> {
        let memory = Reserved::new(slots.saturating_mul(slot_bytes))?;
        memory.touch_ahead();
        Ok(Self {
            memory,
            slot_bytes,
            threads,
        })
    }

    fn range(&self, slot: usize) -> Range<usize> {
        slot * self.slot_bytes..(slot + 1) * self.slot_bytes
    }

    /// Fills `blocks` from `slots`, which are in range.
    pub(crate) fn load(&self, slots: &[usize], blocks: &mut [impl DerefMut<Target = [u8]>]) {
        let pairs = blocks.iter_mut().zip(slots);
        let pairs: Vec<Pair<'_>> = pairs
            .map(|(block, &slot)| (&mut block[..], &self.memory[self.range(slot)]))
            .collect();
        copy(pairs, self.threads);
    }

    /// Keeps `blocks` in `slots`, which are in range and differ.
    pub(crate) fn store(&mut self, slots: &[usize], blocks: &[impl Deref<Target = [u8]>]) {
        if self.slot_bytes == 0 {
            return;
        }
        let mut from: Vec<(usize, &[u8])> = slots
            .iter()
            .zip(blocks)
            .map(|(&slot, block)| (slot, &block[..]))
            .collect();
        from.sort_unstable_by_key(|&(slot, _)| slot);
        let (mut rest, mut at) = (self.memory.chunks_exact_mut(self.slot_bytes), 0);
        let pairs = from.into_iter().filter_map(|(slot, block)| {
            let into = rest.nth(slot - at);
            at = slot + 1;
            Some((into?, block))
        });
        copy(pairs.collect(), self.threads);
    }
}

/// Copies all pairs, on several threads when there is enough of them. A thread that cannot be had
/// leaves its work to the others.
fn copy(mut pairs: Vec<Pair<'_>>, threads: usize) {
    let bytes: usize = pairs.iter().map(|(into, _)| into.len()).sum();
    let threads = threads.min(bytes / WORTH_A_THREAD).max(1);
    let each = pairs.len().div_ceil(4 * threads).max(1);
    let parts = Mutex::new(pairs.chunks_mut(each));
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || {
        while let Some(part) = next() {
            for (into, from) in part {
                into.copy_from_slice(from);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            let thread = std::thread::Builder::new().name("penstock-kv-cpy".into());
            let _ = thread.spawn_scoped(scope, run);
        }
        run();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_copies_on_several_threads_are_copies() {
        const BYTES: usize = 1 << 20;
        let content = |mark: usize| -> Vec<u8> {
            (0..BYTES)
                .map(|i| (i / 3 + mark * 7 + (i >> 12)) as u8)
                .collect()
        };
        for threads in [1, 2, 5] {
            let mut slots = Slots::new(11, BYTES, threads).unwrap();
            let blocks: Vec<_> = (0..9).map(content).collect();
            let places = [10, 2, 0, 7, 3, 9, 1, 5, 8];
            slots.store(&places, &blocks);
            let mut back = vec![vec![0; BYTES]; 9];
            slots.load(&places, &mut back);
            assert!(back == blocks);
            // Slots between them are as they were; a slot may be read twice.
            let mut other = vec![vec![1; BYTES]; 3];
            slots.load(&[4, 7, 7], &mut other);
            assert!(
                other[0].iter().all(|&b| b == 0) && other[1] == blocks[3] && other[2] == other[1]
            );
        }
    }

    #[test]
    fn a_rank_without_layers_has_slots_of_nothing() {
        let mut slots = Slots::new(4, 0, 2).unwrap();
        slots.store(&[3, 1], &[vec![], vec![]]);
        slots.load(&[3, 1], &mut [vec![], vec![]]);
        slots.store(&[], &[] as &[Vec<u8>]);
    }
}
