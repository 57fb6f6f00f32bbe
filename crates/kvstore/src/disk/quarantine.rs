//! Damaged files, and what else was in the place of parts: a few are kept for diagnosis.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::directory::absent;
use super::io as file_io;
use super::layout::{self, PAGE};

/// Files kept; older ones go.
const KEPT: usize = 16;

/// Moves `file`, of the store `store`, aside; removes it where that is not possible.
pub(crate) fn put(root: &Path, store: &str, file: &Path) -> io::Result<()> {
    let place = layout::quarantine(root);
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let moved = file_io::create_directories(&place)
        .and_then(|()| fs::rename(file, place.join(format!("{store}-{name}"))));
    match moved {
        Ok(()) => prune(&place, KEPT).map(drop),
        Err(_) => absent(fs::remove_file(file)),
    }
}

/// Bytes of the files kept.
pub(crate) fn bytes(root: &Path) -> io::Result<u64> {
    let files = files(&layout::quarantine(root))?;
    Ok(files.iter().map(|file| file.bytes).sum())
}

/// Files kept.
pub(crate) fn count(root: &Path) -> io::Result<usize> {
    Ok(files(&layout::quarantine(root))?.len())
}

/// Removes all of them; the bytes that came free.
pub(crate) fn clear(root: &Path) -> io::Result<u64> {
    prune(&layout::quarantine(root), 0)
}

struct Kept {
    path: PathBuf,
    bytes: u64,
    modified: SystemTime,
}

fn prune(place: &Path, keep: usize) -> io::Result<u64> {
    let mut files = files(place)?;
    files.sort_by_key(|file| std::cmp::Reverse(file.modified));
    let mut freed = 0;
    for file in files.iter().skip(keep) {
        let removed = match fs::remove_file(&file.path) {
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                fs::remove_dir_all(&file.path)
            }
            removed => removed,
        };
        absent(removed)?;
        freed += file.bytes;
    }
    Ok(freed)
}

fn files(place: &Path) -> io::Result<Vec<Kept>> {
    let entries = match fs::read_dir(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        // Another process may prune at the same time.
        let Ok(facts) = entry.metadata() else {
            continue;
        };
        files.push(Kept {
            path: entry.path(),
            bytes: facts.len().next_multiple_of(PAGE),
            modified: facts.modified()?,
        });
    }
    Ok(files)
}
