use std::cell::Cell;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt;

use penstock_kvstore::disk::PAYLOAD_AT;
use penstock_kvstore::{Checksum, Disk, PartKey, Tier, TierError};

use crate::fixtures::{
    FILE_BYTES, Place, counter, identity, key, load, open, open_limited, payload, slow_crc, store,
};
use crate::room::Small;

const AT: u64 = PAYLOAD_AT as u64;

fn store_by(disk: &Disk, key: &PartKey) -> Result<(), TierError> {
    let bytes = payload(key, &identity());
    disk.store_by(key, bytes.len(), |file| {
        file.write_all_at(&bytes, AT)?;
        Ok(slow_crc(&bytes))
    })
}

fn load_by(disk: &Disk, key: &PartKey) -> Result<(), TierError> {
    let wanted = payload(key, &identity());
    disk.load_by(key, wanted.len(), |file| {
        let mut bytes = vec![0; wanted.len()];
        file.read_exact_at(&mut bytes, AT)?;
        let mut sum = Checksum::default();
        sum.update(&bytes);
        Ok(sum.value())
    })
}

#[test]
fn what_somebody_else_moves_is_the_same_part() {
    let place = Place::new();
    let disk = open(&place);
    assert!(matches!(
        load_by(&disk, &key(1, 0)),
        Err(TierError::Missing)
    ));
    store_by(&disk, &key(1, 0)).unwrap();
    store(&disk, &key(2, 0)).unwrap();
    for disk in [disk, open(&place)] {
        load(&disk, &key(1, 0)).unwrap();
        load_by(&disk, &key(2, 0)).unwrap();
    }
}

#[test]
fn a_part_that_is_there_is_not_written_again() {
    let place = Place::new();
    let disk = open(&place);
    store(&disk, &key(1, 0)).unwrap();
    let called = Cell::new(false);
    let bytes = payload(&key(1, 0), &identity()).len();
    let answer = disk.store_by(&key(1, 0), bytes, |_| {
        called.set(true);
        Ok(0)
    });
    assert!(answer.is_ok() && !called.get());
}

#[test]
fn what_fails_leaves_nothing() {
    let place = Place::new();
    let disk = open(&place);
    let key = key(1, 0);
    let bytes = payload(&key, &identity()).len();
    let answer = disk.store_by(&key, bytes, |_| Err(Error::other("the device is gone")));
    assert!(matches!(answer, Err(TierError::Failed(what)) if what.contains("the device is gone")));
    let full = disk.store_by(&key, bytes, |_| Err(ErrorKind::StorageFull.into()));
    assert!(matches!(full, Err(TierError::Full(_))));
    let shard = place.file(&identity(), &key);
    let left = std::fs::read_dir(shard.parent().unwrap()).unwrap();
    assert_eq!(left.count(), 0);
    assert_eq!(counter(&disk, "used_bytes"), 0);
    assert!(disk.store_by(&key, bytes - 1, |_| Ok(0)).is_err());
}

#[test]
fn another_checksum_is_damage() {
    let place = Place::new();
    let disk = open(&place);
    store(&disk, &key(1, 0)).unwrap();
    let bytes = payload(&key(1, 0), &identity()).len();
    let answer = disk.load_by(&key(1, 0), bytes, |_| Ok(0));
    assert!(matches!(answer, Err(TierError::Damaged(_))));
    assert!(matches!(load(&disk, &key(1, 0)), Err(TierError::Missing)));
    assert_eq!(disk.probe(&[key(1, 0)]).unwrap(), [false]);
    assert_eq!(counter(&disk, "quarantined_chunks"), 1);
}

#[test]
fn a_full_file_system_is_known_before_anything_is_written() {
    let place = Place::new();
    let Some(_mounted) = Small::mount(place.path(), 10 * FILE_BYTES) else {
        return;
    };
    let disk = open_limited(place.path(), 1 << 30);
    for number in 0..40 {
        let bytes = payload(&key(number, 0), &identity());
        let stored = disk.store_by(&key(number, 0), bytes.len(), |file| {
            // Of whatever kind: the writer's own errors have no number.
            file.write_all_at(&bytes, AT)
                .map_err(|error| Error::other(error.to_string()))?;
            Ok(slow_crc(&bytes))
        });
        stored.unwrap();
    }
    assert!(counter(&disk, "evicted_chunks") >= 30);
    load_by(&disk, &key(39, 0)).unwrap();
}
