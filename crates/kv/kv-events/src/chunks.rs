//! Publishes chunks of the tiers as events about their blocks. A block may be in several chunks:
//! its first chunk publishes it as stored, the removal of its last chunk as removed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::{BatchWriter, Medium};

/// A chunk's key in the engine.
type Key = [u8; 32];

/// Medium and blocks of a chunk.
type Chunk = (Medium, Box<[u64]>);

/// The chunks in the tiers, by tier number.
#[derive(Debug, Default)]
pub struct Chunks {
    held: HashMap<(usize, Key), Chunk>,
    /// Number of chunks per block, over all tiers of one medium.
    counts: HashMap<(Medium, u64), u32>,
}

impl Chunks {
    /// Records that the tier `tier` stores the chunk `key` with these blocks. Idempotent.
    pub fn stored(
        &mut self,
        (tier, medium): (usize, Medium),
        key: Key,
        blocks: Vec<u64>,
        batch: &mut BatchWriter,
    ) {
        let Entry::Vacant(place) = self.held.entry((tier, key)) else {
            return;
        };
        for block in &blocks {
            let count = self.counts.entry((medium, *block)).or_default();
            *count += 1;
            if *count == 1 {
                batch.copied(*block, medium);
            }
        }
        place.insert((medium, blocks.into()));
    }

    /// Records that the tier `tier` has removed the chunk `key`; a no-op if it is unknown.
    pub fn removed(&mut self, tier: usize, key: Key, batch: &mut BatchWriter) {
        let Some((medium, blocks)) = self.held.remove(&(tier, key)) else {
            return;
        };
        for block in blocks {
            let count = self.counts.entry((medium, block));
            let Entry::Occupied(mut count) = count else {
                continue;
            };
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
                batch.removed(block, medium);
            }
        }
    }
}
