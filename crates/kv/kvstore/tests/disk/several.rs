use std::time::{Duration, Instant};

use penstock_kvstore::disk::Disk;
use penstock_kvstore::{PartKey, StoreIdentity, Tier, TierError};

use crate::fixtures::{
    FILE_BYTES, Place, child, counter, disk_usage, identity, key, load, open, open_limited,
    options, place_of_child, store,
};

const LIMIT: u64 = 200 * FILE_BYTES;
const WRITERS: u64 = 4;
const CHUNK: u64 = 3 * FILE_BYTES;

#[test]
fn clearing_forgets_what_others_wrote_and_leaves_other_identities() {
    let place = Place::new();
    let (one, two) = (open(&place), open(&place));
    let other = StoreIdentity {
        cache: "0".repeat(64),
        ..identity()
    };
    let stranger = Disk::open(options(place.path()), other).unwrap();
    (0..5).for_each(|number| store(&one, &key(number, 0)).unwrap());
    (5..9).for_each(|number| store(&two, &key(number, 0)).unwrap());
    store(&stranger, &key(0, 0)).unwrap();
    one.clear(None).unwrap();
    let keys: Vec<PartKey> = (0..9).map(|number| key(number, 0)).collect();
    assert_eq!(one.probe(&keys).unwrap(), [false; 9]);
    assert_eq!(stranger.probe(&keys[..1]).unwrap(), [true]);
    assert!(matches!(load(&two, &keys[5]), Err(TierError::Missing)));
    store(&one, &keys[0]).unwrap();
    load(&one, &keys[0]).unwrap();
}

#[test]
fn what_another_wrote_is_found() {
    let place = Place::new();
    let (one, two) = (open(&place), open(&place));
    store(&one, &key(1, 0)).unwrap();
    assert_eq!(two.probe(&[key(1, 0), key(2, 0)]).unwrap(), [true, false]);
    load(&two, &key(1, 0)).unwrap();
    store(&one, &key(2, 0)).unwrap();
    load(&two, &key(2, 0)).unwrap();
    two.tick();
    assert_eq!(counter(&two, "used_bytes"), 2 * FILE_BYTES);
}

#[test]
fn what_another_evicted_is_missing() {
    let place = Place::new();
    let (one, two) = (open(&place), open(&place));
    store(&one, &key(1, 0)).unwrap();
    assert_eq!(two.probe(&[key(1, 0)]).unwrap(), [true]);
    one.remove(&key(1, 0).digest).unwrap();
    assert!(matches!(load(&two, &key(1, 0)), Err(TierError::Missing)));
    assert_eq!(two.probe(&[key(1, 0)]).unwrap(), [false]);
    // Known to `one` no more, and written by `two` since: both parts go.
    store(&two, &key(1, 0)).unwrap();
    store(&two, &key(1, 1)).unwrap();
    one.remove(&key(1, 0).digest).unwrap();
    assert!(matches!(load(&two, &key(1, 1)), Err(TierError::Missing)));
}

#[test]
fn the_first_parts_of_a_store_come_from_many_threads_at_once() {
    for _ in 0..60 {
        let place = Place::new();
        let disk = open(&place);
        std::thread::scope(|scope| {
            for head in 0..3 {
                let disk = &disk;
                scope.spawn(move || store(disk, &key(1, head)).unwrap());
            }
        });
        (0..3).for_each(|head| load(&disk, &key(1, head)).unwrap());
    }
}

#[test]
fn a_directory_that_was_removed_is_made_again() {
    let place = Place::new();
    let disk = open(&place);
    store(&disk, &key(1, 0)).unwrap();
    std::fs::remove_dir_all(place.root()).unwrap();
    assert!(matches!(load(&disk, &key(1, 0)), Err(TierError::Missing)));
    store(&disk, &key(1, 0)).unwrap();
    load(&disk, &key(1, 0)).unwrap();
}

#[test]
fn threads_of_one_process_share_the_bound() {
    let place = Place::new();
    let disk = open_limited(place.path(), LIMIT);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let disk = &disk;
            scope.spawn(move || {
                for number in 0..300 {
                    store(disk, &key(thread * 1000 + number, 0)).unwrap();
                    let answer = load(disk, &key(number, 0));
                    assert!(
                        matches!(answer, Ok(()) | Err(TierError::Missing)),
                        "{answer:?}"
                    );
                }
            });
        }
    });
    assert!(disk_usage(&place.root()) <= LIMIT + 4096);
    assert!(counter(&disk, "used_bytes") <= LIMIT);
    disk.tick();
    assert_eq!(
        counter(&disk, "evicted_chunks") + counter(&disk, "chunks"),
        1200
    );
}

#[test]
fn four_processes_keep_one_limit() {
    let place = Place::new();
    drop(open_limited(place.path(), LIMIT));
    let mut writers: Vec<_> = (0..WRITERS)
        .map(|_| child("several::writes_into_a_small_directory", place.path()))
        .collect();
    let (mut most, mut looks) = (0, 0);
    let deadline = Instant::now() + Duration::from_secs(120);
    while writers
        .iter_mut()
        .any(|writer| writer.try_wait().unwrap().is_none())
    {
        most = most.max(disk_usage(&place.root()));
        looks += 1;
        assert!(Instant::now() < deadline, "the writers do not end");
    }
    for writer in &mut writers {
        assert!(writer.wait().unwrap().success());
    }
    println!("at most {most} of {LIMIT} bytes in {looks} looks");
    // Each may have begun a chunk that the others do not see yet; on a machine so busy that a
    // writer stands still between its look and its store, another one.
    assert!(
        most > LIMIT / 2 && most <= LIMIT + 2 * WRITERS * CHUNK,
        "{most} of {LIMIT}"
    );
    // Every file is whole.
    let disk = open(&place);
    let hits = (0..WRITERS * 5000)
        .filter(|&number| (0..3).all(|head| load_if_there(&disk, number, head)))
        .count();
    assert!(hits > 20, "{hits}");
    assert_eq!(counter(&disk, "quarantined_chunks"), 0);
}

fn load_if_there(disk: &penstock_kvstore::Disk, number: u64, head: u16) -> bool {
    match load(disk, &key(number, head)) {
        Ok(()) => true,
        Err(TierError::Missing) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
#[ignore = "a writer of four_processes_keep_one_limit"]
fn writes_into_a_small_directory() {
    let Some(path) = place_of_child() else { return };
    let disk = open_limited(&path, LIMIT);
    // Some chunks are everybody's, others this writer's alone.
    let own = u64::from(std::process::id()) % WRITERS * 5000;
    for number in 0..600 {
        let number = if number % 3 == 0 {
            number
        } else {
            own + number
        };
        for head in 0..3 {
            match store(&disk, &key(number, head)) {
                Ok(()) | Err(TierError::Full(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        load_if_there(&disk, number / 2, 0);
        if number.is_multiple_of(50) {
            disk.tick();
        }
    }
    assert!(counter(&disk, "evicted_chunks") > 0);
    assert_eq!(identity().kv_heads, 3);
}
