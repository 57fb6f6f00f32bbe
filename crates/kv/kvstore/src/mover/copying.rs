//! Copies between blocks of the KV pools and slots of the RAM tier.

use std::ops::{Deref, DerefMut, Range};
use std::sync::{Mutex, PoisonError};

use super::memory::Reserved;
use super::queue::Work;
use super::transfer::Pool;

/// Bytes per thread of a copy: smaller copies use fewer threads.
const WORTH_A_THREAD: usize = 4 << 20;

/// Checks slot numbers: there must be one for each block of a KV group, and a store's slots must be
/// distinct. The error describes the problem.
pub(crate) fn slot_numbers(
    slots: &[i32],
    limit: usize,
    blocks: usize,
    store: bool,
) -> Result<Vec<usize>, String> {
    if slots.len() != blocks {
        return Err(format!("{} slots for {blocks} blocks", slots.len()));
    }
    let number = |&slot: &i32| match usize::try_from(slot) {
        Ok(number) if number < limit => Ok(number),
        _ => Err(format!("slot {slot} is not in 0..{limit}")),
    };
    let numbers: Vec<usize> = slots.iter().map(number).collect::<Result<_, _>>()?;
    let mut sorted = if store { numbers.clone() } else { Vec::new() };
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("slot {} is to be filled twice", pair[0])),
        None => Ok(numbers),
    }
}

/// The slots of the RAM tier.
pub(crate) struct Slots {
    memory: Reserved,
    /// Bytes of a block of each KV group; a slot has one block of each group.
    groups: Vec<usize>,
    slot_bytes: usize,
    threads: usize,
}

type Pair<'a> = (&'a mut [u8], &'a [u8]);

impl Slots {
    /// # Errors
    /// The address range is not available.
    pub(crate) fn new(slots: usize, groups: Vec<usize>, threads: usize) -> std::io::Result<Self> {
        let slot_bytes = groups.iter().sum();
        let memory = Reserved::new(slots.saturating_mul(slot_bytes))?;
        memory.touch_ahead();
        Ok(Self {
            memory,
            groups,
            slot_bytes,
            threads,
        })
    }

    /// Executes a copy and returns its blocks; the result is the number of bytes.
    pub(crate) fn call<P: Pool>(&mut self, work: Work<P>) -> u64 {
        let bytes: usize = match work {
            Work::FromRam { slots, mut blocks } => {
                self.load(&slots, &mut blocks);
                blocks.iter().flatten().map(|block| block.len()).sum()
            }
            Work::ToRam { slots, blocks } => {
                self.store(&slots, &blocks);
                blocks.iter().map(|block| block.len()).sum()
            }
            _ => unreachable!("chunks do not go to RAM"),
        };
        bytes as u64
    }

    fn range(&self, slot: usize) -> Range<usize> {
        slot * self.slot_bytes..(slot + 1) * self.slot_bytes
    }

    /// Fills `blocks` from `slots`, which must be valid. `blocks` is ordered by slot, then by KV
    /// group.
    fn load(&self, slots: &[usize], blocks: &mut [Option<impl DerefMut<Target = [u8]>>]) {
        let mut pairs: Vec<Pair<'_>> = Vec::new();
        for (blocks, &slot) in blocks.chunks_mut(self.groups.len()).zip(slots) {
            let mut from = &self.memory[self.range(slot)];
            for (block, &bytes) in blocks.iter_mut().zip(&self.groups) {
                let (own, rest) = from.split_at(bytes);
                from = rest;
                pairs.extend(block.as_mut().map(|block| (&mut block[..], own)));
            }
        }
        copy(pairs, self.threads);
    }

    /// Copies `blocks` to `slots`, which must be valid and distinct. `blocks` is ordered by slot,
    /// then by KV group.
    fn store(&mut self, slots: &[usize], blocks: &[impl Deref<Target = [u8]>]) {
        if self.slot_bytes == 0 {
            return;
        }
        let blocks = blocks.chunks(self.groups.len());
        let mut from: Vec<_> = slots.iter().copied().zip(blocks).collect();
        from.sort_unstable_by_key(|&(slot, _)| slot);
        let (mut rest, mut at) = (self.memory.chunks_exact_mut(self.slot_bytes), 0);
        let mut pairs: Vec<Pair<'_>> = Vec::new();
        for (slot, blocks) in from {
            let mut into = rest.nth(slot - at).unwrap_or_default();
            at = slot + 1;
            for block in blocks {
                let (own, others) = into.split_at_mut(block.len());
                into = others;
                pairs.push((own, &block[..]));
            }
        }
        copy(pairs, self.threads);
    }
}

/// Copies all pairs, on several threads if there is enough data. If a thread cannot be started, the
/// others do its share.
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
            let mut slots = Slots::new(11, vec![BYTES], threads).unwrap();
            let blocks: Vec<_> = (0..9).map(content).collect();
            let places = [10, 2, 0, 7, 3, 9, 1, 5, 8];
            slots.store(&places, &blocks);
            let mut back = vec![Some(vec![0; BYTES]); 9];
            slots.load(&places, &mut back);
            assert!(back.into_iter().flatten().eq(blocks.clone()));
            // Slots between them are as they were; a slot may be read twice.
            let mut other = vec![Some(vec![1; BYTES]); 3];
            slots.load(&[4, 7, 7], &mut other);
            let other: Vec<_> = other.into_iter().flatten().collect();
            assert!(
                other[0].iter().all(|&b| b == 0) && other[1] == blocks[3] && other[2] == other[1]
            );
        }
    }

    #[test]
    fn a_slot_has_a_block_of_each_group() {
        let mut slots = Slots::new(4, vec![3, 0, 5], 1).unwrap();
        let blocks = [
            vec![1; 3],
            vec![],
            vec![2; 5],
            vec![3; 3],
            vec![],
            vec![4; 5],
        ];
        slots.store(&[2, 0], &blocks);
        let mut back = [
            Some(vec![9; 3]),
            None,
            None,
            None,
            Some(vec![]),
            Some(vec![9; 5]),
        ];
        slots.load(&[0, 2], &mut back);
        assert_eq!(back[0].as_ref(), Some(&blocks[3]));
        assert_eq!(back[5].as_ref(), Some(&blocks[2]));
    }

    #[test]
    fn a_rank_without_layers_has_slots_of_nothing() {
        let mut slots = Slots::new(4, vec![0], 2).unwrap();
        slots.store(&[3, 1], &[vec![], vec![]]);
        slots.load(&[3, 1], &mut [Some(vec![]), None]);
        slots.store(&[], &[] as &[Vec<u8>]);
    }
}
