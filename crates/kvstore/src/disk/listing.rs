//! What a shard directory holds, by the names in it.

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

use super::layout::{self, PAGE, TEMPORARY};
use crate::key::{PartKey, StoreIdentity};

/// Changes of a directory so close to each other may bear the same time: clocks of file systems
/// have ticks.
const TICK: Duration = Duration::from_millis(20);
/// The same where times are whole seconds, of some network file systems.
const COARSE_TICK: Duration = Duration::from_millis(2100);

/// A time of a file system, comparable with others of the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp {
    seconds: i64,
    nanoseconds: u64,
}

impl Stamp {
    fn modified(stat: &Stat) -> Self {
        // The types differ between architectures.
        #[allow(clippy::unnecessary_cast)]
        Self {
            seconds: stat.st_mtime as i64,
            nanoseconds: stat.st_mtime_nsec as u64,
        }
    }

    /// Whole seconds since 1970, 0 for times before.
    pub(crate) fn unix_seconds(self) -> u64 {
        u64::try_from(self.seconds).unwrap_or(0)
    }

    /// How long after it changes may bear the same time.
    pub(crate) fn tick(self) -> Duration {
        match self.nanoseconds {
            0 => COARSE_TICK,
            _ => TICK,
        }
    }
}

/// A file that is not committed.
#[derive(Clone, Debug)]
pub(crate) struct Temporary {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) modified: u64,
}

/// The contents of one shard.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// The directory's time before it was read, and when that was asked; None when there is no
    /// directory.
    pub(crate) stamp: Option<(Stamp, Instant)>,
    /// Committed parts and the bytes of their files.
    pub(crate) parts: Vec<(PartKey, u64)>,
    /// Files being written, or left behind by a writer that died.
    pub(crate) temporaries: Vec<Temporary>,
}

/// The modification time of a directory; None when it is not there.
pub(crate) fn stamp(directory: &Path) -> io::Result<Option<Stamp>> {
    Ok(stat(directory)?.map(|stat| Stamp::modified(&stat)))
}

/// Length and modification time (seconds since 1970) of a file; None when it is not there.
pub(crate) fn length_and_time(path: &Path) -> io::Result<Option<(u64, u64)>> {
    let known = stat(path)?;
    Ok(known.map(|stat| (length(&stat), Stamp::modified(&stat).unix_seconds())))
}

/// Reads a shard directory; one that is not there is empty. Sizes of parts follow from their names
/// and the store's geometry; where that is not known the files are asked.
pub(crate) fn list(directory: &Path, identity: Option<&StoreIdentity>) -> io::Result<Listing> {
    let Some(before) = stamp(directory)? else {
        return Ok(Listing::default());
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = match rustix::fs::open(directory, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(Listing::default()),
        opened => opened?,
    };
    let mut listing = Listing {
        stamp: Some((before, Instant::now())),
        ..Listing::default()
    };
    let mut space = vec![MaybeUninit::uninit(); 128 << 10];
    let mut entries = RawDir::new(&directory, &mut space);
    while let Some(entry) = entries.next() {
        listing.add(&directory, entry?.file_name().to_bytes(), identity)?;
    }
    Ok(listing)
}

impl Listing {
    fn add(
        &mut self,
        at: &OwnedFd,
        name: &[u8],
        identity: Option<&StoreIdentity>,
    ) -> io::Result<()> {
        if let Some(key) = layout::parse_name(name) {
            let by_name = identity.and_then(|identity| layout::part_file_bytes(&key, identity));
            let bytes = match by_name {
                Some(bytes) => Some(bytes),
                None => stat_at(at, name)?.map(|stat| length(&stat).next_multiple_of(PAGE)),
            };
            self.parts.extend(bytes.map(|bytes| (key, bytes)));
        } else if name.starts_with(TEMPORARY.as_bytes()) {
            let stat = stat_at(at, name)?;
            self.temporaries.extend(stat.map(|stat| Temporary {
                name: String::from_utf8_lossy(name).into_owned(),
                bytes: length(&stat).next_multiple_of(PAGE),
                modified: Stamp::modified(&stat).unix_seconds(),
            }));
        }
        Ok(())
    }
}

fn length(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn stat(path: &Path) -> io::Result<Option<Stat>> {
    present(rustix::fs::stat(path))
}

fn stat_at(directory: &OwnedFd, name: &[u8]) -> io::Result<Option<Stat>> {
    let name = OsStr::from_bytes(name);
    present(rustix::fs::statat(
        directory.as_fd(),
        name,
        AtFlags::SYMLINK_NOFOLLOW,
    ))
}

fn present(answer: rustix::io::Result<Stat>) -> io::Result<Option<Stat>> {
    match answer {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT | Errno::STALE) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
