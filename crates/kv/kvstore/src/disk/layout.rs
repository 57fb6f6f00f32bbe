//! Names and sizes of the files in a store's directory (docs/kv-format.md).
//!
//! ```text
//! PATH/penstock-kv-1/<store>/identity.json
//! PATH/penstock-kv-1/<store>/<xx>/<digest>-<blocks>.h<head>.l<first>-<end>
//! PATH/penstock-kv-1/<store>/<xx>/.tmp-<random>
//! PATH/penstock-kv-1/quarantine/<store>-<name of the part>
//! ```
//!
//! `<store>` has 32 hex digits. `<xx>` is the shard: the fifth byte of the digest in 2 hex digits.
//! `<end>` is the end of the layer range (exclusive).

use std::path::{Path, PathBuf};

use penstock_prefix::GROUP_BYTES;

use crate::format::{HEADER_BYTES, VERSION};
use crate::key::{Digest, PartKey, StoreIdentity, hex};

/// Number of shard directories in a store.
pub(crate) const SHARDS: usize = 256;
/// Files are padded to whole pages, so that the last page can be read with direct I/O.
pub(crate) const PAGE: u64 = 4096;
/// Prefix of the names of uncommitted files.
pub(crate) const TEMPORARY: &str = ".tmp-";
/// Name of the identity file of a store.
pub(crate) const IDENTITY_FILE: &str = "identity.json";

/// Root directory of all stores, below the path that the user named.
pub(crate) fn root(path: &Path) -> PathBuf {
    path.join(format!("penstock-kv-{VERSION}"))
}

/// Directory of damaged files.
pub(crate) fn quarantine(root: &Path) -> PathBuf {
    root.join("quarantine")
}

/// Name of a store's directory: the first 16 bytes of the digest of its store identity, in hex.
pub(crate) fn store_name(identity: &Digest) -> String {
    hex(&identity[..16])
}

/// Whether a directory below the root is a store.
pub(crate) fn is_store_name(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|c| nibble(c).is_some())
}

/// The shard of a digest: its first byte after the salt group.
pub(crate) fn shard_of(digest: &Digest) -> usize {
    usize::from(digest[GROUP_BYTES])
}

/// The name of shard `index`.
pub(crate) fn shard_name(index: usize) -> String {
    format!("{index:02x}")
}

/// The name of a part's file.
pub(crate) fn file_name(key: &PartKey) -> String {
    format!("{}-{}", hex(&key.digest), key.name_in_chunk())
}

/// Parses a file name; None if it is not the name of a part.
pub(crate) fn parse_name(name: &[u8]) -> Option<PartKey> {
    let (digest, rest) = name.split_at_checked(64)?;
    let rest = std::str::from_utf8(rest).ok()?.strip_prefix('-')?;
    let (blocks, rest) = rest.split_once(".h")?;
    let (head, layers) = rest.split_once(".l")?;
    let (first, last) = layers.split_once('-')?;
    Some(PartKey {
        digest: unhex(digest)?,
        blocks: number(blocks)?,
        head: number(head)?,
        layers: (number(first)?, number(last)?),
    })
}

/// Size in bytes of the file of a part with `payload` bytes of payload.
pub(crate) fn file_bytes(payload: u64) -> u64 {
    HEADER_BYTES as u64 + payload.next_multiple_of(PAGE)
}

/// Total size in bytes of a chunk's files if each file has all layers (one pipeline stage).
pub(crate) fn chunk_bytes(identity: &StoreIdentity, blocks: u16) -> u64 {
    let part = usize::from(blocks) * identity.layers * identity.tile_bytes;
    file_bytes(part as u64) * identity.kv_heads as u64
}

/// Size in bytes of the file of `key` in the store of `identity`; None if the key does not fit the
/// store's geometry.
pub(crate) fn part_file_bytes(key: &PartKey, identity: &StoreIdentity) -> Option<u64> {
    let fits = key.blocks > 0
        && usize::from(key.head) < identity.kv_heads
        && key.layers.0 < key.layers.1
        && usize::from(key.layers.1) <= identity.layers;
    fits.then(|| file_bytes(key.payload_bytes(identity) as u64))
}

fn unhex(text: &[u8]) -> Option<Digest> {
    let mut digest = Digest::default();
    for (byte, pair) in digest.iter_mut().zip(text.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(digest)
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Parses a number in canonical form, without sign or leading zero, so that each part has exactly
/// one name.
fn number(text: &str) -> Option<u16> {
    let canonical = text == "0" || !text.starts_with(['0', '+']);
    canonical.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn names_read_back(digest: [u8; 32], blocks: u16, head: u16, layers: (u16, u16)) {
            let key = PartKey { digest, blocks, head, layers };
            prop_assert_eq!(parse_name(file_name(&key).as_bytes()), Some(key));
        }

        #[test]
        fn one_part_has_one_name(
            name in "[0-9a-f]{64}-[0-9+]{0,3}\\.h[0-9]{0,6}\\.l[0-9]{1,2}-[0-9]{1,2}.?",
        ) {
            if let Some(key) = parse_name(name.as_bytes()) {
                prop_assert_eq!(file_name(&key), name);
            }
        }

        #[test]
        fn other_names_are_no_parts(name: Vec<u8>) {
            prop_assert_eq!(parse_name(&name), None);
        }
    }

    #[test]
    fn the_documented_example() {
        let key = PartKey {
            digest: [0xab; 32],
            blocks: 8,
            head: 2,
            layers: (0, 30),
        };
        assert_eq!(file_name(&key), format!("{}-8.h2.l0-30", "ab".repeat(32)));
        assert_eq!(store_name(&[0x0f; 32]), "0f".repeat(16));
        assert!(is_store_name(&"0f".repeat(16)) && !is_store_name("quarantine"));
    }

    #[test]
    fn sizes_are_whole_pages() {
        assert_eq!(
            (file_bytes(0), file_bytes(1), file_bytes(4096)),
            (4096, 8192, 8192)
        );
        let identity = StoreIdentity {
            cache: String::new(),
            layers: 30,
            kv_heads: 3,
            block_tokens: 32,
            tile_bytes: 8192,
            dtype: "bf16".into(),
        };
        let key = PartKey {
            digest: [0; 32],
            blocks: 8,
            head: 2,
            layers: (0, 30),
        };
        assert_eq!(part_file_bytes(&key, &identity), Some(4096 + 8 * 30 * 8192));
        assert_eq!(
            part_file_bytes(&PartKey { head: 3, ..key }, &identity),
            None
        );
        assert_eq!(
            part_file_bytes(
                &PartKey {
                    layers: (4, 4),
                    ..key
                },
                &identity
            ),
            None
        );
        assert_eq!(
            part_file_bytes(
                &PartKey {
                    layers: (0, 31),
                    ..key
                },
                &identity
            ),
            None
        );
    }
}
