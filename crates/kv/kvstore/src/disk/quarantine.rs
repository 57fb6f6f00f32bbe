//! Quarantine for damaged or unexpected files; the latest few are kept for diagnosis.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::io::{self as file_io, absent};
use super::layout::{self, PAGE};

/// Number of files kept; older ones are deleted.
const KEPT: usize = 16;

/// Moves `file` of the store `store` to the quarantine; deletes it if that fails.
pub(crate) fn put(root: &Path, store: &str, file: &Path) -> io::Result<()> {
    let place = layout::quarantine(root);
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let moved = file_io::create_directories(&place)
        .and_then(|()| fs::rename(file, place.join(format!("{store}-{name}"))));
    match moved {
        Ok(()) => prune(&place, KEPT),
        Err(_) => absent(fs::remove_file(file)),
    }
}

/// Number of the files kept, and their total size in bytes.
pub(crate) fn kept(root: &Path) -> io::Result<(usize, u64)> {
    let files = files(&layout::quarantine(root))?;
    Ok((files.len(), files.iter().map(|file| file.bytes).sum()))
}

/// Deletes all files in the quarantine.
pub(crate) fn clear(root: &Path) -> io::Result<()> {
    prune(&layout::quarantine(root), 0)
}

struct Kept {
    path: PathBuf,
    bytes: u64,
    modified: SystemTime,
}

fn prune(place: &Path, keep: usize) -> io::Result<()> {
    let mut files = files(place)?;
    files.sort_by_key(|file| std::cmp::Reverse(file.modified));
    for file in files.iter().skip(keep) {
        let removed = match fs::remove_file(&file.path) {
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                fs::remove_dir_all(&file.path)
            }
            removed => removed,
        };
        absent(removed)?;
    }
    Ok(())
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
