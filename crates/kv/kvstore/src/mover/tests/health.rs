//! The mover with tiers that fail, stall or answer wrongly, and its closing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::fakes::*;
use crate::mover::Limits;
use crate::mover::clock::Monotonic;
use crate::mover::transfer::{Fault, Kind, Moved, Pool};

const SECOND: Duration = Duration::from_secs(1);

/// The mover goes on calling the tier: the engine decides whether to use it.
#[test]
fn a_tier_that_fails_says_so_each_time() {
    let rig = Rig::new(1);
    let shelf = &rig.shelves[0];
    shelf.set(Mood::Failing);
    let transfers = |id| {
        [
            chunk(id, Kind::Store, 1, 1, &[0]),
            chunk(id + 1, Kind::Load, 1, 1, &[0]),
            probe(id + 2, 1, &[(1, 1)]),
            remove(id + 3, &[1]),
        ]
    };
    for transfer in (0..5).flat_map(|round| transfers(4 * round)) {
        let moved = rig.run(transfer);
        assert_eq!(moved.error, "disk:0: no route to host");
        assert_eq!((moved.done, moved.fault), (false, Fault::Failed));
    }
    assert_eq!(shelf.calls.lock().unwrap().len(), 20);
    shelf.set(Mood::Well);
    for transfer in transfers(100) {
        let moved = rig.run(transfer);
        assert_eq!((moved.done, moved.fault), (true, Fault::None));
    }
    assert!(rig.pool.all_free());
}

#[test]
fn a_stalled_tier_is_in_nobodys_way() {
    let clock = Arc::new(Stopped::default());
    let rig = Rig::with(2, limits(), clock.clone());
    for tier in [1, 2] {
        assert!(
            rig.run(chunk(tier, Kind::Store, tier as usize, 1, &[0, 1]))
                .done
        );
    }
    let shelf = &rig.shelves[0];
    shelf.set(Mood::Stuck);
    rig.mover.submit(chunk(10, Kind::Load, 1, 1, &[2, 3]));
    rig.mover.submit(chunk(11, Kind::Load, 1, 1, &[4, 5]));
    rig.mover.submit(chunk(12, Kind::Load, 1, 1, &[6]));
    shelf.wait_calls(4);
    // RAM and the other tier serve meanwhile.
    assert!(rig.run(copy(20, Kind::Store, &[0, 1], &[3, 4])).done);
    assert!(rig.run(copy(21, Kind::Load, &[7], &[3])).done);
    assert!(rig.run(chunk(22, Kind::Load, 2, 1, &[0, 1])).done);
    clock.pass(6 * SECOND);
    // The load that waited has a thread in place of one that hangs; the loads that hang keep their
    // blocks.
    shelf.wait_calls(5);
    rig.mover.submit(cancel(&[10, 11, 12]));
    assert_eq!(rig.tier_report(1)["hanging"], 2);
    assert!(
        [2, 5, 6]
            .iter()
            .all(|&block| rig.pool.read(block).is_none())
    );
    assert!((10..13).all(|id| rig.answered(id).is_none()));
    shelf.set(Mood::Well);
    assert!(rig.answer(10).done && rig.answer(11).done);
    // Transfer 12 wants one block, but the chunk was stored with two.
    assert!(!rig.answer(12).done);
    eventually(|| rig.tier_report(1)["hanging"] == 0);
    assert!(rig.run(chunk(14, Kind::Load, 1, 1, &[0, 1])).done && rig.pool.all_free());
}

/// When every thread hangs and no more may be started, transfers are answered all the same: those
/// that wait already, and those that come.
#[test]
fn the_number_of_hanging_threads_is_bounded() {
    let clock = Arc::new(Stopped::default());
    let limits = Limits {
        abandoned: 1,
        ..limits()
    };
    let rig = Rig::with(1, limits, clock.clone());
    let shelf = &rig.shelves[0];
    shelf.set(Mood::Stuck);
    for id in 0..3 {
        rig.mover
            .submit(chunk(10 + id, Kind::Load, 1, 1, &[id as i32]));
        shelf.wait_calls(1 + id as usize);
        if id == 2 {
            rig.mover.submit(chunk(13, Kind::Load, 1, 1, &[6]));
        }
        clock.pass(6 * SECOND);
        eventually(|| rig.tier_report(1)["hanging"] == id + 1);
    }
    let hangs = |moved: &Moved| moved.error.contains("every thread") && !moved.done;
    let waited = rig.answer(13);
    assert!(
        hangs(&waited) && waited.fault == Fault::Failed,
        "{waited:?}"
    );
    for id in 20..30 {
        let moved = rig.run(chunk(id, Kind::Load, 1, 1, &[7]));
        assert!(hangs(&moved) && moved.fault == Fault::Failed, "{moved:?}");
    }
    shelf.set(Mood::Well);
    (10..13).for_each(|id| assert!(!rig.answer(id).done));
    eventually(|| rig.run(chunk(99, Kind::Store, 1, 1, &[7])).done);
    assert!(rig.pool.all_free());
}

#[test]
fn what_a_tier_says_of_one_part_is_no_failure_of_the_tier() {
    let rig = Rig::new(1);
    assert!(rig.run(chunk(1, Kind::Store, 1, 1, &[0])).done);
    let (full, damaged) = (
        "disk:0: full: no space left",
        "disk:0: damaged: a flipped bit",
    );
    for (mood, kind, error, fault) in [
        (Mood::Full, Kind::Store, full, Fault::Full),
        (Mood::Damaged, Kind::Load, damaged, Fault::Damaged),
        (Mood::Well, Kind::Load, "", Fault::None),
    ] {
        rig.shelves[0].set(mood);
        for id in 10..30 {
            let moved = rig.run(chunk(id, kind, 1, 2, &[0]));
            assert_eq!((moved.done, moved.error.as_str()), (false, error));
            assert_eq!(moved.fault, fault);
        }
    }
    assert_eq!(rig.tier_report(1)["damaged"], 20);
}

#[test]
fn a_tier_with_a_bug_is_a_tier_that_fails() {
    let rig = Rig::new(1);
    for (mood, says) in [
        (Mood::Panicking, "a bug of the tier: index out of bounds"),
        (Mood::Lying, "asked for 2 parts, it answered for 1"),
    ] {
        rig.shelves[0].set(mood);
        let moved = rig.run(probe(1, 1, &[(1, 1)]));
        assert!(!moved.done && moved.error.contains(says), "{}", moved.error);
    }
    rig.shelves[0].set(Mood::Panicking);
    let moved = rig.run(chunk(2, Kind::Load, 1, 1, &[3]));
    assert!(moved.error.contains("index out of bounds"));
    assert!(rig.pool.all_free());
}

#[test]
fn upkeep_goes_on() {
    let rig = Rig::new(1);
    let ticks = || rig.shelves[0].ticks.load(Ordering::Relaxed);
    eventually(|| ticks() > 2);
    assert_eq!(rig.tier_report(1)["counters"]["parts"], 0);
}

/// Closing executes the queued stores, and answers other queued transfers as not done.
#[test]
fn closing_finishes_stores() {
    let rig = Rig::new(1);
    let shelf = Arc::clone(&rig.shelves[0]);
    shelf.set(Mood::Stuck);
    for id in 1..=4 {
        let block = id as i32 - 1;
        rig.mover
            .submit(chunk(id, Kind::Store, 1, id as u8, &[block]));
    }
    rig.mover.submit(probe(5, 1, &[(1, 1)]));
    rig.mover.submit(probe(6, 1, &[(1, 1)]));
    shelf.wait_calls(2);
    let closing = std::thread::scope(|scope| {
        let close = scope.spawn(|| rig.mover.close(PATIENCE));
        // The second probe was still queued; a transfer submitted now is too late.
        assert!(!rig.answer(6).done);
        rig.mover.submit(chunk(7, Kind::Load, 1, 1, &[6]));
        assert!(!rig.answer(7).done);
        shelf.set(Mood::Well);
        close.join()
    });
    closing.unwrap();
    (1..=4).for_each(|id| assert!(rig.answer(id).done));
    assert_eq!(shelf.parts.lock().unwrap().len(), 8);
    assert!(rig.pool.all_free());
    let late = rig.run(copy(8, Kind::Store, &[0], &[0]));
    assert_eq!((late.done, late.error.as_str()), (false, "ram is closed"));
}

#[test]
fn closing_does_not_wait_for_a_tier_that_hangs() {
    let rig = Rig::new(2);
    rig.shelves[0].set(Mood::Stuck);
    for id in 1..=4 {
        let (tier, block) = (1 + (id as usize) % 2, id as i32);
        rig.mover
            .submit(chunk(id, Kind::Store, tier, id as u8, &[block]));
    }
    rig.mover.submit(chunk(6, Kind::Store, 1, 6, &[6]));
    rig.shelves[0].wait_calls(1);
    let began = Instant::now();
    rig.mover.close(Duration::from_millis(50));
    assert!(began.elapsed() < PATIENCE);
    assert!(rig.answer(1).done && rig.answer(3).done);
    for id in [4, 6] {
        assert_eq!(
            rig.answer(id).error,
            "disk:0 is closed before this was done"
        );
    }
    // The bytes of the store that hangs were copied before.
    assert!(rig.pool.all_free());
    // The call returns at last, and is answered.
    rig.shelves[0].set(Mood::Well);
    assert!(rig.answer(2).done);
}

#[test]
fn a_store_that_hangs_needs_no_blocks_and_can_be_cancelled() {
    let rig = Rig::new(1);
    let shelf = &rig.shelves[0];
    rig.pool.set(3, &vec![7; rig.pool.block_bytes()]);
    shelf.set(Mood::Stuck);
    rig.mover.submit(chunk(1, Kind::Store, 1, 1, &[3]));
    shelf.wait_calls(1);
    assert!(rig.pool.all_free() && rig.answered(1).is_none());
    rig.pool.set(3, &vec![8; rig.pool.block_bytes()]);
    rig.mover.submit(cancel(&[1]));
    let moved = rig.answer(1);
    assert_eq!(
        (moved.done, moved.fault, moved.error.as_str()),
        (false, Fault::None, "")
    );
    // The cancelled store still ends, with the bytes that it copied, and gets no second result.
    shelf.set(Mood::Well);
    eventually(|| shelf.parts.lock().unwrap().len() == 2);
    assert!(
        shelf
            .parts
            .lock()
            .unwrap()
            .values()
            .all(|bytes| bytes.iter().all(|&b| b == 7))
    );
    rig.mover.close(PATIENCE);
    assert!(rig.answered(1).is_none());
}

#[test]
fn a_dropped_mover_gives_everything_back() {
    let rig = Rig::with(1, limits(), Arc::new(Monotonic::start()));
    for id in 0..200 {
        rig.mover
            .submit(chunk(id, Kind::Store, 1, id as u8, &[(id % 8) as i32]));
        rig.mover.submit(copy(
            1000 + id,
            Kind::Store,
            &[(id % 8) as i32],
            &[(id % 6) as i32],
        ));
    }
    let Rig { pool, mover, .. } = rig;
    drop(mover);
    eventually(|| pool.all_free());
}
