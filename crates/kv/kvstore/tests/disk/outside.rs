use std::os::unix::fs::FileExt;

use penstock_kvstore::disk::PAYLOAD_AT;
use penstock_kvstore::{Disk, PartKey, Tier, TierError};

use crate::fixtures::{Place, counter, identity, key, load, open, payload, slow_crc, store};

const AT: u64 = PAYLOAD_AT as u64;

fn load_by(disk: &Disk, key: &PartKey) -> Result<(), TierError> {
    let wanted = payload(key, &identity());
    disk.load_by(key, wanted.len(), &mut |file| {
        let mut bytes = vec![0; wanted.len()];
        file.read_exact_at(&mut bytes, AT)?;
        Ok(slow_crc(&bytes))
    })
}

#[test]
fn what_others_read_is_verified_as_the_tier_does() {
    let place = Place::new();
    let disk = open(&place);
    assert!(matches!(
        load_by(&disk, &key(1, 0)),
        Err(TierError::Missing)
    ));
    store(&disk, &key(1, 0)).unwrap();
    for disk in [disk, open(&place)] {
        load_by(&disk, &key(1, 0)).unwrap();
    }
}

#[test]
fn another_checksum_is_damage() {
    let place = Place::new();
    let disk = open(&place);
    store(&disk, &key(1, 0)).unwrap();
    let bytes = payload(&key(1, 0), &identity()).len();
    let answer = disk.load_by(&key(1, 0), bytes, &mut |_| Ok(0));
    assert!(matches!(answer, Err(TierError::Damaged(_))));
    assert!(matches!(load(&disk, &key(1, 0)), Err(TierError::Missing)));
    assert_eq!(disk.probe(&[key(1, 0)]).unwrap(), [false]);
    assert_eq!(counter(&disk, "quarantined_chunks"), 1);
}
