//! Random transfers, compared with a model: dictionaries of what a pool, a RAM tier and two other
//! tiers should hold.

use std::collections::HashMap;

use proptest::prelude::*;

use super::fakes::*;
use crate::mover::transfer::{Kind, Moved, Pool, Transfer};

const BLOCKS: usize = 8;
const SLOTS: usize = 6;
const KEYS: u8 = 4;

/// One transfer of a round. Blocks are taken from those that the round has left.
#[derive(Clone, Debug)]
enum Ask {
    Copy {
        kind: Kind,
        slots: Vec<usize>,
    },
    Chunk {
        kind: Kind,
        tier: usize,
        key: u8,
        blocks: usize,
    },
    Probe {
        tier: usize,
        chunks: Vec<(u8, i32)>,
    },
    Remove {
        keys: Vec<u8>,
    },
    /// Each key is a salt group of its own.
    Clear {
        of: Option<u8>,
    },
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Load), Just(Kind::Store)]
}

fn ask() -> impl Strategy<Value = Ask> {
    let key = 0..KEYS;
    let slots = proptest::sample::subsequence((0..SLOTS).collect::<Vec<_>>(), 1..4).prop_shuffle();
    prop_oneof![
        3 => (kind(), slots).prop_map(|(kind, slots)| Ask::Copy { kind, slots }),
        4 => (kind(), 1usize..3, key.clone(), 1usize..4)
            .prop_map(|(kind, tier, key, blocks)| Ask::Chunk { kind, tier, key, blocks }),
        2 => (1usize..3, proptest::collection::vec((key.clone(), 1i32..4), 0..4))
            .prop_map(|(tier, chunks)| Ask::Probe { tier, chunks }),
        1 => proptest::collection::vec(key.clone(), 1..3).prop_map(|keys| Ask::Remove { keys }),
        1 => proptest::option::of(key).prop_map(|of| Ask::Clear { of }),
    ]
}

/// Bytes of the blocks of each chunk, by name and number of blocks.
type Chunks = HashMap<(u8, usize), Vec<Vec<u8>>>;

/// What the pool and the tiers should hold, and what a transfer should return.
struct Model {
    pool: Vec<Vec<u8>>,
    ram: Vec<Vec<u8>>,
    tiers: [Chunks; 2],
}

impl Model {
    fn new(length: usize) -> Self {
        Self {
            pool: vec![vec![0; length]; BLOCKS],
            ram: vec![vec![0; length]; SLOTS],
            tiers: [HashMap::new(), HashMap::new()],
        }
    }

    fn copy(&mut self, kind: Kind, blocks: &[i32], slots: &[usize]) {
        for (&block, &slot) in blocks.iter().zip(slots) {
            match kind {
                Kind::Load => self.pool[block as usize].clone_from(&self.ram[slot]),
                _ => self.ram[slot].clone_from(&self.pool[block as usize]),
            }
        }
    }

    /// Applies a load or store of a chunk; returns whether it should be done.
    fn chunk(&mut self, kind: Kind, tier: usize, key: u8, blocks: &[i32]) -> bool {
        let (name, tier) = ((key, blocks.len()), &mut self.tiers[tier - 1]);
        if kind == Kind::Store {
            let bytes = blocks.iter().map(|&b| self.pool[b as usize].clone());
            tier.entry(name).or_insert_with(|| bytes.collect());
            return true;
        }
        let Some(chunk) = tier.get(&name) else {
            return false;
        };
        for (&block, bytes) in blocks.iter().zip(chunk) {
            self.pool[block as usize].clone_from(bytes);
        }
        true
    }

    fn probe(&self, tier: usize, chunks: &[(u8, i32)]) -> Vec<u8> {
        let has = |&(key, blocks): &(u8, i32)| {
            u8::from(self.tiers[tier - 1].contains_key(&(key, blocks as usize)))
        };
        chunks.iter().map(has).collect()
    }

    fn remove(&mut self, keys: &[u8]) {
        for tier in &mut self.tiers {
            tier.retain(|(key, _), _| !keys.contains(key));
        }
    }
}

/// A round under construction: transfers that are under way together, with what they should answer.
struct Round<'a> {
    model: &'a mut Model,
    id: u64,
    free: Vec<i32>,
    /// Tier and key of each chunk that this round stores or loads. A second transfer of it would
    /// depend on which comes first.
    names: Vec<(usize, u8)>,
    expected: Vec<(Transfer, bool, Vec<u8>)>,
}

impl Round<'_> {
    fn add(&mut self, ask: &Ask) {
        let id = self.id + self.expected.len() as u64;
        let (transfer, done, found) = match ask {
            Ask::Copy { kind, slots } => {
                let Some(blocks) = self.take(slots.len()) else {
                    return;
                };
                self.model.copy(*kind, &blocks, slots);
                let slots: Vec<i32> = slots.iter().map(|&s| s as i32).collect();
                (copy(id, *kind, &blocks, &slots), true, vec![])
            }
            &Ask::Chunk {
                kind,
                tier,
                key,
                blocks,
            } => {
                if self.names.contains(&(tier, key)) {
                    return;
                }
                let Some(blocks) = self.take(blocks) else {
                    return;
                };
                self.names.push((tier, key));
                let done = self.model.chunk(kind, tier, key, &blocks);
                (chunk(id, kind, tier, key, &blocks), done, vec![])
            }
            Ask::Probe { tier, chunks } => {
                if chunks
                    .iter()
                    .any(|&(key, _)| self.names.contains(&(*tier, key)))
                {
                    return;
                }
                self.names
                    .extend(chunks.iter().map(|&(key, _)| (*tier, key)));
                let found = self.model.probe(*tier, chunks);
                (probe(id, *tier, chunks), true, found)
            }
            Ask::Remove { keys } => {
                if !self.forget(keys) {
                    return;
                }
                (remove(id, keys), true, vec![])
            }
            Ask::Clear { of } => {
                if !self.forget(&of.map_or((0..KEYS).collect(), |key| vec![key])) {
                    return;
                }
                (clear(id, of.map(|key| [key; 4])), true, vec![])
            }
        };
        self.expected.push((transfer, done, found));
    }

    /// Forgets `keys` in both tiers, unless a transfer of this round has one of them.
    fn forget(&mut self, keys: &[u8]) -> bool {
        let both = |key: &u8| [(1, *key), (2, *key)];
        let mut names = keys.iter().flat_map(both);
        if names.any(|name| self.names.contains(&name)) {
            return false;
        }
        self.names.extend(keys.iter().flat_map(both));
        self.model.remove(keys);
        true
    }

    /// Blocks that no transfer of this round has.
    fn take(&mut self, count: usize) -> Option<Vec<i32>> {
        (self.free.len() >= count).then(|| self.free.split_off(self.free.len() - count))
    }
}

/// New content in some blocks, as a step would leave it.
fn write(rig: &Rig, model: &mut Model, fresh: &[(usize, u8)]) {
    for &(block, mark) in fresh {
        let bytes: Vec<u8> = (0..rig.pool.block_bytes() as u8)
            .map(|i| i.wrapping_mul(7) ^ mark)
            .collect();
        rig.pool.set(block, &bytes);
        model.pool[block] = bytes;
    }
}

type Script = Vec<(Vec<(usize, u8)>, Vec<usize>, Vec<Ask>)>;

fn script() -> impl Strategy<Value = Script> {
    let fresh = proptest::collection::vec((0..BLOCKS, any::<u8>()), 0..5);
    let order = Just((0..BLOCKS).collect::<Vec<_>>()).prop_shuffle();
    let asks = proptest::collection::vec(ask(), 1..7);
    proptest::collection::vec((fresh, order, asks), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn it_moves_what_a_dictionary_would(script in script()) {
        let rig = Rig::new(2);
        let mut model = Model::new(rig.pool.block_bytes());
        let mut id = 1;
        for (fresh, order, asks) in script {
            write(&rig, &mut model, &fresh);
            let free = order.into_iter().map(|b| b as i32).collect();
            let mut round = Round { model: &mut model, id, free, names: vec![], expected: vec![] };
            asks.iter().for_each(|ask| round.add(ask));
            let expected = round.expected;
            id += expected.len() as u64;
            expected.iter().for_each(|(transfer, ..)| rig.mover.submit(transfer.clone()));
            for (transfer, done, found) in expected {
                let Moved { done: was, found: got, error, .. } = rig.answer(transfer.id);
                prop_assert_eq!((was, got, error.as_str()), (done, found, ""), "{:?}", transfer);
            }
            prop_assert!(rig.pool.all_free());
            for (block, bytes) in model.pool.iter().enumerate() {
                prop_assert_eq!(&rig.pool.bytes(block), bytes, "block {}", block);
            }
        }
    }
}
