use std::io::{BufRead, BufReader};
use std::time::Duration;

use penstock_kvstore::{Tier, TierError};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

use crate::fixtures::{
    FILE_BYTES, Place, child, counter, disk_usage, identity, key, load, open, place_of_child, store,
};

const KEYS: u64 = 400;

/// A writer dies after any number of bytes, before it renamed or (power failure) after.
#[test]
fn a_writer_that_dies_at_any_byte_leaves_a_miss() {
    let place = Place::new();
    let key = key(1, 0);
    store(&open(&place), &key).unwrap();
    let path = place.file(&identity(), &key);
    let whole = std::fs::read(&path).unwrap();
    for length in (0..whole.len()).step_by(37) {
        let temporary = path.with_file_name(".tmp-0123456789abcdef-0");
        std::fs::rename(&path, &temporary).unwrap();
        std::fs::write(&temporary, &whole[..length]).unwrap();
        let disk = open(&place);
        assert_eq!(disk.probe(&[key]).unwrap(), [false]);
        assert!(matches!(load(&disk, &key), Err(TierError::Missing)));
        std::fs::rename(&temporary, &path).unwrap();
        assert!(matches!(
            load(&open(&place), &key),
            Err(TierError::Damaged(_))
        ));
        // The tail that never reached the disk reads as zeros.
        let mut zeros = whole.clone();
        zeros[length..].fill(0);
        std::fs::write(&path, &zeros).unwrap();
        let answer = load(&open(&place), &key);
        assert_eq!(answer.is_ok(), zeros == whole, "zeros after {length}");
        std::fs::write(&path, &whole).unwrap();
    }
}

#[test]
fn kill_9_while_storing_two_hundred_times() {
    let place = Place::new();
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let (mut hits, mut misses) = (0, 0);
    for round in 0..200 {
        let mut writer = child("crashes::stores_until_killed", place.path());
        let mut line = String::new();
        let mut output = BufReader::new(writer.stdout.take().unwrap());
        while !line.contains("storing") {
            line.clear();
            assert!(
                output.read_line(&mut line).unwrap() > 0,
                "the writer never began"
            );
        }
        std::thread::sleep(Duration::from_micros(random.next_u64() % 8000));
        writer.kill().unwrap();
        writer.wait().unwrap();
        let disk = open(&place);
        for key in (0..KEYS).map(|number| key(number, 0)) {
            match load(&disk, &key) {
                Ok(()) => hits += 1,
                Err(TierError::Missing) => misses += 1,
                Err(error) => panic!("round {round}: {error}"),
            }
        }
        // The next writer has to write again what is removed.
        for number in 0..KEYS {
            if random.next_u64().is_multiple_of(2) {
                disk.remove(&key(number, 0).digest).unwrap();
            }
        }
    }
    assert!(
        hits > 0 && misses > 0,
        "{hits} hits, {misses} misses: the kills did not come while it stored"
    );
    // What was left behind is counted, and goes when it is old.
    let disk = open(&place);
    assert_eq!(
        counter(&disk, "used_bytes") / 4096,
        disk_usage_without_identity(&place) / 4096
    );
}

#[test]
#[ignore = "the writer of kill_9_while_storing_two_hundred_times"]
fn stores_until_killed() {
    let Some(path) = place_of_child() else { return };
    let disk = crate::fixtures::open_limited(&path, 1 << 30);
    println!("storing");
    for number in (0..KEYS).cycle() {
        store(&disk, &key(number, 0)).unwrap();
        if number == KEYS - 1 {
            (0..KEYS).for_each(|number| disk.remove(&key(number, 0).digest).unwrap());
        }
    }
}

fn disk_usage_without_identity(place: &Place) -> u64 {
    // Files left behind have their full length but not all of their bytes: count lengths, as the
    // tier does.
    fn lengths(path: &std::path::Path) -> u64 {
        let entries = std::fs::read_dir(path).unwrap().map(Result::unwrap);
        entries
            .map(|entry| match entry.file_type().unwrap().is_dir() {
                true => lengths(&entry.path()),
                false if entry.file_name().to_string_lossy().contains("identity") => 0,
                false => entry.metadata().unwrap().len().next_multiple_of(4096),
            })
            .sum()
    }
    let all = lengths(place.path());
    assert!(disk_usage(place.path()) <= all + 4096);
    assert!(all >= FILE_BYTES);
    all
}
