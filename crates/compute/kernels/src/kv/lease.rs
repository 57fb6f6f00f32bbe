//! A step's lease: the blocks that its kernels may read and write.

use std::ops::Range;
use std::sync::Arc;

use super::layout::{KvLayout, KvType, RUN};
use crate::activations::bf16_bits;
use crate::block_memory::{BlockBusy, BlockMemory, PoolHandle};

/// A pool of blocks of keys and values. Memory is zero, and physical pages are allocated on first
/// write.
///
/// Kernels access blocks through a [`StepLease`]; all other access is through a [`PoolHandle`].
pub struct KvPool {
    layout: KvLayout,
    memory: Arc<BlockMemory>,
    /// Blocks marked as written by the current lease, or by an earlier one that was leaked (never
    /// dropped).
    written: Vec<usize>,
}

/// The blocks of one sequence in a step.
#[derive(Clone, Debug)]
pub struct SequenceBlocks {
    /// Block table: the block of each `block_size` tokens, from position 0 on.
    pub table: Arc<Vec<i32>>,
    /// Table entries that the step accesses; other entries may have any value.
    pub seen: Range<usize>,
    /// First entry that the step writes; earlier ones are read-only.
    pub writes_from: usize,
}

impl SequenceBlocks {
    fn written(&self) -> &[i32] {
        &self.table[self.writes_from..self.seen.end]
    }
}

impl KvPool {
    /// Reserves the pool's memory.
    ///
    /// # Panics
    /// `block_size` is not a positive multiple of 16, or a latent is longer than its key.
    pub fn new(layout: KvLayout, blocks: usize) -> Self {
        assert!(
            layout.block_size > 0 && layout.block_size.is_multiple_of(RUN),
            "block size must be a multiple of {RUN}"
        );
        assert!(
            layout.latent.is_none_or(|n| n <= layout.head_dim),
            "a value is a part of its key"
        );
        Self {
            layout,
            memory: Arc::new(BlockMemory::new(layout.block_bytes(), blocks)),
            written: Vec::new(),
        }
    }

    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Number of blocks in the pool.
    pub fn blocks(&self) -> usize {
        self.memory.blocks()
    }

    /// A handle for transfers of single blocks.
    pub fn handle(&self) -> PoolHandle {
        PoolHandle::new(Arc::clone(&self.memory))
    }

    /// Leases the blocks of a step: exclusively if the step writes them, shared with other readers
    /// otherwise. The cost does not depend on the number of blocks read unless a transfer is
    /// writing to the pool.
    ///
    /// # Errors
    /// A block of the step is in a conflicting transfer. Nothing is leased.
    ///
    /// # Panics
    /// A range is outside its table, or a block to write is outside the pool.
    pub fn lease(&mut self, sequences: Vec<SequenceBlocks>) -> Result<StepLease<'_>, BlockBusy> {
        let lease = StepLease {
            layout: &self.layout,
            memory: &self.memory,
            written: &mut self.written,
            sequences,
        };
        // Clears the marks of a leaked lease, if there was one.
        lease.memory.end_step(lease.written.drain(..));
        for sequence in &lease.sequences {
            let ordered = sequence.seen.start <= sequence.writes_from;
            assert!(ordered && sequence.writes_from <= sequence.seen.end);
            for &block in sequence.written() {
                let block = usize::try_from(block).unwrap_or(usize::MAX);
                if lease.memory.begin_write(block)? {
                    lease.written.push(block);
                }
            }
        }
        let reads = lease.sequences.iter();
        let reads = reads.map(|s| (Arc::clone(&s.table), s.seen.start..s.writes_from));
        lease.memory.begin_reads(reads.collect())?;
        Ok(lease)
    }
}

/// The blocks of one step, leased until dropped. See [`KvPool::lease`].
pub struct StepLease<'a> {
    layout: &'a KvLayout,
    memory: &'a BlockMemory,
    written: &'a mut Vec<usize>,
    sequences: Vec<SequenceBlocks>,
}

impl StepLease<'_> {
    /// Layout of the pool.
    pub fn layout(&self) -> &KvLayout {
        self.layout
    }

    /// Block at table entry `entry` of a sequence.
    ///
    /// # Panics
    /// The entry is not leased, or is not a block of the pool.
    pub fn block(&self, sequence: usize, entry: usize) -> usize {
        let blocks = &self.sequences[sequence];
        assert!(
            blocks.seen.contains(&entry),
            "entry {entry} of sequence {sequence} is not leased"
        );
        let block = usize::try_from(blocks.table[entry]).unwrap_or(usize::MAX);
        assert!(block < self.memory.blocks(), "block outside the KV pool");
        block
    }

    /// Writes slices of the K and V bytes of each run of 16 tokens of a sequence to `out`. `tokens`
    /// starts at the first token of a run. In latent attention both slices are the K bytes.
    pub(crate) fn runs<'r>(
        &'r self,
        sequence: usize,
        tokens: Range<usize>,
        layer: usize,
        head: usize,
        out: &mut [(&'r [u8], &'r [u8])],
    ) {
        let layout = self.layout();
        let (bytes, part, size) = (layout.run_bytes(), layout.values_at(), layout.block_size);
        let (mut from, mut out) = (tokens.start, out.iter_mut());
        while from < tokens.end {
            let (entry, first) = (from / size, from % size / RUN);
            let k = layout.tile(self.block(sequence, entry), layer, head);
            from = tokens.end.min((entry + 1) * size);
            let end = (from - entry * size).div_ceil(RUN);
            for (run, out) in (first..end).zip(&mut out) {
                // SAFETY: the runs are in a tile of a block of the pool (`tile` and `block`; a tile
                // has `size` tokens). The lease excludes other writers from the block, and its own
                // writes borrow it mutably.
                *out = unsafe {
                    let k = self.memory.base().add(k + run * bytes);
                    (
                        std::slice::from_raw_parts(k, bytes),
                        std::slice::from_raw_parts(k.add(part), bytes),
                    )
                };
            }
        }
    }

    /// Prefetches the keys (`part` 0) or values (1) of some tokens of a sequence, all in one block,
    /// into the L2 cache.
    pub(crate) fn fetch(
        &self,
        sequence: usize,
        tokens: Range<usize>,
        layer: usize,
        head: usize,
        part: usize,
    ) {
        let layout = self.layout();
        if part == 1 && layout.latent.is_some() {
            return;
        }
        let (bytes, size) = (layout.run_bytes(), layout.block_size);
        let block = self.block(sequence, tokens.start / size);
        let first = tokens.start % size / RUN;
        let start = layout.tile(block, layer, head) + part * layout.part_bytes() + first * bytes;
        for line in (start..start + tokens.len().div_ceil(RUN) * bytes).step_by(64) {
            crate::isa::prefetch(self.memory.base().wrapping_add(line));
        }
    }

    /// A view through which several tasks store rows at distinct (block, offset) places.
    pub(crate) fn writer(&mut self) -> KvWriter<'_> {
        KvWriter {
            layout: *self.layout(),
            lease: self,
        }
    }

    fn assert_written(&self, block: usize) {
        assert!(
            self.memory.is_written_by_step(block),
            "block {block} is not leased for writing"
        );
    }
}

impl Drop for StepLease<'_> {
    fn drop(&mut self) {
        self.memory.end_step(self.written.drain(..));
    }
}

/// Stores keys and values in leased blocks. Created by [`StepLease::writer`].
pub(crate) struct KvWriter<'a> {
    layout: KvLayout,
    lease: &'a StepLease<'a>,
}

impl KvWriter<'_> {
    /// Clears the values of one layer in a block before its first token is stored. The block's
    /// previous sequence may have left infinity or NaN. Masked tokens have probability zero, but
    /// zero times infinity or NaN is not zero.
    ///
    /// # Safety
    /// No other task accesses the block's tiles of this layer during the call.
    pub(crate) unsafe fn clear(&self, block: usize, layer: usize) {
        let l = &self.layout;
        for head in 0..l.kv_heads {
            let v = self.tile(block, layer, head, l.values_at());
            // SAFETY: `v` is the start of a part of the tile; the caller guarantees that no other
            // task accesses the tile.
            unsafe { std::slice::from_raw_parts_mut(v, l.part_bytes()) }.fill(0);
        }
    }

    /// Stores the key and value of one token and head; in latent attention, the key only.
    ///
    /// # Safety
    /// During the call, no other task stores to the same (block, offset, layer, head) or clears the
    /// block.
    pub(crate) unsafe fn store(
        &self,
        place: (usize, usize),
        layer: usize,
        head: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let (block, offset) = place;
        let l = &self.layout;
        assert!(
            offset < l.block_size
                && key.len() == l.head_dim
                && value.len() == l.latent.map_or(l.head_dim, |_| 0),
            "token outside its tile"
        );
        let run = offset / RUN * l.run_bytes();
        let (k, v) = (
            self.tile(block, layer, head, run),
            self.tile(block, layer, head, run + l.values_at()),
        );
        let (token, dim) = (offset % RUN, l.dim());
        // SAFETY: the offsets are in the run (token < 16, d < dim) and belong to this token only;
        // runs are 64-byte aligned.
        unsafe {
            match l.dtype {
                KvType::Bf16 => {
                    for (d, pair) in key.chunks(2).enumerate() {
                        let second = if pair.len() == 2 {
                            bf16_bits(pair[1])
                        } else {
                            0
                        };
                        let both = u32::from(bf16_bits(pair[0])) | u32::from(second) << 16;
                        k.cast::<u32>().add(d * RUN + token).write(both.to_le());
                    }
                    for (d, &value) in value.iter().enumerate() {
                        v.cast::<u16>()
                            .add((token / 2 * dim + d) * 2 + token % 2)
                            .write(bf16_bits(value));
                    }
                }
                KvType::F32 => {
                    for (d, &key) in key.iter().enumerate() {
                        k.cast::<f32>().add(d * RUN + token).write(key);
                    }
                    for (d, &value) in value.iter().enumerate() {
                        v.cast::<f32>().add(token * dim + d).write(value);
                    }
                }
            }
        }
    }

    /// Address of byte `offset` of a tile in a block that the lease may write.
    fn tile(&self, block: usize, layer: usize, head: usize, offset: usize) -> *mut u8 {
        assert!(offset < self.layout.tile_bytes(), "outside the tile");
        self.lease.assert_written(block);
        let at = self.layout.tile(block, layer, head) + offset;
        // SAFETY: inside a tile of a block of the pool, by the assertions here and in `tile`.
        unsafe { self.lease.memory.base().add(at) }
    }
}
