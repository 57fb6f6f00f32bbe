//! Fakes for the mover's tests: a pool of a few bytes, scripted tiers, a clock that stands still.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::disk::DiskOptions;
use crate::key::{Digest, Group, PartKey, StoreIdentity};
use crate::mover::clock::{Clock, Monotonic};
use crate::mover::limits::Limits;
use crate::mover::transfer::{Kind, Moved, Pool, Transfer};
use crate::mover::{Mover, Options, TierSpec};
use crate::tier::{Tier, TierError};

/// Bytes of one (layer, head) tile of a block; there are two layers.
pub(super) const TILE: usize = 12;
pub(super) const EXTENT: usize = 2 * TILE;
/// Time-out of waits in tests, long enough for a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);

struct Block {
    bytes: Arc<Vec<u8>>,
    readers: usize,
    written: bool,
}

#[derive(Clone)]
pub(super) struct FakePool {
    blocks: Arc<Vec<Mutex<Block>>>,
    block_bytes: usize,
}

impl FakePool {
    pub(super) fn new(blocks: usize, block_bytes: usize) -> Self {
        let block = || Block {
            bytes: Arc::new(vec![0; block_bytes]),
            readers: 0,
            written: false,
        };
        Self {
            blocks: Arc::new((0..blocks).map(|_| Mutex::new(block())).collect()),
            block_bytes,
        }
    }

    pub(super) fn bytes(&self, block: usize) -> Vec<u8> {
        self.blocks[block].lock().unwrap().bytes.to_vec()
    }

    /// Writes to a free block.
    pub(super) fn set(&self, block: usize, bytes: &[u8]) {
        self.write(block).unwrap().copy_from_slice(bytes);
    }

    pub(super) fn all_free(&self) -> bool {
        (0..self.blocks.len()).all(|block| self.write(block).is_some())
    }
}

impl Pool for FakePool {
    type Read = FakeRead;
    type Write = FakeWrite;

    fn read(&self, block: usize) -> Option<FakeRead> {
        let mut b = self.blocks.get(block)?.lock().unwrap();
        let bytes = (!b.written).then(|| Arc::clone(&b.bytes))?;
        b.readers += 1;
        drop(b);
        let pool = self.clone();
        Some(FakeRead { pool, block, bytes })
    }

    fn write(&self, block: usize) -> Option<FakeWrite> {
        let mut b = self.blocks.get(block)?.lock().unwrap();
        let bytes = (!b.written && b.readers == 0).then(|| b.bytes.to_vec())?;
        b.written = true;
        drop(b);
        let pool = self.clone();
        Some(FakeWrite { pool, block, bytes })
    }

    fn block_bytes(&self) -> usize {
        self.block_bytes
    }
}

pub(super) struct FakeRead {
    pool: FakePool,
    block: usize,
    bytes: Arc<Vec<u8>>,
}

impl Deref for FakeRead {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for FakeRead {
    fn drop(&mut self) {
        self.pool.blocks[self.block].lock().unwrap().readers -= 1;
    }
}

pub(super) struct FakeWrite {
    pool: FakePool,
    block: usize,
    bytes: Vec<u8>,
}

impl Deref for FakeWrite {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for FakeWrite {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for FakeWrite {
    fn drop(&mut self) {
        let mut b = self.pool.blocks[self.block].lock().unwrap();
        b.bytes = Arc::new(std::mem::take(&mut self.bytes));
        b.written = false;
    }
}

/// What a fake tier does when it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    Well,
    Failing,
    Damaged,
    Full,
    Panicking,
    /// Answers probes for fewer parts than it was asked for.
    Lying,
    /// Calls wait until the mood changes, and then go on.
    Stuck,
}

/// A fake tier that keeps its parts in a dictionary.
#[derive(Default)]
pub(super) struct Shelf {
    pub(super) parts: Mutex<HashMap<PartKey, Vec<u8>>>,
    /// The parent that the latest store of each part named.
    pub(super) parents: Mutex<HashMap<PartKey, Option<Digest>>>,
    mood: Mutex<Option<Mood>>,
    changed: Condvar,
    /// Calls in the order in which they began.
    pub(super) calls: Mutex<Vec<String>>,
    pub(super) ticks: AtomicU64,
}

impl Shelf {
    pub(super) fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = Some(mood);
        self.changed.notify_all();
    }

    fn call(&self, what: String) -> Result<(), TierError> {
        self.calls.lock().unwrap().push(what);
        let mood = self.mood.lock().unwrap();
        let stuck = |m: &mut Option<Mood>| *m == Some(Mood::Stuck);
        let mood = *self.changed.wait_while(mood, stuck).unwrap();
        match mood.unwrap_or(Mood::Well) {
            Mood::Failing => Err(TierError::Failed("no route to host".into())),
            Mood::Damaged => Err(TierError::Damaged("a flipped bit".into())),
            Mood::Full => Err(TierError::Full("no space left".into())),
            Mood::Panicking => panic!("index out of bounds"),
            Mood::Well | Mood::Stuck | Mood::Lying => Ok(()),
        }
    }

    /// Waits until this many calls began.
    pub(super) fn wait_calls(&self, count: usize) {
        eventually(|| self.calls.lock().unwrap().len() >= count);
    }
}

pub(super) struct Shared(pub(super) String, pub(super) Arc<Shelf>);

impl Tier for Shared {
    fn name(&self) -> &str {
        &self.0
    }

    fn load(&self, key: &PartKey, into: &mut [&mut [u8]]) -> Result<(), TierError> {
        self.1
            .call(format!("load {}.{}", key.digest[0], key.head))?;
        assert_eq!(into.len(), usize::from(key.blocks));
        let parts = self.1.parts.lock().unwrap();
        let bytes = parts.get(key).ok_or(TierError::Missing)?;
        let extents = bytes.chunks_exact(into[0].len());
        into.iter_mut()
            .zip(extents)
            .for_each(|(into, from)| into.copy_from_slice(from));
        Ok(())
    }

    fn store(&self, key: &PartKey, from: &[u8], parent: Option<Digest>) -> Result<(), TierError> {
        self.1
            .call(format!("store {}.{}", key.digest[0], key.head))?;
        assert!(from.len().is_multiple_of(usize::from(key.blocks)));
        self.1.parents.lock().unwrap().insert(*key, parent);
        let mut parts = self.1.parts.lock().unwrap();
        parts.entry(*key).or_insert_with(|| from.to_vec());
        Ok(())
    }

    fn probe(&self, keys: &[PartKey]) -> Result<Vec<bool>, TierError> {
        self.1.call(format!("probe {}", keys.len()))?;
        let parts = self.1.parts.lock().unwrap();
        let lying = *self.1.mood.lock().unwrap() == Some(Mood::Lying);
        let keys = &keys[usize::from(lying)..];
        Ok(keys.iter().map(|key| parts.contains_key(key)).collect())
    }

    fn remove(&self, digest: &Digest) -> Result<(), TierError> {
        self.1.call(format!("remove {}", digest[0]))?;
        let mut parts = self.1.parts.lock().unwrap();
        parts.retain(|key, _| key.digest != *digest);
        Ok(())
    }

    fn clear(&self, group: Option<Group>) -> Result<(), TierError> {
        self.1.call(format!("clear {group:?}"))?;
        let mut parts = self.1.parts.lock().unwrap();
        parts.retain(|key, _| group.is_some_and(|group| crate::key::group(&key.digest) != group));
        Ok(())
    }

    fn tick(&self) {
        self.1.ticks.fetch_add(1, Ordering::Relaxed);
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("parts", self.1.parts.lock().unwrap().len() as u64)]
    }
}

/// A clock that the test moves.
#[derive(Default)]
pub(super) struct Stopped(AtomicU64);

impl Stopped {
    pub(super) fn pass(&self, time: Duration) {
        self.0.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }
}

impl Clock for Stopped {
    fn now(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

pub(super) fn limits() -> Limits {
    Limits {
        watch: Duration::from_millis(5),
        tick: Duration::from_millis(20),
        piece: 2 * 2 * EXTENT,
        io_threads: 2,
        ..Limits::default()
    }
}

/// One rank with `heads`, `tiers` by name and 6 slots of RAM.
pub(super) struct Rig {
    /// Pool of the first KV group.
    pub(super) pool: FakePool,
    pub(super) pools: Vec<FakePool>,
    pub(super) mover: Mover<FakePool>,
    pub(super) shelves: Vec<Arc<Shelf>>,
    /// Results taken from the mover that the test has not asked for yet.
    answers: Mutex<HashMap<u64, Moved>>,
}

impl Rig {
    pub(super) fn new(tiers: usize) -> Self {
        Self::with(tiers, limits(), Arc::new(Monotonic::start()))
    }

    pub(super) fn with(tiers: usize, limits: Limits, clock: Arc<dyn Clock>) -> Self {
        let shelves = (0..tiers).map(|_| Arc::default()).collect();
        Self::rank(vec![0, 1], shelves, limits, clock)
    }

    pub(super) fn rank(
        heads: Vec<u16>,
        shelves: Vec<Arc<Shelf>>,
        limits: Limits,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self::start(&options(heads, shelves.len()), shelves, limits, clock)
    }

    pub(super) fn start(
        options: &Options,
        shelves: Vec<Arc<Shelf>>,
        limits: Limits,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let blocks = options.block_bytes().into_iter();
        let pools: Vec<_> = blocks.map(|bytes| FakePool::new(8, bytes)).collect();
        let open = |spec: &TierSpec, _: &Options| {
            let TierSpec::Disk(disk) = spec else {
                unreachable!()
            };
            let number = disk.path.to_str().unwrap();
            let shelf = Arc::clone(&shelves[number.parse::<usize>().unwrap()]);
            Ok(Box::new(Shared(format!("disk:{number}"), shelf)) as Box<dyn Tier>)
        };
        let mover = Mover::start_with(options, pools.clone(), &open, limits, clock).unwrap();
        Self {
            pool: pools[0].clone(),
            pools,
            mover,
            shelves,
            answers: Mutex::default(),
        }
    }

    /// The answer to a transfer.
    pub(super) fn answer(&self, id: u64) -> Moved {
        let mut found = None;
        eventually(|| {
            found = self.answered(id);
            found.is_some()
        });
        found.unwrap()
    }

    /// The answer to a transfer, if it is there.
    pub(super) fn answered(&self, id: u64) -> Option<Moved> {
        let mut answers = self.answers.lock().unwrap();
        for moved in self.mover.take(Duration::from_millis(1)) {
            let twice = answers.insert(moved.id, moved);
            assert!(twice.is_none(), "answered twice: {twice:?}");
        }
        answers.remove(&id)
    }

    pub(super) fn run(&self, transfer: Transfer) -> Moved {
        let id = transfer.id;
        self.mover.submit(transfer);
        self.answer(id)
    }

    pub(super) fn tier_report(&self, tier: usize) -> serde_json::Value {
        self.mover.report()["tiers"][tier - 1].clone()
    }
}

pub(super) fn options(heads: Vec<u16>, tiers: usize) -> Options {
    let identity = StoreIdentity {
        cache: "00".repeat(32),
        layers: 4,
        kv_heads: 2,
        block_tokens: 16,
        tile_bytes: TILE,
        dtype: "bf16".into(),
    };
    let spec = |tier: usize| {
        TierSpec::Disk(DiskOptions {
            path: tier.to_string().into(),
            limit_bytes: 0,
            daily_write_bytes: None,
            chunk_blocks: 0,
            quota: None,
        })
    };
    Options {
        ram_slots: 6,
        tiers: (0..tiers).map(spec).collect(),
        identity,
        heads,
        layers: vec![(1, 3)],
        chunk_tokens: 256,
    }
}

/// Waits until `there` returns true; fails after `PATIENCE`.
pub(super) fn eventually(mut there: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !there() {
        assert!(began.elapsed() < PATIENCE, "it never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(super) fn transfer(id: u64, kind: Kind, tier: usize) -> Transfer {
    Transfer {
        id,
        kind,
        tier,
        blocks: Vec::new(),
        slots: Vec::new(),
        keys: Vec::new(),
        counts: Vec::new(),
        ids: Vec::new(),
        parent: None,
        group: None,
    }
}

/// A load or store of a chunk.
pub(super) fn chunk(id: u64, kind: Kind, tier: usize, key: u8, blocks: &[i32]) -> Transfer {
    Transfer {
        blocks: blocks.to_vec(),
        keys: vec![[key; 32]],
        ..transfer(id, kind, tier)
    }
}

/// A load or store of RAM.
pub(super) fn copy(id: u64, kind: Kind, blocks: &[i32], slots: &[i32]) -> Transfer {
    Transfer {
        blocks: blocks.to_vec(),
        slots: slots.to_vec(),
        ..transfer(id, kind, 0)
    }
}

pub(super) fn probe(id: u64, tier: usize, chunks: &[(u8, i32)]) -> Transfer {
    Transfer {
        keys: chunks.iter().map(|&(key, _)| [key; 32]).collect(),
        counts: chunks.iter().map(|&(_, blocks)| blocks).collect(),
        ..transfer(id, Kind::Probe, tier)
    }
}

pub(super) fn remove(id: u64, keys: &[u8]) -> Transfer {
    Transfer {
        keys: keys.iter().map(|&key| [key; 32]).collect(),
        ..transfer(id, Kind::Remove, 0)
    }
}

pub(super) fn clear(id: u64, group: Option<Group>) -> Transfer {
    Transfer {
        group,
        ..transfer(id, Kind::Clear, 0)
    }
}

pub(super) fn cancel(ids: &[u64]) -> Transfer {
    Transfer {
        ids: ids.to_vec(),
        ..transfer(0, Kind::Cancel, 0)
    }
}
