//! Executes a queued job as calls of its tier: selects the KV parts (one KV head of one chunk each)
//! and their bytes in the blocks.

use std::cell::Cell;
use std::ops::{Deref, DerefMut, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use super::copying::Slots;
use super::queue::Work;
use super::transfer::Pool;
use crate::format::HEADER_BYTES;
use crate::key::{Digest, PartKey};
use crate::tier::{Take, Tier, TierError};

thread_local! {
    /// Reusable buffer for the copy of a chunk; its pages stay mapped between stores.
    static COPY: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Maximum number of chunks reported as removed in one result: 1 KiB of digests, the size of the
/// longest error text.
const MOST_LEFT: usize = 32;

/// A rank's share of every KV block: some heads in some layers.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    /// The rank's KV heads, numbered over the whole model, in the order of their bytes in a block.
    pub(crate) heads: Vec<u16>,
    /// The rank's layers of each KV group (first, end), numbered group after group over the whole
    /// model.
    pub(crate) layers: Vec<(u16, u16)>,
    /// Bytes of one head in one block, for each KV group.
    pub(crate) extents: Vec<usize>,
}

/// One KV head of a chunk in the layers of one KV group.
struct Part {
    key: PartKey,
    group: usize,
    /// The head's byte range in a block of the KV group.
    extent: Range<usize>,
}

/// Result of a call: the bytes moved, or for a probe whether each chunk was found (1 or 0).
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Brought {
    pub(crate) bytes: u64,
    pub(crate) found: Vec<u8>,
}

impl Brought {
    fn bytes(bytes: u64) -> Self {
        Self {
            bytes,
            found: Vec::new(),
        }
    }
}

impl Share {
    /// The rank's parts of a chunk; no part for a KV group without layers on this rank.
    fn parts(&self, digest: Digest, blocks: u16) -> impl Iterator<Item = Part> {
        let groups = self.layers.iter().zip(&self.extents).enumerate();
        let groups = groups.filter(|(_, (layers, _))| layers.0 < layers.1);
        groups.flat_map(move |(group, (&layers, &bytes))| {
            let heads = self.heads.iter().enumerate();
            heads.map(move |(at, &head)| Part {
                key: PartKey {
                    digest,
                    blocks,
                    head,
                    layers,
                },
                group,
                extent: at * bytes..(at + 1) * bytes,
            })
        })
    }

    /// Reads each part that at least one block needs, and discards its bytes for `None` blocks.
    /// Returns the number of bytes read.
    fn load(
        &self,
        tier: &dyn Tier,
        digest: Digest,
        blocks: &mut [Option<impl DerefMut<Target = [u8]>>],
    ) -> Result<u64, TierError> {
        let (groups, mut bytes) = (self.layers.len(), 0);
        let count = blocks.len() / groups;
        for Part { key, group, extent } in self.parts(digest, count as u16) {
            let column = blocks.iter_mut().skip(group).step_by(groups);
            let into: Vec<_> = column
                .map(|block| block.as_mut().map(|block| &mut block[extent.clone()]))
                .collect();
            let without = into.iter().filter(|block| block.is_none()).count();
            if without == count {
                continue;
            }
            let mut dropped = vec![0; without * extent.len()];
            let mut dropped = dropped.chunks_exact_mut(extent.len());
            let into = into.into_iter();
            let into = into.filter_map(|block| block.or_else(|| dropped.next()));
            tier.load(&key, &mut into.collect::<Vec<_>>())?;
            bytes += count * extent.len();
        }
        Ok(bytes as u64)
    }

    /// Copies the bytes of a chunk, part by part, to an address aligned for direct I/O. Returns the
    /// buffer and the offset of the first byte.
    fn copy(&self, blocks: &[impl Deref<Target = [u8]>]) -> (Vec<u8>, usize) {
        let groups = self.layers.len();
        let bytes: usize = blocks.iter().map(|block| block.len()).sum();
        let mut space = COPY.take();
        space.clear();
        space.reserve(bytes + HEADER_BYTES);
        let begin = space.as_ptr().align_offset(HEADER_BYTES);
        space.resize(begin, 0);
        for Part { group, extent, .. } in self.parts(Digest::default(), 0) {
            let column = blocks.iter().skip(group).step_by(groups);
            column.for_each(|block| space.extend_from_slice(&block[extent.clone()]));
        }
        (space, begin)
    }

    /// Stores the output of `copy`.
    fn store(
        &self,
        tier: &dyn Tier,
        (digest, count): (Digest, u16),
        mut bytes: &[u8],
        parent: Option<Digest>,
    ) -> Result<(), TierError> {
        for Part { key, extent, .. } in self.parts(digest, count) {
            let (own, rest) = bytes.split_at(usize::from(count) * extent.len());
            tier.store(&key, own, parent)?;
            bytes = rest;
        }
        Ok(())
    }

    fn probe(&self, tier: &dyn Tier, chunks: &[(Digest, u16)]) -> Result<Vec<u8>, TierError> {
        let parts = chunks.iter().flat_map(|&(d, blocks)| self.parts(d, blocks));
        let keys: Vec<_> = parts.map(|part| part.key).collect();
        let there = tier.probe(&keys)?;
        if there.len() != keys.len() {
            let (asked, got) = (keys.len(), there.len());
            let wrong = format!("asked for {asked} parts, it answered for {got}");
            return Err(TierError::Failed(wrong));
        }
        // A rank without heads or layers has no parts, so no part is missing.
        let mut parts = there.chunks((keys.len() / chunks.len().max(1)).max(1));
        let all = |parts: Option<&[bool]>| parts.is_none_or(|p| p.iter().all(|&p| p));
        Ok(chunks.iter().map(|_| u8::from(all(parts.next()))).collect())
    }

    fn call<P: Pool>(
        &self,
        tier: &dyn Tier,
        work: Work<P>,
        copied: impl FnOnce(),
    ) -> Result<Brought, TierError> {
        match work {
            Work::Load { digest, mut blocks } => {
                self.load(tier, digest, &mut blocks).map(Brought::bytes)
            }
            Work::Store {
                digest,
                blocks,
                parent,
            } => {
                let chunk = (digest, (blocks.len() / self.layers.len()) as u16);
                let (space, begin) = self.copy(&blocks);
                drop(blocks);
                copied();
                let stored = self.store(tier, chunk, &space[begin..], parent);
                let bytes = space.len() - begin;
                COPY.set(space);
                stored.map(|()| Brought::bytes(bytes as u64))
            }
            Work::Probe { chunks } => {
                let found = self.probe(tier, &chunks)?;
                Ok(Brought { bytes: 0, found })
            }
            Work::Remove { digests } => {
                digests.iter().try_for_each(|digest| tier.remove(digest))?;
                Ok(Brought::default())
            }
            Work::Clear { group } => tier.clear(group).map(|()| Brought::default()),
            Work::FromRam { .. } | Work::ToRam { .. } => unreachable!("copies go to RAM"),
        }
    }
}

/// The executor of a queue's jobs: a tier that stores chunks, or the slots of the RAM tier.
pub(crate) enum Worker {
    Chunks {
        tier: Box<dyn Tier>,
        share: Share,
    },
    /// Copies between blocks and slots, one at a time.
    Ram(Mutex<Slots>),
}

impl Worker {
    /// Name of the tier, for logs and error texts.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Chunks { tier, .. } => tier.name(),
            Self::Ram(_) => "ram",
        }
    }

    /// [`Tier::load_by`] of a tier that stores chunks; RAM has no such call.
    pub(crate) fn load_by(
        &self,
        key: &PartKey,
        bytes: usize,
        take: Take<'_>,
    ) -> Result<(), TierError> {
        match self {
            Self::Chunks { tier, .. } => tier.load_by(key, bytes, take),
            Self::Ram(_) => Err(TierError::Failed("RAM has no parts".into())),
        }
    }

    /// Chunks that have left the tier since the last call, up to the maximum per result.
    pub(crate) fn left(&self) -> Vec<Digest> {
        match self {
            Self::Chunks { tier, .. } => tier.take_left(MOST_LEFT),
            Self::Ram(_) => Vec::new(),
        }
    }

    /// Executes the work and returns its blocks. A store of a chunk first copies and returns its
    /// blocks, calls `copied`, and then calls the tier. A panic counts as a failure of the tier.
    pub(crate) fn call<P: Pool>(
        &self,
        work: Work<P>,
        copied: impl FnOnce(),
    ) -> Result<Brought, TierError> {
        let call = || match self {
            Self::Chunks { tier, share } => share.call(&**tier, work, copied),
            Self::Ram(slots) => {
                let mut slots = slots.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(Brought::bytes(slots.call(work)))
            }
        };
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            let text = text.unwrap_or("unknown panic");
            Err(TierError::Failed(format!("a bug of the tier: {text}")))
        })
    }
}
