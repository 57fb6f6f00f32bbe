//! KV blocks of sequences: prefix lookup, allocation, publication and release.

use std::collections::HashMap;

use penstock_prefix::{Digest, UNIT, chain, root};

use super::pool::BlockPool;
use super::sequence::Sequence;
use crate::profile::Profile;

#[derive(Debug)]
pub(super) struct Kv {
    pub(super) pool: BlockPool,
    block_size: usize,
    identity: Digest,
    caching: bool,
    /// Digests of blocks that a running sequence is about to fill, each with that sequence's
    /// arrival number.
    claimed: HashMap<Digest, u64>,
}

/// Result of a waiting sequence's prefix lookup.
pub(super) enum PrefixLookup {
    /// Cached blocks to start from; may be empty.
    Blocks(Vec<u32>),
    /// A running sequence is computing the next shared block.
    Coming,
}

impl Kv {
    pub(super) fn new(profile: &Profile) -> Self {
        Self {
            pool: BlockPool::new(profile.num_blocks),
            block_size: profile.block_size as usize,
            identity: profile.cache_identity(),
            caching: profile.prefix_caching,
            claimed: HashMap::new(),
        }
    }

    pub(super) fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_size)
    }

    /// Looks up the cached blocks of a sequence's prefix. Leaves at least the last known token to
    /// compute, because its logits are needed.
    pub(super) fn find(&self, seq: &mut Sequence) -> PrefixLookup {
        if !self.caching {
            return PrefixLookup::Blocks(Vec::new());
        }
        if seq
            .awaits
            .is_some_and(|digest| self.claimed.contains_key(&digest))
        {
            return PrefixLookup::Coming;
        }
        self.name_blocks(seq);
        if !seq.reads_cache {
            return PrefixLookup::Blocks(Vec::new());
        }
        let limit = (seq.tokens.len() - 1) / self.block_size;
        let named = &seq.digests[..limit.min(seq.digests.len())];
        let hits: Vec<u32> = named
            .iter()
            .map_while(|digest| self.pool.find(digest))
            .collect();
        match named.get(hits.len()) {
            Some(next) if self.claimed.contains_key(next) => {
                seq.awaits = Some(*next);
                PrefixLookup::Coming
            }
            _ => PrefixLookup::Blocks(hits),
        }
    }

    /// Allocates blocks for all known tokens of a sequence. Returns false, without allocation, if
    /// fewer free blocks than `running` sequences would remain: each of these may need one more.
    pub(super) fn enter(&mut self, seq: &mut Sequence, hits: &[u32], running: usize) -> bool {
        let missing = self.blocks_for(seq.tokens.len()) - hits.len();
        let free_hits = hits
            .iter()
            .filter(|block| self.pool.is_free(**block))
            .count();
        if missing + running + free_hits > self.pool.available() {
            return false;
        }
        hits.iter().for_each(|block| self.pool.share(*block));
        seq.blocks.extend_from_slice(hits);
        seq.blocks
            .extend((0..missing).map_while(|_| self.pool.take()));
        seq.computed = hits.len() * self.block_size;
        seq.awaits = None;
        seq.published = hits.len();
        for digest in &seq.digests[hits.len()..] {
            self.claimed.entry(*digest).or_insert(seq.order);
        }
        true
    }

    /// Whether the allocated blocks have room for the next token of a sequence.
    pub(super) fn has_room(&self, seq: &Sequence) -> bool {
        seq.blocks.len() * self.block_size >= seq.tokens.len()
    }

    /// Makes newly filled blocks findable by their digests.
    pub(super) fn publish(&mut self, seq: &mut Sequence) {
        let full = seq.computed / self.block_size;
        if !self.caching || full <= seq.published {
            return;
        }
        if seq.digests.len() < full {
            self.name_blocks(seq);
        }
        for at in seq.published..full {
            self.pool.publish(seq.blocks[at], seq.digests[at]);
            self.disclaim(&seq.digests[at], seq.order);
        }
        seq.published = full;
    }

    /// Releases all blocks of a sequence.
    pub(super) fn vacate(&mut self, seq: &mut Sequence) {
        let unpublished = seq.published.min(seq.digests.len());
        for digest in &seq.digests[unpublished..] {
            self.disclaim(digest, seq.order);
        }
        self.pool.release(&seq.blocks);
        seq.blocks.clear();
    }

    fn disclaim(&mut self, digest: &Digest, order: u64) {
        if self.claimed.get(digest) == Some(&order) {
            self.claimed.remove(digest);
        }
    }

    /// Digests of the full blocks of a prompt.
    pub(super) fn names(&self, salt: &[u8], prompt: &[u32]) -> Vec<Digest> {
        let full = prompt.len() / self.block_size * self.block_size;
        self.names_after(&root(&self.identity, b"", salt), &prompt[..full])
    }

    /// Number of tokens of a prompt, whose blocks have the digests `names`, that need not be
    /// computed.
    pub(super) fn cached(&self, names: &[Digest], prompt_len: usize) -> usize {
        let limit = names
            .len()
            .min(prompt_len.saturating_sub(1) / self.block_size);
        let named = names[..if self.caching { limit } else { 0 }].iter();
        let known = |digest: &&Digest| {
            self.pool.find(digest).is_some() || self.claimed.contains_key(*digest)
        };
        named.take_while(known).count() * self.block_size
    }

    /// Digests of full blocks of `tokens` after a `parent`. A block's digest is that of its last
    /// unit of 16 tokens.
    fn names_after(&self, parent: &Digest, tokens: &[u32]) -> Vec<Digest> {
        let units = chain(&self.identity, Some(parent), tokens);
        let per_block = self.block_size / UNIT;
        let last = units.iter().skip(per_block - 1).step_by(per_block);
        last.copied().collect()
    }

    fn name_blocks(&self, seq: &mut Sequence) {
        let size = self.block_size;
        let (start, end) = (seq.digests.len() * size, seq.tokens.len() / size * size);
        if start == end {
            return;
        }
        let parent = match seq.digests.last() {
            Some(digest) => *digest,
            None => root(&self.identity, b"", &seq.salt),
        };
        let named = self.names_after(&parent, &seq.tokens[start..end]);
        seq.digests.extend(named);
    }
}
