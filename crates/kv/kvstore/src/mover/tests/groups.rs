//! The mover with two KV groups: blocks of different sizes, parts of each group, loads that leave
//! out blocks.

use std::sync::Arc;

use super::fakes::*;
use crate::mover::clock::Monotonic;
use crate::mover::options::Options;
use crate::mover::transfer::{Kind, Pool};

const FIRST: (u16, u16) = (0, 2);
const SECOND: (u16, u16) = (3, 4);

/// A rank with two heads, two layers in the first group and one in the second; all blocks differ.
fn rig(tiers: usize, layers: Vec<(u16, u16)>) -> Rig {
    let options = Options {
        layers,
        ..options(vec![0, 1], tiers)
    };
    let shelves = (0..tiers).map(|_| Arc::default()).collect();
    let rig = Rig::start(&options, shelves, limits(), Arc::new(Monotonic::start()));
    for (group, pool) in rig.pools.iter().enumerate() {
        for block in 0..8 {
            let mark = |at| (100 * group + 10 * block + at % 7) as u8;
            pool.set(
                block,
                &(0..pool.block_bytes()).map(mark).collect::<Vec<_>>(),
            );
        }
    }
    rig
}

fn two_groups(tiers: usize) -> Rig {
    rig(tiers, vec![FIRST, SECOND])
}

#[test]
fn a_slot_holds_the_blocks_of_all_groups() {
    let rig = two_groups(0);
    let sizes: Vec<_> = rig.pools.iter().map(Pool::block_bytes).collect();
    assert_eq!(sizes, [4 * TILE, 2 * TILE]);
    let moved = rig.run(copy(1, Kind::Store, &[0, 1, 2, 3], &[5, 0]));
    assert!(moved.done && moved.bytes == 2 * 6 * TILE as u64);
    let before = rig.pools[1].bytes(7);
    let moved = rig.run(copy(2, Kind::Load, &[6, 7, 4, -1], &[0, 5]));
    assert!(moved.done && moved.bytes == (2 * 4 + 2) * TILE as u64);
    assert_eq!(rig.pools[0].bytes(6), rig.pools[0].bytes(1));
    assert_eq!(rig.pools[0].bytes(7), rig.pools[0].bytes(0));
    assert_eq!(rig.pools[1].bytes(4), rig.pools[1].bytes(3));
    assert_eq!(rig.pools[1].bytes(7), before);
    assert!(rig.pools.iter().all(FakePool::all_free));
}

#[test]
fn a_chunk_has_parts_of_every_group_and_only_those_wanted_are_read() {
    let rig = two_groups(1);
    let moved = rig.run(chunk(1, Kind::Store, 1, 9, &[0, 1, 2, 3]));
    assert!(moved.done && moved.bytes == 2 * 6 * TILE as u64);
    let parts = || rig.shelves[0].parts.lock().unwrap();
    let mut names: Vec<_> = parts().keys().map(|key| (key.head, key.layers)).collect();
    names.sort_unstable();
    assert_eq!(names, [(0, FIRST), (0, SECOND), (1, FIRST), (1, SECOND)]);

    // Load both blocks of the first group, but only the last one of the second.
    let before = rig.pools[1].bytes(6);
    assert!(rig.run(chunk(2, Kind::Load, 1, 9, &[4, 5, -1, 5])).done);
    assert_eq!(rig.pools[0].bytes(4), rig.pools[0].bytes(0));
    assert_eq!(rig.pools[0].bytes(5), rig.pools[0].bytes(1));
    assert_eq!(rig.pools[1].bytes(5), rig.pools[1].bytes(3));
    assert_eq!(rig.pools[1].bytes(6), before);

    parts().retain(|key, _| key.layers == FIRST);
    let moved = rig.run(chunk(3, Kind::Load, 1, 9, &[6, 7, -1, -1]));
    assert!(moved.done && moved.bytes == 2 * 4 * TILE as u64);
    assert!(!rig.run(chunk(4, Kind::Load, 1, 9, &[6, 7, -1, 6])).done);
    assert_eq!(rig.run(probe(5, 1, &[(9, 2)])).found, [0]);
    assert!(rig.run(chunk(6, Kind::Load, 1, 9, &[-1, -1, -1, -1])).done);
    assert!(rig.pools.iter().all(FakePool::all_free));
}

#[test]
fn a_store_without_a_block_of_every_group_is_refused_as_a_whole() {
    let rig = two_groups(1);
    for (id, (transfer, what)) in [
        (chunk(0, Kind::Store, 1, 9, &[0, 1, -1, 3]), "block -1"),
        (copy(0, Kind::Store, &[0, 1, -1, 3], &[0, 1]), "block -1"),
        (copy(0, Kind::Load, &[0, 1, -2, 3], &[0, 1]), "block -2"),
        (
            chunk(0, Kind::Load, 1, 9, &[0, 1, 2]),
            "3 blocks of 2 KV groups",
        ),
        (
            copy(0, Kind::Load, &[0, 1], &[0, 1]),
            "2 slots for 1 blocks",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let id = id as u64;
        let error = rig.run(crate::mover::Transfer { id, ..transfer }).error;
        assert!(error.contains(what), "{error:?} for {what:?}");
    }
    assert!(rig.shelves[0].parts.lock().unwrap().is_empty());
    assert!(rig.pools.iter().all(FakePool::all_free));
}

/// A pipeline stage may have layers of one group only.
#[test]
fn a_group_without_layers_has_no_parts() {
    let rig = rig(1, vec![FIRST, (3, 3)]);
    assert!(rig.run(chunk(1, Kind::Store, 1, 9, &[0, 1, 2, 3])).done);
    assert_eq!(rig.shelves[0].parts.lock().unwrap().len(), 2);
    assert_eq!(rig.run(probe(2, 1, &[(9, 2)])).found, [1]);
    assert!(rig.run(chunk(3, Kind::Load, 1, 9, &[4, 5, -1, 6])).done);
    assert_eq!(rig.pool.bytes(5), rig.pool.bytes(1));
    assert!(rig.run(copy(4, Kind::Store, &[0, 1], &[3])).done);
    assert!(rig.run(copy(5, Kind::Load, &[6, 2], &[3])).done);
    assert_eq!(rig.pool.bytes(6), rig.pool.bytes(0));
}
