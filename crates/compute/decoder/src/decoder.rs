//! Public interface of the decoder: load, allocate KV blocks, then step on its own thread.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use penstock_checkpoint::ReadCount;
use penstock_kernels::PoolHandle;
use penstock_wire::StepPlan;

use crate::collectives::{Alone, Collectives};
use crate::error::DecoderError;
use crate::loaded::{Info, KvSpec, Loaded, Stage, kv_name, mib, stage};
use crate::options::Options;
use crate::recipe::WeightRecipes;
use crate::shard::Shard;
use crate::spec::DecoderSpec;
use crate::thread::{Running, StepFuture};

/// Maximum blocks of a KV pool.
const MAX_BLOCKS: usize = 1 << 30;

/// A model with its KV pools and threads.
///
/// [`Decoder::load`] packs the weights; [`Decoder::allocate`] must follow before the first step.
/// Steps run one by one on the decoder's own thread and its thread pool; [`Decoder::submit`] does
/// not block.
pub struct Decoder {
    info: Info,
    stages: Vec<Stage>,
    kv_spec: KvSpec,
    loaded: Mutex<Option<Loaded>>,
    running: OnceLock<(Running, Stage)>,
}

impl Decoder {
    /// Opens the checkpoint at `path` (GGUF file or directory) and packs its weights.
    ///
    /// # Errors
    /// See [`DecoderError`].
    pub fn load(
        spec_json: &str,
        weights_json: &str,
        path: &Path,
        options: &Options,
    ) -> Result<Self, DecoderError> {
        let spec = DecoderSpec::parse(spec_json)?;
        let (shard, count) = (Shard::whole(&spec), ReadCount::default());
        let alone = Box::new(Alone);
        Self::load_shard(spec, weights_json, path, options, shard, alone, &count)
    }

    /// Loads one rank's shard, with its collectives. The load's progress is written to `count`.
    ///
    /// # Errors
    /// See [`DecoderError`].
    pub fn load_shard(
        spec: DecoderSpec,
        weights_json: &str,
        path: &Path,
        options: &Options,
        shard: Shard,
        collectives: Box<dyn Collectives>,
        count: &ReadCount,
    ) -> Result<Self, DecoderError> {
        let weights = WeightRecipes::parse(weights_json, spec.depth())?;
        let (loaded, info, stages) =
            Loaded::open(spec, &weights, path, options, shard, collectives, count)?;
        Ok(Self {
            info,
            stages,
            kv_spec: loaded.kv_spec(),
            loaded: Mutex::new(Some(loaded)),
            running: OnceLock::new(),
        })
    }

    /// Facts about the decoder.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Stages of the start-up so far, with their durations.
    pub fn stages(&self) -> Vec<Stage> {
        let allocated = self.running.get().map(|(_, stage)| stage);
        self.stages.iter().chain(allocated).cloned().collect()
    }

    /// Layout of the KV blocks.
    pub fn kv_spec(&self) -> &KvSpec {
        &self.kv_spec
    }

    /// Allocates the KV pools, with `blocks[i]` blocks for KV group `i`, and starts the decoder's
    /// thread.
    ///
    /// # Errors
    /// `blocks` does not have one valid size per KV group, or the pools are already allocated.
    pub fn allocate(&self, blocks: &[usize]) -> Result<(), DecoderError> {
        let groups = self.kv_spec.groups.len();
        if blocks.len() != groups || !blocks.iter().all(|b| (1..=MAX_BLOCKS).contains(b)) {
            return Err(DecoderError::Allocate(format!(
                "{blocks:?} is not a number in 1..={MAX_BLOCKS} for each of {groups} KV groups"
            )));
        }
        let twice = || DecoderError::Allocate("the KV blocks are allocated already".into());
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = loaded.take().ok_or_else(twice)?;
        let (began, kv) = (Instant::now(), kv_name(loaded.options.kv));
        let running = Running::start(loaded, blocks)?;
        let groups = self.kv_spec.groups.iter().zip(blocks);
        let bytes = groups
            .map(|(group, blocks)| group.block_bytes * blocks)
            .sum();
        let all: usize = blocks.iter().sum();
        let detail = format!(
            "{all} blocks, {} tokens, {} {kv}, touched as used",
            all * self.kv_spec.block_size,
            mib(bytes)
        );
        let stage = stage("KV allocated", began, detail);
        self.running.set((running, stage)).map_err(|_| twice())
    }

    /// Handles of the KV pools, one per KV group, for transfers of single blocks; empty before
    /// [`Decoder::allocate`]. Handles remain valid after the decoder is dropped.
    pub fn pools(&self) -> &[PoolHandle] {
        self.running
            .get()
            .map_or(&[], |(running, _)| &running.pools)
    }

    /// Number of expert weight reads, summed over all layers and steps. The cost of a step in a
    /// mixture of experts depends on how many distinct experts its tokens select.
    pub fn experts_read(&self) -> u64 {
        self.running.get().map_or(0, |(running, _)| {
            running.experts_read.load(Ordering::Relaxed)
        })
    }

    /// Starts a step.
    pub fn submit(&self, plan: StepPlan) -> StepFuture {
        match self.running.get() {
            Some((running, _)) => running.submit(plan),
            None => StepFuture::failed(DecoderError::Allocate("a step before `allocate`".into())),
        }
    }
}
