//! Order of transfers, cancellation, refusals, and which parts a rank stores.

use std::sync::Arc;

use super::fakes::*;
use crate::mover::Limits;
use crate::mover::clock::Monotonic;
use crate::mover::transfer::{Kind, Pool, Transfer};

fn one_thread() -> Rig {
    let limits = Limits {
        io_threads: 1,
        ..limits()
    };
    Rig::with(1, limits, Arc::new(Monotonic::start()))
}

#[test]
fn loads_come_before_stores_and_probes_before_both() {
    let rig = one_thread();
    let shelf = &rig.shelves[0];
    shelf.set(Mood::Stuck);
    rig.mover.submit(chunk(1, Kind::Store, 1, 1, &[0]));
    shelf.wait_calls(1);
    rig.mover.submit(chunk(2, Kind::Store, 1, 2, &[0]));
    rig.mover.submit(remove(3, &[2]));
    rig.mover.submit(chunk(4, Kind::Store, 1, 4, &[0]));
    rig.mover.submit(chunk(5, Kind::Load, 1, 1, &[1]));
    rig.mover.submit(probe(6, 1, &[(1, 1)]));
    // The probe runs while the store hangs.
    shelf.wait_calls(2);
    shelf.set(Mood::Well);
    (1..=6).for_each(|id| assert!(rig.answer(id).done));
    let calls = shelf.calls.lock().unwrap().clone();
    let expected = [
        "store 1.0",
        "probe 2",
        "store 1.1",
        "load 1.0",
        "load 1.1",
        "store 2.0",
        "store 2.1",
        "remove 2",
        "store 4.0",
        "store 4.1",
    ];
    assert_eq!(calls, expected);
}

#[test]
fn what_was_not_begun_is_cancelled() {
    let rig = one_thread();
    let shelf = &rig.shelves[0];
    assert!(rig.run(chunk(1, Kind::Store, 1, 1, &[0])).done);
    shelf.set(Mood::Stuck);
    rig.mover.submit(chunk(2, Kind::Load, 1, 1, &[2]));
    shelf.wait_calls(3);
    rig.mover.submit(chunk(3, Kind::Load, 1, 1, &[3]));
    rig.mover.submit(chunk(4, Kind::Store, 1, 4, &[4]));
    rig.mover.submit(chunk(5, Kind::Load, 1, 1, &[5]));
    rig.mover.submit(cancel(&[2, 3, 4, 77]));
    for id in [3, 4] {
        let moved = rig.answer(id);
        assert_eq!((moved.done, moved.error.as_str()), (false, ""));
    }
    assert!(rig.pool.write(3).is_some() && rig.pool.write(4).is_some());
    assert!(rig.pool.read(2).is_none() && rig.pool.read(5).is_none());
    shelf.set(Mood::Well);
    assert!(rig.answer(2).done && rig.answer(5).done);
    assert_eq!(rig.pool.bytes(2), rig.pool.bytes(0));
}

#[test]
fn a_wrong_transfer_is_answered_with_what_is_wrong() {
    let rig = Rig::new(2);
    let borrowed = rig.pool.write(5).unwrap();
    let two_names = {
        let mut t = chunk(0, Kind::Load, 1, 1, &[0]);
        t.keys.push([2; 32]);
        t
    };
    let cases = [
        (copy(0, Kind::Store, &[5], &[0]), "block 5 is not to be had"),
        (
            copy(0, Kind::Load, &[1, 2, 1], &[0, 1, 2]),
            "block 1 is not to be had",
        ),
        (
            chunk(0, Kind::Load, 1, 1, &[3, 5]),
            "block 5 is not to be had",
        ),
        (
            chunk(0, Kind::Store, 2, 1, &[8]),
            "block 8 is not to be had",
        ),
        (
            chunk(0, Kind::Store, 2, 1, &[-1]),
            "block -1 is not to be had",
        ),
        (copy(0, Kind::Load, &[1], &[6]), "slot 6 is not in 0..6"),
        (copy(0, Kind::Load, &[1], &[-1]), "slot -1 is not in 0..6"),
        (copy(0, Kind::Load, &[1], &[1, 2]), "2 slots for 1 blocks"),
        (
            copy(0, Kind::Store, &[1, 2], &[3, 3]),
            "slot 3 is to be filled twice",
        ),
        (
            chunk(0, Kind::Load, 3, 1, &[0]),
            "tier 3 is no chunk tier: those are 1..=2",
        ),
        (probe(0, 0, &[(1, 1)]), "tier 0 is no chunk tier"),
        (probe(0, 1, &[(1, -1)]), "a chunk of -1 blocks"),
        (
            chunk(0, Kind::Load, 1, 1, &[]),
            "1 names for one chunk of 0 blocks",
        ),
        (two_names, "2 names for one chunk of 1 blocks"),
    ];
    for (id, (mut transfer, what)) in cases.into_iter().enumerate() {
        transfer.id = id as u64;
        let moved = rig.run(transfer);
        assert!(
            !moved.done && moved.error.contains(what),
            "{:?} for {what:?}",
            moved.error
        );
    }
    drop(borrowed);
    assert!(rig.pool.all_free());
    let ramless = Rig::rank(vec![0], vec![], limits(), Arc::new(Monotonic::start()));
    assert!(ramless.run(remove(1, &[1])).done);
}

/// Loads and stores of one slot happen in the order of their submission.
#[test]
fn a_load_sees_the_store_before_it() {
    let rig = Rig::new(0);
    let length = rig.pool.block_bytes();
    let mut id = 0;
    for round in 0..200u8 {
        for block in 0..4 {
            rig.pool.set(block, &vec![round ^ block as u8; length]);
        }
        let steps = [
            copy(id, Kind::Store, &[0, 1], &[2, 3]),
            copy(id + 1, Kind::Load, &[4], &[2]),
            copy(id + 2, Kind::Store, &[2, 3], &[2, 5]),
            copy(id + 3, Kind::Load, &[5, 6, 7], &[2, 3, 5]),
        ];
        steps.into_iter().for_each(|t| rig.mover.submit(t));
        (id..id + 4).for_each(|id| assert!(rig.answer(id).done));
        for (block, from) in [(4, 0), (5, 2), (6, 1), (7, 3)] {
            assert_eq!(rig.pool.bytes(block), rig.pool.bytes(from), "round {round}");
        }
        id += 4;
    }
}

#[test]
fn a_removal_is_of_all_tiers() {
    let rig = Rig::new(2);
    for tier in [1, 2] {
        assert!(
            rig.run(chunk(tier, Kind::Store, tier as usize, 7, &[0]))
                .done
        );
    }
    let moved = rig.run(remove(3, &[7, 8]));
    assert!(moved.done && moved.error.is_empty());
    assert!(
        rig.shelves
            .iter()
            .all(|s| s.parts.lock().unwrap().is_empty())
    );
    rig.shelves[1].set(Mood::Failing);
    let moved = rig.run(remove(4, &[7]));
    assert_eq!(
        (moved.done, moved.error.as_str()),
        (false, "disk:1: no route to host")
    );
}

#[test]
fn a_clearing_is_of_one_group_or_of_all_and_waits_for_stores_before_it() {
    let rig = Rig::new(2);
    for (id, key) in [(1, 7), (2, 8)] {
        rig.mover
            .submit(chunk(id, Kind::Store, 1, key, &[id as i32]));
    }
    rig.mover.submit(clear(3, Some([7; 4])));
    assert!((1..4).all(|id| rig.answer(id).done));
    assert_eq!(rig.run(probe(4, 1, &[(7, 1), (8, 1)])).found, [0, 1]);
    assert!(rig.run(clear(5, None)).done);
    assert_eq!(rig.run(probe(6, 1, &[(7, 1), (8, 1)])).found, [0, 0]);
    let nothing = rig.run(remove(7, &[]));
    assert!(!nothing.done && nothing.error.contains("no names"));
}

#[test]
fn a_tier_gets_the_parent_of_a_chunk() {
    let rig = Rig::new(1);
    let parent = Some([6; 32]);
    let store = Transfer {
        parent,
        ..chunk(1, Kind::Store, 1, 7, &[0])
    };
    assert!(rig.run(store).done);
    let parents = rig.shelves[0].parents.lock().unwrap();
    assert!(!parents.is_empty() && parents.values().all(|known| *known == parent));
}

/// Ranks that divide the heads differently find the same parts; a probe finds a chunk only if all
/// of the rank's parts are there.
#[test]
fn parts_do_not_depend_on_the_cut() {
    let whole = Rig::new(1);
    let rank = |head: u16| {
        let clock = Arc::new(Monotonic::start());
        Rig::rank(vec![head], whole.shelves.clone(), limits(), clock)
    };
    let length = whole.pool.block_bytes();
    let bytes = |block: usize| -> Vec<u8> { (0..length).map(|i| (block * 64 + i) as u8).collect() };
    (0..2).for_each(|block| whole.pool.set(block, &bytes(block)));
    assert!(whole.run(chunk(1, Kind::Store, 1, 9, &[0, 1])).done);
    for head in [0, 1] {
        let rank = rank(head);
        assert_eq!(rank.run(probe(1, 1, &[(9, 2), (9, 1)])).found, [1, 0]);
        let moved = rank.run(chunk(2, Kind::Load, 1, 9, &[4, 3]));
        assert!(moved.done && moved.bytes == 2 * EXTENT as u64);
        let own = usize::from(head) * EXTENT..usize::from(head + 1) * EXTENT;
        assert_eq!(rank.pool.bytes(4), bytes(0)[own.clone()]);
        assert_eq!(rank.pool.bytes(3), bytes(1)[own]);
        rank.pool.set(0, &[5; EXTENT]);
        assert!(
            rank.run(chunk(3, Kind::Store, 1, 20 + head as u8, &[0]))
                .done
        );
    }
    assert_eq!(
        whole.run(probe(2, 1, &[(20, 1), (9, 2), (21, 1)])).found,
        [0, 1, 0]
    );
    whole.run(chunk(3, Kind::Store, 1, 20, &[0]));
    assert_eq!(whole.run(probe(4, 1, &[(20, 1)])).found, [1]);
}
