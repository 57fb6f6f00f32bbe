//! Ownership of KV blocks by sequences, as in `penstock.kv.pool`.

use std::collections::{BTreeMap, HashMap};

use penstock_prefix::Digest;

/// Blocks 0 to `num_blocks` - 1. Each has any number of owners, and may be published under a
/// digest.
///
/// A block without owners is free. Free blocks are reused in this order: blank ones, which have no
/// digest (last freed first); untouched ones, never used before; cached ones, which [`Self::find`]
/// still finds (least recently used first).
#[derive(Debug)]
pub(super) struct BlockPool {
    blocks: Vec<Block>,
    available: usize,
    by_digest: HashMap<Digest, u32>,
    blank: Vec<u32>,
    /// Cached blocks, by the number of their release.
    cached: BTreeMap<u64, u32>,
    untouched: u32,
    releases: u64,
}

#[derive(Debug, Clone, Default)]
struct Block {
    references: u32,
    digest: Option<Digest>,
    /// Number of its release, the key in `cached` while it is cached.
    released: u64,
}

impl BlockPool {
    pub(super) fn new(num_blocks: u32) -> Self {
        Self {
            blocks: vec![Block::default(); num_blocks as usize],
            available: num_blocks as usize,
            by_digest: HashMap::new(),
            blank: Vec::new(),
            cached: BTreeMap::new(),
            untouched: 0,
            releases: 0,
        }
    }

    pub(super) fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Number of free blocks.
    pub(super) fn available(&self) -> usize {
        self.available
    }

    /// Allocates a free block to one owner; `None` if no block is free.
    pub(super) fn take(&mut self) -> Option<u32> {
        let block = match self.blank.pop() {
            Some(block) => block,
            None if (self.untouched as usize) < self.blocks.len() => {
                self.untouched += 1;
                self.untouched - 1
            }
            None => self.evict()?,
        };
        self.blocks[block as usize].references = 1;
        self.available -= 1;
        Some(block)
    }

    /// Adds an owner to a block that [`Self::find`] found.
    pub(super) fn share(&mut self, block: u32) {
        let state = &mut self.blocks[block as usize];
        if state.references == 0 {
            self.cached.remove(&state.released);
            self.available -= 1;
        }
        state.references += 1;
    }

    /// Removes one owner of each block. Blocks at the end of a prefix become reusable before blocks
    /// at its start.
    pub(super) fn release(&mut self, blocks: &[u32]) {
        for &block in blocks.iter().rev() {
            let state = &mut self.blocks[block as usize];
            state.references -= 1;
            if state.references > 0 {
                continue;
            }
            self.available += 1;
            if state.digest.is_none() {
                self.blank.push(block);
            } else {
                self.releases += 1;
                state.released = self.releases;
                self.cached.insert(self.releases, block);
            }
        }
    }

    /// Publishes an owned block under a digest. If another block has the digest already, that one
    /// keeps it.
    pub(super) fn publish(&mut self, block: u32, digest: Digest) {
        let state = &mut self.blocks[block as usize];
        if state.digest.is_none() && *self.by_digest.entry(digest).or_insert(block) == block {
            state.digest = Some(digest);
        }
    }

    pub(super) fn find(&self, digest: &Digest) -> Option<u32> {
        self.by_digest.get(digest).copied()
    }

    pub(super) fn is_free(&self, block: u32) -> bool {
        self.blocks[block as usize].references == 0
    }

    fn evict(&mut self) -> Option<u32> {
        let (_, block) = self.cached.pop_first()?;
        if let Some(digest) = self.blocks[block as usize].digest.take() {
            self.by_digest.remove(&digest);
        }
        Some(block)
    }

    /// Describes the first inconsistency, if there is one. `tables` are the block tables of all
    /// owners.
    pub(super) fn fault<'a>(&self, tables: impl Iterator<Item = &'a [u32]>) -> Option<String> {
        let mut owners = vec![0; self.blocks.len()];
        tables.flatten().for_each(|&b| owners[b as usize] += 1);
        let states = self.blocks.iter().zip(&owners).enumerate();
        for (block, (state, owners)) in states {
            if state.references != *owners {
                return Some(format!(
                    "block {block} has {} references, {owners} owners",
                    state.references
                ));
            }
        }
        let free = owners.iter().filter(|owners| **owners == 0).count();
        let listed =
            self.blank.len() + self.cached.len() + self.blocks.len() - self.untouched as usize;
        (free != self.available || free != listed).then(|| {
            format!(
                "{free} blocks are free, {} said to be, {listed} listed",
                self.available
            )
        })
    }
}
