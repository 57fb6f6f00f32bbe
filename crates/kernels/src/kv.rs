//! The paged KV pool, block first: all layers of one block are one contiguous extent.
//!
//! A block of `block_size` tokens is made of (layer, KV head) tiles, each a K part and a V part, both cut into runs of 16 tokens:
//!
//! ```text
//! bf16   K [run][dim / 2][token 16][2]        V [run][token / 2][dim][2]
//! f32    K [run][dim][token 16]               V [run][token][dim]
//! ```
//!
//! A vector load of K brings 16 tokens times the inputs of one dot-product step, one of V brings 16 dims times the tokens of one step, so neither
//! scores nor outputs need sums across lanes. `dim` is padded to a multiple of 16.

use crate::acts::bf16_bits;
use crate::buffer::Aligned;

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
        block * self.block_bytes() + (layer * self.kv_heads + head) * 2 * self.part_bytes()
    }

    /// Bytes of a block: what one block of the pool takes.
    pub fn block_bytes(&self) -> usize {
        self.layers * self.kv_heads * 2 * self.part_bytes()
    }
}

/// `blocks` blocks of keys and values. Memory is zero and untouched until written.
pub struct KvPool {
    layout: KvLayout,
    blocks: usize,
    data: Aligned<u8>,
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
            layout,
            blocks,
            data: Aligned::lasting(blocks * layout.block_bytes()),
        }
    }

    /// The shape.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Blocks in the pool.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// The K and V bytes of one run of 16 tokens.
    pub(crate) fn run(
        &self,
        block: usize,
        layer: usize,
        head: usize,
        run: usize,
    ) -> (&[u8], &[u8]) {
        let (bytes, part) = (self.layout.run_bytes(), self.layout.part_bytes());
        assert!((run + 1) * bytes <= part, "run outside the block");
        assert!(
            block < self.blocks,
            "block {block} outside the KV pool of {}",
            self.blocks
        );
        let k = self.layout.tile(block, layer, head) + run * bytes;
        (
            &self.data[k..k + bytes],
            &self.data[k + part..k + part + bytes],
        )
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
        let bytes = self.layout.run_bytes();
        let start = self.layout.tile(block, layer, head) + part * self.layout.part_bytes();
        for line in (start + runs.start * bytes..start + runs.end * bytes).step_by(64) {
            crate::isa::prefetch(self.data.as_ptr().wrapping_add(line));
        }
    }

    /// A view through which several tasks store rows of different (block, offset) places.
    pub(crate) fn writer(&mut self) -> KvWriter<'_> {
        let layout = self.layout;
        let blocks = self.blocks;
        KvWriter {
            layout,
            blocks,
            data: crate::buffer::Shared::new(&mut self.data),
        }
    }
}

/// See [`KvPool::writer`].
pub(crate) struct KvWriter<'a> {
    layout: KvLayout,
    blocks: usize,
    data: crate::buffer::Shared<'a, u8>,
}

impl KvWriter<'_> {
    /// Clears the V part of a block's tiles of one layer, which must happen before its first token is stored: masked tokens meet their
    /// probability of exactly zero with a finite value, whatever an earlier owner of the block left there.
    ///
    /// # Safety
    /// No other task touches the block's tiles of this layer at once.
    pub(crate) unsafe fn clear(&self, block: usize, layer: usize) {
        let l = &self.layout;
        for head in 0..l.kv_heads {
            // SAFETY: the tile is this task's alone by the caller's promise.
            unsafe {
                self.data.slice(
                    self.tile(block, layer, head) + l.part_bytes(),
                    l.part_bytes(),
                )
            }
            .fill(0);
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
        let run = self.tile(block, layer, head) + offset / RUN * l.run_bytes();
        let (k, v) = (
            self.data.at(run, l.run_bytes()),
            self.data.at(run + l.part_bytes(), l.run_bytes()),
        );
        let (token, dim) = (offset % RUN, l.dim());
        // SAFETY: the offsets lie in the run (token < 16, d < dim) and are this token's alone; runs are 64-byte aligned.
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

    fn tile(&self, block: usize, layer: usize, head: usize) -> usize {
        assert!(
            block < self.blocks,
            "block {block} outside the KV pool of {}",
            self.blocks
        );
        self.layout.tile(block, layer, head)
    }
}
