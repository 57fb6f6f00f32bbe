//! The layout of KV blocks: block -> KV head -> layer -> (K part, V part).
//!
//! A block of `block_size` tokens is contiguous, and within a block the tiles of one KV head for
//! all layers are contiguous. A transfer to a file, or to a rank that has other heads, therefore
//! copies one contiguous range per block. A tile holds the keys and values of one KV head in one
//! layer, both divided into runs of 16 tokens:
//!
//! ```text
//! bf16   K [run][dim / 2][token 16][2]        V [run][token / 2][dim][2]
//! f32    K [run][dim][token 16]               V [run][token][dim]
//! ```
//!
//! In latent attention the value is the first numbers of the key, so a tile has a K part only.
//! Attention converts the values of a run to the V layout when it reads them (`attn/latent.rs`).
//!
//! A vector load of K covers 16 tokens times the inputs of one dot-product step; a load of V covers
//! 16 dims times the tokens of one step. Thus neither scores nor outputs need sums across lanes.
//! `dim` is padded to a multiple of 16.

/// Tokens per run.
pub const RUN: usize = 16;

/// Number format of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    Bf16,
    F32,
}

impl KvType {
    /// Bytes per number.
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
    /// Number of decoder layers whose keys and values the pool holds.
    pub layers: usize,
    /// KV heads per layer.
    pub kv_heads: usize,
    /// Numbers per key of one KV head.
    pub head_dim: usize,
    /// Latent attention: the value consists of the first `latent` numbers of the key. `None` = the
    /// value is stored next to the key and has the same size.
    pub latent: Option<usize>,
    /// Tokens per block, a multiple of 16.
    pub block_size: usize,
    /// Number format.
    pub dtype: KvType,
}

impl KvLayout {
    pub(crate) fn dim(&self) -> usize {
        self.head_dim.next_multiple_of(16)
    }

    /// Numbers per value, padded to a multiple of 16 like those of keys.
    pub(crate) fn value_dim(&self) -> usize {
        self.latent.unwrap_or(self.head_dim).next_multiple_of(16)
    }

    /// Bytes of the K (or V) part of one tile.
    pub(crate) fn part_bytes(&self) -> usize {
        self.block_size * self.dim() * self.dtype.size()
    }

    /// Bytes of one run of 16 tokens in a part.
    pub(crate) fn run_bytes(&self) -> usize {
        RUN * self.dim() * self.dtype.size()
    }

    /// Byte offset of a tile's K part in the pool; its V part follows if it has one.
    pub(super) fn tile(&self, block: usize, layer: usize, head: usize) -> usize {
        assert!(
            layer < self.layers && head < self.kv_heads,
            "tile outside its block"
        );
        block * self.block_bytes() + (head * self.layers + layer) * self.tile_bytes()
    }

    /// Byte offset, in a tile, of the part that holds the values.
    pub(super) fn values_at(&self) -> usize {
        match self.latent {
            Some(_) => 0,
            None => self.part_bytes(),
        }
    }

    /// Bytes of one (head, layer) tile: its K part and its V part.
    pub fn tile_bytes(&self) -> usize {
        self.values_at() + self.part_bytes()
    }

    /// Bytes per block of the pool.
    pub fn block_bytes(&self) -> usize {
        self.layers * self.kv_heads * self.tile_bytes()
    }
}
