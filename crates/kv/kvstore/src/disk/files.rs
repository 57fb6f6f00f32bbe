//! KV parts (one KV head of one chunk) of one store as files: verified when read, written under a
//! temporary name and renamed.

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use super::directory::{Directory, failed};
use super::io::{self, Io, is_gone};
use super::{identity_file, layout, listing, quarantine};
use crate::format::{Header, HeaderPage};
use crate::key::{Digest, PartKey, StoreIdentity};
use crate::tier::TierError;

/// A read updates a file's modification time if the time is older than this. The LRU order is thus
/// exact to a minute, while reads seldom cause writes.
const RENEWED: Duration = Duration::from_secs(60);

/// Function that writes a whole new file; its second argument builds the header page from the
/// payload's CRC-64.
pub(super) type Fill<'a> = &'a dyn Fn(&File, &dyn Fn(u64) -> HeaderPage) -> Result<(), Error>;

/// The files of one store.
pub(super) struct PartFiles {
    identity: StoreIdentity,
    digest: Digest,
    /// Name of the store's directory.
    store: String,
    directory: Arc<Directory>,
    pub(super) io: Io,
    made: AtomicU64,
}

impl PartFiles {
    /// Files of the store of `identity` below `directory`.
    pub(super) fn new(directory: Arc<Directory>, identity: StoreIdentity, io: Io) -> Self {
        let digest = identity.digest();
        Self {
            identity,
            digest,
            store: layout::store_name(&digest),
            directory,
            io,
            made: AtomicU64::new(0),
        }
    }

    /// Path of the file of `key`.
    pub(super) fn path(&self, key: &PartKey) -> PathBuf {
        self.directory.part_path(&self.store, key)
    }

    /// Size of the file of `key` in bytes; an error if its payload does not have `given` bytes.
    pub(super) fn bytes(&self, key: &PartKey, given: usize) -> Result<u64, TierError> {
        let payload = key.payload_bytes(&self.identity);
        layout::part_file_bytes(key, &self.identity)
            .filter(|_| given == payload)
            .ok_or_else(|| {
                TierError::Failed(format!("{given} bytes are not the {payload} of {key:?}"))
            })
    }

    /// Total size in bytes of a chunk of `blocks` blocks, over the files of all its parts.
    pub(super) fn chunk_bytes(&self, blocks: u16) -> u64 {
        layout::chunk_bytes(&self.identity, blocks)
    }

    /// Size of the file of `key` in bytes; None unless it exists with its full length.
    pub(super) fn find(&self, key: &PartKey) -> Result<Option<u64>, TierError> {
        let Some(bytes) = layout::part_file_bytes(key, &self.identity) else {
            return Ok(None);
        };
        let path = self.path(key);
        let found = listing::length_and_time(&path);
        let found = found.map_err(|error| failed("looking at", &path, &error))?;
        Ok(found.filter(|found| found.0 == bytes).map(|_| bytes))
    }

    /// Reads the file of `key`, which has `bytes` bytes. `take` reads the file and returns the
    /// header page and the payload's CRC-64; both are verified. Returns the parent that the header
    /// names.
    pub(super) fn read(
        &self,
        key: &PartKey,
        bytes: u64,
        take: impl FnOnce(&File) -> Result<(HeaderPage, u64), Error>,
    ) -> Result<Option<Digest>, TierError> {
        let path = &self.path(key);
        let read = |error: Error| match error.kind() {
            ErrorKind::UnexpectedEof => TierError::Damaged("the file ends early".into()),
            ErrorKind::InvalidData => TierError::Damaged(error.to_string()),
            _ if is_gone(&error) => TierError::Missing,
            _ => failed("reading", path, &error),
        };
        let file = io::open(path).map_err(read)?;
        let facts = file.metadata().map_err(read)?;
        if facts.len() != bytes {
            return Err(TierError::Damaged(format!(
                "{} bytes instead of {bytes}",
                facts.len()
            )));
        }
        let (page, sum) = take(&file).map_err(read)?;
        let payload = key.payload_bytes(&self.identity);
        let header = Header::verified(&page, &self.digest, key, (payload, sum));
        let header = header.map_err(TierError::Damaged)?;
        let unused = facts
            .modified()
            .ok()
            .and_then(|time| SystemTime::now().duration_since(time).ok());
        if unused.is_some_and(|unused| unused > RENEWED) {
            renew(&file);
        }
        Ok(header.parent)
    }

    /// Moves a damaged file to the quarantine; returns an error text with its path.
    pub(super) fn put_aside(&self, key: &PartKey, what: &str) -> String {
        let path = &self.path(key);
        self.directory
            .counts
            .quarantined_files
            .fetch_add(1, Ordering::Relaxed);
        let shown = path.display();
        match quarantine::put(&self.directory.root, &self.store, path) {
            Ok(()) => format!("{shown}: {what}; put aside"),
            Err(error) => format!("{shown}: {what}; it cannot be put aside: {error}"),
        }
    }

    /// Writes the file of `key` under a temporary name, then renames it.
    pub(super) fn write(
        &self,
        key: &PartKey,
        parent: Option<Digest>,
        fill: Fill<'_>,
    ) -> Result<(), Error> {
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
        let written = fill(&file, &|payload_crc| self.header(key, parent, payload_crc));
        let committed = written
            .and(io::close(file))
            .and_then(|()| std::fs::rename(&temporary, &path));
        if committed.is_err() {
            // Best effort: abandoned files are removed after an hour anyway. Report the first
            // error.
            let _ = std::fs::remove_file(&temporary);
        }
        committed
    }

    fn header(&self, key: &PartKey, parent: Option<Digest>, payload_crc: u64) -> HeaderPage {
        Header {
            identity: self.digest,
            key: *key,
            payload_bytes: key.payload_bytes(&self.identity) as u64,
            payload_crc,
            parent,
        }
        .encode()
    }

    fn make_shard(&self, shard: &Path) -> Result<(), Error> {
        io::create_directories(shard)?;
        let store = self.directory.root.join(&self.store);
        // The number keeps temporary names unique when several threads race.
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let temporary = shard.join(format!("{}{number}", self.directory.mine));
        identity_file::ensure(&store, &temporary, &self.identity)
    }
}

/// Sets a file's modification time to now. Fails for another user's file, which then looks older
/// than its last use.
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
