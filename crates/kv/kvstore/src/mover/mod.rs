//! The mover of one rank copies between blocks of the KV pool and the tiers, concurrently with
//! compute. A chunk tier is one that stores chunks: disk, Redis, object store.
//!
//! `submit` borrows a transfer's blocks and queues it for its tier, the tier's threads execute it,
//! and `take` returns the results. A block is returned before its result is visible. Tiers are
//! independent, and neither `submit` nor `take` blocks on a tier.

mod answers;
mod call;
mod clock;
mod copying;
mod host;
mod limits;
mod memory;
mod options;
mod queue;
#[cfg(test)]
mod tests;
mod tier_queue;
mod transfer;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use answers::{Answers, Reply};
use call::{Share, Worker};
use clock::{Clock, Monotonic};
use copying::{Slots, slot_numbers};
pub use host::{HostBlocks, HostRead, HostWrite};
use limits::Limits;
pub use options::{Options, TierSpec};
use queue::{Job, Work};
use tier_queue::TierQueue;
use transfer::NO_BLOCK;
pub use transfer::{Kind, Moved, Pool, Transfer};

use crate::key::{Digest, PartKey};
use crate::tier::{StartError, Take, Tier, TierError};

/// Function that opens a tier; tests inject their own.
pub(crate) type Open<'a> = &'a dyn Fn(&TierSpec, &Options) -> Result<Box<dyn Tier>, StartError>;

/// Moves one rank's KV blocks. A drop closes it without waiting for stores.
pub struct Mover<P: Pool> {
    /// The pool of each KV group.
    pools: Vec<P>,
    clock: Arc<dyn Clock>,
    answers: Arc<Answers>,
    ram: Option<Arc<TierQueue<P>>>,
    ram_slots: usize,
    /// Number of slots that a store to RAM fills without interruption; waiting loads run in
    /// between.
    piece: usize,
    chunk_tiers: Vec<Arc<TierQueue<P>>>,
    /// Stops the watchdog.
    over: Arc<(Mutex<bool>, Condvar)>,
    closed: AtomicBool,
}

impl<P: Pool> Mover<P> {
    /// Opens the tiers and starts the threads. `pools` has one entry per KV group.
    ///
    /// # Errors
    /// A tier or memory is not available, or the options do not fit the pools.
    pub fn start(options: &Options, pools: Vec<P>) -> Result<Self, StartError> {
        let clock = Arc::new(Monotonic::start());
        Self::start_with(options, pools, &TierSpec::open, Limits::default(), clock)
    }

    /// `start` with injected tiers, limits and clock.
    pub(crate) fn start_with(
        options: &Options,
        pools: Vec<P>,
        open: Open<'_>,
        limits: Limits,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StartError> {
        let given = options.block_bytes();
        let has: Vec<_> = pools.iter().map(Pool::block_bytes).collect();
        if given != has || given.is_empty() {
            return Err(StartError(format!(
                "the mover's options give blocks of {given:?} bytes in the KV groups, the pools \
                 have blocks of {has:?}"
            )));
        }
        let refused = |e| StartError(format!("cannot start the KV mover: {e}"));
        let mut mover = Self {
            pools,
            clock,
            answers: Arc::default(),
            ram: None,
            ram_slots: options.ram_slots,
            piece: (limits.piece / given.iter().sum::<usize>().max(1)).max(1),
            chunk_tiers: Vec::new(),
            over: Arc::default(),
            closed: AtomicBool::new(false),
        };
        mover.start_ram(options, limits)?;
        for spec in &options.tiers {
            let tier = open(spec, options)?;
            let share = Share {
                heads: options.heads.clone(),
                layers: options.layers.clone(),
                extents: options.extent_bytes(),
            };
            let worker = Worker::Chunks { tier, share };
            let tier = TierQueue::new(worker, limits, Arc::clone(&mover.clock));
            tier.start_upkeep().map_err(refused)?;
            mover.chunk_tiers.push(tier);
        }
        mover.start_watch(limits.watch).map_err(refused)?;
        Ok(mover)
    }

    fn start_ram(&mut self, options: &Options, limits: Limits) -> Result<(), StartError> {
        let (slots, blocks) = (options.ram_slots, options.block_bytes());
        let bytes: usize = blocks.iter().sum();
        if slots == 0 {
            return Ok(());
        }
        let memory = Slots::new(slots, blocks, limits.copy_threads).map_err(|e| {
            StartError(format!(
                "cannot reserve {slots} blocks of {bytes} bytes for the RAM tier: {e}; make \
                 --kv-tier ram: smaller"
            ))
        })?;
        let worker = Worker::Ram(Mutex::new(memory));
        let limits = Limits {
            io_threads: 1,
            ..limits
        };
        self.ram = Some(TierQueue::new(worker, limits, Arc::clone(&self.clock)));
        Ok(())
    }

    /// Starts the watchdog, which abandons calls that exceed their time-out.
    fn start_watch(&self, every: Duration) -> std::io::Result<()> {
        let (over, tiers) = (Arc::clone(&self.over), self.chunk_tiers.clone());
        if tiers.is_empty() {
            return Ok(());
        }
        let watch = move || {
            loop {
                let lock = over.0.lock().unwrap_or_else(PoisonError::into_inner);
                let waited = over.1.wait_timeout_while(lock, every, |over| !*over);
                if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                    return;
                }
                tiers.iter().for_each(TierQueue::watch);
            }
        };
        let thread = std::thread::Builder::new().name("kv-watchdog".into());
        thread.spawn(watch).map(drop)
    }

    /// Queues a transfer. Errors are reported in its result.
    pub fn submit(&self, transfer: Transfer) {
        let id = transfer.id;
        let taken = match transfer.kind {
            Kind::Cancel => {
                self.cancel(&transfer.ids);
                Ok(())
            }
            Kind::Remove if transfer.keys.is_empty() => Err("no names to forget".into()),
            Kind::Remove => {
                let digests = &transfer.keys;
                self.forget(id, || Work::Remove {
                    digests: digests.clone(),
                });
                Ok(())
            }
            Kind::Clear => {
                let group = transfer.group;
                self.forget(id, || Work::Clear { group });
                Ok(())
            }
            Kind::Probe => self.probe(&transfer),
            Kind::Load | Kind::Store if transfer.tier == 0 => self.copy(&transfer),
            Kind::Load | Kind::Store => self.movement(&transfer),
        };
        if let Err(why) = taken {
            self.answers.put(Moved::refused(id, why));
        }
    }

    fn cancel(&self, ids: &[u64]) {
        self.queues().for_each(|queue| queue.cancel(ids));
    }

    /// Queues `work`, a removal, in all chunk tiers.
    fn forget(&self, id: u64, work: impl Fn() -> Work<P>) {
        let reply = Reply::new(id, &self.answers);
        for tier in &self.chunk_tiers {
            tier.submit(self.job(id, work(), Arc::clone(&reply)));
        }
    }

    fn probe(&self, transfer: &Transfer) -> Result<(), String> {
        let tier = self.tier(transfer.tier)?;
        let (keys, counts) = (&transfer.keys, &transfer.counts);
        if keys.len() != counts.len() {
            let (keys, counts) = (keys.len(), counts.len());
            return Err(format!("{keys} names and {counts} numbers of blocks"));
        }
        let chunks = keys.iter().zip(counts).map(|(&key, &count)| {
            let blocks = u16::try_from(count).map_err(|_| format!("a chunk of {count} blocks"));
            Ok((key, blocks?))
        });
        let chunks = chunks.collect::<Result<_, String>>()?;
        tier.submit(self.job(transfer.id, Work::Probe { chunks }, self.reply(transfer.id)));
        Ok(())
    }

    /// Queues a load from the RAM tier or a store to it.
    fn copy(&self, transfer: &Transfer) -> Result<(), String> {
        let ram = self.ram.as_ref().ok_or("there is no RAM tier")?;
        let (id, store, blocks) = (transfer.id, transfer.kind == Kind::Store, &transfer.blocks);
        let entries = self.table_entries(blocks)?;
        let slots = slot_numbers(&transfer.slots, self.ram_slots, entries, store)?;
        if !store {
            let blocks = self.borrow(blocks, write)?;
            ram.submit(self.job(id, Work::FromRam { slots, blocks }, self.reply(id)));
            return Ok(());
        }
        let (mut blocks, reply) = (self.borrow(blocks, read)?.into_iter(), self.reply(id));
        for slots in slots.chunks(self.piece) {
            let blocks = blocks
                .by_ref()
                .take(slots.len() * self.pools.len())
                .collect();
            let work = Work::ToRam {
                slots: slots.to_vec(),
                blocks,
            };
            ram.submit(self.job(id, work, Arc::clone(&reply)));
        }
        Ok(())
    }

    /// Queues a load from a chunk tier or a store to it.
    fn movement(&self, transfer: &Transfer) -> Result<(), String> {
        let tier = self.tier(transfer.tier)?;
        let (keys, blocks) = (&transfer.keys, &transfer.blocks);
        let entries = self.table_entries(blocks)?;
        let digest: Digest = match keys[..] {
            [key] if (1..=usize::from(u16::MAX)).contains(&entries) => key,
            _ => {
                let (keys, blocks) = (keys.len(), entries);
                return Err(format!("{keys} names for one chunk of {blocks} blocks"));
            }
        };
        let work = if transfer.kind == Kind::Store {
            let blocks = self.borrow(blocks, read)?;
            let parent = transfer.parent;
            Work::Store {
                digest,
                blocks,
                parent,
            }
        } else {
            let blocks = self.borrow(blocks, write)?;
            Work::Load { digest, blocks }
        };
        tier.submit(self.job(transfer.id, work, self.reply(transfer.id)));
        Ok(())
    }

    fn tier(&self, tier: usize) -> Result<&Arc<TierQueue<P>>, String> {
        let found = tier.checked_sub(1).and_then(|at| self.chunk_tiers.get(at));
        let known = self.chunk_tiers.len();
        found.ok_or_else(|| format!("tier {tier} is no chunk tier: those are 1..={known}"))
    }

    /// Number of block table entries in `blocks`, which are ordered by group.
    fn table_entries(&self, blocks: &[i32]) -> Result<usize, String> {
        let (count, groups) = (blocks.len(), self.pools.len());
        let whole = count.is_multiple_of(groups).then_some(count / groups);
        whole.ok_or_else(|| format!("{count} blocks of {groups} KV groups"))
    }

    /// Borrows `blocks`, which are ordered by group. In the result, the blocks of all groups for
    /// one table entry are adjacent.
    fn borrow<G>(
        &self,
        blocks: &[i32],
        lend: impl Fn(&P, i32) -> Option<G>,
    ) -> Result<Vec<G>, String> {
        let entries = blocks.len() / self.pools.len();
        let one = |(at, pool): (usize, &P)| {
            let block = blocks[at];
            lend(pool, block).ok_or_else(|| {
                format!(
                    "block {block} is not to be had: a step or another transfer has it, or \
                     there is no such block"
                )
            })
        };
        let pools = || self.pools.iter().enumerate();
        let places = |entry| pools().map(move |(group, pool)| (group * entries + entry, pool));
        (0..entries).flat_map(places).map(one).collect()
    }

    fn queues(&self) -> impl Iterator<Item = &Arc<TierQueue<P>>> {
        self.ram.iter().chain(&self.chunk_tiers)
    }

    fn job(&self, id: u64, work: Work<P>, reply: Arc<Reply>) -> Job<P> {
        let asked = self.clock.now();
        Job {
            id,
            asked,
            work,
            reply,
        }
    }

    fn reply(&self, id: u64) -> Arc<Reply> {
        Reply::new(id, &self.answers)
    }

    /// Takes all results; waits at most `timeout` for the first.
    pub fn take(&self, timeout: Duration) -> Vec<Moved> {
        self.answers.take(timeout)
    }

    /// Loads a part of a disk tier, bypassing its queue, like `Tier::load_by`.
    ///
    /// # Errors
    /// Errors of `Tier::load_by`, or an unknown tier number.
    pub fn load_by(
        &self,
        tier: usize,
        key: &PartKey,
        bytes: usize,
        take: Take<'_>,
    ) -> Result<(), TierError> {
        let queue = self.tier(tier).map_err(TierError::Failed)?;
        queue.load_by(key, bytes, take)
    }

    /// Counters for the engine. `tiers` has an object per chunk tier, in order: its `name`, the
    /// number of `damaged` loads since the start, the number of `hanging` calls, and the tier's own
    /// `counters`.
    pub fn report(&self) -> serde_json::Value {
        let tiers: Vec<_> = self.queues().filter_map(|queue| queue.report()).collect();
        serde_json::json!({"tiers": tiers})
    }

    /// Finishes stores and removals within `limit`; all other jobs are reported as not done. Only a
    /// load that hangs in a call keeps its blocks.
    pub fn close(&self, limit: Duration) {
        if self.closed.swap(true, Ordering::Relaxed) {
            return;
        }
        let now = Instant::now();
        let until = now
            .checked_add(limit)
            .unwrap_or(now + Duration::from_secs(1 << 30));
        self.queues().for_each(|queue| queue.drain());
        self.queues().for_each(|queue| queue.shut(until));
        *self.over.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.over.1.notify_all();
    }
}

fn read<P: Pool>(pool: &P, block: i32) -> Option<P::Read> {
    usize::try_from(block)
        .ok()
        .and_then(|block| pool.read(block))
}

/// Borrows a block for writing; `Some(None)` if the KV group needs no block there.
fn write<P: Pool>(pool: &P, block: i32) -> Option<Option<P::Write>> {
    match usize::try_from(block) {
        Ok(block) => pool.write(block).map(Some),
        Err(_) => (block == NO_BLOCK).then_some(None),
    }
}

impl<P: Pool> Drop for Mover<P> {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}
