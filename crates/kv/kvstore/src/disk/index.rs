//! This process's index of the files in a disk tier's directory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Instant;

use super::layout::{SHARDS, shard_of};
use super::listing::{Listing, Stamp, Temporary};
use crate::key::{Digest, PartKey, StoreIdentity};

/// A part of a known chunk: one KV head in the layers of one KV group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) blocks: u16,
    pub(crate) head: u16,
    pub(crate) layers: (u16, u16),
}

impl Part {
    pub(crate) fn of(key: &PartKey) -> Self {
        Self {
            blocks: key.blocks,
            head: key.head,
            layers: key.layers,
        }
    }

    /// The part's key.
    pub(crate) fn key(self, digest: Digest) -> PartKey {
        let Self {
            blocks,
            head,
            layers,
        } = self;
        PartKey {
            digest,
            blocks,
            head,
            layers,
        }
    }
}

/// All parts with the same digest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chunk {
    pub(crate) parts: Vec<Part>,
    /// Total size of its files in bytes.
    pub(crate) bytes: u64,
    /// Seconds since 1970; None until the file time has been read.
    pub(crate) last_use: Option<u64>,
}

#[derive(Default)]
struct Shard {
    /// The directory's modification time for which `chunks` is valid.
    stamp: Option<Stamp>,
    /// The directory's modification time at the last listing, and when this time was first seen.
    seen: Option<(Stamp, Instant)>,
    /// Number of changes made by this process. A listing that started before a change is outdated.
    changes: u64,
    chunks: HashMap<Digest, Chunk>,
    temporaries: Vec<Temporary>,
}

/// One store: the chunks of one store identity.
pub(crate) struct Store {
    /// Name of its directory.
    pub(crate) name: String,
    /// None until the identity file is read.
    pub(crate) identity: Option<StoreIdentity>,
    shards: Vec<Shard>,
}

/// State of a shard just before a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    pub(crate) stamp: Option<Stamp>,
    changes: u64,
    is_empty: bool,
}

/// A chunk that may be evicted.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) store: usize,
    pub(crate) digest: Digest,
    pub(crate) bytes: u64,
    pub(crate) last_use: Option<u64>,
    /// Any one part of the chunk. Parts of a chunk are used together, so one file's modification
    /// time represents the chunk.
    pub(crate) part: Part,
}

impl Candidate {
    fn of(store: usize, digest: &Digest, chunk: &Chunk) -> Option<Self> {
        Some(Self {
            store,
            digest: *digest,
            bytes: chunk.bytes,
            last_use: chunk.last_use,
            part: *chunk.parts.first()?,
        })
    }
}

/// Chunks by store and shard, and their total size.
#[derive(Default)]
pub(crate) struct Index {
    stores: Vec<Store>,
    used: u64,
}

impl Index {
    /// Total size in bytes of all known files, committed or not.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Number of chunks in all stores.
    pub(crate) fn len(&self) -> usize {
        let shards = self.stores.iter().flat_map(|store| &store.shards);
        shards.map(|shard| shard.chunks.len()).sum()
    }

    /// The stores; their positions are the store numbers that other methods take and return.
    pub(crate) fn stores(&self) -> &[Store] {
        &self.stores
    }

    /// Number of the store with this directory, which is added if new.
    pub(crate) fn store(
        &mut self,
        name: &str,
        identity: impl FnOnce() -> Option<StoreIdentity>,
    ) -> usize {
        let known = self.stores.iter().position(|store| store.name == name);
        let number = known.unwrap_or_else(|| {
            self.stores.push(Store {
                name: name.to_owned(),
                identity: None,
                shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            });
            self.stores.len() - 1
        });
        let store = &mut self.stores[number];
        // The first writer creates the directory before the identity file.
        if store.identity.is_none() {
            store.identity = identity();
        }
        number
    }

    /// Whether a part is in the index.
    pub(crate) fn has(&self, store: usize, key: &PartKey) -> bool {
        let chunk = self.chunk(store, &key.digest);
        chunk.is_some_and(|chunk| chunk.parts.contains(&Part::of(key)))
    }

    /// The entry of a chunk; None if it is not in the index.
    pub(crate) fn chunk(&self, store: usize, digest: &Digest) -> Option<&Chunk> {
        self.shard(store, digest).chunks.get(digest)
    }

    /// A chunk as a candidate for eviction.
    pub(crate) fn candidate(&self, store: usize, digest: &Digest) -> Option<Candidate> {
        Candidate::of(store, digest, self.chunk(store, digest)?)
    }

    /// Adds a part of `bytes` bytes that this process stored or found at `now` (seconds since
    /// 1970).
    pub(crate) fn insert(&mut self, store: usize, key: &PartKey, bytes: u64, now: u64) {
        let shard = self.shard_mut(store, &key.digest);
        let chunk = shard.chunks.entry(key.digest).or_default();
        chunk.last_use = Some(now);
        if !chunk.parts.contains(&Part::of(key)) {
            chunk.parts.push(Part::of(key));
            chunk.bytes += bytes;
            shard.changes += 1;
            self.used += bytes;
        }
    }

    /// Removes a part from the index.
    pub(crate) fn remove_part(&mut self, store: usize, key: &PartKey, bytes: u64) {
        let shard = self.shard_mut(store, &key.digest);
        let Entry::Occupied(mut entry) = shard.chunks.entry(key.digest) else {
            return;
        };
        let chunk = entry.get_mut();
        let Some(at) = chunk.parts.iter().position(|part| *part == Part::of(key)) else {
            return;
        };
        chunk.parts.swap_remove(at);
        let bytes = bytes.min(chunk.bytes);
        chunk.bytes -= bytes;
        if chunk.parts.is_empty() {
            entry.remove();
        }
        shard.changes += 1;
        self.used -= bytes;
    }

    /// Removes a chunk from the index; returns its parts, whose files are still to be deleted.
    pub(crate) fn remove(&mut self, store: usize, digest: &Digest) -> Option<Chunk> {
        let shard = self.shard_mut(store, digest);
        let chunk = shard.chunks.remove(digest)?;
        shard.changes += 1;
        self.used -= chunk.bytes;
        Some(chunk)
    }

    /// Marks a chunk as used at `now` (seconds since 1970).
    pub(crate) fn touch(&mut self, store: usize, digest: &Digest, now: u64) {
        if let Some(chunk) = self.shard_mut(store, digest).chunks.get_mut(digest) {
            chunk.last_use = chunk.last_use.max(Some(now));
        }
    }

    /// State of a shard before a listing, to be passed to `apply` together with that listing.
    pub(crate) fn before(&self, store: usize, shard: usize) -> Before {
        let shard = &self.stores[store].shards[shard];
        Before {
            stamp: shard.stamp,
            changes: shard.changes,
            is_empty: shard.chunks.is_empty() && shard.temporaries.is_empty(),
        }
    }

    /// Applies the listing of a shard directory. New chunks get the last-use time `found`. Returns
    /// the added and the removed chunks.
    pub(crate) fn apply(
        &mut self,
        at: (usize, usize),
        before: Before,
        listing: Listing,
        found: Option<u64>,
    ) -> (Vec<Digest>, Vec<Digest>) {
        let shard = &mut self.stores[at.0].shards[at.1];
        let bytes_before = shard.bytes();
        let mut chunks = group(&listing.parts);
        for (digest, chunk) in &mut chunks {
            let known = shard.chunks.get(digest).map(|known| known.last_use);
            chunk.last_use = known.unwrap_or(found);
        }
        let came = missing(&chunks, &shard.chunks);
        let mut gone = Vec::new();
        if shard.changes == before.changes {
            gone = missing(&shard.chunks, &chunks);
            shard.stamp = listing
                .stamp
                .and_then(|(stamp, asked)| shard.vouched(stamp, asked));
            shard.chunks = chunks;
        } else {
            // This process stored or removed a part during the listing, so the listing may lack it:
            // only add entries now, and list again next time.
            shard.stamp = None;
            for (digest, chunk) in chunks {
                shard.chunks.entry(digest).or_insert(chunk);
            }
        }
        shard.temporaries = listing.temporaries;
        self.used = self.used + shard.bytes() - bytes_before;
        (came, gone)
    }

    /// All chunks, in arbitrary order.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        self.chunks()
            .filter_map(|(store, digest, chunk)| Candidate::of(store, digest, chunk))
            .collect()
    }

    /// All chunks with their store numbers.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = (usize, &Digest, &Chunk)> {
        self.stores.iter().enumerate().flat_map(|(number, store)| {
            let chunks = store.shards.iter().flat_map(|shard| &shard.chunks);
            chunks.map(move |(digest, chunk)| (number, digest, chunk))
        })
    }

    /// Uncommitted files: store, shard, file.
    pub(crate) fn temporaries(&self) -> impl Iterator<Item = (usize, usize, &Temporary)> {
        self.stores.iter().enumerate().flat_map(|(number, store)| {
            store
                .shards
                .iter()
                .enumerate()
                .flat_map(move |(at, shard)| {
                    shard.temporaries.iter().map(move |file| (number, at, file))
                })
        })
    }

    fn shard(&self, store: usize, digest: &Digest) -> &Shard {
        &self.stores[store].shards[shard_of(digest)]
    }

    fn shard_mut(&mut self, store: usize, digest: &Digest) -> &mut Shard {
        &mut self.stores[store].shards[shard_of(digest)]
    }
}

impl Before {
    /// Whether a directory with this modification time must be listed again.
    pub(crate) fn is_stale(&self, stamp: Option<Stamp>) -> bool {
        match stamp {
            Some(_) => self.stamp != stamp,
            None => !self.is_empty,
        }
    }
}

impl Shard {
    /// The directory's modification time, if every later change must produce a different one: the
    /// time must have been stable for one tick of the local clock. The local clock is used because
    /// a file server's clock may differ.
    fn vouched(&mut self, stamp: Stamp, asked: Instant) -> Option<Stamp> {
        match self.seen {
            Some((seen, since)) if seen == stamp => {
                (asked >= since + stamp.tick()).then_some(stamp)
            }
            _ => {
                self.seen = Some((stamp, asked));
                None
            }
        }
    }

    fn bytes(&self) -> u64 {
        let chunks: u64 = self.chunks.values().map(|chunk| chunk.bytes).sum();
        chunks + self.temporaries.iter().map(|file| file.bytes).sum::<u64>()
    }
}

/// Digests of `these` that are not in `those`, sorted so that all processes agree.
fn missing(these: &HashMap<Digest, Chunk>, those: &HashMap<Digest, Chunk>) -> Vec<Digest> {
    let missing = these.keys().filter(|digest| !those.contains_key(*digest));
    let mut missing: Vec<Digest> = missing.copied().collect();
    missing.sort_unstable();
    missing
}

fn group(parts: &[(PartKey, u64)]) -> HashMap<Digest, Chunk> {
    let mut chunks: HashMap<Digest, Chunk> = HashMap::with_capacity(parts.len());
    for (key, bytes) in parts {
        let chunk = chunks.entry(key.digest).or_default();
        chunk.parts.push(Part::of(key));
        chunk.bytes += bytes;
    }
    chunks
}
