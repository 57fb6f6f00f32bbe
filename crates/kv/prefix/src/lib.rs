//! The block-hash rule: how a run of tokens is named in every prefix cache.
//!
//! Engine, cache tiers and gateway share this definition of "the same prefix", across processes,
//! machines and restarts.
//!
//! # The rule
//!
//! * Tokens are hashed in **units** of [`UNIT`] = 16, independent of the block size of a pool and
//!   the chunk size of a tier. A block of `16 * n` tokens is named by the digest of its last unit,
//!   so the same rule serves all sizes. A trailing part of fewer than 16 tokens has no digest.
//! * Digests form a chain: `digest[i] = digest[i - 1][..4] || BLAKE3_keyed(K, digest[i - 1] ||
//!   tokens[16 i .. 16 i + 16])[4..]`, tokens as `u32` little-endian: 32 + 64 bytes. Equal digests
//!   therefore mean equal tokens from the first one on.
//! * `K = BLAKE3_derive_key("penstock prefix unit v1", identity)`. The 32-byte **identity** stands
//!   for everything that changes the bytes of a KV block: weights fingerprint, numerics, rope and
//!   windows. Caches of two identities never meet.
//! * The parent of the first unit is the **root**: 32 zero bytes, or, for a request with a cache
//!   salt or an adapter, [`root`] of them. Requests with different salts share nothing.
//! * The first [`GROUP_BYTES`] of a digest are its [`Group`]. All digests of a chain have the group
//!   of the chain's root. The group lets a store enforce a tenant's quota, or delete its blocks,
//!   without knowing the salt. Two salts in one group (probability 2^-32) share a quota and a
//!   deletion, but no block: the other 28 bytes depend on the whole root. Do not use the group as a
//!   hash: unlike the other 28 bytes, it is not random.
//!
//! `tests/golden/prefix/*.json` pins the rule for this crate and for Python.
//!
//! For gateways, the crate also has chains over text ([`text_chain`]) with an index of the
//! estimated contents of replicas ([`PrefixIndex`]), and chains over tokens ([`token_chain`]) with
//! an index of the contents that engines report ([`BlockIndex`]).

mod blocks;
mod ghosts;
mod index;
mod keyed;
mod text;

pub use blocks::{BlockIndex, Run, TIERS, token_chain};
pub use index::PrefixIndex;
pub use text::{TEXT_UNIT, text_chain, text_seed};

/// Tokens that one digest covers.
pub const UNIT: usize = 16;

/// Length in bytes of the group at the start of a digest.
pub const GROUP_BYTES: usize = 4;

/// Digest of a prefix: its group, then 28 bytes of keyed BLAKE3.
pub type Digest = [u8; 32];

/// Salt group of a prefix: the requests with one adapter and one cache salt.
pub type Group = [u8; GROUP_BYTES];

/// The group of requests without adapter and salt.
pub const UNSALTED: Group = [0; GROUP_BYTES];

const UNIT_CONTEXT: &str = "penstock prefix unit v1";
const ROOT_CONTEXT: &str = "penstock prefix root v1";

/// First parent of a chain: zero unless the request has an adapter name or a cache salt.
///
/// The hashed message is `u32 LE length of adapter || adapter || salt`. Its key is not used for
/// units, so no salt can produce the digest of a unit.
pub fn root(identity: &Digest, adapter: &[u8], salt: &[u8]) -> Digest {
    if adapter.is_empty() && salt.is_empty() {
        return [0; 32];
    }
    let key = blake3::derive_key(ROOT_CONTEXT, identity);
    let mut hasher = blake3::Hasher::new_keyed(&key);
    hasher.update(
        &u32::try_from(adapter.len())
            .unwrap_or(u32::MAX)
            .to_le_bytes(),
    );
    hasher.update(adapter);
    hasher.update(salt);
    *hasher.finalize().as_bytes()
}

/// The group of `digest`, which is the same for its whole chain.
pub fn group(digest: &Digest) -> Group {
    let [a, b, c, d, ..] = *digest;
    [a, b, c, d]
}

/// Digests of the full units of `tokens`, in order; a trailing partial unit gives none.
///
/// `parent` is the digest of the unit that ends where `tokens` begin, or a
/// [`root`]; `None` is the zero root. Hashing a prompt in pieces that are multiples of [`UNIT`]
/// gives the chain of the whole.
pub fn chain(identity: &Digest, parent: Option<&Digest>, tokens: &[u32]) -> Vec<Digest> {
    let key = blake3::derive_key(UNIT_CONTEXT, identity);
    let mut link = parent.copied().unwrap_or([0; 32]);
    tokens
        .chunks_exact(UNIT)
        .map(|unit| {
            link = unit_digest(&key, &link, unit);
            link
        })
        .collect()
}

fn unit_digest(key: &Digest, parent: &Digest, unit: &[u32]) -> Digest {
    let mut message = [0u8; 32 + 4 * UNIT];
    message[..32].copy_from_slice(parent);
    for (bytes, token) in message[32..].chunks_exact_mut(4).zip(unit) {
        bytes.copy_from_slice(&token.to_le_bytes());
    }
    let mut digest = *blake3::keyed_hash(key, &message).as_bytes();
    digest[..GROUP_BYTES].copy_from_slice(&parent[..GROUP_BYTES]);
    digest
}
