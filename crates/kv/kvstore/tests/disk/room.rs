use std::fs::{File, FileTimes};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use penstock_kvstore::disk::{Disk, DiskOptions};
use penstock_kvstore::{PartKey, Tier, TierError};

use crate::fixtures::{
    FILE_BYTES, Place, counter, disk_usage, identity, key, load, open_limited, options, store,
    store_after,
};

/// A limit of so many files, and what eviction frees beyond.
fn limit(files: u64) -> u64 {
    files * FILE_BYTES + FILE_BYTES / 2
}

fn used_ago(place: &Place, number: u64, seconds: u64) {
    let file = File::options()
        .write(true)
        .open(place.file(&identity(), &key(number, 0)))
        .unwrap();
    let time = SystemTime::now() - Duration::from_secs(seconds);
    file.set_times(FileTimes::new().set_modified(time)).unwrap();
}

fn there(disk: &Disk, numbers: std::ops::Range<u64>) -> Vec<u64> {
    numbers
        .filter(|&number| load(disk, &key(number, 0)).is_ok())
        .collect()
}

#[test]
fn what_was_not_used_for_longest_leaves_first() {
    let place = Place::new();
    let before = open_limited(place.path(), limit(8));
    for number in 0..8 {
        store(&before, &key(number, 0)).unwrap();
        used_ago(
            &place,
            number,
            [500, 100, 900, 300, 800, 200, 700, 600][number as usize],
        );
    }
    drop(before);
    // Another process, which learns the order from the files.
    let disk = open_limited(place.path(), limit(8));
    for (number, leaves) in [(8, 2), (9, 4), (10, 6)] {
        store(&disk, &key(number, 0)).unwrap();
        assert!(
            !place.file(&identity(), &key(leaves, 0)).exists(),
            "{leaves} should have left"
        );
        assert!(counter(&disk, "used_bytes") <= limit(8));
    }
    assert_eq!(counter(&disk, "evicted_chunks"), 3);
    // Loaded: not the oldest any more, though its file is renewed only by a load like this.
    load(&disk, &key(7, 0)).unwrap();
    store(&disk, &key(11, 0)).unwrap();
    assert_eq!(there(&disk, 0..12), [1, 3, 5, 7, 8, 9, 10, 11]);
}

#[test]
fn what_has_left_is_told_once_and_piece_by_piece() {
    let place = Place::new();
    let disk = open_limited(place.path(), limit(3));
    for number in 0..6 {
        store(&disk, &key(number, 0)).unwrap();
    }
    disk.remove(&key(5, 0).digest).unwrap();
    disk.remove(&key(9, 0).digest).unwrap();
    let mut left = disk.take_left(1);
    assert_eq!(left.len(), 1);
    left.extend(disk.take_left(10));
    let gone = (0..6).filter(|number| !there(&disk, 0..6).contains(number));
    let mut gone: Vec<_> = gone.map(|number| key(number, 0).digest).collect();
    gone.sort_unstable();
    left.sort_unstable();
    assert_eq!(left, gone);
    assert!(gone.len() >= 4 && disk.take_left(10).is_empty());
    // by another process: noticed when it is missed, or at a look
    let other = open_limited(place.path(), limit(3));
    let kept = there(&disk, 0..6)[0];
    other.remove(&key(kept, 0).digest).unwrap();
    assert!(load(&disk, &key(kept, 0)).is_err());
    assert_eq!(disk.take_left(10), [key(kept, 0).digest]);
}

#[test]
fn what_another_process_used_meanwhile_stays() {
    let place = Place::new();
    let disk = open_limited(place.path(), limit(3));
    for number in 0..3 {
        store(&disk, &key(number, 0)).unwrap();
        used_ago(&place, number, 1000 - number);
    }
    let disk = {
        drop(disk);
        open_limited(place.path(), limit(3))
    };
    // Number 0 would be next.
    let other = open_limited(place.path(), limit(3));
    load(&other, &key(0, 0)).unwrap();
    store(&disk, &key(3, 0)).unwrap();
    assert_eq!(there(&disk, 0..4), [0, 2, 3]);
}

#[test]
fn all_parts_of_a_chunk_leave_together() {
    let place = Place::new();
    let disk = open_limited(place.path(), limit(6));
    for number in 0..2 {
        (0..3).for_each(|head| store(&disk, &key(number, head)).unwrap());
        std::thread::sleep(Duration::from_millis(1100));
    }
    store(&disk, &key(2, 0)).unwrap();
    let keys: Vec<_> = (0..3)
        .flat_map(|number| (0..3).map(move |head| key(number, head)))
        .collect();
    let there = disk.probe(&keys).unwrap();
    assert_eq!(
        there,
        [false, false, false, true, true, true, true, false, false]
    );
}

#[test]
fn a_chunk_and_what_it_continues_stay_while_its_parts_come() {
    let place = Place::new();
    let disk = open_limited(place.path(), limit(3));
    (0..20).for_each(|number| store(&disk, &key(number, 0)).unwrap());
    load(&disk, &key(17, 0)).unwrap();
    (1..3).for_each(|head| store(&disk, &key(17, head)).unwrap());
    // Nothing else is left that could leave.
    let more = PartKey {
        layers: (0, 3),
        ..key(17, 0)
    };
    assert!(matches!(store(&disk, &more), Err(TierError::Full(_))));
    // Nor may the chunk before leave for the one that continues it.
    let parent = Some(key(17, 0).digest);
    assert!(matches!(
        store_after(&disk, &key(18, 0), parent),
        Err(TierError::Full(_))
    ));
    assert_eq!(
        disk.probe(&[0, 1, 2].map(|head| key(17, head))).unwrap(),
        [true; 3]
    );
}

#[test]
fn a_day_has_its_budget() {
    let place = Place::new();
    let options = DiskOptions {
        daily_write_bytes: Some(2 * FILE_BYTES),
        ..options(place.path())
    };
    let disk = Disk::open(options, identity()).unwrap();
    store(&disk, &key(0, 0)).unwrap();
    store(&disk, &key(1, 0)).unwrap();
    store(&disk, &key(1, 0)).unwrap();
    let Err(TierError::Full(what)) = store(&disk, &key(2, 0)) else {
        panic!("written")
    };
    assert!(what.contains("budget"), "{what}");
    assert_eq!(disk.probe(&[key(2, 0)]).unwrap(), [false]);
}

#[test]
fn files_left_behind_count_and_go() {
    let place = Place::new();
    drop(open_limited(place.path(), limit(4)));
    let shard = place
        .file(&identity(), &key(0, 0))
        .parent()
        .unwrap()
        .to_path_buf();
    std::fs::create_dir_all(&shard).unwrap();
    let left = shard.join(".tmp-00000000000000aa-7");
    std::fs::write(&left, vec![0; FILE_BYTES as usize]).unwrap();
    let disk = open_limited(place.path(), limit(4));
    assert_eq!(counter(&disk, "used_bytes"), FILE_BYTES);
    disk.tick();
    assert!(left.exists(), "somebody may still be writing it");
    let file = File::options().write(true).open(&left).unwrap();
    file.set_times(FileTimes::new().set_modified(SystemTime::now() - Duration::from_secs(3700)))
        .unwrap();
    let disk = open_limited(place.path(), limit(4));
    // The first look at the directory may still be under way.
    let deadline = Instant::now() + Duration::from_secs(300);
    while left.exists() && Instant::now() < deadline {
        disk.tick();
    }
    assert!(!left.exists());
}

/// A file system of so many bytes, if this process may mount one.
struct Small<'a>(&'a Path);

impl<'a> Small<'a> {
    fn mount(path: &'a Path, bytes: u64) -> Option<Self> {
        let size = format!("size={bytes}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(path)
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(path)),
            why => {
                eprintln!("SKIPPED: cannot mount a small file system here: {why:?}");
                None
            }
        }
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn a_full_file_system_evicts_once_and_then_says_full() {
    let place = Place::new();
    let Some(_mounted) = Small::mount(place.path(), 10 * FILE_BYTES) else {
        return;
    };
    let disk = open_limited(place.path(), 1 << 30);
    // More than fits: the limit is never reached, the file system's end is.
    for number in 0..40 {
        store(&disk, &key(number, 0)).unwrap();
    }
    assert!(counter(&disk, "evicted_chunks") >= 30);
    let there = there(&disk, 0..40);
    assert!(there.len() >= 6 && there.contains(&39), "{there:?}");
    // Somebody else takes what is left: nothing of ours can make room.
    for number in there {
        disk.remove(&key(number, 0).digest).unwrap();
    }
    let fill = vec![0; 4096];
    let mut hog = File::create(place.path().join("hog")).unwrap();
    while std::io::Write::write_all(&mut hog, &fill).is_ok() {}
    assert!(matches!(store(&disk, &key(50, 0)), Err(TierError::Full(_))));
    assert_eq!(disk.probe(&[key(50, 0)]).unwrap(), [false]);
    // And no half of it is left.
    assert_eq!(counter(&open_after(place.path(), hog), "used_bytes"), 0);
}

fn open_after(path: &Path, hog: File) -> Disk {
    drop(hog);
    std::fs::remove_file(path.join("hog")).unwrap();
    assert!(disk_usage(path) <= 8192);
    open_limited(path, 1 << 30)
}

#[test]
fn a_full_file_system_is_refused_at_start() {
    let place = Place::new();
    let Some(_mounted) = Small::mount(place.path(), 2 * FILE_BYTES) else {
        return;
    };
    let Err(error) = Disk::open(options(place.path()), identity()) else {
        panic!("opened")
    };
    let text = error.to_string();
    assert!(
        text.contains("full") && text.contains("free some room"),
        "{text}"
    );
}
