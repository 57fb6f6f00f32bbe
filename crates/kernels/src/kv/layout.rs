//! The layout of KV blocks: block -> KV head -> layer -> (K part, V part).
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
    pub(super) fn tile(&self, block: usize, layer: usize, head: usize) -> usize {
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
