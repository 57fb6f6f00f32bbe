//! A directory of parts, on a disk or a share that several replicas mount (docs/kv-format.md).
//!
//! A part is one file, named by what it holds, and committed by renaming it: no locks, and a crash
//! at any byte leaves nothing that anybody finds. Nothing is synced on the way. After a power
//! failure a file may be torn under its final name; its checksum says so when it is read.
//!
//! Downward: `Disk` is the tier; `files` reads and writes parts; `room` keeps the bound;
//! `directory` looks what others did. All that is known is in `state`: which files there are
//! (`index`) and what their chunks are worth beside each other (`ranking`, by `crate::policy`).

pub mod admin;
mod budget;
mod directory;
mod files;
mod identity_file;
mod index;
mod io;
mod layout;
mod listing;
mod outside;
mod quarantine;
mod ranking;
mod room;
mod start;
mod state;

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use self::budget::Budget;
use self::directory::{Directory, failed, lock, unix_now};
use self::files::Fill;
use self::index::Part;
pub use self::io::Direct;
use self::io::Io;
pub use self::outside::PAYLOAD_AT;
use self::ranking::{Name, Newcomer, Ranking};
use crate::format::HeaderPage;
use crate::key::{Digest, Group, PartKey, StoreIdentity};
use crate::tier::{About, StartError, Tier, TierError};

/// How long opening waits for the names of what is there.
const OPENING: Duration = Duration::from_secs(1);

/// Where and how much.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// The directory; made if its parent is there.
    pub path: PathBuf,
    /// Bytes that files may take, whoever writes them (rounded up to 4096 each).
    pub limit_bytes: u64,
    /// Bytes that this process may write in any 24 hours.
    pub daily_write_bytes: Option<u64>,
    /// Past the page cache or through it.
    pub direct: Direct,
    /// Blocks of a full chunk: the limit must hold one at least.
    pub chunk_blocks: u16,
    /// Share of the limit that may be of requests with one salt; None: all of it.
    pub quota: Option<f64>,
}

/// The tier.
pub struct Disk {
    name: String,
    identity: StoreIdentity,
    digest: Digest,
    /// Name of this identity's directory, and its number in the index.
    store: (String, usize),
    directory: Arc<Directory>,
    /// Of a full chunk.
    chunk_blocks: u16,
    io: Io,
    budget: Option<Mutex<Budget>>,
    started: Instant,
    made: AtomicU64,
    refused_by_budget: AtomicU64,
}

impl Disk {
    /// Opens a directory; names in it are read meanwhile, on another thread if there are very many.
    ///
    /// # Errors
    /// The path is missing and cannot be made, no directory, not writable, or full; the limit is
    /// less than a chunk. With the remedy.
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
        let digest = identity.digest();
        let name = layout::store_name(&digest);
        let number = directory
            .state()
            .index
            .store(&name, || Some(identity.clone()));
        let directory = Arc::new(directory);
        directory.scan_in_background().map_err(unusable)?;
        directory.wait_for_scan(OPENING);
        start::check_room(path, *limit_bytes, chunk, directory.state().taken())?;
        Ok(Self {
            name: format!("disk:{}", path.display()),
            identity,
            digest,
            store: (name, number),
            directory,
            chunk_blocks: options.chunk_blocks,
            io: Io::new(options.direct),
            budget: options
                .daily_write_bytes
                .map(|bytes| Mutex::new(Budget::new(bytes))),
            started: Instant::now(),
            made: AtomicU64::new(0),
            refused_by_budget: AtomicU64::new(0),
        })
    }

    fn path(&self, key: &PartKey) -> PathBuf {
        self.directory.part_path(&self.store.0, key)
    }

    /// Bytes of the file of `key`; an error when `given` bytes are not its payload.
    fn file_bytes(&self, key: &PartKey, given: usize) -> Result<u64, TierError> {
        let payload = key.payload_bytes(&self.identity);
        layout::part_file_bytes(key, &self.identity)
            .filter(|_| given == payload)
            .ok_or_else(|| {
                TierError::Failed(format!("{given} bytes are not the {payload} of {key:?}"))
            })
    }

    /// Whether the file is there in its full length, whatever the index says.
    fn finds(&self, key: &PartKey, bytes: u64) -> Result<bool, TierError> {
        let path = self.path(key);
        let found =
            listing::length_and_time(&path).map_err(|error| failed("looking at", &path, &error))?;
        let whole = found.is_some_and(|(length, _)| length == bytes);
        if whole {
            let mut state = self.directory.state();
            state.insert(self.store.1, key, bytes, unix_now(), &About::default());
        }
        Ok(whole)
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
        self.refused_by_budget.fetch_add(1, Ordering::Relaxed);
        let left = budget.left(now);
        Err(TierError::Full(format!(
            "{left} bytes are left of the daily write budget"
        )))
    }

    /// Writes into room that was reserved; when the file system itself has none, makes it and tries
    /// once more.
    fn write_with_room(
        &self,
        key: &PartKey,
        bytes: u64,
        newcomer: &Newcomer,
        fill: Fill<'_>,
    ) -> Result<(), TierError> {
        let answer = match self.write(key, &newcomer.about, fill) {
            Err(error) if is_full(&error) => {
                self.directory.give_way(bytes, newcomer);
                self.write(key, &newcomer.about, fill)
            }
            answer => answer,
        };
        answer.map_err(|error| match is_full(&error) {
            true => TierError::Full(format!(
                "the file system of {}: {error}",
                self.directory.root.display()
            )),
            false => failed("writing", &self.path(key), &error),
        })
    }

    /// The chunks that somebody wants who asks for these parts of a prompt: the full ones, and one
    /// of the shorter ones at its end, the longest that is there. If none is, it will be the
    /// longest.
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

    /// `Tier::load` of `given` bytes, which `take` reads.
    fn load_with(
        &self,
        key: &PartKey,
        given: usize,
        take: impl FnOnce(&File) -> Result<(HeaderPage, u64), Error>,
    ) -> Result<(), TierError> {
        let bytes = self.file_bytes(key, given)?;
        let path = self.path(key);
        let answer = self.read(key, &path, bytes, take);
        let mut state = self.directory.state();
        match &answer {
            Ok(about) => state.insert(self.store.1, key, bytes, unix_now(), about),
            Err(TierError::Missing | TierError::Damaged(_)) => {
                state.remove_part(self.store.1, key, bytes)
            }
            Err(_) => {}
        }
        drop(state);
        answer.map(drop).map_err(|error| match error {
            TierError::Damaged(what) => TierError::Damaged(self.put_aside(&path, what)),
            other => other,
        })
    }

    /// `Tier::store` of `given` bytes, which `fill` writes.
    fn store_with(
        &self,
        key: &PartKey,
        given: usize,
        about: &About,
        fill: Fill<'_>,
    ) -> Result<(), TierError> {
        let bytes = self.file_bytes(key, given)?;
        if self.finds(key, bytes)? {
            return Ok(());
        }
        self.spend(bytes)?;
        let newcomer = Newcomer {
            name: Name::new(self.store.1, &key.digest),
            part: Part::of(key),
            bytes: layout::chunk_bytes(&self.identity, key.blocks),
            about: *about,
        };
        let room = self.directory.reserve(bytes, &newcomer);
        let stored = room.and_then(|reservation| {
            self.write_with_room(key, bytes, &newcomer, fill)?;
            reservation.commit(self.store.1, key, about);
            Ok(())
        });
        if let (Err(_), Some(budget)) = (&stored, &self.budget) {
            lock(budget).give_back(bytes);
        }
        stored
    }
}

impl Tier for Disk {
    fn name(&self) -> &str {
        &self.name
    }

    fn load(&self, key: &PartKey, into: &mut [&mut [u8]]) -> Result<(), TierError> {
        let given = into.iter().map(|slice| slice.len()).sum();
        self.load_with(key, given, |file| self.io.read(file, into))
    }

    fn store(&self, key: &PartKey, from: &[&[u8]], about: &About) -> Result<(), TierError> {
        let given = from.iter().map(|slice| slice.len()).sum();
        self.store_with(key, given, about, &|file, header| {
            self.io.write(file, from, header)
        })
    }

    fn probe(&self, keys: &[PartKey]) -> Result<Vec<bool>, TierError> {
        let mut found: Vec<bool> = {
            let state = self.directory.state();
            keys.iter()
                .map(|key| state.index.has(self.store.1, key))
                .collect()
        };
        // Another process may have written it since.
        for (key, found) in keys.iter().zip(&mut found).filter(|(_, found)| !**found) {
            if let Some(bytes) = layout::part_file_bytes(key, &self.identity) {
                *found = self.finds(key, bytes)?;
            }
        }
        let wanted = self.wanted(keys, &found);
        self.directory.state().ask(self.store.1, &wanted);
        Ok(found)
    }

    fn remove(&self, digest: &Digest) -> Result<(), TierError> {
        let removed = self.directory.remove_unseen(self.store.1, digest);
        removed.map_err(|error| failed("removing from", &self.directory.root, &error))
    }

    fn clear(&self, group: Option<Group>) -> Result<(), TierError> {
        let cleared = self.directory.remove_store(self.store.1, group);
        cleared.map_err(|error| failed("clearing", &self.directory.root, &error))
    }

    fn tick(&self) {
        self.directory.look_sometimes();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.directory.counts;
        let state = self.directory.state();
        let (used, chunks) = (state.taken(), state.index.len() as u64);
        drop(state);
        vec![
            ("used_bytes", used),
            ("limit_bytes", self.directory.limit),
            ("chunks", chunks),
            ("evicted_chunks", read(&counts.evicted_chunks)),
            ("evicted_bytes", read(&counts.evicted_bytes)),
            ("quarantined_chunks", read(&counts.quarantined_files)),
            ("unremovable_files", read(&counts.unremovable_files)),
            ("abandoned_files", read(&counts.abandoned_files)),
            ("refused_by_worth", read(&counts.refused_by_worth)),
            ("refused_by_quota", read(&counts.refused_by_quota)),
            ("refused_by_budget", read(&self.refused_by_budget)),
            ("direct_reads", read(&self.io.direct_reads)),
            ("buffered_reads", read(&self.io.buffered_reads)),
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
