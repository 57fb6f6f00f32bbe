use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use penstock_kvstore::{PartKey, Tier, TierError};
use proptest::prelude::*;

use crate::fixtures::{Place, counter, identity, key, load, open, payload, store};

#[test]
fn a_file_cut_anywhere_is_put_aside() {
    let place = Place::new();
    let disk = open(&place);
    // A small one: there are as many cuts as bytes.
    let key = PartKey {
        blocks: 1,
        layers: (0, 1),
        ..key(1, 0)
    };
    store(&disk, &key).unwrap();
    let path = place.file(&identity(), &key);
    let whole = std::fs::read(&path).unwrap();
    for length in 0..whole.len() {
        // In one go, so that the file's length is what was left of it.
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(
            matches!(load(&disk, &key), Err(TierError::Damaged(_))),
            "cut to {length}"
        );
        assert!(!path.exists());
    }
    assert_eq!(counter(&disk, "quarantined_chunks"), whole.len() as u64);
    let kept = std::fs::read_dir(place.root().join("quarantine"))
        .unwrap()
        .count();
    assert_eq!(kept, 1, "one name, one file");
    assert!(matches!(load(&disk, &key), Err(TierError::Missing)));
    store(&disk, &key).unwrap();
    load(&disk, &key).unwrap();
}

#[test]
fn a_longer_file_is_put_aside() {
    let place = Place::new();
    let disk = open(&place);
    let key = key(1, 0);
    store(&disk, &key).unwrap();
    let path = place.file(&identity(), &key);
    let mut whole = std::fs::read(&path).unwrap();
    whole.push(0);
    std::fs::write(&path, whole).unwrap();
    assert!(matches!(load(&disk, &key), Err(TierError::Damaged(_))));
}

#[test]
fn the_quarantine_keeps_a_few() {
    let place = Place::new();
    let disk = open(&place);
    for number in 0..40 {
        store(&disk, &key(number, 0)).unwrap();
        std::fs::write(place.file(&identity(), &key(number, 0)), b"not a part").unwrap();
        let Err(TierError::Damaged(what)) = load(&disk, &key(number, 0)) else {
            panic!("a hit")
        };
        assert!(what.contains("10 bytes instead of 20480"), "{what}");
        assert!(what.contains("put aside"), "{what}");
    }
    let kept = std::fs::read_dir(place.root().join("quarantine"))
        .unwrap()
        .count();
    assert_eq!(kept, 16);
    assert_eq!(counter(&disk, "quarantined_chunks"), 40);
}

#[test]
fn a_part_under_another_name_is_no_hit() {
    let place = Place::new();
    let disk = open(&place);
    store(&disk, &key(1, 0)).unwrap();
    let (from, to) = (
        place.file(&identity(), &key(1, 0)),
        place.file(&identity(), &key(1, 1)),
    );
    std::fs::rename(from, to).unwrap();
    let Err(TierError::Damaged(what)) = load(&disk, &key(1, 1)) else {
        panic!("a hit")
    };
    assert!(what.contains("names another part"), "{what}");
}

#[test]
fn what_is_no_file_is_put_aside_unopened() {
    let place = Place::new();
    let disk = open(&place);
    for (number, make) in [(1, directory as fn(&Path)), (2, fifo), (3, socket)] {
        let (key, next) = (key(number, 0), key(number, 1));
        store(&disk, &next).unwrap();
        make(&place.file(&identity(), &key));
        for _ in 0..2 {
            // The second time in the quarantine already.
            assert!(load(&disk, &key).is_err());
        }
        assert_eq!(counter(&disk, "quarantined_chunks"), number);
        store(&disk, &key).unwrap();
        load(&disk, &key).unwrap();
        load(&disk, &next).unwrap();
    }
    fifo(
        &place
            .file(&identity(), &key(1, 0))
            .with_file_name("../identity.json"),
    );
    let other = open(&place);
    load(&other, &key(1, 1)).unwrap();
    // As many later ones as the quarantine keeps push the directory out of it.
    for number in 10..40 {
        store(&disk, &key(number, 0)).unwrap();
        std::fs::write(place.file(&identity(), &key(number, 0)), b"not a part").unwrap();
        assert!(load(&disk, &key(number, 0)).is_err());
    }
    let kept = std::fs::read_dir(place.root().join("quarantine")).unwrap();
    assert!(
        kept.map(Result::unwrap)
            .all(|entry| entry.file_type().unwrap().is_file())
    );
}

fn directory(path: &Path) {
    std::fs::create_dir_all(path.join("within")).unwrap();
}

fn socket(path: &Path) {
    // Its own path is short enough for a socket.
    let bound = std::env::temp_dir().join(format!("penstock-socket-{}", std::process::id()));
    drop(UnixListener::bind(&bound).unwrap());
    std::fs::rename(bound, path).unwrap();
}

/// Opened for reading, it waits for a writer.
fn fifo(path: &Path) {
    let _ = std::fs::remove_file(path);
    let made = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Bytes flipped anywhere: damaged, or (in the padding) the right bytes.
    #[test]
    fn flipped_bytes_are_never_a_wrong_hit(
        flips in proptest::collection::vec((0_usize..20480, 1_u8..=255), 1..4),
    ) {
        let place = Place::new();
        let disk = open(&place);
        let key = key(1, 0);
        store(&disk, &key).unwrap();
        let path = place.file(&identity(), &key);
        let whole = std::fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        flips.iter().for_each(|(at, with)| flipped[*at] ^= with);
        std::fs::write(&path, &flipped).unwrap();
        let answer = load(&disk, &key);
        let used = 4096 + payload(&key, &identity()).len();
        prop_assert_eq!(answer.is_ok(), flipped[..used] == whole[..used]);
        prop_assert_eq!(disk.probe(&[key]).unwrap(), [answer.is_ok()]);
    }
}
