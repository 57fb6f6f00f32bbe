//! `penstock kv` on a disk tier's directory, which may be in use: list, verify, collect garbage.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::directory::{ABANDONED, Directory, unix_now};
use super::index::{Candidate, Index};
use super::io::{self as file_io, Io, is_gone};
use super::layout::{self, IDENTITY_FILE, SHARDS};
use super::ranking::Ranking;
use super::state::DiskState;
use super::{identity_file, quarantine};
use crate::format::{HEADER_BYTES, Header};
use crate::key::{Digest, PartKey};
use crate::tier::StartError;

/// Contents of a directory.
#[derive(Debug, Serialize)]
pub struct Inventory {
    /// One entry for each store identity.
    pub stores: Vec<StoreFacts>,
    /// Total size in bytes of all files, including files other than parts.
    pub bytes: u64,
    /// Uncommitted files, in progress or abandoned.
    pub temporary_files: usize,
    /// Damaged files in quarantine.
    pub quarantined_files: usize,
    /// Total size of the files in quarantine, in bytes.
    pub quarantined_bytes: u64,
}

/// Contents of one store.
#[derive(Debug, Default, Serialize)]
pub struct StoreFacts {
    /// Name of its directory.
    pub name: String,
    /// Description of its store identity; None if the identity file is missing.
    pub about: Option<String>,
    /// Number of chunks, including those of which parts are missing.
    pub chunks: u64,
    /// Number of files; a file is a part: one KV head of one chunk.
    pub parts: u64,
    /// Total size of the files in bytes.
    pub bytes: u64,
    /// Latest use of a chunk, in seconds since 1970; None if no use is known.
    pub newest_use: Option<u64>,
}

/// Progress of a long operation.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Bytes (verify) or chunks (gc) done.
    pub done: u64,
    /// Bytes or chunks in total.
    pub total: u64,
}

/// Called with the progress; returning false cancels the operation.
pub type Watch<'a> = &'a mut dyn FnMut(Progress) -> bool;

/// Result of `verify`.
#[derive(Debug, Default, Serialize)]
pub struct Verified {
    /// Number of files read.
    pub files: u64,
    /// Number of bytes read.
    pub bytes: u64,
    /// Damaged files.
    pub damaged: Vec<DamagedFile>,
    /// Whether all files were read.
    pub complete: bool,
}

/// A damaged file found by `verify`.
#[derive(Debug, Serialize)]
pub struct DamagedFile {
    /// Path of the file before any move to the quarantine.
    pub path: PathBuf,
    /// Description of the damage.
    pub what: String,
}

/// Rules that select what `collect` removes.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Evict least recently used chunks until all files fit into this size.
    pub limit_bytes: Option<u64>,
    /// Remove chunks unused for this time.
    pub older_than: Option<Duration>,
    /// Prefix of a store's name. Removes the whole store; with `older_than`, only its unused
    /// chunks.
    pub store: Option<String>,
}

/// Result of `collect`.
#[derive(Debug, Default, Serialize)]
pub struct Collected {
    /// Number of chunks removed.
    pub chunks: u64,
    /// Bytes freed, `other_files` included.
    pub bytes: u64,
    /// Number of abandoned and quarantined files removed.
    pub other_files: u64,
    /// Number of chunks that could not be removed.
    pub failed: u64,
    /// Total size in bytes of the files left.
    pub bytes_left: u64,
}

/// Lists the stores below `path`.
///
/// # Errors
/// There is no store, or it cannot be read.
pub fn inventory(path: &Path) -> Result<Inventory, StartError> {
    let directory = open(path)?;
    directory.learn_times();
    let state = directory.state();
    let names = state.index.stores().iter();
    let mut stores: Vec<StoreFacts> = names
        .map(|store| StoreFacts {
            name: store.name.clone(),
            about: store.identity.as_ref().map(identity_file::about),
            ..StoreFacts::default()
        })
        .collect();
    for (store, _, chunk) in state.index.chunks() {
        let facts = &mut stores[store];
        facts.chunks += 1;
        facts.parts += chunk.parts.len() as u64;
        facts.bytes += chunk.bytes;
        facts.newest_use = facts.newest_use.max(chunk.last_use);
    }
    stores.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Inventory {
        stores,
        bytes: state.taken(),
        temporary_files: state.index.temporaries().count(),
        quarantined_files: quarantine::kept(&directory.root).unwrap_or_default().0,
        quarantined_bytes: state.quarantined,
    })
}

/// Reads and verifies the files of all parts. With `put_aside`, moves damaged files to the
/// quarantine.
///
/// # Errors
/// There is no store, or it cannot be read.
pub fn verify(path: &Path, put_aside: bool, watch: Watch<'_>) -> Result<Verified, StartError> {
    let directory = open(path)?;
    let files = all_parts(&directory.state().index);
    let total = files.values().flatten().map(|(_, bytes)| bytes).sum();
    let mut found = Verified::default();
    let mut checker = Checker::new();
    for (store, parts) in &files {
        for (key, bytes) in parts {
            let file = directory.part_path(store, key);
            if let Err(what) = checker.check(&file, store, key) {
                if put_aside {
                    quarantine::put(&directory.root, store, &file)
                        .map_err(|error| cannot("put aside", &file, &error))?;
                }
                found.damaged.push(DamagedFile { path: file, what });
            }
            found.files += 1;
            found.bytes += bytes;
            if !watch(Progress {
                done: found.bytes,
                total,
            }) {
                return Ok(found);
            }
        }
    }
    found.complete = true;
    Ok(found)
}

/// Removes the chunks selected by `rules`. Also removes abandoned files, damaged files and
/// directories of empty stores, whatever the rules.
///
/// # Errors
/// There is no store, the prefix in the rules matches none or several, or the directory cannot be
/// read.
pub fn collect(path: &Path, rules: &Rules, watch: Watch<'_>) -> Result<Collected, StartError> {
    let directory = open(path)?;
    directory.learn_times();
    let before = directory.state().taken();
    let mut gone = Collected::default();
    let leaving = leaving(&directory.state(), rules)?;
    for (at, (store, digest)) in leaving.iter().enumerate() {
        match directory.remove_chunk(*store, digest) {
            Ok(_) => gone.chunks += 1,
            Err(_) => gone.failed += 1,
        }
        let done = Progress {
            done: at as u64 + 1,
            total: leaving.len() as u64,
        };
        if !watch(done) {
            break;
        }
    }
    gone.other_files = directory.remove_abandoned(ABANDONED) as u64;
    gone.other_files += quarantine::kept(&directory.root).unwrap_or_default().0 as u64;
    quarantine::clear(&directory.root)
        .map_err(|error| cannot("empty the quarantine of", &directory.root, &error))?;
    look(&directory)?;
    remove_empty(&directory);
    gone.bytes_left = directory.state().taken();
    gone.bytes = before.saturating_sub(gone.bytes_left);
    Ok(gone)
}

fn open(path: &Path) -> Result<Directory, StartError> {
    let nested = layout::root(path);
    let root = if nested.is_dir() {
        nested
    } else {
        path.to_path_buf()
    };
    let expected = layout::root(Path::new(""));
    if !root.is_dir() || !root.ends_with(&expected) {
        let (shown, expected) = (path.display(), expected.display());
        return Err(StartError(format!(
            "{shown} has no {expected}: name the directory that was given to --kv-tier disk:"
        )));
    }
    // An unlimited capacity disables eviction: only the rules remove chunks.
    let directory = Directory::new(root, u64::MAX, Ranking::new(0, 1, None));
    let directory = directory.map_err(|error| cannot("read", path, &error))?;
    look(&directory)?;
    Ok(directory)
}

fn look(directory: &Directory) -> Result<(), StartError> {
    let mut upkeep = super::directory::lock(&directory.upkeep);
    let looked = directory.look(&mut upkeep, None);
    looked.map_err(|error| cannot("read", &directory.root, &error))
}

/// Parts and their file sizes, by the name of their store.
fn all_parts(index: &Index) -> BTreeMap<String, Vec<(PartKey, u64)>> {
    let mut files: BTreeMap<String, Vec<(PartKey, u64)>> = BTreeMap::new();
    for (store, digest, chunk) in index.chunks() {
        let of_store = files.entry(index.stores()[store].name.clone()).or_default();
        let each = chunk.bytes / chunk.parts.len().max(1) as u64;
        of_store.extend(chunk.parts.iter().map(|part| (part.key(*digest), each)));
    }
    files.values_mut().for_each(|parts| parts.sort_unstable());
    files
}

/// Chunks selected by the rules.
fn leaving(state: &DiskState, rules: &Rules) -> Result<Vec<(usize, Digest)>, StartError> {
    let store = match &rules.store {
        Some(begin) => Some(the_store(&state.index, begin)?),
        None => None,
    };
    let before = rules
        .older_than
        .map(|age| unix_now().saturating_sub(age.as_secs()));
    let is_named = |chunk: &Candidate| {
        let old = before.is_none_or(|before| chunk.last_use.is_some_and(|used| used < before));
        (store.is_some() || before.is_some())
            && store.is_none_or(|store| store == chunk.store)
            && old
    };
    let (mut leaving, mut others): (Vec<_>, Vec<_>) =
        state.index.candidates().into_iter().partition(is_named);
    others.sort_by_key(|chunk| chunk.last_use);
    let mut left = state.taken() - leaving.iter().map(|chunk| chunk.bytes).sum::<u64>();
    for chunk in others {
        if rules.limit_bytes.is_none_or(|limit| left <= limit) {
            break;
        }
        left -= chunk.bytes;
        leaving.push(chunk);
    }
    Ok(leaving
        .iter()
        .map(|chunk| (chunk.store, chunk.digest))
        .collect())
}

fn the_store(index: &Index, begin: &str) -> Result<usize, StartError> {
    let stores = index.stores().iter().enumerate();
    let mut named = stores
        .filter(|(_, store)| store.name.starts_with(begin))
        .map(|(at, _)| at);
    match (named.next(), named.next()) {
        (Some(at), None) => Ok(at),
        (None, _) => Err(StartError(format!(
            "no store's name begins with {begin}; `penstock kv ls` shows them"
        ))),
        _ => Err(StartError(format!(
            "several stores' names begin with {begin}; give more digits"
        ))),
    }
}

/// Removes directories of empty stores. A concurrent writer recreates its directory.
fn remove_empty(directory: &Directory) {
    let state = directory.state();
    let used: BTreeSet<usize> = state.index.chunks().map(|(store, ..)| store).collect();
    let stores = state.index.stores().iter().enumerate();
    for (_, store) in stores.filter(|(at, _)| !used.contains(at)) {
        let place = directory.root.join(&store.name);
        for shard in 0..SHARDS {
            // Fails, as intended, if the directory still contains a file.
            let _ = fs::remove_dir(place.join(layout::shard_name(shard)));
        }
        let entries = fs::read_dir(&place).map(|entries| entries.filter_map(Result::ok).count());
        if entries.is_ok_and(|entries| entries <= 1) {
            let _ = fs::remove_file(place.join(IDENTITY_FILE));
            let _ = fs::remove_dir(&place);
        }
    }
}

fn cannot(act: &str, path: &Path, error: &io::Error) -> StartError {
    StartError(format!("cannot {act} {}: {error}", path.display()))
}

/// Verifies files. Uses direct I/O if available, so that the check does not evict the engines'
/// pages from the page cache.
struct Checker {
    io: Io,
    space: Vec<u8>,
}

impl Checker {
    fn new() -> Self {
        Self {
            io: Io::new(true),
            space: Vec::new(),
        }
    }

    fn check(&mut self, path: &Path, store: &str, key: &PartKey) -> Result<(), String> {
        let file = match file_io::open(path) {
            // The file was evicted after it was listed.
            Err(error) if is_gone(&error) => return Ok(()),
            opened => opened.map_err(|error| error.to_string())?,
        };
        let length = file.metadata().map_err(|error| error.to_string())?.len();
        let header = read_header(&file)?;
        let payload = header.payload_bytes.min(length);
        if &header.key != key || layout::store_name(&header.identity) != store {
            return Err("the header names another part".into());
        }
        if layout::file_bytes(payload) != length || payload != header.payload_bytes {
            return Err(format!(
                "{length} bytes for {} of payload",
                header.payload_bytes
            ));
        }
        match self
            .io
            .read(&file, &mut [aligned(&mut self.space, payload as usize)])
        {
            Ok((_, sum)) if sum == header.payload_crc => Ok(()),
            Ok(_) => Err("the payload's checksum is wrong".into()),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn read_header(file: &File) -> Result<Header, String> {
    let mut page = [0; HEADER_BYTES];
    file.read_exact_at(&mut page, 0)
        .map_err(|error| error.to_string())?;
    Header::parse(&page)
}

/// A slice of `space` with `bytes` bytes, aligned for direct I/O.
fn aligned(space: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    space.resize(space.len().max(bytes + HEADER_BYTES), 0);
    let begin = space.as_ptr().align_offset(HEADER_BYTES);
    &mut space[begin..begin + bytes]
}
