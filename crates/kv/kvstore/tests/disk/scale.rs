use std::fs::File;
use std::time::Instant;

use penstock_kvstore::Tier;

use crate::fixtures::{FILE_BYTES, Place, counter, identity, key, open, open_limited, store};

/// Sizes follow from names, so empty files do.
#[test]
fn a_hundred_thousand_chunks_are_counted() {
    let place = Place::new();
    for shard in 0..256 {
        let path = place.file(&identity(), &key(0, 0));
        let store = path.parent().unwrap().parent().unwrap();
        std::fs::create_dir_all(store.join(format!("{shard:02x}"))).unwrap();
    }
    for number in 0..100_000 {
        File::create(place.file(&identity(), &key(number, 0))).unwrap();
    }
    let begin = Instant::now();
    let disk = open(&place);
    let opened = begin.elapsed();
    while counter(&disk, "scan_microseconds") == 0 {
        assert!(begin.elapsed().as_secs() < 60, "the scan does not end");
        std::thread::yield_now();
    }
    assert_eq!(counter(&disk, "chunks"), 100_000);
    assert_eq!(counter(&disk, "used_bytes"), 100_000 * FILE_BYTES);
    let keys: Vec<_> = (0..100_000).map(|number| key(number, 0)).collect();
    let begin = Instant::now();
    assert!(disk.probe(&keys).unwrap().iter().all(|found| *found));
    let probed = begin.elapsed() / 100_000;
    let begin = Instant::now();
    disk.tick();
    let scan = counter(&disk, "scan_microseconds") as f64 / 1e6;
    println!(
        "100000 chunks: open {opened:?}, scan {scan:.3} s, probe {probed:?} each, tick {:?}",
        begin.elapsed()
    );
    drop(disk);
    // All of them are ranked before the first leaves.
    let disk = open_limited(place.path(), 100_000 * FILE_BYTES);
    while counter(&disk, "scan_microseconds") == 0 {
        std::thread::yield_now();
    }
    let begin = Instant::now();
    store(&disk, &key(100_000, 0)).unwrap();
    let first = begin.elapsed();
    let evicted = counter(&disk, "evicted_chunks");
    assert!((1..3000).contains(&evicted), "{evicted}");
    println!("100000 chunks: a store that ranks them and evicts {evicted}: {first:?}");
}
