//! A disk tier's directory, shared by several processes: changes by others are detected by the
//! modification times of the shard directories.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::index::{Candidate, Store};
use super::io::absent;
use super::ranking::Ranking;
use super::state::DiskState;
use super::{identity_file, layout, listing};
use crate::key::{self, Digest, Group, PartKey};
use crate::tier::TierError;

/// Age at which an uncommitted file counts as abandoned.
pub(crate) const ABANDONED: Duration = Duration::from_secs(3600);

/// Chunks ranked per acquisition of the state lock.
const RANKED_AT_ONCE: usize = 1000;

/// A directory with its stores, one for each store identity.
pub(crate) struct Directory {
    pub(crate) root: PathBuf,
    /// Maximum total size of all files in bytes.
    pub(crate) limit: u64,
    /// Prefix of the names of this process's own uncommitted files.
    pub(crate) mine: String,
    pub(crate) state: Mutex<DiskState>,
    /// Held by the single thread that lists the directory or evicts.
    pub(crate) upkeep: Mutex<Upkeep>,
    /// Held by the single thread that ranks new chunks.
    ranks: Mutex<()>,
    pub(crate) counts: Counts,
    scanned: Condvar,
    closed: AtomicBool,
}

/// When the last listing of the directory ended, and how long it took.
pub(crate) struct Upkeep {
    ended: Instant,
    took: Duration,
}

/// Totals since this process opened the directory.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) evicted_chunks: AtomicU64,
    pub(crate) quarantined_files: AtomicU64,
    pub(crate) scan_microseconds: AtomicU64,
}

impl Directory {
    /// A directory whose contents have not been listed yet.
    pub(crate) fn new(root: PathBuf, limit: u64, ranking: Ranking) -> io::Result<Self> {
        Ok(Self {
            root,
            limit,
            mine: format!(
                "{}{:016x}-",
                layout::TEMPORARY,
                getrandom::u64().map_err(|e| io::Error::other(e.to_string()))?
            ),
            state: Mutex::new(DiskState::new(ranking)),
            upkeep: Mutex::new(Upkeep {
                ended: Instant::now(),
                took: Duration::ZERO,
            }),
            ranks: Mutex::default(),
            counts: Counts::default(),
            scanned: Condvar::new(),
            closed: AtomicBool::new(false),
        })
    }

    /// Locks the state.
    pub(crate) fn state(&self) -> MutexGuard<'_, DiskState> {
        lock(&self.state)
    }

    /// Lists everything on a background thread, then reads file times and ranks the chunks.
    pub(crate) fn scan_in_background(self: &Arc<Self>) -> io::Result<()> {
        let directory = Arc::clone(self);
        std::thread::Builder::new()
            .name("kv-scan".into())
            .spawn(move || {
                let begin = Instant::now();
                let mut upkeep = lock(&directory.upkeep);
                let looked = directory.look(&mut upkeep, None);
                let took = begin.elapsed().as_micros();
                directory
                    .counts
                    .scan_microseconds
                    .store(took as u64, Ordering::Relaxed);
                directory.state().complete = looked.is_ok();
                directory.scanned.notify_all();
                drop(upkeep);
                directory.rank_all();
            })
            .map(drop)
    }

    /// Waits for the first full listing; returns whether it has completed.
    pub(crate) fn wait_for_scan(&self, limit: Duration) -> bool {
        let state = self.state();
        let waited = self
            .scanned
            .wait_timeout_while(state, limit, |state| !state.complete);
        waited.unwrap_or_else(PoisonError::into_inner).0.complete
    }

    /// Stops background work.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Checks for changes by other processes and removes abandoned files. Spends at most 2% of the
    /// time on this.
    pub(crate) fn look_sometimes(&self) {
        let Ok(mut upkeep) = self.upkeep.try_lock() else {
            return;
        };
        if upkeep.ended.elapsed() >= 50 * upkeep.took {
            let complete = self.look(&mut upkeep, Some(unix_now())).is_ok();
            self.state().complete |= complete;
        }
        self.remove_abandoned(ABANDONED);
    }

    /// Lists all changed shard directories. New chunks get the last-use time `found`, in seconds
    /// since 1970.
    pub(crate) fn look(&self, upkeep: &mut Upkeep, found: Option<u64>) -> io::Result<()> {
        let begin = Instant::now();
        self.find_stores()?;
        let stores = self.state().index.stores().len();
        for store in 0..stores {
            for shard in 0..layout::SHARDS {
                if self.closed.load(Ordering::Relaxed) {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                self.look_at_shard(store, shard, found)?;
            }
        }
        let (_, quarantined) = super::quarantine::kept(&self.root)?;
        let mut state = self.state();
        state.quarantined = quarantined;
        state.note_free(self.limit);
        *upkeep = Upkeep {
            ended: Instant::now(),
            took: begin.elapsed(),
        };
        Ok(())
    }

    /// The directory of a shard.
    pub(crate) fn shard_path(&self, store: &str, shard: usize) -> PathBuf {
        self.root.join(store).join(layout::shard_name(shard))
    }

    /// The file of a part.
    pub(crate) fn part_path(&self, store: &str, key: &PartKey) -> PathBuf {
        let shard = self.shard_path(store, layout::shard_of(&key.digest));
        shard.join(layout::file_name(key))
    }

    /// Removes a chunk's files and its entry. If a file cannot be removed, its part stays in the
    /// index.
    pub(crate) fn remove_chunk(&self, store: usize, digest: &Digest) -> io::Result<()> {
        let (chunk, name) = {
            let mut state = self.state();
            let Some(chunk) = state.remove(store, digest) else {
                return Ok(());
            };
            (chunk, state.index.stores()[store].name.clone())
        };
        let each = chunk.bytes / chunk.parts.len().max(1) as u64;
        let mut removed = Ok(());
        for part in &chunk.parts {
            let key = part.key(*digest);
            if let Err(error) = absent(fs::remove_file(self.part_path(&name, &key))) {
                let used = chunk.last_use.unwrap_or(0);
                self.state().insert(store, &key, each, used, None);
                removed = Err(error);
            }
        }
        removed
    }

    /// Removes all parts of a chunk, including ones recently written by other processes.
    pub(crate) fn remove_unseen(&self, store: usize, digest: &Digest) -> io::Result<()> {
        self.look_at_shard(store, layout::shard_of(digest), Some(unix_now()))?;
        self.remove_chunk(store, digest)
    }

    /// Removes all chunks of a store or of one salt group, including ones recently written by other
    /// processes.
    pub(crate) fn remove_store(&self, store: usize, group: Option<Group>) -> io::Result<()> {
        for shard in 0..layout::SHARDS {
            self.look_at_shard(store, shard, Some(unix_now()))?;
        }
        let digests: Vec<Digest> = {
            let state = self.state();
            let own = state.index.chunks().filter(|(of, digest, _)| {
                *of == store && group.is_none_or(|group| key::group(digest) == group)
            });
            own.map(|(_, digest, _)| *digest).collect()
        };
        digests
            .iter()
            .try_for_each(|digest| self.remove_chunk(store, digest))
    }

    /// Removes uncommitted files older than `age`; returns their number.
    pub(crate) fn remove_abandoned(&self, age: Duration) -> usize {
        let before = unix_now().saturating_sub(age.as_secs());
        let old: Vec<PathBuf> = {
            let state = self.state();
            let old = state
                .index
                .temporaries()
                .filter(|(.., file)| file.modified <= before);
            old.map(|(store, shard, file)| {
                let store = &state.index.stores()[store].name;
                self.shard_path(store, shard).join(&file.name)
            })
            .collect()
        };
        // The removals change the directories' modification times, so the next listing accounts for
        // the freed space.
        let removed = old.iter().filter(|path| fs::remove_file(path).is_ok());
        removed.count()
    }

    /// Reads the file time of each chunk whose last use is unknown.
    pub(crate) fn learn_times(&self) {
        let candidates = self.state().index.candidates();
        for candidate in candidates.iter().filter(|known| known.last_use.is_none()) {
            if self.closed.load(Ordering::Relaxed) {
                return;
            }
            if let Some(used) = self.last_use(candidate) {
                self.state()
                    .index
                    .touch(candidate.store, &candidate.digest, used);
            }
        }
    }

    /// Ranks new chunks by their file times, releasing the state lock in between.
    pub(crate) fn rank_all(&self) {
        if self.state().is_ranked() {
            return;
        }
        let _turn = lock(&self.ranks);
        self.learn_times();
        let names = self.state().unranked();
        let mut later = names.len();
        for names in names.chunks(RANKED_AT_ONCE) {
            later -= names.len();
            self.state().rank(names, later);
        }
    }

    /// Last use of a chunk by any process, in seconds since 1970; None if the chunk is gone.
    pub(crate) fn last_use(&self, candidate: &Candidate) -> Option<u64> {
        let path = {
            let state = self.state();
            let store = &state.index.stores()[candidate.store].name;
            self.part_path(store, &candidate.part.key(candidate.digest))
        };
        listing::length_and_time(&path)
            .ok()
            .flatten()
            .map(|(_, time)| time)
    }

    /// Adds new stores found below the root.
    fn find_stores(&self) -> io::Result<()> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let name = entry?.file_name();
            if let Some(name) = name.to_str().filter(|name| layout::is_store_name(name)) {
                let at = self.root.join(name);
                self.state().index.store(name, || identity_file::read(&at));
            }
        }
        Ok(())
    }

    /// Lists a shard directory if it changed.
    pub(crate) fn look_at_shard(
        &self,
        store: usize,
        shard: usize,
        found: Option<u64>,
    ) -> io::Result<()> {
        let (before, path, identity) = {
            let state = self.state();
            let Store { name, identity, .. } = &state.index.stores()[store];
            let path = self.shard_path(name, shard);
            (state.index.before(store, shard), path, identity.clone())
        };
        if !before.is_stale(listing::stamp(&path)?) {
            return Ok(());
        }
        let mut listing = listing::list(&path, identity.as_ref())?;
        listing
            .temporaries
            .retain(|file| !file.name.starts_with(&self.mine));
        // Ignore parts in the wrong shard directory, which lookups cannot find.
        listing
            .parts
            .retain(|(key, _)| layout::shard_of(&key.digest) == shard);
        self.state().apply((store, shard), before, listing, found);
        Ok(())
    }
}

/// Locks, ignoring poisoning: a panic can at worst leave wrong counts, which the next listing
/// corrects.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Converts a file system error to a tier error.
pub(crate) fn failed(doing: &str, path: &Path, error: &io::Error) -> TierError {
    TierError::Failed(format!("{doing} {}: {error}", path.display()))
}
