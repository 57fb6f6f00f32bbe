//! Parts as files: read and verified, or written beside their place and moved there.

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use super::directory::{failed, is_gone};
use super::{Disk, identity_file, io, quarantine};
use crate::format::{Header, HeaderPage};
use crate::key::PartKey;
use crate::tier::{About, TierError};

/// The time of a file is renewed on use when it is older: the order of use is known to the minute,
/// and reading seldom writes.
const RENEWED: Duration = Duration::from_secs(60);

/// Writes a whole new file; the page of its header is made of the payload's CRC-64.
pub(super) type Fill<'a> = &'a dyn Fn(&File, &dyn Fn(u64) -> HeaderPage) -> Result<(), Error>;

impl Disk {
    /// Opens the file of `bytes` bytes and verifies what `take` read of it: the page of its header,
    /// and the CRC-64 of its payload. What the header says about the chunk.
    pub(super) fn read(
        &self,
        key: &PartKey,
        path: &Path,
        bytes: u64,
        take: impl FnOnce(&File) -> Result<(HeaderPage, u64), Error>,
    ) -> Result<About, TierError> {
        let read = |error: Error| match error.kind() {
            ErrorKind::UnexpectedEof => TierError::Damaged("the file ends early".into()),
            _ if is_gone(&error) => TierError::Missing,
            _ => failed("reading", path, &error),
        };
        let file = File::open(path).map_err(read)?;
        let facts = file.metadata().map_err(read)?;
        if facts.len() != bytes {
            return Err(TierError::Damaged(format!(
                "{} bytes instead of {bytes}",
                facts.len()
            )));
        }
        let (page, sum) = take(&file).map_err(read)?;
        let payload = key.payload_bytes(&self.identity);
        let header = Header::parse(&page).map_err(TierError::Damaged)?;
        header
            .check(&self.digest, key, payload)
            .map_err(TierError::Damaged)?;
        if header.payload_crc != sum {
            return Err(TierError::Damaged("the payload's checksum is wrong".into()));
        }
        let unused = facts
            .modified()
            .ok()
            .and_then(|time| SystemTime::now().duration_since(time).ok());
        if unused.is_some_and(|unused| unused > RENEWED) {
            renew(&file);
        }
        Ok(header.about)
    }

    /// Moves a damaged file out of the way; what is wrong, and where it is now.
    pub(super) fn put_aside(&self, path: &Path, what: String) -> String {
        self.directory
            .counts
            .quarantined_files
            .fetch_add(1, Ordering::Relaxed);
        let shown = path.display();
        match quarantine::put(&self.directory.root, &self.store.0, path) {
            Ok(()) => format!("{shown}: {what}; put aside"),
            Err(error) => format!("{shown}: {what}; it cannot be put aside: {error}"),
        }
    }

    /// Makes the file beside its place, has it filled, and moves it there.
    pub(super) fn write(&self, key: &PartKey, about: &About, fill: Fill<'_>) -> Result<(), Error> {
        let path = self.path(key);
        let shard = path.parent().unwrap_or(&path);
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let temporary = shard.join(format!("{}{number}", self.directory.mine));
        let file = match io::create(&temporary) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.make_shard(shard)?;
                io::create(&temporary)?
            }
            made => made?,
        };
        let written = fill(&file, &|payload_crc| self.header(key, about, payload_crc));
        let committed = written
            .and(io::close(file))
            .and_then(|()| std::fs::rename(&temporary, &path));
        if committed.is_err() {
            // It would go after an hour anyway; the error that matters is the first.
            let _ = std::fs::remove_file(&temporary);
        }
        committed
    }

    fn header(&self, key: &PartKey, about: &About, payload_crc: u64) -> HeaderPage {
        Header {
            identity: self.digest,
            key: *key,
            payload_bytes: key.payload_bytes(&self.identity) as u64,
            payload_crc,
            about: *about,
        }
        .encode()
    }

    fn make_shard(&self, shard: &Path) -> Result<(), Error> {
        std::fs::create_dir_all(shard)?;
        let store = self.directory.root.join(&self.store.0);
        // Several threads may be the first at once.
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let temporary = shard.join(format!("{}{number}", self.directory.mine));
        identity_file::ensure(&store, &temporary, &self.identity)
    }
}

/// Marks a file as used now. Whoever may not (another user's file) leaves it as it is: then it only
/// looks older than it is.
fn renew(file: &File) {
    let at = |nanoseconds| Timespec {
        tv_sec: 0,
        tv_nsec: nanoseconds,
    };
    let times = Timestamps {
        last_access: at(UTIME_OMIT),
        last_modification: at(UTIME_NOW),
    };
    let _ = rustix::fs::futimens(file, &times);
}
