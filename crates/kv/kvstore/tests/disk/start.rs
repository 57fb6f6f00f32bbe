use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use penstock_kvstore::disk::{Disk, DiskOptions};

use crate::fixtures::{Place, identity, key, load, options, store};

fn refused(options: DiskOptions) -> String {
    match Disk::open(options, identity()) {
        Ok(_) => panic!("opened"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_missing_directory_is_made() {
    let place = Place::new();
    let disk = Disk::open(options(&place.path().join("kv")), identity()).unwrap();
    store(&disk, &key(1, 0)).unwrap();
    load(&disk, &key(1, 0)).unwrap();
    assert!(place.path().join("kv/penstock-kv-1").is_dir());
}

/// Who may read keys and values can tell the prompt.
#[test]
fn only_the_owner_may_read_what_is_made() {
    let place = Place::new();
    let given = place.path().join("given");
    std::fs::create_dir(&given).unwrap();
    std::fs::set_permissions(&given, Permissions::from_mode(0o755)).unwrap();
    for path in [place.path().join("kv"), given.clone()] {
        let disk = Disk::open(options(&path), identity()).unwrap();
        store(&disk, &key(1, 0)).unwrap();
        store(&disk, &key(2, 0)).unwrap();
        let damaged = files(&path).pop().unwrap();
        std::fs::write(damaged, b"not a part").unwrap();
        let _ = (load(&disk, &key(1, 0)), load(&disk, &key(2, 0)));
        assert!(path.join("penstock-kv-1/quarantine").is_dir());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for file in files(&path) {
            assert_eq!(mode(&file), 0o600, "{file:?}");
            let above = file.ancestors().skip(1).take_while(|each| *each != path);
            assert!(
                above.into_iter().all(|each| mode(each) == 0o700),
                "{file:?}"
            );
        }
        let expected = if path == given { 0o755 } else { 0o700 };
        assert_eq!(mode(&path), expected, "{path:?}");
    }
}

/// All regular files below, those of stores last.
fn files(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).unwrap().map(Result::unwrap);
    let (directories, mut files): (Vec<_>, Vec<_>) = entries
        .map(|entry| entry.path())
        .partition(|path| path.is_dir());
    files.extend(directories.iter().flat_map(|each| self::files(each)));
    files
}

#[test]
fn several_ranks_make_a_missing_directory_at_once() {
    for _ in 0..50 {
        let place = Place::new();
        let path = place.path().join("kv");
        let gate = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    gate.wait();
                    Disk::open(options(&path), identity()).unwrap();
                });
            }
        });
    }
}

#[test]
fn a_missing_parent_is_refused() {
    let place = Place::new();
    let text = refused(options(&place.path().join("no/kv")));
    assert!(
        text.contains("no/kv is not there") && text.contains("mkdir -p"),
        "{text}"
    );
}

#[test]
fn a_file_is_refused() {
    let place = Place::new();
    let file = place.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let text = refused(options(&file));
    assert!(text.contains("not a directory"), "{text}");
}

#[test]
fn a_directory_that_cannot_be_written_is_refused() {
    // Even root cannot make files there.
    let text = refused(options(Path::new("/proc/self/task")));
    assert!(text.contains("/proc/self/task cannot be written"), "{text}");
    assert!(text.contains("; "), "a remedy: {text}");
}

#[test]
fn less_than_a_chunk_is_refused() {
    let place = Place::new();
    let text = refused(DiskOptions {
        limit_bytes: 61439,
        ..options(place.path())
    });
    assert!(
        text.contains("61439 bytes, less than one chunk of 61440"),
        "{text}"
    );
    assert!(
        Disk::open(
            DiskOptions {
                limit_bytes: 61440,
                ..options(place.path())
            },
            identity()
        )
        .is_ok()
    );
}
