//! The disk tier: a directory of KV parts (one KV head of one chunk each), on a disk or a share
//! that several replicas mount (docs/kv-format.md).
//!
//! A part is one file, named by its contents and committed by a rename. There are no locks, and
//! after a crash an incomplete file is never found by a lookup. Writes are not synced: a power
//! failure may leave a torn file under its final name, which its checksum detects at the next read.
//!
//! Layers, top-down: [`Disk`] is the tier; `PartFiles` reads and writes parts; `Room` enforces the
//! size limit; `Directory` detects changes by other processes. `DiskState` is this process's view:
//! the known files (`index`) and their eviction order (`ranking`).

pub mod admin;
mod budget;
mod directory;
mod files;
mod identity_file;
mod index;
mod io;
mod layout;
mod listing;
mod quarantine;
mod ranking;
mod room;
mod start;
mod state;

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Deserialize;

use self::budget::Budget;
use self::directory::{Directory, failed, lock, unix_now};
use self::files::{Fill, PartFiles};
use self::io::Io;
use self::ranking::{Name, Ranking, StoreCandidate};
use self::room::Room;
use crate::format::{HEADER_BYTES, HeaderPage};
use crate::key::{Digest, Group, PartKey, StoreIdentity};
use crate::tier::{StartError, Take, Tier, TierError};

/// Time-out of the first listing when a tier is opened.
const OPENING: Duration = Duration::from_secs(1);

/// Options of the disk tier.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskOptions {
    /// The directory; it is created if its parent exists.
    pub path: PathBuf,
    /// Maximum total size of the files of all writers, each rounded up to 4096 bytes.
    pub limit_bytes: u64,
    /// Maximum number of bytes written by this process in any 24 hours.
    #[serde(default)]
    pub daily_write_bytes: Option<u64>,
    /// Blocks per full chunk; the limit must fit at least one chunk. The mover sets the same value
    /// for all tiers.
    #[serde(default)]
    pub chunk_blocks: u16,
    /// Maximum share of the limit per salt group; None: unlimited.
    #[serde(default)]
    pub quota: Option<f64>,
}

/// Offset of the payload in the file of a part.
pub const PAYLOAD_AT: usize = HEADER_BYTES;

/// The disk tier.
pub struct Disk {
    name: String,
    /// Number of this identity's store in the index.
    store: usize,
    directory: Arc<Directory>,
    files: PartFiles,
    room: Room,
    /// Blocks of a full chunk.
    chunk_blocks: u16,
    budget: Option<Mutex<Budget>>,
    started: Instant,
}

impl Disk {
    /// Opens a directory; a long first listing continues in the background.
    ///
    /// # Errors
    /// The path cannot be created, is not a directory, is not writable or is full; or the limit is
    /// less than a chunk. The error text names the remedy.
    pub fn open(options: DiskOptions, identity: StoreIdentity) -> Result<Self, StartError> {
        let DiskOptions {
            path, limit_bytes, ..
        } = &options;
        let unusable = |error: Error| {
            StartError(format!(
                "the disk tier's path {} cannot be used: {error}",
                path.display()
            ))
        };
        let chunk = layout::chunk_bytes(&identity, options.chunk_blocks);
        let quota = options
            .quota
            .map(|share| (share * *limit_bytes as f64) as u64);
        let ranking = Ranking::new(*limit_bytes, chunk, quota);
        let directory =
            Directory::new(layout::root(path), *limit_bytes, ranking).map_err(unusable)?;
        start::prepare(path, &format!("{}start", directory.mine))?;
        let name = layout::store_name(&identity.digest());
        let mut state = directory.state();
        let store = state.index.store(&name, || Some(identity.clone()));
        drop(state);
        let directory = Arc::new(directory);
        directory.scan_in_background().map_err(unusable)?;
        directory.wait_for_scan(OPENING);
        start::check_room(path, *limit_bytes, chunk, directory.state().taken())?;
        Ok(Self {
            name: format!("disk:{}", path.display()),
            store,
            files: PartFiles::new(Arc::clone(&directory), identity, Io::new(false)),
            room: Room(Arc::clone(&directory)),
            directory,
            chunk_blocks: options.chunk_blocks,
            budget: options
                .daily_write_bytes
                .map(|bytes| Mutex::new(Budget::new(bytes))),
            started: Instant::now(),
        })
    }

    /// Whether the part's file exists with its full length. Another process may have written it.
    fn finds(&self, key: &PartKey) -> Result<bool, TierError> {
        let found = self.files.find(key)?;
        if let Some(bytes) = found {
            let mut state = self.directory.state();
            state.insert(self.store, key, bytes, unix_now(), None);
        }
        Ok(found.is_some())
    }

    fn spend(&self, bytes: u64) -> Result<(), TierError> {
        let Some(budget) = &self.budget else {
            return Ok(());
        };
        let mut budget = lock(budget);
        let now = self.started.elapsed();
        if budget.take(bytes, now) {
            return Ok(());
        }
        let left = budget.left(now);
        Err(TierError::Full(format!(
            "{left} bytes are left of the daily write budget"
        )))
    }

    /// Writes into reserved space; if the file system itself is full, evicts and retries once.
    fn write_with_room(
        &self,
        key: &PartKey,
        bytes: u64,
        candidate: &StoreCandidate,
        fill: Fill<'_>,
    ) -> Result<(), TierError> {
        let write = || {
            self.files
                .write(key, candidate.parent.map(|parent| parent.digest), fill)
        };
        let answer = match write() {
            Err(error) if is_full(&error) => {
                self.room.give_way(bytes, candidate);
                write()
            }
            answer => answer,
        };
        answer.map_err(|error| match is_full(&error) {
            true => TierError::Full(format!(
                "the file system of {}: {error}",
                self.directory.root.display()
            )),
            false => failed("writing", &self.files.path(key), &error),
        })
    }

    /// The chunks that count as requested when a prompt is probed: all full chunks, and one partial
    /// chunk at the end. The partial chunk is the longest one present; if none is present, the
    /// longest one of all.
    fn wanted(&self, keys: &[PartKey], found: &[bool]) -> Vec<Digest> {
        let mut wanted = Vec::new();
        let mut end: Option<(Digest, bool)> = None;
        let mut rest = found;
        for parts in keys.chunk_by(|a, b| a.digest == b.digest) {
            let (found, others) = rest.split_at(parts.len());
            rest = others;
            let there = found.iter().all(|found| *found);
            let digest = parts[0].digest;
            if parts[0].blocks >= self.chunk_blocks {
                wanted.push(digest);
            } else if end.is_none_or(|(_, known)| there && !known) {
                end = Some((digest, there));
            }
        }
        wanted.extend(end.map(|(digest, _)| digest));
        wanted
    }

    /// Implements `Tier::load`: loads `given` bytes with the reader `take`.
    fn load_with(
        &self,
        key: &PartKey,
        given: usize,
        take: impl FnOnce(&File) -> Result<(HeaderPage, u64), Error>,
    ) -> Result<(), TierError> {
        let bytes = self.files.bytes(key, given)?;
        let answer = self.files.read(key, bytes, take);
        let mut state = self.directory.state();
        match &answer {
            Ok(parent) => state.insert(self.store, key, bytes, unix_now(), *parent),
            Err(TierError::Missing | TierError::Damaged(_)) => {
                state.remove_part(self.store, key, bytes)
            }
            Err(_) => {}
        }
        drop(state);
        answer.map(drop).map_err(|error| match error {
            TierError::Damaged(what) => TierError::Damaged(self.files.put_aside(key, &what)),
            other => other,
        })
    }
}

impl Tier for Disk {
    fn name(&self) -> &str {
        &self.name
    }

    fn load(&self, key: &PartKey, into: &mut [&mut [u8]]) -> Result<(), TierError> {
        let given = into.iter().map(|slice| slice.len()).sum();
        self.load_with(key, given, |file| self.files.io.read(file, into))
    }

    fn load_by(&self, key: &PartKey, bytes: usize, take: Take<'_>) -> Result<(), TierError> {
        self.load_with(key, bytes, |file| {
            let mut page = [0; HEADER_BYTES];
            file.read_exact_at(&mut page, 0)?;
            Ok((page, take(file)?))
        })
    }

    fn store(&self, key: &PartKey, from: &[u8], parent: Option<Digest>) -> Result<(), TierError> {
        let bytes = self.files.bytes(key, from.len())?;
        if self.finds(key)? {
            return Ok(());
        }
        self.spend(bytes)?;
        let name = Name::new(self.store, &key.digest);
        let candidate = StoreCandidate {
            key: name,
            parent: name.parent(parent),
            size: self.files.chunk_bytes(key.blocks),
        };
        let room = self.room.reserve(bytes, &candidate);
        let stored = room.and_then(|reservation| {
            let fill: Fill<'_> = &|file, header| io::fill(file, from, header);
            self.write_with_room(key, bytes, &candidate, fill)?;
            reservation.commit(self.store, key, parent);
            Ok(())
        });
        if let (Err(_), Some(budget)) = (&stored, &self.budget) {
            lock(budget).give_back(bytes);
        }
        stored
    }

    fn probe(&self, keys: &[PartKey]) -> Result<Vec<bool>, TierError> {
        let mut found: Vec<bool> = {
            let state = self.directory.state();
            keys.iter()
                .map(|key| state.index.has(self.store, key))
                .collect()
        };
        // Another process may have written the part since the last listing.
        for (key, found) in keys.iter().zip(&mut found).filter(|(_, found)| !**found) {
            *found = self.finds(key)?;
        }
        let wanted = self.wanted(keys, &found);
        self.directory.state().ask(self.store, &wanted);
        Ok(found)
    }

    fn remove(&self, digest: &Digest) -> Result<(), TierError> {
        let removed = self.directory.remove_unseen(self.store, digest);
        removed.map_err(|error| failed("removing from", &self.directory.root, &error))
    }

    fn clear(&self, group: Option<Group>) -> Result<(), TierError> {
        let cleared = self.directory.remove_store(self.store, group);
        cleared.map_err(|error| failed("clearing", &self.directory.root, &error))
    }

    fn tick(&self) {
        self.directory.look_sometimes();
    }

    fn take_left(&self, most: usize) -> Vec<Digest> {
        self.directory.state().take_left(self.store, most)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.directory.counts;
        let state = self.directory.state();
        let (used, chunks) = (state.taken(), state.index.len() as u64);
        drop(state);
        vec![
            ("used_bytes", used),
            ("chunks", chunks),
            ("evicted_chunks", read(&counts.evicted_chunks)),
            ("quarantined_chunks", read(&counts.quarantined_files)),
            ("direct_reads", read(&self.files.io.direct_reads)),
            ("buffered_reads", read(&self.files.io.buffered_reads)),
            ("scan_microseconds", read(&counts.scan_microseconds)),
        ]
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.directory.close();
    }
}

fn is_full(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    )
}
