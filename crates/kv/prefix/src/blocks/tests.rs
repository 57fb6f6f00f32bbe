//! The block index, compared with a model of plain sets.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const SIZE: usize = 2;

/// A block: each token from the start of the sequence to the block's end, preceded by the hash of
/// its block's other inputs ([`Run::extra`]); and the tiers that hold the block.
type Plain = (Vec<(u64, u32)>, BTreeSet<usize>);

/// The plain model: blocks by engine and name, and the engines that use the shared tier.
#[derive(Default)]
struct Model(BTreeMap<(u32, u128), Plain>, BTreeSet<u32>);

impl Model {
    fn stored(&mut self, engine: u32, run: &Run<'_>) {
        if run.tier == SHARED {
            self.1.insert(engine);
        }
        if run.tokens.is_empty() {
            for name in run.names {
                if let Some((_, tiers)) = self.0.get_mut(&(engine, *name)) {
                    tiers.insert(run.tier);
                }
            }
            return;
        }
        let mut text = match run.parent {
            None => Vec::new(),
            Some(parent) => match self.0.get(&(engine, parent)) {
                Some((text, _)) => text.clone(),
                None => return,
            },
        };
        for (at, name) in run.names.iter().enumerate() {
            let extra = run.extra.get(at).copied().unwrap_or(0);
            let tokens = &run.tokens[at * SIZE..(at + 1) * SIZE];
            text.extend(tokens.iter().map(|token| (extra, *token)));
            let block = self.0.entry((engine, *name)).or_default();
            if block.0 != text {
                *block = (text.clone(), BTreeSet::new());
            }
            block.1.insert(run.tier);
        }
    }

    fn removed(&mut self, engine: u32, names: &[u128], tier: usize) {
        for name in names {
            if let Some((_, tiers)) = self.0.get_mut(&(engine, *name)) {
                tiers.remove(&tier);
            }
        }
        self.0.retain(|_, (_, tiers)| !tiers.is_empty());
    }

    fn matches(&self, engine: u32, prompt: &[u32]) -> [usize; TIERS] {
        let mut matched = [0; TIERS];
        for end in (SIZE..=prompt.len()).step_by(SIZE) {
            let text: Vec<(u64, u32)> = prompt[..end].iter().map(|token| (0, *token)).collect();
            let blocks = self.0.iter().filter(|(_, (one, _))| *one == text);
            let tiers =
                blocks.flat_map(|((one, _), (_, t))| t.iter().map(move |tier| (*one, *tier)));
            let reached = tiers.filter(|(one, tier)| {
                *one == engine || (*tier == SHARED && self.1.contains(&engine))
            });
            match reached.map(|(_, tier)| tier).min() {
                Some(tier) => matched[tier] += 1,
                None => break,
            }
        }
        matched
    }

    fn len_of(&self, engine: u32) -> usize {
        self.0.keys().filter(|(one, _)| *one == engine).count()
    }
}

#[derive(Debug, Clone)]
enum Change {
    Stored {
        names: Vec<u128>,
        parent: Option<u128>,
        tokens: Vec<u32>,
        extra: Vec<u64>,
        tier: usize,
    },
    Removed(Vec<u128>, usize),
    Cleared,
}

fn changes() -> impl Strategy<Value = (u32, Change)> {
    let names = || prop::collection::vec(0u128..10, 1..4);
    let parent = prop::option::weighted(0.6, 0u128..10);
    let tokens = prop::collection::vec(0u32..2, 3 * SIZE);
    let extra = prop::collection::vec(prop::sample::select(&[0, 0, 0, 9u64][..]), 0..4);
    let told = prop::bool::weighted(0.9);
    let stored = (names(), parent, tokens, extra, 0..TIERS, told).prop_map(
        |(names, parent, mut tokens, extra, tier, told)| {
            tokens.truncate(if told { names.len() * SIZE } else { 0 });
            Change::Stored {
                names,
                parent,
                tokens,
                extra,
                tier,
            }
        },
    );
    let removed = (names(), 0..TIERS).prop_map(|(names, tier)| Change::Removed(names, tier));
    let change = prop_oneof![6 => stored, 3 => removed, 1 => Just(Change::Cleared)];
    (0u32..3, change)
}

proptest! {
    #[test]
    fn it_does_what_sets_do(
        changes in prop::collection::vec(changes(), 1..80),
        prompts in prop::collection::vec(prop::collection::vec(0u32..2, 0..9), 1..4),
    ) {
        let (mut index, mut model) = (BlockIndex::default(), Model::default());
        for (engine, change) in changes {
            match &change {
                Change::Stored { names, parent, tokens, extra, tier } => {
                    let run = Run {
                        names, parent: *parent, tokens, block_size: SIZE, root: 5, extra,
                        tier: *tier,
                    };
                    index.stored(engine, &run);
                    model.stored(engine, &run);
                }
                Change::Removed(names, tier) => {
                    index.removed(engine, names, *tier);
                    model.removed(engine, names, *tier);
                }
                Change::Cleared => {
                    index.clear(engine);
                    model.0.retain(|(one, _), _| *one != engine);
                    model.1.remove(&engine);
                }
            }
            prop_assert_eq!(index.len_of(engine), model.len_of(engine));
            for prompt in &prompts {
                let found = index.matches(&token_chain(5, SIZE, prompt), &[0, 1, 2], 0);
                let wanted: Vec<_> = (0..3).map(|one| model.matches(one, prompt)).collect();
                prop_assert_eq!(found, wanted, "after {:?}", change);
            }
        }
        (0..3).for_each(|engine| index.clear(engine));
        prop_assert!(index.links.is_empty() && index.engines.is_empty());
    }
}

#[test]
fn what_an_engine_computes_is_expected_for_a_while() {
    let mut index = BlockIndex::default();
    let chain = token_chain(0, 2, &[1, 2, 3, 4]);
    index.expect(7, &chain, 100, 200);
    assert_eq!(
        index.matches(&chain, &[7, 8], 150),
        [[2, 0, 0, 0], [0; TIERS]]
    );
    assert_eq!(index.matches(&chain, &[7], 200), [[0; TIERS]]);
    // stored meanwhile, in a farther tier
    let names = [1];
    let run = Run {
        names: &names,
        tokens: &[1, 2],
        block_size: 2,
        tier: 2,
        ..Run::default()
    };
    assert_eq!(index.stored(7, &run), 1);
    assert_eq!(index.matches(&chain, &[7], 150), [[2, 0, 0, 0]]);
    assert_eq!(index.matches(&chain, &[7], 200), [[0, 0, 1, 0]]);
    // a block that was stored and removed since is no longer expected
    index.expect(7, &chain, 150, 250);
    let stored = Run { tier: 0, ..run };
    assert_eq!(index.stored(7, &stored), 1);
    index.removed(7, &names, 0);
    assert_eq!(
        index.matches(&chain, &[7], 160),
        [[1, 0, 1, 0]],
        "the second block is expected"
    );
    index.expect(8, &chain[..1], 300, 400);
    assert_eq!(index.expected.len(), 1, "the first ones are over");
    assert_eq!(index.links.len(), 1);
    index.clear(8);
    index.removed(7, &names, 2);
    assert!(index.links.is_empty() && index.expected_links == 0);
}

#[test]
fn what_one_engine_stored_in_the_shared_tier_others_that_use_it_have_too() {
    let mut index = BlockIndex::default();
    let (prompt, other) = ([1, 2, 3, 4], [9, 9]);
    let run = |tokens, names, tier| Run {
        names,
        tokens,
        block_size: 2,
        tier,
        ..Run::default()
    };
    index.stored(1, &run(&prompt, &[1, 2], SHARED));
    index.stored(2, &run(&other, &[7], SHARED));
    index.stored(2, &run(&prompt[..2], &[8], 0));
    index.stored(3, &run(&other, &[7], 2));
    let chain = token_chain(0, 2, &prompt);
    let found = index.matches(&chain, &[1, 2, 3], 0);
    assert_eq!(found, [[0, 0, 0, 2], [1, 0, 0, 1], [0; TIERS]]);
    index.removed(1, &[2], SHARED);
    assert_eq!(index.matches(&chain, &[2], 0), [[1, 0, 0, 0]]);
}

#[test]
fn blocks_behind_unknown_ones_have_no_place() {
    let mut index = BlockIndex::default();
    let run = Run {
        names: &[2],
        parent: Some(1),
        tokens: &[1, 2],
        block_size: 2,
        ..Run::default()
    };
    assert_eq!(index.stored(1, &run), 0);
    assert_eq!((index.len_of(1), index.block_size(1)), (0, None));
    let odd = Run {
        parent: None,
        tokens: &[1, 2, 3],
        ..run
    };
    assert_eq!(index.stored(1, &odd), 0);
}
