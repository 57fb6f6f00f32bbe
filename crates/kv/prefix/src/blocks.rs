//! Index of the token blocks that engines have published.
//!
//! Block names are engine-specific, so the index identifies a block by a hash chain over tokens
//! instead. Each block gets a link, computed from its parent's link and its tokens. The links of a
//! prompt are computed from the prompt's tokens in the same way ([`token_chain`]).
//!
//! ```text
//!  stored(engine, names, parent's name, tokens) -> link of parent -> links -> holders by tier
//!  removed(engine, names) -> links that were noted under these names
//! ```

use std::collections::{HashMap, VecDeque};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Number of tiers that may hold a block. They are numbered by distance: 0 is the KV pool.
pub const TIERS: usize = 4;
/// The tier shared by engines: a block that one engine stores there can be loaded by all.
const SHARED: usize = TIERS - 1;
/// Maximum number of blocks per engine; further blocks are ignored.
const MOST_BLOCKS: usize = 1 << 22;
/// Maximum number of expected links that are not stored yet, over all engines.
const MOST_EXPECTED: usize = 1 << 20;

/// Consecutive blocks of one sequence.
#[derive(Debug, Clone, Copy, Default)]
pub struct Run<'a> {
    /// Names that the engine uses for the blocks.
    pub names: &'a [u128],
    /// Name of the block before the first one.
    pub parent: Option<u128>,
    /// Tokens of all blocks; empty for blocks that were already stored in another tier.
    pub tokens: &'a [u32],
    pub block_size: usize,
    /// Root link, for a sequence without a parent.
    pub root: u64,
    /// Per block, a hash of its inputs other than tokens, such as a cache salt or an image; 0: no
    /// such inputs. Empty: no block has any.
    pub extra: &'a [u64],
    /// Tier that stores the blocks, below [`TIERS`].
    pub tier: usize,
}

/// Which engine holds which blocks.
#[derive(Debug, Default)]
pub struct BlockIndex {
    links: HashMap<u64, Vec<LinkState>>,
    engines: HashMap<u32, Engine>,
    /// Chains that engines are expected to compute, in order of insertion: expiry, engine, links.
    expected: VecDeque<(u64, u32, Box<[u64]>)>,
    expected_links: usize,
}

#[derive(Debug, Default)]
struct Engine {
    names: HashMap<u128, Block>,
    block_size: usize,
    /// The engine has stored blocks in the shared tier, and can therefore load from it.
    shares: bool,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    link: u64,
    /// Bit set of the tiers that hold the block.
    tiers: u8,
}

/// State of one link at one engine.
#[derive(Debug, Clone, Copy, Default)]
struct LinkState {
    engine: u32,
    /// Number of the engine's blocks with this link, by tier.
    names: [u32; TIERS],
    /// Time until which the link counts as held, because the engine is expected to compute it; 0:
    /// not expected.
    until: u64,
}

impl LinkState {
    /// The nearest tier that holds the link; an expected link counts as held in the KV pool.
    fn tier(&self, now: u64) -> Option<usize> {
        let stored = self.names.iter().position(|names| *names > 0);
        if stored != Some(0) && self.until > now {
            return Some(0);
        }
        stored
    }

    fn is_nothing(&self) -> bool {
        self.names == [0; TIERS] && self.until == 0
    }
}

impl BlockIndex {
    /// Records that `engine` has stored blocks. Returns the number of indexed blocks: blocks after
    /// an unknown parent are skipped.
    pub fn stored(&mut self, engine: u32, run: &Run<'_>) -> usize {
        let (held, links) = (self.engines.entry(engine).or_default(), &mut self.links);
        let tier = run.tier.min(TIERS - 1);
        held.shares |= tier == SHARED;
        if run.tokens.is_empty() {
            let known = run.names.iter().filter(|name| {
                let block = held.names.get_mut(name);
                block.map(|block| add(links, engine, block, tier)).is_some()
            });
            return known.count();
        }
        let whole = run.block_size > 0 && run.tokens.len() == run.names.len() * run.block_size;
        let parent = match run.parent {
            None => Some(run.root),
            Some(parent) => held.names.get(&parent).map(|block| block.link),
        };
        let (true, Some(mut link)) = (whole, parent) else {
            return 0;
        };
        held.block_size = run.block_size;
        let bytes = bytes_of(run.tokens);
        let blocks = run.names.iter().zip(bytes.chunks(4 * run.block_size));
        for (at, (name, block)) in blocks.enumerate() {
            link = next_link(link, block, run.extra.get(at).copied().unwrap_or(0));
            let full = held.names.len() >= MOST_BLOCKS;
            match held.names.get_mut(name) {
                Some(block) if block.link == link => add(links, engine, block, tier),
                None if full => return at,
                _ => {
                    let mut block = Block { link, tiers: 0 };
                    add(links, engine, &mut block, tier);
                    if let Some(other) = held.names.insert(*name, block) {
                        take_all(links, engine, other);
                    }
                }
            }
        }
        run.names.len()
    }

    /// Records that blocks have left a tier of `engine`.
    pub fn removed(&mut self, engine: u32, names: &[u128], tier: usize) {
        let Some(held) = self.engines.get_mut(&engine) else {
            return;
        };
        let tier = tier.min(TIERS - 1);
        for name in names {
            let Some(block) = held.names.get_mut(name) else {
                continue;
            };
            if block.tiers & 1 << tier != 0 {
                block.tiers &= !(1 << tier);
                take(&mut self.links, engine, block.link, tier);
            }
            if block.tiers == 0 {
                held.names.remove(name);
            }
        }
    }

    /// Removes everything that `engine` holds or is expected to hold.
    pub fn clear(&mut self, engine: u32) {
        for block in self
            .engines
            .remove(&engine)
            .unwrap_or_default()
            .names
            .into_values()
        {
            take_all(&mut self.links, engine, block);
        }
        let (links, left) = (&mut self.links, &mut self.expected_links);
        self.expected.retain(|(_, one, expected)| {
            if *one == engine {
                *left -= expected.len();
                let ended = |link: &u64| unexpect(links, engine, *link, u64::MAX);
                expected.iter().for_each(ended);
            }
            *one != engine
        });
    }

    /// Records that `engine` is about to compute `chain`: missing links count as held until the
    /// time `until`, or until the engine publishes an event about them.
    pub fn expect(&mut self, engine: u32, chain: &[u64], now: u64, until: u64) {
        for link in chain {
            let held = held_by(self.links.entry(*link).or_default(), engine);
            if held.names[0] == 0 {
                held.until = held.until.max(until);
            }
        }
        self.expected_links += chain.len();
        self.expected.push_back((until, engine, chain.into()));
        while let Some((until, engine, _)) = self.expected.front() {
            if *until > now && self.expected_links <= MOST_EXPECTED {
                break;
            }
            let (until, engine) = (*until, *engine);
            let (_, _, links) = self.expected.pop_front().unwrap_or_default();
            self.expected_links -= links.len();
            links
                .iter()
                .for_each(|link| unexpect(&mut self.links, engine, *link, until));
        }
    }

    /// For each of `engines`, the length of the leading part of `chain` that it holds, split by
    /// nearest tier. Blocks in the shared tier count for every engine that uses this tier.
    pub fn matches(&self, chain: &[u64], engines: &[u32], now: u64) -> Vec<[usize; TIERS]> {
        let mut matched = vec![[0; TIERS]; engines.len()];
        let mut alive: Vec<usize> = (0..engines.len()).collect();
        let shares = |engine| self.engines.get(engine).is_some_and(|one| one.shares);
        let shares: Vec<bool> = engines.iter().map(shares).collect();
        for link in chain {
            let Some(held) = self.links.get(link) else {
                break;
            };
            let shared = held.iter().any(|one| one.names[SHARED] > 0);
            alive.retain(|at| {
                let own = held.iter().find(|one| one.engine == engines[*at]);
                let tier = own.and_then(|own| own.tier(now));
                let tier = tier.or((shared && shares[*at]).then_some(SHARED));
                tier.is_some_and(|tier| {
                    matched[*at][tier] += 1;
                    true
                })
            });
            if alive.is_empty() {
                break;
            }
        }
        matched
    }

    /// Block size of `engine` in tokens; `None` before its first stored block.
    pub fn block_size(&self, engine: u32) -> Option<usize> {
        let held = self.engines.get(&engine)?;
        (held.block_size > 0).then_some(held.block_size)
    }

    /// Number of block names that `engine` holds.
    pub fn len_of(&self, engine: u32) -> usize {
        self.engines.get(&engine).map_or(0, |held| held.names.len())
    }
}

/// Links of the full blocks of `tokens` after `root`.
pub fn token_chain(root: u64, block_size: usize, tokens: &[u32]) -> Vec<u64> {
    let bytes = bytes_of(tokens);
    let blocks = bytes.chunks_exact(4 * block_size.max(1));
    let links = blocks.scan(root, |link, block| {
        *link = next_link(*link, block, 0);
        Some(*link)
    });
    links.collect()
}

/// Link of the block after `parent`; `block` is its tokens, encoded by [`bytes_of`].
fn next_link(parent: u64, block: &[u8], extra: u64) -> u64 {
    xxh3_64_with_seed(block, parent ^ extra)
}

/// Little-endian encoding, four bytes per token.
fn bytes_of(tokens: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 * tokens.len());
    tokens
        .iter()
        .for_each(|token| bytes.extend(token.to_le_bytes()));
    bytes
}

type Links = HashMap<u64, Vec<LinkState>>;

fn held_by(all: &mut Vec<LinkState>, engine: u32) -> &mut LinkState {
    let at = all.iter().position(|one| one.engine == engine);
    let at = at.unwrap_or_else(|| {
        let names = [0; TIERS];
        all.push(LinkState {
            engine,
            names,
            until: 0,
        });
        all.len() - 1
    });
    &mut all[at]
}

/// Adds a block name to a tier; idempotent.
fn add(links: &mut Links, engine: u32, block: &mut Block, tier: usize) {
    if block.tiers & 1 << tier == 0 {
        block.tiers |= 1 << tier;
        let held = held_by(links.entry(block.link).or_default(), engine);
        held.names[tier] += 1;
        if tier == 0 {
            held.until = 0;
        }
    }
}

fn take_all(links: &mut Links, engine: u32, block: Block) {
    let tiers = (0..TIERS).filter(|tier| block.tiers & 1 << tier != 0);
    tiers.for_each(|tier| take(links, engine, block.link, tier));
}

fn take(links: &mut Links, engine: u32, link: u64, tier: usize) {
    change(links, engine, link, |held| held.names[tier] -= 1);
}

/// Clears the expectation of a link if it expires at `until` or earlier.
fn unexpect(links: &mut Links, engine: u32, link: u64, until: u64) {
    change(links, engine, link, |held| {
        if held.until <= until {
            held.until = 0;
        }
    });
}

/// Changes an engine's state of a link and drops it if it is empty.
fn change(links: &mut Links, engine: u32, link: u64, change: impl FnOnce(&mut LinkState)) {
    let Some(all) = links.get_mut(&link) else {
        return;
    };
    if let Some(at) = all.iter().position(|one| one.engine == engine) {
        change(&mut all[at]);
        if all[at].is_nothing() {
            all.swap_remove(at);
        }
    }
    if all.is_empty() {
        links.remove(&link);
    }
}

#[cfg(test)]
mod tests;
