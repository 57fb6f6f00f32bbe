//! Names and header pages of KV parts in a store that is shared by engines with different store
//! identities.

use crate::format::{Header, HeaderPage, VERSION, checksum};
use crate::key::{Digest, Group, PartKey, StoreIdentity, hex};

/// Names and headers of the parts of one store identity.
pub(super) struct Names {
    identity: Digest,
    root: String,
}

impl Names {
    pub(super) fn new(identity: &StoreIdentity) -> Self {
        let identity = identity.digest();
        let root = format!("penstock-kv-{VERSION}/{}", hex(&identity));
        Self { identity, root }
    }

    /// A name that no chunk can have, for the write test at start-up.
    pub(super) fn trial(&self) -> String {
        format!("{}/trial", self.root)
    }

    /// Name of the chunk with `digest`.
    pub(super) fn chunk(&self, digest: &Digest) -> String {
        format!("{}/{}", self.root, hex(digest))
    }

    /// Redis glob pattern for all chunks, or for one group's.
    pub(super) fn pattern(&self, group: Option<Group>) -> String {
        format!("{}/{}*", self.root, Self::start(group))
    }

    /// Prefix of the names of a group's chunks, below the root.
    pub(super) fn start(group: Option<Group>) -> String {
        group.map_or_else(String::new, |group| hex(&group))
    }

    /// Common prefix of all chunks.
    #[cfg(feature = "object-store")]
    pub(super) fn root(&self) -> &str {
        &self.root
    }

    /// The header page for the payload `from`.
    pub(super) fn header(&self, key: &PartKey, from: &[u8], parent: Option<Digest>) -> HeaderPage {
        let header = Header {
            identity: self.identity,
            key: *key,
            payload_bytes: from.len() as u64,
            payload_crc: checksum([from]),
            parent,
        };
        header.encode()
    }

    /// Verifies that `page` is the header of `key` with this payload; the error describes the
    /// mismatch.
    pub(super) fn verify(
        &self,
        page: &[u8],
        key: &PartKey,
        payload: (usize, u64),
    ) -> Result<(), String> {
        Header::verified(page, &self.identity, key, payload).map(drop)
    }
}
