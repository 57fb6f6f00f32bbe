//! What is kept goes by names that are computed from what it is.

use serde::{Deserialize, Serialize};

/// Name of a prefix (`crates/prefix`).
pub type Digest = [u8; 32];

/// Bytes of a digest that say whose it is.
pub const GROUP_BYTES: usize = 4;

/// Whose a prefix is: the first bytes of all its digests.
pub type Group = [u8; GROUP_BYTES];

/// The group of requests without an adapter and a salt.
pub const UNSALTED: Group = [0; GROUP_BYTES];

/// The group of what `digest` names.
pub fn group(digest: &Digest) -> Group {
    let [a, b, c, d, ..] = *digest;
    [a, b, c, d]
}

/// Everything beside the tokens that decides the bytes of a part; two engines share exactly when
/// these are equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreIdentity {
    /// The engine's cache identity (weights, numerics, spec) as 64 hex digits. Adapter and salt are
    /// in the digests.
    pub cache: String,
    /// Decoder layers of the whole model.
    pub layers: usize,
    /// KV heads of the whole model.
    pub kv_heads: usize,
    /// Tokens of a KV block.
    pub block_tokens: usize,
    /// Bytes of one (layer, head) tile of a block, keys and values together.
    pub tile_bytes: usize,
    /// `bf16` or `f32`.
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

/// One part of a chunk: `blocks` consecutive blocks that end the prefix named `digest`, of one KV
/// head, in layers `layers.0..layers.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartKey {
    /// Name of the prefix that ends with the chunk's last block.
    pub digest: Digest,
    /// Blocks of the chunk.
    pub blocks: u16,
    /// KV head, counted over the whole model.
    pub head: u16,
    /// First layer and the one after the last.
    pub layers: (u16, u16),
}

impl PartKey {
    /// Bytes of one block's extent: the tiles of all these layers.
    pub fn extent_bytes(&self, identity: &StoreIdentity) -> usize {
        usize::from(self.layers.1 - self.layers.0) * identity.tile_bytes
    }

    /// Bytes of the part without what a tier adds.
    pub fn payload_bytes(&self, identity: &StoreIdentity) -> usize {
        usize::from(self.blocks) * self.extent_bytes(identity)
    }
}
