#![allow(clippy::unwrap_used)]
//! Batches in the formats of SGLang and vLLM (tests/fixtures), and in Penstock's.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::{BatchWriter, Chunks};

/// The bytes of a fixture: hexadecimal digits and white space.
fn fixture(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

fn number(value: u64) -> BlockHash {
    BlockHash(xxh3_128_with_seed(&value.to_le_bytes(), 0))
}

const RECORDED: &str = include_str!("../../tests/fixtures/vllm-0.32.0-recorded.txt");
const RECORDED_TOKENS: &str = include_str!("../../tests/fixtures/vllm-0.32.0-tokens.txt");
const SGLANG: &str = include_str!("../../tests/fixtures/sglang.txt");
const SGLANG_TIERS: &str = include_str!("../../tests/fixtures/sglang-0.5.23-tiers.txt");
const SGLANG_SALTED: &str = include_str!("../../tests/fixtures/sglang-0.5.23-salted.txt");
const VLLM_MEDIUM: &str = include_str!("../../tests/fixtures/vllm-medium.txt");
const VLLM_GROUPS: &str = include_str!("../../tests/fixtures/vllm-groups.txt");
const VLLM_MAPS: &str = include_str!("../../tests/fixtures/vllm-maps.txt");

/// Checks a batch that stores two blocks of 4 tokens after block 17, removes one, then clears all.
fn check(bytes: &[u8], hashes: [BlockHash; 3]) -> Stored {
    let batch = Batch::decode(bytes).unwrap();
    assert_eq!(batch.at, 1_700_000_000.25);
    let [
        Event::Stored(stored),
        Event::Removed {
            hashes: gone,
            medium,
        },
        Event::Cleared,
    ] = batch.events.as_slice()
    else {
        panic!("{batch:?}");
    };
    assert_eq!(stored.parent, Some(hashes[0]));
    assert_eq!(stored.hashes, hashes[1..]);
    assert_eq!(stored.tokens, [1, 2, 3, 4, 5, 600, 70_000, 128_255]);
    assert_eq!(stored.block_size, 4);
    assert_eq!((gone.as_slice(), *medium), (&hashes[1..2], stored.medium));
    stored.clone()
}

#[test]
fn batches_of_a_running_vllm_are_read() {
    let batches: Vec<Batch> = RECORDED
        .lines()
        .map(|line| Batch::decode(&fixture(line)).unwrap())
        .collect();
    let mut times: Vec<f64> = batches.iter().map(|batch| batch.at).collect();
    assert!(times.is_sorted() && times.len() == 4);
    times.dedup();
    assert_eq!(times.len(), 4);
    let prompt: Vec<u32> = RECORDED_TOKENS
        .split_whitespace()
        .map(|token| token.parse().unwrap())
        .collect();
    let [Event::Stored(first)] = batches[0].events.as_slice() else {
        panic!("{:?}", batches[0]);
    };
    assert_eq!(first.parent, None);
    assert_eq!((first.block_size, first.hashes.len()), (128, 3));
    assert_eq!(first.tokens, prompt[..3 * 128]);
    assert_eq!((first.medium, first.windowed), (Medium::Pool, false));
    assert_eq!(first.adapter, None);
    assert!(first.extra.iter().all(|extra| *extra == 0));
}

#[test]
fn all_versions_are_read() {
    let hashes = [number(17), number(1 << 63 | 5), number(300)];
    // the first format, of SGLang too
    let oldest = check(&fixture(SGLANG), hashes);
    assert_eq!((oldest.adapter, oldest.medium), (None, Medium::Pool));
    let vllm = check(&fixture(VLLM_MEDIUM), hashes);
    assert_eq!(
        (vllm.adapter.as_deref(), vllm.medium),
        (Some("[3]"), Medium::Pool)
    );
    // names of 32 bytes, an adapter, extra keys, groups
    let name = |byte: u8| BlockHash(xxh3_128_with_seed(&[byte; 32], 0));
    let newer = check(&fixture(VLLM_GROUPS), [name(1), name(2), name(3)]);
    assert_eq!(
        (newer.adapter.as_deref(), newer.medium),
        (Some("sql"), Medium::Ram)
    );
    assert_eq!(newer.extra[0], 0, "the adapter's name is no key of its own");
    assert_ne!(newer.extra[1], 0);
    assert!(!newer.windowed);
    let newest = check(&fixture(VLLM_MAPS), hashes);
    assert_eq!((newest.adapter, newest.medium), (None, Medium::Pool));
    assert!(newest.windowed);
}

#[test]
fn sglang_s_maps_have_tiers_and_salts() {
    let names = [number(-9_223_372_036_854_775_803_i64 as u64), number(7)];
    let tiers = Batch::decode(&fixture(SGLANG_TIERS)).unwrap();
    let [
        Event::Stored(pool),
        Event::Stored(ram),
        Event::Removed { hashes, medium },
    ] = tiers.events.as_slice()
    else {
        panic!("{tiers:?}");
    };
    assert_eq!((pool.medium, ram.medium), (Medium::Pool, Medium::Ram));
    assert_eq!((&pool.hashes, &ram.tokens), (&ram.hashes, &pool.tokens));
    assert_eq!(pool.hashes, names);
    assert_eq!((hashes.as_slice(), *medium), (&names[..1], Medium::Pool));
    assert!(pool.extra.is_empty() && pool.parent.is_none() && !pool.windowed);
    let salted = Batch::decode(&fixture(SGLANG_SALTED)).unwrap();
    let [
        Event::Stored(first),
        Event::Stored(next),
        Event::Stored(shared),
        Event::Cleared,
    ] = salted.events.as_slice()
    else {
        panic!("{salted:?}");
    };
    assert_eq!(first.extra, [xxh3_64(b"tenant-a")], "no block of others");
    assert_eq!(next.parent, first.hashes.last().copied());
    assert!(next.extra.is_empty(), "its parent keeps it apart");
    assert_eq!(
        (next.medium, next.adapter.as_deref()),
        (Medium::Disk, Some("sql"))
    );
    assert_eq!(shared.medium, Medium::Shared);
    assert!(shared.extra.is_empty());
}

#[test]
fn mediums_have_many_names() {
    for (name, medium) in [
        ("GPU", Medium::Pool),
        ("", Medium::Pool),
        ("cpu", Medium::Ram),
        ("CPU_PINNED", Medium::Ram),
        ("DISK", Medium::Disk),
        ("NVMe", Medium::Disk),
        ("STORAGE", Medium::Shared),
        ("EXTERNAL", Medium::Shared),
    ] {
        assert_eq!(Medium::named(name.as_bytes(), b""), medium, "{name}");
    }
    for (locality, medium) in [("LOCAL", Medium::Disk), ("REMOTE", Medium::Shared)] {
        assert_eq!(Medium::named(b"STORAGE", locality.as_bytes()), medium);
    }
}

#[test]
fn groups_keep_blocks_of_one_name_apart() {
    let mut list = Reader(&[7, 7]);
    let (first, second) = (hash(&mut list, 0).unwrap(), hash(&mut list, 1).unwrap());
    assert_ne!(first, second);
}

#[test]
fn unknown_events_and_fields_are_passed_over() {
    // [1.5, [["Later", 1], ["AllBlocksCleared", "x"]], 0, "more"]
    let head = b"\x94\xcb\x3f\xf8\0\0\0\0\0\0\x92\x92\xa5Later\x01".as_slice();
    let tail = b"\x92\xb0AllBlocksCleared\xa1x\0\xa4more".as_slice();
    let batch = Batch::decode(&[head, tail].concat()).unwrap();
    assert_eq!(batch.events, [Event::Cleared]);
}

#[test]
fn neighbours_become_one_event() {
    let mut writer = BatchWriter::default();
    writer.cleared();
    writer.stored(1, None, &[1, 2], Some("salt"));
    writer.stored(2, Some(1), &[3, 4], Some("salt"));
    writer.stored(3, Some(9), &[5, 6], None);
    writer.removed(1, Medium::Pool);
    writer.removed(2, Medium::Pool);
    let batch = Batch::decode(&writer.finish(1.0).unwrap()).unwrap();
    let [
        Event::Cleared,
        Event::Stored(salted),
        Event::Stored(plain),
        Event::Removed { hashes, .. },
    ] = batch.events.as_slice()
    else {
        panic!("{batch:?}");
    };
    assert_eq!(
        (salted.parent, salted.tokens.as_slice()),
        (None, &[1, 2, 3, 4][..])
    );
    assert_eq!(salted.hashes, [number(1), number(2)]);
    assert_ne!(salted.extra[0], 0);
    assert_eq!(salted.extra[1], 0);
    assert_eq!((plain.parent, plain.extra.len()), (Some(number(9)), 0));
    assert_eq!(*hashes, [number(1), number(2)]);
    assert_eq!(writer.finish(2.0), None);
}

#[test]
fn blocks_of_tiers_are_told_without_tokens_and_by_medium() {
    let mut writer = BatchWriter::default();
    for medium in [Medium::Ram, Medium::Disk, Medium::Shared] {
        writer.copied(1, medium);
        writer.copied(2, medium);
        writer.removed(3, medium);
    }
    writer.removed(3, Medium::Pool);
    let batch = Batch::decode(&writer.finish(1.0).unwrap()).unwrap();
    let told = batch.events.iter().map(|event| match event {
        Event::Stored(stored) => {
            assert!(stored.tokens.is_empty() && stored.parent.is_none() && !stored.windowed);
            (true, stored.medium, stored.hashes.clone())
        }
        Event::Removed { hashes, medium } => (false, *medium, hashes.clone()),
        Event::Cleared => panic!("{batch:?}"),
    });
    let tiers = [Medium::Ram, Medium::Disk, Medium::Shared];
    let mut wanted: Vec<_> = (tiers.into_iter())
        .flat_map(|medium| {
            let stored = (true, medium, vec![number(1), number(2)]);
            [stored, (false, medium, vec![number(3)])]
        })
        .collect();
    wanted.push((false, Medium::Pool, vec![number(3)]));
    assert_eq!(told.collect::<Vec<_>>(), wanted);
}

/// A tier, a chunk's name, and its blocks; without blocks the chunk is removed.
fn chunk() -> impl Strategy<Value = (usize, u8, Vec<u64>)> {
    (0usize..3, 0u8..6, prop::collection::vec(0u64..8, 0..5))
}

/// Hash, whether it has a parent, tokens; no tokens: the block is removed.
fn change() -> impl Strategy<Value = (u64, bool, Vec<u32>)> {
    (
        any::<u64>(),
        any::<bool>(),
        prop::collection::vec(any::<u32>(), 0..6),
    )
}

proptest! {
    #[test]
    fn what_was_written_is_read(changes in prop::collection::vec(change(), 1..40)) {
        let mut writer = BatchWriter::default();
        for (hash, behind, tokens) in &changes {
            match tokens.is_empty() {
                true => writer.removed(*hash, Medium::Pool),
                false => writer.stored(*hash, behind.then_some(7), tokens, None),
            }
        }
        let batch = Batch::decode(&writer.finish(2.5).unwrap()).unwrap();
        prop_assert_eq!(batch.at, 2.5);
        let mut found = Vec::new();
        for event in batch.events {
            match event {
                Event::Stored(Stored { hashes, tokens, block_size, .. }) => {
                    let blocks = tokens.chunks(block_size).map(<[u32]>::to_vec);
                    found.extend(hashes.into_iter().zip(blocks));
                }
                Event::Removed { hashes, .. } => {
                    found.extend(hashes.into_iter().map(|hash| (hash, Vec::new())));
                }
                Event::Cleared => {}
            }
        }
        let plain = changes.into_iter().map(|(hash, _, tokens)| (number(hash), tokens));
        let wanted: Vec<_> = plain.collect();
        prop_assert_eq!(found, wanted);
    }

    #[test]
    fn events_of_chunks_say_which_blocks_are_where(
        changes in prop::collection::vec(chunk(), 1..60),
    ) {
        // two tiers of one medium, and one of another
        let media = [Medium::Disk, Medium::Disk, Medium::Ram];
        let (mut chunks, mut writer) = (Chunks::default(), BatchWriter::default());
        let mut model: BTreeMap<(usize, u8), BTreeSet<u64>> = BTreeMap::new();
        let mut told: BTreeSet<(Medium, BlockHash)> = BTreeSet::new();
        for (tier, name, blocks) in changes {
            match blocks.is_empty() {
                true => {
                    chunks.removed(tier, [name; 32], &mut writer);
                    model.remove(&(tier, name));
                }
                false => {
                    let mut blocks = blocks;
                    blocks.sort_unstable();
                    blocks.dedup();
                    model.entry((tier, name)).or_insert_with(|| blocks.iter().copied().collect());
                    chunks.stored((tier, media[tier]), [name; 32], blocks, &mut writer);
                }
            }
            let Some(bytes) = writer.finish(1.0) else { continue };
            for event in Batch::decode(&bytes).unwrap().events {
                match event {
                    Event::Stored(one) => for hash in one.hashes {
                        prop_assert!(told.insert((one.medium, hash)), "told twice");
                    },
                    Event::Removed { hashes, medium } => for hash in hashes {
                        prop_assert!(told.remove(&(medium, hash)), "was never told");
                    },
                    Event::Cleared => prop_assert!(false),
                }
            }
            let there = model.iter().flat_map(|((tier, _), blocks)| {
                blocks.iter().map(|block| (media[*tier], number(*block)))
            });
            prop_assert_eq!(&told, &there.collect::<BTreeSet<_>>());
        }
    }

    #[test]
    fn any_bytes_are_a_batch_or_an_error(
        at in 0usize..200, byte in any::<u8>(), cut in 0usize..400,
        bytes in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let _ = Batch::decode(&bytes);
        for text in [SGLANG, SGLANG_TIERS, SGLANG_SALTED, VLLM_MEDIUM, VLLM_GROUPS, VLLM_MAPS] {
            let mut damaged = fixture(text);
            let place = at % damaged.len();
            damaged[place] = byte;
            let _ = Batch::decode(&damaged);
            damaged.truncate(cut);
            let _ = Batch::decode(&damaged);
        }
    }
}
