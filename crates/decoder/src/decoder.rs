//! The decoder as others see it: loaded, given KV blocks, then stepped by its own thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use penstock_kernels::{Cpu, KvPool, PoolHandle, StepLease};
use penstock_wire::{StepPlan, StepResult};

use crate::collectives::{Alone, Collectives};
use crate::error::DecoderError;
use crate::forward::{Buffers, forward};
use crate::loaded::{Info, KvSpec, Loaded, Stage, kv_name, mib, stage};
use crate::logits::{HeadBuffers, sample_and_score};
use crate::model::Model;
use crate::options::Options;
use crate::recipe::WeightRecipes;
use crate::shard::Shard;
use crate::slots::Slots;
use crate::spec::DecoderSpec;
use crate::step::{GroupLimits, Limits, check};

/// Most blocks of a KV pool.
const MAX_BLOCKS: usize = 1 << 30;

type Outcome = Result<StepResult, DecoderError>;
type Promise = Arc<(Mutex<Option<Outcome>>, Condvar)>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

fn fulfil(promise: &Promise, outcome: Outcome) {
    *lock(&promise.0) = Some(outcome);
    promise.1.notify_all();
}

/// A step in flight.
pub struct StepFuture {
    promise: Promise,
}

impl StepFuture {
    /// Waits for the step; `None` when `timeout` passed first (ask again) or the result was already
    /// taken.
    ///
    /// # Errors
    /// A plan that breaks the contract, or a forward pass that failed.
    pub fn result(&self, timeout: Duration) -> Option<Outcome> {
        let (outcome, ready) = &*self.promise;
        let (mut outcome, _) = ready
            .wait_timeout_while(lock(outcome), timeout, |o| o.is_none())
            .unwrap_or_else(|e| e.into_inner());
        outcome.take()
    }
}

/// A model with its KV pools and threads.
///
/// Loading packs the weights; steps need [`Decoder::allocate`] first. They run one after another on
/// the decoder's own thread and its thread pool; [`Decoder::submit`] returns at once.
pub struct Decoder {
    info: Info,
    stages: Vec<Stage>,
    kv_spec: KvSpec,
    loaded: Mutex<Option<Loaded>>,
    running: OnceLock<Running>,
}

/// The thread that computes.
struct Running {
    stage: Stage,
    pools: Vec<PoolHandle>,
    jobs: Option<mpsc::Sender<(StepPlan, Promise)>>,
    thread: Option<JoinHandle<()>>,
}

struct Runner {
    cpu: Cpu,
    model: Model,
    /// One pool for each KV group.
    kv: Vec<KvPool>,
    limits: Limits,
    slots: Slots,
    buffers: Buffers,
    head: HeadBuffers,
    collectives: Box<dyn Collectives>,
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
        let shard = Shard::whole(&spec);
        Self::load_shard(spec, weights_json, path, options, shard, Box::new(Alone))
    }

    /// The same for one rank's part, with the means to reach the others.
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
    ) -> Result<Self, DecoderError> {
        let weights = WeightRecipes::parse(weights_json, spec.depth())?;
        let (loaded, info, stages) =
            Loaded::open(spec, &weights, path, options, shard, collectives)?;
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

    /// Stages of the start-up so far.
    pub fn stages(&self) -> Vec<Stage> {
        let allocated = self.running.get().map(|running| &running.stage);
        self.stages.iter().chain(allocated).cloned().collect()
    }

    /// What its KV blocks hold.
    pub fn kv_spec(&self) -> &KvSpec {
        &self.kv_spec
    }

    /// Makes one KV pool of so many `blocks` for each group, and starts the decoder's thread.
    ///
    /// # Errors
    /// Another number of groups, a number out of range, a second call.
    pub fn allocate(&self, blocks: &[usize]) -> Result<(), DecoderError> {
        let groups = self.kv_spec.groups.len();
        if blocks.len() != groups || !blocks.iter().all(|b| (1..=MAX_BLOCKS).contains(b)) {
            return Err(DecoderError::Allocate(format!(
                "{blocks:?} is not a number in 1..={MAX_BLOCKS} for each of {groups} KV groups"
            )));
        }
        let twice = || DecoderError::Allocate("the KV blocks are allocated already".into());
        let loaded = lock(&self.loaded).take().ok_or_else(twice)?;
        let (began, kv) = (Instant::now(), kv_name(loaded.options.kv));
        let runner = Runner::new(loaded, blocks);
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
        let running = Running::start(runner, stage("KV allocated", began, detail))?;
        self.running.set(running).map_err(|_| twice())
    }

    /// The KV pools by group, for transfers of single blocks between steps; empty before
    /// [`Decoder::allocate`]. They outlive the decoder.
    pub fn pools(&self) -> &[PoolHandle] {
        self.running.get().map_or(&[], |running| &running.pools)
    }

    /// Starts a step.
    pub fn submit(&self, plan: StepPlan) -> StepFuture {
        let promise = Promise::default();
        let jobs = self.running.get().and_then(|running| running.jobs.as_ref());
        // The thread serves until the sender is dropped.
        let sent = jobs.is_some_and(|jobs| jobs.send((plan, Arc::clone(&promise))).is_ok());
        if !sent {
            let early = DecoderError::Allocate("a step before `allocate`".into());
            fulfil(&promise, Err(early));
        }
        StepFuture { promise }
    }
}

impl Running {
    fn start(runner: Runner, stage: Stage) -> Result<Self, DecoderError> {
        let pools = runner.kv.iter().map(KvPool::handle).collect();
        let (jobs, queue) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("penstock-cpu0".into())
            .spawn(move || runner.serve(&queue))?;
        Ok(Self {
            stage,
            pools,
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was answered as an error of its step.
            let _ = thread.join();
        }
    }
}

impl Runner {
    fn new(loaded: Loaded, blocks: &[usize]) -> Self {
        let groups = || loaded.model.kv_groups().iter().zip(blocks);
        let kv = groups()
            .map(|(group, &blocks)| KvPool::new(loaded.layout(group), blocks))
            .collect();
        let groups = groups()
            .map(|(group, &blocks)| GroupLimits {
                blocks,
                window: group.window,
            })
            .collect();
        let Loaded {
            cpu,
            model,
            options,
            collectives,
        } = loaded;
        let limits = Limits {
            slots: options.max_num_seqs,
            tokens: options.max_batched_tokens,
            vocab: model.spec.vocab,
            max_position: model.spec.max_position,
            block_size: options.block_size,
            groups,
            last_sampled: model.shard.stage[1] == 1,
        };
        Self {
            slots: Slots::new(limits.slots),
            cpu,
            model,
            kv,
            limits,
            buffers: Buffers::default(),
            head: HeadBuffers::default(),
            collectives,
        }
    }

    fn serve(mut self, queue: &mpsc::Receiver<(StepPlan, Promise)>) {
        let mut broken = false;
        while let Ok((plan, promise)) = queue.recv() {
            if broken {
                let earlier = "an earlier step failed".into();
                fulfil(&promise, Err(DecoderError::Failed(earlier)));
                continue;
            }
            let result = catch_unwind(AssertUnwindSafe(|| self.step(plan)));
            broken = result.is_err();
            let result = result.unwrap_or_else(|panic| Err(DecoderError::Failed(message(&*panic))));
            if let Err(error @ (DecoderError::Failed(_) | DecoderError::Lost(_))) = &result {
                self.collectives.end(&error.to_string());
            }
            fulfil(&promise, result);
        }
    }

    fn step(&mut self, mut plan: StepPlan) -> Outcome {
        let began = Instant::now();
        let mut result = self.compute(&mut plan);
        match &mut result {
            Ok(result) => result.seconds = began.elapsed().as_secs_f64(),
            Err(_) => self.slots.fail(&plan),
        }
        result
    }

    fn compute(&mut self, plan: &mut StepPlan) -> Outcome {
        let Self { limits, slots, .. } = self;
        check(plan, limits)?;
        slots.apply(plan, limits)?;
        let lease = |(group, pool)| slots.lease(plan, group, limits, pool);
        let pools = self.kv.iter_mut().enumerate();
        let mut kv: Vec<StepLease<'_>> = pools.map(lease).collect::<Result<_, _>>()?;
        forward(
            &self.cpu,
            &self.model,
            &mut kv,
            plan,
            &mut self.buffers,
            &mut *self.collectives,
        )?;
        drop(kv);
        let result = sample_and_score(
            &self.cpu,
            &self.model,
            plan,
            &self.slots,
            &mut self.buffers,
            &mut self.head,
            &mut *self.collectives,
        )?;
        self.note_sampled(plan, &result)?;
        Ok(result)
    }

    /// Notes the last token of every sampled slot, on all ranks of the stage.
    fn note_sampled(&mut self, plan: &StepPlan, result: &StepResult) -> Result<(), DecoderError> {
        let sampled: Vec<usize> = (0..plan.slots.len())
            .filter(|&i| plan.sample[i] != 0)
            .collect();
        if !self.limits.last_sampled || sampled.is_empty() {
            return Ok(());
        }
        let mut end = 0;
        let last = |&i: &usize| {
            end += result.counts[i] as usize;
            // Ranks that do not draw have no tokens.
            result.tokens[..end].last().map_or(0, |&token| token as u32)
        };
        let mut last: Vec<u32> = sampled.iter().map(last).collect();
        self.collectives.broadcast_tokens(&mut last)?;
        for (i, token) in sampled.into_iter().zip(last) {
            self.slots.sampled(plan.slots[i], token as i32);
        }
        Ok(())
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_else(|| "unknown panic".into())
}
