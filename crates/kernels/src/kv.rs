//! The paged KV pool: block -> KV head -> layer -> (K part, V part).
//!
//! A block of `block_size` tokens is one contiguous stretch of memory, and within it each head's
//! tiles of all layers are: what a rank with other heads, or a file, takes of a block is one
//! extent. A tile is the keys and values of one (head, layer), both cut into runs of 16 tokens:
//!
//! ```text
//! bf16   K [run][dim / 2][token 16][2]        V [run][token / 2][dim][2]
//! f32    K [run][dim][token 16]               V [run][token][dim]
//! ```
//!
//! A vector load of K brings 16 tokens times the inputs of one dot-product step, one of V brings 16
//! dims times the tokens of one step, so neither scores nor outputs need sums across lanes. `dim`
//! is padded to a multiple of 16.

use std::sync::Arc;

use crate::acts::bf16_bits;
use crate::lend::{BlockPool, KvClaim, Lent, PoolHandle};

/// Tokens of one run.
pub const RUN: usize = 16;

/// How keys and values are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// bf16.
    Bf16,
    /// f32.
    F32,
}

impl KvType {
    /// Bytes of one number.
    pub fn size(self) -> usize {
        match self {
            Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }
}

/// The shape of a KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Decoder layers.
    pub layers: usize,
    /// KV heads of a layer.
    pub kv_heads: usize,
    /// Numbers of one head's key (and value).
    pub head_dim: usize,
    /// Tokens of a block, a multiple of 16.
    pub block_size: usize,
    /// Number format.
    pub dtype: KvType,
}

impl KvLayout {
    pub(crate) fn dim(&self) -> usize {
        self.head_dim.next_multiple_of(16)
    }

    /// Bytes of the K (or V) part of one tile.
    pub(crate) fn part_bytes(&self) -> usize {
        self.block_size * self.dim() * self.dtype.size()
    }

    /// Bytes of one run of 16 tokens in a part.
    pub(crate) fn run_bytes(&self) -> usize {
        RUN * self.dim() * self.dtype.size()
    }

    /// Byte offset of a tile's K part in the pool; its V part follows.
    fn tile(&self, block: usize, layer: usize, head: usize) -> usize {
        assert!(
            layer < self.layers && head < self.kv_heads,
            "tile outside its block"
        );
        block * self.block_bytes() + (head * self.layers + layer) * self.tile_bytes()
    }

    /// Bytes of one (head, layer) tile: its K part and its V part.
    pub fn tile_bytes(&self) -> usize {
        2 * self.part_bytes()
    }

    /// Bytes of a block: what one block of the pool takes.
    pub fn block_bytes(&self) -> usize {
        self.layers * self.kv_heads * self.tile_bytes()
    }
}

/// `blocks` blocks of keys and values. Memory is zero and untouched until written.
///
/// Kernels work on the blocks of a [`KvClaim`]; all others can be lent to who holds a
/// [`PoolHandle`].
pub struct KvPool {
    pub(crate) memory: Arc<BlockPool>,
    /// Blocks of the claim that lives, or that was forgotten.
    pub(crate) claimed: Vec<usize>,
}

impl KvPool {
    /// Reserves the pool.
    ///
    /// # Panics
    /// `block_size` is not a positive multiple of 16.
    pub fn new(layout: KvLayout, blocks: usize) -> Self {
        assert!(
            layout.block_size > 0 && layout.block_size.is_multiple_of(RUN),
            "block size must be a multiple of {RUN}"
        );
        Self {
            memory: Arc::new(BlockPool::new(layout, blocks)),
            claimed: Vec::new(),
        }
    }

    /// The shape.
    pub fn layout(&self) -> &KvLayout {
        self.memory.layout()
    }

    /// Blocks in the pool.
    pub fn blocks(&self) -> usize {
        self.memory.blocks()
    }

    /// The pool for those who borrow single blocks of it.
    pub fn handle(&self) -> PoolHandle {
        PoolHandle::new(Arc::clone(&self.memory))
    }

    /// Takes the blocks of one step: those it `writes` for itself alone, those it only `reads`
    /// together with other readers. A block may be named several times.
    ///
    /// # Errors
    /// A block that is lent otherwise; nothing is then claimed.
    ///
    /// # Panics
    /// A block outside the pool.
    pub fn claim(
        &mut self,
        writes: impl IntoIterator<Item = usize>,
        reads: impl IntoIterator<Item = usize>,
    ) -> Result<KvClaim<'_>, Lent> {
        KvClaim::new(self, writes, reads)
    }
}

impl KvClaim<'_> {
    /// The K and V bytes of one run of 16 tokens.
    pub(crate) fn run(
        &self,
        block: usize,
        layer: usize,
        head: usize,
        run: usize,
    ) -> (&[u8], &[u8]) {
        let layout = self.layout();
        let (bytes, part) = (layout.run_bytes(), layout.part_bytes());
        assert!((run + 1) * bytes <= part, "run outside the block");
        self.assert_read(block);
        let k = layout.tile(block, layer, head) + run * bytes;
        let base = self.base();
        // SAFETY: the run lies in a tile of a block of the pool (`tile` and the assertions above).
        // The claim keeps writers out of the block, and its own writes need it mutably.
        unsafe {
            (
                std::slice::from_raw_parts(base.add(k), bytes),
                std::slice::from_raw_parts(base.add(k + part), bytes),
            )
        }
    }

    /// Starts to bring some runs' keys (`part` 0) or values (1) into the second cache.
    pub(crate) fn fetch(
        &self,
        block: usize,
        layer: usize,
        head: usize,
        part: usize,
        runs: std::ops::Range<usize>,
    ) {
        let bytes = self.layout().run_bytes();
        let start = self.layout().tile(block, layer, head) + part * self.layout().part_bytes();
        for line in (start + runs.start * bytes..start + runs.end * bytes).step_by(64) {
            crate::isa::prefetch(self.base().wrapping_add(line));
        }
    }

    /// A view through which several tasks store rows of different (block, offset) places.
    pub(crate) fn writer(&mut self) -> KvWriter<'_> {
        KvWriter {
            layout: *self.layout(),
            claim: self,
        }
    }
}

/// See [`KvClaim::writer`].
pub(crate) struct KvWriter<'a> {
    layout: KvLayout,
    claim: &'a KvClaim<'a>,
}

impl KvWriter<'_> {
    /// Clears the V part of a block's tiles of one layer, which must happen before its first token
    /// is stored: masked tokens meet their probability of exactly zero with a finite value,
    /// whatever an earlier owner of the block left there.
    ///
    /// # Safety
    /// No other task touches the block's tiles of this layer at once.
    pub(crate) unsafe fn clear(&self, block: usize, layer: usize) {
        let l = &self.layout;
        for head in 0..l.kv_heads {
            let v = self.tile(block, layer, head, l.part_bytes());
            // SAFETY: `v` begins a V part, which is this task's alone by the caller's promise.
            unsafe { std::slice::from_raw_parts_mut(v, l.part_bytes()) }.fill(0);
        }
    }

    /// Stores the key and value of one token and head.
    ///
    /// # Safety
    /// No other task stores to the same (block, offset, layer, head), or clears the block, at once.
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
            offset < l.block_size && key.len() == l.head_dim && value.len() == l.head_dim,
            "token outside its tile"
        );
        let run = offset / RUN * l.run_bytes();
        let (k, v) = (
            self.tile(block, layer, head, run),
            self.tile(block, layer, head, run + l.part_bytes()),
        );
        let (token, dim) = (offset % RUN, l.dim());
        // SAFETY: the offsets lie in the run (token < 16, d < dim) and are this token's alone; runs
        // are 64-byte aligned.
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
                    for (d, (&key, &value)) in key.iter().zip(value).enumerate() {
                        k.cast::<f32>().add(d * RUN + token).write(key);
                        v.cast::<f32>().add(token * dim + d).write(value);
                    }
                }
            }
        }
    }

    /// Address of byte `offset` of a tile in a block that the claim writes.
    fn tile(&self, block: usize, layer: usize, head: usize, offset: usize) -> *mut u8 {
        assert!(offset < self.layout.tile_bytes(), "outside the tile");
        self.claim.assert_written(block);
        let at = self.layout.tile(block, layer, head) + offset;
        // SAFETY: inside a tile of a block of the pool, by the assertions here and in `tile`.
        unsafe { self.claim.base().add(at) }
    }
}
