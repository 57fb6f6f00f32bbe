//! Who may touch which block of the KV pool: checked at run time, block by block.
//!
//! A step claims the blocks of its plan; what moves keys and values to and from other memory
//! borrows single blocks meanwhile. A block is free, or has readers, or has one writer. Whoever
//! comes second and does not fit gets an answer at once: nobody waits here.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::buffer::Aligned;
use crate::kv::{KvLayout, KvPool};

/// The block has a [`BlockWrite`].
const LENT: u32 = 1 << 31;
/// The step's claim writes it.
const STEP_WRITES: u32 = 1 << 30;
/// The step's claim reads it.
const STEP_READS: u32 = 1 << 29;
/// Number of [`BlockRead`]s.
const READERS: u32 = STEP_READS - 1;

/// The memory of a pool and the state of each of its blocks.
pub(crate) struct BlockPool {
    layout: KvLayout,
    /// Reached through [`BlockPool::base`] only: while parts are lent, no reference to all of it
    /// may exist.
    data: Aligned<u8>,
    states: Box<[AtomicU32]>,
}

impl BlockPool {
    pub(crate) fn new(layout: KvLayout, blocks: usize) -> Self {
        Self {
            layout,
            data: Aligned::lasting(blocks.saturating_mul(layout.block_bytes())),
            states: (0..blocks).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    pub(crate) fn layout(&self) -> &KvLayout {
        &self.layout
    }

    pub(crate) fn blocks(&self) -> usize {
        self.states.len()
    }

    /// A block's memory, all of it initialised. Whoever makes a reference of it knows that the
    /// block's state lets it.
    fn bytes(&self, block: usize) -> *mut [u8] {
        assert!(block < self.blocks(), "block outside the KV pool");
        let len = self.layout.block_bytes();
        // SAFETY: the memory holds all blocks.
        let start = unsafe { self.data.base().add(block * len) };
        ptr::slice_from_raw_parts_mut(start, len)
    }

    /// Sets `mark` in a state that has none of `against`; otherwise the state.
    fn enter(&self, block: usize, mark: u32, against: u32) -> Result<u32, u32> {
        self.states[block].fetch_update(Ordering::Acquire, Ordering::Relaxed, |state| {
            (state & against == 0).then_some(state | mark)
        })
    }

    fn leave(&self, block: usize, marks: u32) {
        self.states[block].fetch_and(!marks, Ordering::Release);
    }
}

/// A pool's blocks for those who borrow them one by one, from any thread.
#[derive(Clone)]
pub struct PoolHandle {
    pool: Arc<BlockPool>,
}

impl PoolHandle {
    pub(crate) fn new(pool: Arc<BlockPool>) -> Self {
        Self { pool }
    }

    /// The shape.
    pub fn layout(&self) -> &KvLayout {
        self.pool.layout()
    }

    /// Blocks in the pool.
    pub fn blocks(&self) -> usize {
        self.pool.blocks()
    }

    /// Has the system give the pool its memory, on a thread of its own that gives way to all
    /// others: a block that is first used by a load would wait for it. Contents stay as they are.
    /// Ends early when nobody else holds the pool.
    pub fn populate(&self) {
        let pool = Arc::clone(&self.pool);
        let name = "penstock-kv-touch".to_owned();
        let started = std::thread::Builder::new().name(name).spawn(move || {
            penstock_memory::give_way();
            for block in 0..pool.blocks() {
                let bytes = pool.bytes(block);
                // SAFETY: the block's memory is the pool's, which is held here.
                let done = unsafe { penstock_memory::populate(bytes.cast(), bytes.len()) };
                if !done || Arc::strong_count(&pool) == 1 {
                    return;
                }
            }
        });
        // Without that thread, blocks get their memory as they are used.
        drop(started);
    }

    /// Borrows a block to read it; `None` when somebody writes it, or the pool has no such block.
    pub fn read(&self, block: usize) -> Option<BlockRead> {
        let state = self.pool.states.get(block)?;
        let more = |state: u32| {
            let free = state & (LENT | STEP_WRITES) == 0 && state & READERS < READERS;
            free.then_some(state + 1)
        };
        state
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, more)
            .ok()?;
        let pool = Arc::clone(&self.pool);
        Some(BlockRead { pool, block })
    }

    /// Borrows a block to write it; `None` when anybody else has it, or the pool has no such block.
    pub fn write(&self, block: usize) -> Option<BlockWrite> {
        let state = self.pool.states.get(block)?;
        state
            .compare_exchange(0, LENT, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        let pool = Arc::clone(&self.pool);
        Some(BlockWrite { pool, block })
    }
}

/// The bytes of a block that is lent for reading: the tiles of all layers of one KV head after
/// another, in the order of the heads.
pub struct BlockRead {
    pool: Arc<BlockPool>,
    block: usize,
}

impl Deref for BlockRead {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: whole and initialised (`bytes`); this reader's count keeps writers out while the
        // guard lives.
        unsafe { &*self.pool.bytes(self.block) }
    }
}

impl Drop for BlockRead {
    fn drop(&mut self) {
        self.pool.states[self.block].fetch_sub(1, Ordering::Release);
    }
}

/// The bytes of a block that is lent for writing, in the order of [`BlockRead`].
pub struct BlockWrite {
    pool: Arc<BlockPool>,
    block: usize,
}

impl Deref for BlockWrite {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: whole and initialised (`bytes`); `LENT` keeps everybody else out while the guard
        // lives.
        unsafe { &*self.pool.bytes(self.block) }
    }
}

impl DerefMut for BlockWrite {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the guard is borrowed mutably.
        unsafe { &mut *self.pool.bytes(self.block) }
    }
}

impl Drop for BlockWrite {
    fn drop(&mut self) {
        self.pool.leave(self.block, LENT);
    }
}

/// A block that a step names is lent to somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// The block.
    pub block: usize,
    /// Whether it is lent for writing; otherwise for reading, and the step would write it.
    pub writing: bool,
}

impl fmt::Display for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let block = self.block;
        if self.writing {
            write!(f, "block {block} is lent for writing")
        } else {
            write!(f, "block {block}, to be written, is lent for reading")
        }
    }
}

impl std::error::Error for Lent {}

/// The blocks of one step, until it is dropped. See [`KvPool::claim`].
pub struct KvClaim<'a> {
    memory: &'a BlockPool,
    blocks: &'a mut Vec<usize>,
}

impl<'a> KvClaim<'a> {
    pub(crate) fn new(
        pool: &'a mut KvPool,
        writes: impl IntoIterator<Item = usize>,
        reads: impl IntoIterator<Item = usize>,
    ) -> Result<Self, Lent> {
        let KvPool { memory, claimed } = pool;
        let mut claim = Self {
            memory,
            blocks: claimed,
        };
        for block in writes {
            claim.enter(block, STEP_WRITES, LENT | READERS)?;
        }
        for block in reads {
            claim.enter(block, STEP_READS, LENT)?;
        }
        Ok(claim)
    }

    fn enter(&mut self, block: usize, mark: u32, against: u32) -> Result<(), Lent> {
        let memory = self.memory;
        let blocks = memory.blocks();
        assert!(
            block < blocks,
            "block {block} outside the KV pool of {blocks}"
        );
        // Sequences that share a prefix name its blocks again and again.
        if memory.states[block].load(Ordering::Relaxed) & mark != 0 {
            return Ok(());
        }
        let state = memory.enter(block, mark, against).map_err(|state| Lent {
            block,
            writing: state & LENT != 0,
        })?;
        if state & (STEP_READS | STEP_WRITES) == 0 {
            self.blocks.push(block);
        }
        Ok(())
    }

    /// The pool's shape.
    pub fn layout(&self) -> &KvLayout {
        self.memory.layout()
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.memory.data.base()
    }

    fn has(&self, block: usize, marks: u32) -> bool {
        let state = self.memory.states.get(block);
        // Relaxed: the marks are this claim's own, set before it was built.
        state.is_some_and(|s| s.load(Ordering::Relaxed) & marks != 0)
    }

    /// Panics unless the step may read the block.
    pub(crate) fn assert_read(&self, block: usize) {
        assert!(
            self.has(block, STEP_READS | STEP_WRITES),
            "block {block} is not claimed"
        );
    }

    /// Panics unless the step may write the block.
    pub(crate) fn assert_written(&self, block: usize) {
        assert!(
            self.has(block, STEP_WRITES),
            "block {block} is not claimed for writing"
        );
    }
}

impl Drop for KvClaim<'_> {
    fn drop(&mut self) {
        for block in self.blocks.drain(..) {
            self.memory.leave(block, STEP_READS | STEP_WRITES);
        }
    }
}
