//! Store identities, and the keys of KV parts (one KV head of one chunk).

pub(crate) use penstock_prefix::UNSALTED;
pub use penstock_prefix::{Digest, Group, group};
use serde::{Deserialize, Serialize};

/// Everything besides the tokens that determines the bytes of a part. Engines with equal identities
/// share parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreIdentity {
    /// The engine's cache identity (weights, numerics, spec) as 64 hex digits. Excludes adapter and
    /// salt, which are part of the digests.
    pub cache: String,
    /// Number of decoder layers in the whole model.
    pub layers: usize,
    /// Number of KV heads in the whole model.
    pub kv_heads: usize,
    /// Tokens per KV block.
    pub block_tokens: usize,
    /// Bytes per (layer, head) tile of a block, keys and values together.
    pub tile_bytes: usize,
    /// Type and order of the numbers in a tile: `bf16` or `f32`, with `-rows` from the torch
    /// backend.
    pub dtype: String,
}

impl StoreIdentity {
    /// The identity as the 32 bytes that name a store's directory or key prefix.
    pub fn digest(&self) -> Digest {
        let text = format!(
            "{}/{}/{}/{}/{}/{}",
            self.cache, self.layers, self.kv_heads, self.block_tokens, self.tile_bytes, self.dtype
        );
        blake3::derive_key("penstock kv store v1", text.as_bytes())
    }
}

/// One part of a chunk: the last `blocks` blocks of the prefix `digest`, one KV head, layers
/// `layers.0..layers.1` of one KV group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartKey {
    /// Prefix that ends with the chunk's last block.
    pub digest: Digest,
    /// Number of blocks in the chunk.
    pub blocks: u16,
    /// KV head, counted over the whole model.
    pub head: u16,
    /// First layer and end (exclusive), counted over all KV groups (docs/kv-format.md). The range
    /// also identifies the KV group.
    pub layers: (u16, u16),
}

impl PartKey {
    /// Name of the part within its chunk, in all stores: `8.h2.l0-30`.
    pub(crate) fn name_in_chunk(&self) -> String {
        let (first, end) = self.layers;
        format!("{}.h{}.l{first}-{end}", self.blocks, self.head)
    }

    /// Bytes that one block contributes to the part: its tiles in all of the part's layers.
    pub fn extent_bytes(&self, identity: &StoreIdentity) -> usize {
        usize::from(self.layers.1 - self.layers.0) * identity.tile_bytes
    }

    /// Size of the part in bytes, without the header that a tier adds.
    pub fn payload_bytes(&self, identity: &StoreIdentity) -> usize {
        usize::from(self.blocks) * self.extent_bytes(identity)
    }
}

/// The bytes as lower-case hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(digit).collect()
}
