//! A job as calls of a tier: which parts, which bytes of which blocks.

use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::queue::Work;
use super::transfer::Pool;
use crate::key::{Digest, PartKey};
use crate::tier::{Tier, TierError};

/// Share of every block that one rank holds.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    /// KV heads over the whole model, in the order of their extents.
    pub(crate) heads: Vec<u16>,
    pub(crate) layers: (u16, u16),
    /// Bytes of one head in one block.
    pub(crate) extent: usize,
}

/// Result of a call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Brought {
    pub(crate) bytes: u64,
    pub(crate) found: Vec<u8>,
}

impl Share {
    /// The parts of a chunk.
    fn keys(&self, digest: Digest, blocks: u16) -> impl Iterator<Item = PartKey> {
        let layers = self.layers;
        self.heads.iter().map(move |&head| PartKey {
            digest,
            blocks,
            head,
            layers,
        })
    }

    fn extent(&self, head: usize) -> std::ops::Range<usize> {
        head * self.extent..(head + 1) * self.extent
    }

    fn load(
        &self,
        tier: &dyn Tier,
        digest: Digest,
        blocks: &mut [impl DerefMut<Target = [u8]>],
    ) -> Result<u64, TierError> {
        for (head, key) in self.keys(digest, blocks.len() as u16).enumerate() {
            let extents = blocks.iter_mut().map(|b| &mut b[self.extent(head)]);
            tier.load(&key, &mut extents.collect::<Vec<_>>())?;
        }
        Ok(self.bytes(blocks.len()))
    }

    fn store(
        &self,
        tier: &dyn Tier,
        digest: Digest,
        blocks: &[impl Deref<Target = [u8]>],
        parent: Option<Digest>,
    ) -> Result<u64, TierError> {
        for (head, key) in self.keys(digest, blocks.len() as u16).enumerate() {
            let extents = blocks.iter().map(|b| &b[self.extent(head)]);
            tier.store(&key, &extents.collect::<Vec<_>>(), parent)?;
        }
        Ok(self.bytes(blocks.len()))
    }

    fn probe(&self, tier: &dyn Tier, chunks: &[(Digest, u16)]) -> Result<Vec<u8>, TierError> {
        let keys = chunks.iter().flat_map(|&(d, blocks)| self.keys(d, blocks));
        let keys: Vec<_> = keys.collect();
        let there = tier.probe(&keys)?;
        if there.len() != keys.len() {
            let (asked, got) = (keys.len(), there.len());
            let wrong = format!("asked for {asked} parts, it answered for {got}");
            return Err(TierError::Failed(wrong));
        }
        // A rank without heads has nothing to miss.
        let mut parts = there.chunks(self.heads.len().max(1));
        let all = |parts: Option<&[bool]>| parts.is_none_or(|p| p.iter().all(|&p| p));
        Ok(chunks.iter().map(|_| u8::from(all(parts.next()))).collect())
    }

    fn bytes(&self, blocks: usize) -> u64 {
        (blocks * self.heads.len() * self.extent) as u64
    }

    /// Does the work; a panic of the tier is a failure of the tier.
    pub(crate) fn call<P: Pool>(
        &self,
        tier: &dyn Tier,
        work: &mut Work<P>,
    ) -> Result<Brought, TierError> {
        let moved = |bytes| Brought {
            bytes,
            found: Vec::new(),
        };
        let call = || match work {
            Work::Load { digest, blocks } => self.load(tier, *digest, blocks).map(moved),
            Work::Store {
                digest,
                blocks,
                parent,
            } => self.store(tier, *digest, blocks, *parent).map(moved),
            Work::Probe { chunks } => {
                let found = self.probe(tier, chunks)?;
                Ok(Brought { bytes: 0, found })
            }
            Work::Remove { digests } => {
                digests.iter().try_for_each(|digest| tier.remove(digest))?;
                Ok(moved(0))
            }
            Work::Clear { group } => tier.clear(*group).map(|()| moved(0)),
        };
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            let text = text.unwrap_or("unknown panic");
            Err(TierError::Failed(format!("a bug of the tier: {text}")))
        })
    }
}
