//! What parts are called in a store that many identities share, and the page in front of each.

use crate::format::{Header, HeaderPage, VERSION, checksum};
use crate::key::{Digest, Group, PartKey, StoreIdentity, hex};

/// Names and headers of one identity's parts.
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

    /// A name that no chunk has: written and deleted when a tier is opened.
    pub(super) fn trial(&self) -> String {
        format!("{}/trial", self.root)
    }

    /// The chunk that ends with `digest`.
    pub(super) fn chunk(&self, digest: &Digest) -> String {
        format!("{}/{}", self.root, hex(digest))
    }

    /// A pattern for all chunks, or those of one group, in the manner of Redis.
    pub(super) fn pattern(&self, group: Option<Group>) -> String {
        format!("{}/{}*", self.root, Self::start(group))
    }

    /// What the names of a group's chunks begin with, below the root.
    pub(super) fn start(group: Option<Group>) -> String {
        group.map_or_else(String::new, |group| hex(&group))
    }

    /// Where all chunks are.
    pub(super) fn root(&self) -> &str {
        &self.root
    }

    /// The page in front of the payload `from`.
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

    /// Whether `page` is the header of `key` with this payload; what is wrong if not.
    pub(super) fn verify(
        &self,
        page: &[u8],
        key: &PartKey,
        payload: (usize, u64),
    ) -> Result<(), String> {
        Header::verified(page, &self.identity, key, payload).map(drop)
    }
}
