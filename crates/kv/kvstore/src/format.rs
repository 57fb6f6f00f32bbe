//! Format of a KV part (one KV head of one chunk): a 4096-byte header, then the payload. Files and
//! values in remote stores have the same format (docs/kv-format.md).
//!
//! ```text
//! offset  bytes  (little endian)
//!      0      8  "PENSTKV\n"
//!      8      4  version, 1
//!     12      4  size of the header in bytes, 4096: the payload starts there
//!     16     32  store identity (StoreIdentity::digest)
//!     48     32  digest: name of the prefix that ends with the part's last block
//!     80      2  number of blocks in the chunk
//!     82      2  KV head, counted over the whole model
//!     84      4  first layer, layer after the last (two bytes each)
//!     88      8  size of the payload in bytes
//!     96      8  CRC-64/NVME of the payload
//!    104     32  parent: digest of the block before the first; zero: none, or not known
//!    136   3952  not read; written as zero
//!   4088      8  CRC-64/NVME of the 4088 bytes before
//! ```
//!
//! The header fills a page, so that the payload starts at an offset suitable for direct I/O.

use crc_fast::CrcAlgorithm;

use crate::key::{Digest, PartKey};

/// Version of the header, of the directory layout and of file names.
pub(crate) const VERSION: u32 = 1;
/// Size of the header in bytes; the payload follows it.
pub(crate) const HEADER_BYTES: usize = 4096;

const MAGIC: &[u8; 8] = b"PENSTKV\n";
const SEAL_AT: usize = HEADER_BYTES - 8;

/// A header as bytes.
pub(crate) type HeaderPage = [u8; HEADER_BYTES];

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Header {
    /// Digest of the writer's store identity.
    pub(crate) identity: Digest,
    /// Key of the part whose payload follows.
    pub(crate) key: PartKey,
    /// Size of the payload in bytes.
    pub(crate) payload_bytes: u64,
    /// CRC-64/NVME of the payload.
    pub(crate) payload_crc: u64,
    /// Prefix that the chunk continues, if known: a hint for eviction.
    pub(crate) parent: Option<Digest>,
}

impl Header {
    /// The header as the page in front of the payload.
    pub(crate) fn encode(&self) -> HeaderPage {
        let mut page = [0; HEADER_BYTES];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            page[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(MAGIC);
        put(&VERSION.to_le_bytes());
        put(&(HEADER_BYTES as u32).to_le_bytes());
        put(&self.identity);
        put(&self.key.digest);
        for number in [
            self.key.blocks,
            self.key.head,
            self.key.layers.0,
            self.key.layers.1,
        ] {
            put(&number.to_le_bytes());
        }
        put(&self.payload_bytes.to_le_bytes());
        put(&self.payload_crc.to_le_bytes());
        put(&self.parent.unwrap_or_default());
        let seal = checksum([&page[..SEAL_AT]]);
        page[SEAL_AT..].copy_from_slice(&seal.to_le_bytes());
        page
    }

    /// Parses `page`; the error describes the problem.
    pub(crate) fn parse(page: &[u8]) -> Result<Self, String> {
        let page: &HeaderPage = page
            .get(..HEADER_BYTES)
            .and_then(|page| page.try_into().ok())
            .ok_or_else(|| format!("{} bytes, less than a header", page.len()))?;
        if &bytes::<8>(page, 0) != MAGIC {
            return Err("not a Penstock KV part (no magic)".into());
        }
        let version = u32::from_le_bytes(bytes(page, 8));
        if version != VERSION {
            return Err(format!(
                "format version {version}, this engine reads {VERSION}"
            ));
        }
        if checksum([&page[..SEAL_AT]]) != u64::from_le_bytes(bytes(page, SEAL_AT)) {
            return Err("the header's checksum is wrong".into());
        }
        let number = |at| u16::from_le_bytes(bytes(page, at));
        let key = PartKey {
            digest: bytes(page, 48),
            blocks: number(80),
            head: number(82),
            layers: (number(84), number(86)),
        };
        Ok(Self {
            identity: bytes(page, 16),
            key,
            payload_bytes: u64::from_le_bytes(bytes(page, 88)),
            payload_crc: u64::from_le_bytes(bytes(page, 96)),
            parent: Some(bytes(page, 104)).filter(|parent| parent != &Digest::default()),
        })
    }

    /// Parses and verifies the header of `key` in the store of `identity`, for a payload of
    /// `payload_bytes` with the checksum `sum`; the error describes the mismatch.
    pub(crate) fn verified(
        page: &[u8],
        identity: &Digest,
        key: &PartKey,
        (payload_bytes, sum): (usize, u64),
    ) -> Result<Self, String> {
        let header = Self::parse(page)?;
        if &header.identity != identity {
            return Err("written under another store identity".into());
        }
        if &header.key != key {
            return Err("the header names another part".into());
        }
        if header.payload_bytes != payload_bytes as u64 {
            let found = header.payload_bytes;
            return Err(format!(
                "{found} bytes of payload instead of {payload_bytes}"
            ));
        }
        match header.payload_crc == sum {
            true => Ok(header),
            false => Err("the payload's checksum is wrong".into()),
        }
    }
}

/// CRC-64/NVME of the concatenated slices.
pub(crate) fn checksum<'a>(slices: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut sum = Checksum::new();
    slices.into_iter().for_each(|slice| sum.update(slice));
    sum.value()
}

/// An incremental CRC-64/NVME: payloads are summed in pieces while in the CPU cache.
pub struct Checksum(crc_fast::Digest);

impl Default for Checksum {
    fn default() -> Self {
        Self::new()
    }
}

impl Checksum {
    /// The checksum of no bytes.
    pub fn new() -> Self {
        Self(crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme))
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes so far.
    pub fn value(&self) -> u64 {
        self.0.finalize()
    }
}

fn bytes<const N: usize>(page: &HeaderPage, at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&page[at..at + N]);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> Header {
        Header {
            identity: [7; 32],
            key: PartKey {
                digest: [9; 32],
                blocks: 8,
                head: 2,
                layers: (3, 30),
            },
            payload_bytes: 1 << 21,
            payload_crc: 0x0123_4567_89ab_cdef,
            parent: Some([5; 32]),
        }
    }

    #[test]
    fn the_check_value_of_the_catalogue() {
        assert_eq!(checksum([&b"123456789"[..]]), 0xae8b_1486_0a79_9888);
        assert_eq!(
            checksum([&b"1234"[..], b"", b"56789"]),
            0xae8b_1486_0a79_9888
        );
    }

    #[test]
    fn offsets_are_the_documented_ones() {
        let page = header().encode();
        assert_eq!(&page[..8], b"PENSTKV\n");
        assert_eq!(page[8..16], [1, 0, 0, 0, 0, 16, 0, 0]);
        assert_eq!((page[16], page[48]), (7, 9));
        assert_eq!(page[80..88], [8, 0, 2, 0, 3, 0, 30, 0]);
        assert_eq!(page[88..96], (1_u64 << 21).to_le_bytes());
        assert_eq!(page[96..104], 0x0123_4567_89ab_cdef_u64.to_le_bytes());
        assert_eq!(page[104..136], [5; 32]);
        assert!(page[136..4088].iter().all(|&byte| byte == 0));
        assert_eq!(page[4088..], checksum([&page[..4088]]).to_le_bytes());
    }

    #[test]
    fn another_part_is_told_from_this_one() {
        let (header, page) = (header(), header().encode());
        let check = |identity: &Digest, key: &PartKey, bytes, sum| {
            Header::verified(&page, identity, key, (bytes, sum)).is_ok()
        };
        let (key, sum) = (header.key, header.payload_crc);
        let other = PartKey { head: 3, ..key };
        assert!(check(&[7; 32], &key, 1 << 21, sum));
        assert!(!check(&[8; 32], &key, 1 << 21, sum));
        assert!(!check(&[7; 32], &other, 1 << 21, sum));
        assert!(!check(&[7; 32], &key, 1 << 20, sum));
        assert!(!check(&[7; 32], &key, 1 << 21, sum ^ 1));
    }

    proptest! {
        #[test]
        fn reads_what_it_wrote(
            identity: [u8; 32], digest: [u8; 32], blocks: u16, head: u16, layers: (u16, u16),
            payload_bytes: u64, payload_crc: u64,
            parent: Option<[u8; 32]>,
        ) {
            let parent = parent.filter(|parent| parent != &[0; 32]);
            let header = Header {
                identity, key: PartKey { digest, blocks, head, layers },
                payload_bytes, payload_crc, parent,
            };
            prop_assert_eq!(Header::parse(&header.encode()), Ok(header));
        }

        #[test]
        fn a_changed_byte_or_a_missing_end_is_noticed(at in 0..HEADER_BYTES, flip in 1_u8..=255) {
            let mut page = header().encode();
            page[at] ^= flip;
            prop_assert!(Header::parse(&page).is_err());
            prop_assert!(Header::parse(&header().encode()[..at]).is_err());
        }
    }
}
