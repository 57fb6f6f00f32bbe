//! Lists a shard directory and parses the names in it.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::io::is_gone;
use super::layout::{self, PAGE, TEMPORARY};
use crate::key::{PartKey, StoreIdentity};

/// Resolution of modification times: two changes of a directory within this interval may get the
/// same modification time.
const TICK: Duration = Duration::from_millis(20);
/// Like [`TICK`], for file systems with modification times in whole seconds, such as some network
/// file systems.
const COARSE_TICK: Duration = Duration::from_millis(2100);

/// A modification time, comparable within the same file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp {
    seconds: i64,
    nanoseconds: i64,
}

impl Stamp {
    fn modified(found: &Metadata) -> Self {
        Self {
            seconds: found.mtime(),
            nanoseconds: found.mtime_nsec(),
        }
    }

    /// Whole seconds since 1970, 0 for times before.
    pub(crate) fn unix_seconds(self) -> u64 {
        u64::try_from(self.seconds).unwrap_or(0)
    }

    /// Interval after this modification time in which another change may get the same time.
    pub(crate) fn tick(self) -> Duration {
        match self.nanoseconds {
            0 => COARSE_TICK,
            _ => TICK,
        }
    }
}

/// An uncommitted file: its size in bytes, and its time in seconds since 1970.
#[derive(Clone, Debug)]
pub(crate) struct Temporary {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) modified: u64,
}

/// The contents of one shard.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// The directory's modification time before the listing, and when it was read; None if the
    /// directory is missing.
    pub(crate) stamp: Option<(Stamp, Instant)>,
    /// Committed parts and their file sizes.
    pub(crate) parts: Vec<(PartKey, u64)>,
    /// Uncommitted files, in progress or abandoned.
    pub(crate) temporaries: Vec<Temporary>,
}

/// Modification time of a directory; None if it is missing.
pub(crate) fn stamp(directory: &Path) -> io::Result<Option<Stamp>> {
    Ok(present(fs::metadata(directory))?.map(|found| Stamp::modified(&found)))
}

/// Length and modification time (seconds since 1970) of a file; None if it is missing.
pub(crate) fn length_and_time(path: &Path) -> io::Result<Option<(u64, u64)>> {
    let found = present(fs::metadata(path))?;
    Ok(found.map(|found| (found.len(), Stamp::modified(&found).unix_seconds())))
}

/// Lists a shard directory; a missing directory counts as empty. File sizes are derived from the
/// names and the store's geometry, or from `stat` if the geometry is unknown.
pub(crate) fn list(directory: &Path, identity: Option<&StoreIdentity>) -> io::Result<Listing> {
    let Some(before) = stamp(directory)? else {
        return Ok(Listing::default());
    };
    let mut listing = Listing {
        stamp: Some((before, Instant::now())),
        ..Listing::default()
    };
    for entry in present(fs::read_dir(directory))?.into_iter().flatten() {
        listing.add(&entry?, identity)?;
    }
    Ok(listing)
}

impl Listing {
    fn add(&mut self, entry: &fs::DirEntry, identity: Option<&StoreIdentity>) -> io::Result<()> {
        let name = entry.file_name();
        if let Some(key) = layout::parse_name(name.as_bytes()) {
            let by_name = identity.and_then(|identity| layout::part_file_bytes(&key, identity));
            let bytes = match by_name {
                Some(bytes) => Some(bytes),
                None => present(entry.metadata())?.map(|found| found.len().next_multiple_of(PAGE)),
            };
            self.parts.extend(bytes.map(|bytes| (key, bytes)));
        } else if name.as_bytes().starts_with(TEMPORARY.as_bytes()) {
            let found = present(entry.metadata())?;
            self.temporaries.extend(found.map(|found| Temporary {
                name: name.to_string_lossy().into_owned(),
                bytes: found.len().next_multiple_of(PAGE),
                modified: Stamp::modified(&found).unix_seconds(),
            }));
        }
        Ok(())
    }
}

fn present<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Err(error) if is_gone(&error) => Ok(None),
        answer => answer.map(Some),
    }
}
