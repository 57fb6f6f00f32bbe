//! Pools of memory blocks of equal size, with run-time borrow checks per block. A pool does not
//! interpret the contents of its blocks.
//!
//! A step leases the blocks of its plan. At the same time, transfers to and from other memory
//! borrow single blocks. A block is free, or has readers, or has one writer. A conflicting request
//! fails at once instead of waiting.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::buffer::Aligned;

/// State bit: a [`BlockWrite`] exists.
const LENT: u32 = 1 << 31;
/// State bit: the step's lease writes the block.
const STEP_WRITES: u32 = 1 << 30;
/// State bits: number of [`BlockRead`]s.
const READERS: u32 = STEP_WRITES - 1;

/// A block table with a range of its entries.
pub(crate) type Entries = (Arc<Vec<i32>>, Range<usize>);

/// The memory of a pool and the state of each of its blocks.
pub(crate) struct BlockMemory {
    block_bytes: usize,
    /// Accessed only through [`BlockMemory::base`]: no reference to the whole may exist while parts
    /// are lent.
    data: Aligned<u8>,
    states: Box<[AtomicU32]>,
    /// Number of [`BlockWrite`]s so far, by block.
    loads: Box<[AtomicU32]>,
    gate: Mutex<Gate>,
}

/// Prevents transfers from writing to blocks that the step in flight only reads. Blocks that are
/// only read are not marked one by one: their number grows with the context lengths, so marking
/// them would make long contexts slow.
#[derive(Default)]
struct Gate {
    /// Blocks that the step reads.
    reads: Vec<Entries>,
    /// Bitmap of the blocks in `reads`, built on a transfer's first write request during the step.
    read_bits: Vec<u64>,
    /// Number of live [`BlockWrite`]s.
    writers: usize,
}

impl Gate {
    fn is_read(&mut self, block: usize, blocks: usize) -> bool {
        if self.reads.is_empty() {
            return false;
        }
        if self.read_bits.is_empty() {
            self.read_bits.resize(blocks.div_ceil(64), 0);
            for block in read_blocks(&self.reads).filter(|&b| b < blocks) {
                self.read_bits[block / 64] |= 1 << (block % 64);
            }
        }
        self.read_bits[block / 64] & 1 << (block % 64) != 0
    }
}

fn read_blocks(reads: &[Entries]) -> impl Iterator<Item = usize> {
    let entries = reads
        .iter()
        .flat_map(|(table, range)| &table[range.clone()]);
    entries.filter_map(|&block| usize::try_from(block).ok())
}

fn zeros(count: usize) -> Box<[AtomicU32]> {
    (0..count).map(|_| AtomicU32::new(0)).collect()
}

impl BlockMemory {
    pub(crate) fn new(block_bytes: usize, blocks: usize) -> Self {
        Self {
            block_bytes,
            data: Aligned::lasting(blocks.saturating_mul(block_bytes)),
            states: zeros(blocks),
            loads: zeros(blocks),
            gate: Mutex::default(),
        }
    }

    pub(crate) fn blocks(&self) -> usize {
        self.states.len()
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.data.base()
    }

    /// Whether the step's lease writes the block; `false` outside the pool. Only for the lease.
    pub(crate) fn is_written_by_step(&self, block: usize) -> bool {
        // Relaxed: the lease has set the mark itself, before it was built.
        let marked = |state: &AtomicU32| state.load(Ordering::Relaxed) & STEP_WRITES != 0;
        self.states.get(block).is_some_and(marked)
    }

    /// Number of transfers that have written the block, including one in progress. It wraps.
    pub(crate) fn loads(&self, block: usize) -> u32 {
        // Relaxed: changes are ordered by the gate.
        self.loads[block].load(Ordering::Relaxed)
    }

    /// A block's memory, fully initialised. The caller may turn the pointer into a reference only
    /// while the block's state allows that access.
    fn bytes(&self, block: usize) -> *mut [u8] {
        assert!(block < self.blocks(), "block outside its pool");
        let len = self.block_bytes;
        // SAFETY: the memory contains all blocks.
        let start = unsafe { self.data.base().add(block * len) };
        ptr::slice_from_raw_parts_mut(start, len)
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Marks a block as written by the step. Returns `false` if it was already marked.
    pub(crate) fn begin_write(&self, block: usize) -> Result<bool, BlockBusy> {
        let blocks = self.blocks();
        assert!(block < blocks, "block {block} outside the pool of {blocks}");
        let free = |state: u32| (state & (LENT | READERS) == 0).then_some(state | STEP_WRITES);
        match self.states[block].fetch_update(Ordering::Acquire, Ordering::Relaxed, free) {
            Ok(state) => Ok(state & STEP_WRITES == 0),
            Err(state) => Err(BlockBusy {
                block,
                writing: state & LENT != 0,
            }),
        }
    }

    /// Prevents transfers from writing to the blocks that the step reads.
    pub(crate) fn begin_reads(&self, reads: Vec<Entries>) -> Result<(), BlockBusy> {
        let mut gate = self.gate();
        if gate.writers > 0 {
            let lent = |&block: &usize| {
                let state = self.states.get(block);
                // Relaxed is enough: `LENT` is set and cleared only while the gate is locked.
                state.is_some_and(|s| s.load(Ordering::Relaxed) & LENT != 0)
            };
            if let Some(block) = read_blocks(&reads).find(lent) {
                let writing = true;
                return Err(BlockBusy { block, writing });
            }
        }
        gate.reads = reads;
        Ok(())
    }

    /// Ends the step's reads, and its writes to the blocks `written`.
    pub(crate) fn end_step(&self, written: impl Iterator<Item = usize>) {
        let mut gate = self.gate();
        gate.reads.clear();
        gate.read_bits.clear();
        drop(gate);
        for block in written {
            self.states[block].fetch_and(!STEP_WRITES, Ordering::Release);
        }
    }
}

/// Handle that lends single blocks of a pool, on any thread.
#[derive(Clone)]
pub struct PoolHandle {
    pool: Arc<BlockMemory>,
}

impl PoolHandle {
    pub(crate) fn new(pool: Arc<BlockMemory>) -> Self {
        Self { pool }
    }

    /// Size of a block in bytes.
    pub fn block_bytes(&self) -> usize {
        self.pool.block_bytes
    }

    /// Number of blocks in the pool.
    pub fn blocks(&self) -> usize {
        self.pool.blocks()
    }

    /// Prefaults all memory of the pool on a thread of the lowest priority, so that loads to
    /// untouched blocks do not wait for page faults. Contents are unchanged. Stops early if this is
    /// the last handle.
    pub fn populate(&self) {
        let pool = Arc::clone(&self.pool);
        let name = "penstock-kv-touch".to_owned();
        let started = std::thread::Builder::new().name(name).spawn(move || {
            penstock_memory::give_way();
            for block in 0..pool.blocks() {
                let bytes = pool.bytes(block);
                // SAFETY: the block's memory belongs to the pool, which is held here.
                let done = unsafe { penstock_memory::populate(bytes.cast(), bytes.len()) };
                if !done || Arc::strong_count(&pool) == 1 {
                    return;
                }
            }
        });
        // If the thread cannot start, the system allocates pages on first use.
        drop(started);
    }

    /// Borrows a block for reading. Returns `None` if the step or a transfer writes it, or it is
    /// not in the pool.
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

    /// Borrows a block for writing. Returns `None` if the step or a transfer reads or writes it, or
    /// it is not in the pool.
    pub fn write(&self, block: usize) -> Option<BlockWrite> {
        let state = self.pool.states.get(block)?;
        let mut gate = self.pool.gate();
        if gate.is_read(block, self.pool.blocks()) {
            return None;
        }
        state
            .compare_exchange(0, LENT, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        gate.writers += 1;
        self.pool.loads[block].fetch_add(1, Ordering::Relaxed);
        let pool = Arc::clone(&self.pool);
        Some(BlockWrite { pool, block })
    }
}

/// The bytes of a block borrowed for reading.
pub struct BlockRead {
    pool: Arc<BlockMemory>,
    block: usize,
}

impl Deref for BlockRead {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: whole and initialised (`bytes`); this reader's count excludes writers while the
        // guard lives.
        unsafe { &*self.pool.bytes(self.block) }
    }
}

impl Drop for BlockRead {
    fn drop(&mut self) {
        self.pool.states[self.block].fetch_sub(1, Ordering::Release);
    }
}

/// The bytes of a block borrowed for writing.
pub struct BlockWrite {
    pool: Arc<BlockMemory>,
    block: usize,
}

impl Deref for BlockWrite {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: whole and initialised (`bytes`); `LENT` excludes all other access while the guard
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
        let mut gate = self.pool.gate();
        gate.writers -= 1;
        self.pool.states[self.block].fetch_and(!LENT, Ordering::Release);
    }
}

/// Error: a block of a step is in a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockBusy {
    pub block: usize,
    /// Whether the transfer writes the block. If not, it reads, and the step would write.
    pub writing: bool,
}

impl fmt::Display for BlockBusy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let block = self.block;
        if self.writing {
            write!(f, "block {block} is lent for writing")
        } else {
            write!(f, "block {block}, to be written, is lent for reading")
        }
    }
}

impl std::error::Error for BlockBusy {}
