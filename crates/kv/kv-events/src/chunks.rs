//! Chunks of blocks that the tiers of an engine hold, written as blocks: several chunks may have a
//! block, which is there with the first of them and gone with the last.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::{BatchWriter, Medium};

/// A chunk's name, as the engine has it.
type Key = [u8; 32];

/// Where its blocks are.
type Chunk = (Medium, Box<[u64]>);

/// What the tiers hold, by the number of the tier.
#[derive(Debug, Default)]
pub struct Chunks {
    held: HashMap<(usize, Key), Chunk>,
    /// Chunks of a block in all tiers of one medium.
    counts: HashMap<(Medium, u64), u32>,
}

impl Chunks {
    /// The tier `tier` holds the chunk `key` of these blocks. A repeated report changes nothing.
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

    /// The tier `tier` holds the chunk `key` no more, if it did.
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
