//! A KV pool in host memory with an external owner, such as tensors of a Python backend.

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::transfer::Pool;

/// State of a block with a live [`HostWrite`]. Any other value is the number of [`HostRead`]s.
const LENT: u32 = u32::MAX;

/// Contiguous KV blocks of equal size. Transfers borrow blocks individually: several readers or one
/// writer per block.
pub struct HostBlocks(Arc<Memory>);

struct Memory {
    base: NonNull<u8>,
    block_bytes: usize,
    /// State of each block: its number of readers, or `LENT`.
    states: Box<[AtomicU32]>,
    /// Keeps the memory alive.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: `base` is an address. Its bytes are accessed only through guards of blocks, and the state
// of a block allows either readers or one writer. The owner is Send and Sync itself.
unsafe impl Send for Memory {}
// SAFETY: same as for `Send`.
unsafe impl Sync for Memory {}

impl Memory {
    /// Address of a block's first byte.
    fn start(&self, block: usize) -> *mut u8 {
        assert!(block < self.states.len(), "block outside the memory");
        // SAFETY: the caller of `new` guarantees as many blocks as there are states.
        unsafe { self.base.as_ptr().add(block * self.block_bytes) }
    }
}

impl HostBlocks {
    /// `blocks` blocks of `block_bytes` bytes each, from `base` on.
    ///
    /// # Safety
    /// The memory is initialised and valid for reads and writes while `owner` lives. Other code
    /// does not write to a block that a transfer has borrowed, nor read a block that a transfer
    /// writes.
    pub unsafe fn new(
        owner: impl Any + Send + Sync,
        base: NonNull<u8>,
        blocks: usize,
        block_bytes: usize,
    ) -> Self {
        Self(Arc::new(Memory {
            base,
            block_bytes,
            states: (0..blocks).map(|_| AtomicU32::new(0)).collect(),
            _owner: Box::new(owner),
        }))
    }
}

impl Pool for HostBlocks {
    type Read = HostRead;
    type Write = HostWrite;

    fn read(&self, block: usize) -> Option<HostRead> {
        let state = self.0.states.get(block)?;
        let more = |readers: u32| (readers < LENT - 1).then(|| readers + 1);
        state
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, more)
            .ok()?;
        let memory = Arc::clone(&self.0);
        Some(HostRead { memory, block })
    }

    fn write(&self, block: usize) -> Option<HostWrite> {
        let state = self.0.states.get(block)?;
        state
            .compare_exchange(0, LENT, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        let memory = Arc::clone(&self.0);
        Some(HostWrite { memory, block })
    }

    fn block_bytes(&self) -> usize {
        self.0.block_bytes
    }
}

/// A block borrowed for reading.
pub struct HostRead {
    memory: Arc<Memory>,
    block: usize,
}

impl Deref for HostRead {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `memory` keeps its allocation alive, so the block's bytes are valid and
        // initialised; the count of readers prevents writes while the guard exists.
        unsafe {
            std::slice::from_raw_parts(self.memory.start(self.block), self.memory.block_bytes)
        }
    }
}

impl Drop for HostRead {
    fn drop(&mut self) {
        self.memory.states[self.block].fetch_sub(1, Ordering::Release);
    }
}

/// A block borrowed for writing.
pub struct HostWrite {
    memory: Arc<Memory>,
    block: usize,
}

impl Deref for HostWrite {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `memory` keeps its allocation alive, so the block's bytes are valid and
        // initialised; the state `LENT` prevents any other access while the guard exists.
        unsafe {
            std::slice::from_raw_parts(self.memory.start(self.block), self.memory.block_bytes)
        }
    }
}

impl DerefMut for HostWrite {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the guard is borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(self.memory.start(self.block), self.memory.block_bytes)
        }
    }
}

impl Drop for HostWrite {
    fn drop(&mut self) {
        self.memory.states[self.block].store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory whose owner can be watched.
    fn blocks(count: usize, bytes: usize) -> (HostBlocks, Arc<Vec<AtomicU32>>) {
        let words = (0..count * bytes / 4).map(|_| AtomicU32::new(0));
        let memory: Arc<Vec<_>> = Arc::new(words.collect());
        let base = NonNull::new(memory.as_ptr().cast_mut().cast()).unwrap();
        // SAFETY: the vector has `count * bytes` bytes, may be written through its atomics, and is
        // not moved while its owner lives; these tests read it when no guard lives.
        let pool = unsafe { HostBlocks::new(Arc::clone(&memory), base, count, bytes) };
        (pool, memory)
    }

    #[test]
    fn a_block_has_readers_or_one_writer() {
        let (pool, _memory) = blocks(3, 8);
        let (one, two) = (pool.read(1).unwrap(), pool.read(1).unwrap());
        assert!(pool.write(1).is_none());
        drop(one);
        assert!(pool.write(1).is_none());
        drop(two);
        let written = pool.write(1).unwrap();
        assert!(pool.read(1).is_none() && pool.write(1).is_none());
        assert!(pool.read(0).is_some() && pool.write(2).is_some());
        drop(written);
        assert!(pool.read(1).is_some());
        assert!(pool.read(3).is_none() && pool.write(3).is_none());
    }

    #[test]
    fn a_guard_has_the_bytes_of_its_own_block() {
        let (pool, memory) = blocks(4, 12);
        for block in 0..4 {
            pool.write(block).unwrap().fill(block as u8 + 1);
        }
        let words: Vec<_> = memory.iter().map(|w| w.load(Ordering::Relaxed)).collect();
        let expected = (0..12).map(|word| 0x0101_0101 * (word / 3 + 1));
        assert!(words.into_iter().eq(expected));
        assert_eq!(pool.read(2).unwrap()[..], [3; 12]);
    }

    #[test]
    fn the_owner_is_kept_by_the_last_guard() {
        let (pool, memory) = blocks(2, 4);
        let (read, write) = (pool.read(0).unwrap(), pool.write(1).unwrap());
        drop(pool);
        drop(read);
        assert_eq!(Arc::strong_count(&memory), 2);
        drop(write);
        assert_eq!(Arc::strong_count(&memory), 1);
    }

    #[test]
    fn a_group_without_layers_has_blocks_of_no_bytes() {
        // SAFETY: blocks of no bytes need no memory.
        let pool = unsafe { HostBlocks::new((), NonNull::dangling(), 2, 0) };
        assert!(pool.write(1).unwrap().is_empty());
        assert!(pool.write(2).is_none());
    }
}
