use std::fs::{File, FileTimes};
use std::time::{Duration, SystemTime};

use penstock_kvstore::disk::Disk;
use penstock_kvstore::disk::admin::{Progress, Rules, collect, inventory, verify};
use penstock_kvstore::{PartKey, StoreIdentity, Tier};

use crate::fixtures::{FILE_BYTES, Place, identity, key, load, open, options, store};

fn on(_: Progress) -> bool {
    true
}

fn used_ago(place: &Place, number: u64, seconds: u64) {
    let file = File::options()
        .write(true)
        .open(place.file(&identity(), &key(number, 0)))
        .unwrap();
    file.set_times(FileTimes::new().set_modified(SystemTime::now() - Duration::from_secs(seconds)))
        .unwrap();
}

#[test]
fn an_inventory_counts_what_is_there() {
    let place = Place::new();
    let disk = open(&place);
    (0..3).for_each(|head| store(&disk, &key(1, head)).unwrap());
    store(&disk, &key(2, 0)).unwrap();
    used_ago(&place, 2, 100_000);
    let other = StoreIdentity {
        cache: "cd".repeat(32),
        ..identity()
    };
    let other_disk = Disk::open(options(place.path()), other.clone()).unwrap();
    other_disk
        .store(
            &PartKey {
                blocks: 1,
                layers: (0, 2),
                ..key(1, 0)
            },
            &[1; 4096],
            None,
        )
        .unwrap();
    std::fs::write(place.root().join("README"), "not ours").unwrap();
    let found = inventory(place.path()).unwrap();
    assert_eq!(found.bytes, 4 * FILE_BYTES + 8192);
    assert_eq!((found.temporary_files, found.quarantined_files), (0, 0));
    let of = |identity: &StoreIdentity| {
        let file = place.file(identity, &key(1, 0));
        let mut stores = found.stores.iter();
        let above = |name: &str| file.iter().any(|part| part == name);
        stores.find(|facts| above(&facts.name)).unwrap()
    };
    let facts = of(&identity());
    assert_eq!(
        (facts.chunks, facts.parts, facts.bytes),
        (2, 4, 4 * FILE_BYTES)
    );
    assert!(facts.about.as_ref().unwrap().contains("bf16"));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    assert!(now.unwrap().as_secs() - facts.newest_use.unwrap() < 1000);
    assert_eq!((of(&other).chunks, of(&other).parts), (1, 1));
    // Named from inside, too.
    assert_eq!(inventory(&place.root()).unwrap().bytes, found.bytes);
}

#[test]
fn a_store_without_its_identity_file_is_still_counted() {
    let place = Place::new();
    store(&open(&place), &key(1, 0)).unwrap();
    let store = place
        .file(&identity(), &key(1, 0))
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .to_path_buf();
    std::fs::remove_file(store.join("identity.json")).unwrap();
    let found = inventory(place.path()).unwrap();
    assert_eq!(
        (found.stores[0].bytes, &found.stores[0].about),
        (FILE_BYTES, &None)
    );
}

#[test]
fn nothing_there_is_an_error() {
    let place = Place::new();
    let text = inventory(place.path()).unwrap_err().to_string();
    assert!(text.contains("has no penstock-kv-1"), "{text}");
    assert!(verify(place.path(), false, &mut on).is_err());
    assert!(collect(place.path(), &Rules::default(), &mut on).is_err());
    assert!(!place.root().exists());
}

#[test]
fn verify_names_what_is_damaged() {
    let place = Place::new();
    let disk = open(&place);
    (0..20).for_each(|number| store(&disk, &key(number, 0)).unwrap());
    let damage = |number, change: &dyn Fn(&mut Vec<u8>)| {
        let path = place.file(&identity(), &key(number, 0));
        let mut bytes = std::fs::read(&path).unwrap();
        change(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let damaged = [
        damage(3, &|bytes| bytes[9000] ^= 1),
        damage(5, &|bytes| bytes.truncate(4000)),
        damage(7, &|bytes| bytes.truncate(8192)),
        damage(9, &|bytes| bytes[100] ^= 1),
    ];
    let mut told = Vec::new();
    let found = verify(place.path(), false, &mut |progress| {
        told.push(progress.done);
        true
    })
    .unwrap();
    assert!(found.complete && found.files == 20 && told.len() == 20 && told.is_sorted());
    let mut named: Vec<_> = found.damaged.iter().map(|file| file.path.clone()).collect();
    named.sort();
    let mut wanted = damaged.to_vec();
    wanted.sort();
    assert_eq!(named, wanted);
    assert!(damaged.iter().all(|path| path.exists()), "only looked at");
    assert_eq!(
        verify(place.path(), true, &mut on).unwrap().damaged.len(),
        4
    );
    assert!(!damaged.iter().any(|path| path.exists()));
    assert!(
        verify(place.path(), false, &mut on)
            .unwrap()
            .damaged
            .is_empty()
    );
    assert_eq!(inventory(place.path()).unwrap().quarantined_files, 4);
    // Ends when the progress callback returns false.
    assert!(
        !verify(place.path(), false, &mut |_| false)
            .unwrap()
            .complete
    );
}

#[test]
fn a_part_moved_to_another_store_is_damaged() {
    let place = Place::new();
    store(&open(&place), &key(1, 0)).unwrap();
    let other = StoreIdentity {
        cache: "cd".repeat(32),
        ..identity()
    };
    let there = place.file(&other, &key(1, 0));
    std::fs::create_dir_all(there.parent().unwrap()).unwrap();
    std::fs::rename(place.file(&identity(), &key(1, 0)), &there).unwrap();
    assert_eq!(
        verify(place.path(), false, &mut on).unwrap().damaged[0].path,
        there
    );
}

#[test]
fn garbage_goes_by_the_rules() {
    let place = Place::new();
    let disk = open(&place);
    for number in 0..10 {
        store(&disk, &key(number, 0)).unwrap();
        used_ago(&place, number, 1000 * (number + 1));
    }
    let by = |rules: Rules| collect(place.path(), &rules, &mut on).unwrap();
    assert_eq!(by(Rules::default()).chunks, 0);
    let old = by(Rules {
        older_than: Some(Duration::from_secs(8500)),
        ..Rules::default()
    });
    assert_eq!(
        (old.chunks, old.bytes, old.bytes_left),
        (2, 2 * FILE_BYTES, 8 * FILE_BYTES)
    );
    let least = by(Rules {
        limit_bytes: Some(5 * FILE_BYTES),
        ..Rules::default()
    });
    assert_eq!((least.chunks, least.bytes_left), (3, 5 * FILE_BYTES));
    for number in 0..10 {
        assert_eq!(load(&disk, &key(number, 0)).is_ok(), number < 5);
    }
    let name = place
        .file(&identity(), &key(0, 0))
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .to_path_buf();
    let begin = name.file_name().unwrap().to_str().unwrap()[..8].to_owned();
    let unknown = Rules {
        store: Some("zz".into()),
        ..Rules::default()
    };
    assert!(
        collect(place.path(), &unknown, &mut on)
            .unwrap_err()
            .to_string()
            .contains("no store's name")
    );
    let all = by(Rules {
        store: Some(begin),
        ..Rules::default()
    });
    assert_eq!((all.chunks, all.bytes_left), (5, 0));
    assert!(!name.exists(), "nothing of it is left");
    // A live engine carries on.
    store(&disk, &key(3, 0)).unwrap();
    load(&disk, &key(3, 0)).unwrap();
    assert!(inventory(place.path()).unwrap().stores[0].about.is_some());
}

#[test]
fn garbage_of_dead_writers_and_the_quarantine_go() {
    let place = Place::new();
    store(&open(&place), &key(1, 0)).unwrap();
    let shard = place
        .file(&identity(), &key(1, 0))
        .parent()
        .unwrap()
        .to_path_buf();
    for (name, age) in [
        (".tmp-00000000000000aa-1", 4000),
        (".tmp-00000000000000aa-2", 10),
    ] {
        let path = shard.join(name);
        std::fs::write(&path, [0; 5000]).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_times(FileTimes::new().set_modified(SystemTime::now() - Duration::from_secs(age)))
            .unwrap();
    }
    std::fs::create_dir_all(place.root().join("quarantine")).unwrap();
    std::fs::write(place.root().join("quarantine/x"), [0; 100]).unwrap();
    assert_eq!(inventory(place.path()).unwrap().temporary_files, 2);
    let gone = collect(place.path(), &Rules::default(), &mut on).unwrap();
    assert_eq!(
        (gone.chunks, gone.other_files, gone.bytes),
        (0, 2, 8192 + 4096)
    );
    assert_eq!(inventory(place.path()).unwrap().temporary_files, 1);
}
