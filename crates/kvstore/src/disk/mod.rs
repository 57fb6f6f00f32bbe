//! A directory of parts, on a disk or a share that several replicas mount (docs/kv-format.md).
//!
//! A part is one file, named by what it holds, and committed by renaming it: no locks, and a crash at any byte leaves nothing that anybody finds.
//! Nothing is synced on the way. After a power failure a file may be torn under its final name; its checksum says so when it is read.

pub mod admin;
mod budget;
mod directory;
mod identity_file;
mod index;
mod io;
mod layout;
mod listing;
mod outside;
mod quarantine;
mod room;
mod start;

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use self::budget::Budget;
use self::directory::{Directory, failed, is_gone, lock, unix_now};
pub use self::io::Direct;
use self::io::Io;
pub use self::outside::PAYLOAD_AT;
use crate::format::{Header, HeaderPage};
use crate::key::{Digest, Group, PartKey, StoreIdentity};
use crate::tier::{About, StartError, Tier, TierError};

/// The time of a file is renewed on use when it is older: the order of use is known to the minute, and reading seldom writes.
const RENEWED: Duration = Duration::from_secs(60);
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
}

/// A chunk that may have to leave.
#[derive(Clone, Copy, Debug)]
pub struct Resident<'a> {
    /// Its name.
    pub digest: &'a Digest,
    /// Bytes of its files.
    pub bytes: u64,
    /// When it was used last, by any process: seconds since 1970, right to the minute.
    pub last_use: u64,
}

/// What a chunk is worth: those worth least leave first, those worth infinity never.
pub type Worth = Box<dyn Fn(&Resident<'_>) -> f64 + Send + Sync>;

/// What was not used for longest leaves first.
pub fn least_recently_used() -> Worth {
    Box::new(|chunk| chunk.last_use as f64)
}

/// Writes a whole new file; the page of its header is made of the payload's CRC-64.
type Fill<'a> = &'a dyn Fn(&File, &dyn Fn(u64) -> HeaderPage) -> Result<(), Error>;

/// The tier.
pub struct Disk {
    name: String,
    identity: StoreIdentity,
    digest: Digest,
    /// Name of this identity's directory, and its number in the index.
    store: (String, usize),
    directory: Arc<Directory>,
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
    /// The path is missing and cannot be made, no directory, not writable, or full; the limit is less than a chunk. With the remedy.
    pub fn open(
        options: DiskOptions,
        identity: StoreIdentity,
        worth: Worth,
    ) -> Result<Self, StartError> {
        let DiskOptions {
            path, limit_bytes, ..
        } = &options;
        let unusable = |error: Error| {
            StartError(format!(
                "the disk tier's path {} cannot be used: {error}",
                path.display()
            ))
        };
        let directory =
            Directory::new(layout::root(path), *limit_bytes, worth).map_err(unusable)?;
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
        let chunk = chunk_bytes(&identity, options.chunk_blocks);
        start::check_room(path, *limit_bytes, chunk, directory.state().taken())?;
        Ok(Self {
            name: format!("disk:{}", path.display()),
            identity,
            digest,
            store: (name, number),
            directory,
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
            self.directory
                .state()
                .index
                .insert(self.store.1, key, bytes, unix_now());
        }
        Ok(whole)
    }

    /// Opens the file of `bytes` bytes and verifies what `take` read of it: the page of its header, and the CRC-64 of its payload.
    fn read(
        &self,
        key: &PartKey,
        path: &Path,
        bytes: u64,
        take: impl FnOnce(&File) -> Result<(HeaderPage, u64), Error>,
    ) -> Result<(), TierError> {
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
        Ok(())
    }

    /// Moves a damaged file out of the way; what is wrong, and where it is now.
    fn put_aside(&self, path: &Path, what: String) -> String {
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
    fn write(&self, key: &PartKey, fill: Fill<'_>) -> Result<(), Error> {
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
        let written = fill(&file, &|payload_crc| self.header(key, payload_crc));
        let committed = written
            .and(io::close(file))
            .and_then(|()| std::fs::rename(&temporary, &path));
        if committed.is_err() {
            // It would go after an hour anyway; the error that matters is the first.
            let _ = std::fs::remove_file(&temporary);
        }
        committed
    }

    fn header(&self, key: &PartKey, payload_crc: u64) -> HeaderPage {
        Header {
            identity: self.digest,
            key: *key,
            payload_bytes: key.payload_bytes(&self.identity) as u64,
            payload_crc,
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

    /// Writes into room that was reserved; when the file system itself has none, makes it and tries once more.
    fn write_with_room(&self, key: &PartKey, bytes: u64, fill: Fill<'_>) -> Result<(), TierError> {
        let answer = match self.write(key, fill) {
            Err(error) if is_full(&error) => {
                self.directory.give_way(bytes);
                self.write(key, fill)
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
        match answer {
            Ok(()) => state.index.insert(self.store.1, key, bytes, unix_now()),
            Err(TierError::Missing | TierError::Damaged(_)) => {
                state.index.remove_part(self.store.1, key, bytes)
            }
            Err(_) => {}
        }
        drop(state);
        answer.map_err(|error| match error {
            TierError::Damaged(what) => TierError::Damaged(self.put_aside(&path, what)),
            other => other,
        })
    }

    /// `Tier::store` of `given` bytes, which `fill` writes.
    fn store_with(&self, key: &PartKey, given: usize, fill: Fill<'_>) -> Result<(), TierError> {
        let bytes = self.file_bytes(key, given)?;
        if self.finds(key, bytes)? {
            return Ok(());
        }
        self.spend(bytes)?;
        let stored = self.directory.reserve(bytes).and_then(|reservation| {
            self.write_with_room(key, bytes, fill)?;
            reservation.commit(self.store.1, key, unix_now());
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

    fn store(&self, key: &PartKey, from: &[&[u8]], _about: &About) -> Result<(), TierError> {
        let given = from.iter().map(|slice| slice.len()).sum();
        self.store_with(key, given, &|file, header| {
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

/// Bytes of the files of a full chunk of all heads and layers.
fn chunk_bytes(identity: &StoreIdentity, blocks: u16) -> u64 {
    let part = usize::from(blocks) * identity.layers * identity.tile_bytes;
    layout::file_bytes(part as u64) * identity.kv_heads as u64
}

fn is_full(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    )
}

/// Marks a file as used now. Whoever may not (another user's file) leaves it as it is: then it only looks older than it is.
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
