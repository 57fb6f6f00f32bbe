//! Eviction and admission of full tiers.
//!
//! [`CachePolicy`] ranks keys with sizes: the chunks of a disk tier. [`TierIndex`] adds slots,
//! stores in flight, holds and pins: the blocks of the RAM tier. Eviction is LRU over the leaves of
//! the prefix tree, weighted by frequency. New entries pass a TinyLFU admission filter while
//! [`shadow`] caches show that it raises the hit rate. All ranks must make the same decisions, so
//! these use no clock and no random numbers; the bits of a key decide whether it is sampled.

mod cache_policy;
mod index;
mod key;
mod shadow;
mod sketch;
mod tree;

pub use cache_policy::{CachePolicy, Item, Rule};
pub use index::{IndexError, IndexOptions, IndexStats, PRESENT, REFUSED, TierIndex};
pub use key::Key;
