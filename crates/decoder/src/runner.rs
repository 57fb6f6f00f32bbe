//! The decoder's own thread: plans in, results out, one step after another.
//!
//! A plan is checked against the limits, applied to the slots, given its blocks, computed and
//! sampled. A step that fails for another reason than its plan ends the decoder.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use penstock_kernels::{Cpu, KvPool, PoolHandle, StepLease};
use penstock_wire::{StepPlan, StepResult};

use crate::collectives::Collectives;
use crate::error::DecoderError;
use crate::forward::{Buffers, forward};
use crate::grammars::Grammars;
use crate::loaded::Loaded;
use crate::logits::{HeadBuffers, sample_and_score};
use crate::model::Model;
use crate::pooling::pool;
use crate::slots::Slots;
use crate::step::{GroupLimits, Limits, check};

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
    pub(crate) fn failed(error: DecoderError) -> Self {
        let promise = Promise::default();
        fulfil(&promise, Err(error));
        Self { promise }
    }

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

/// The thread that computes, with its queue of plans. Dropped, it ends after those.
pub(crate) struct Running {
    /// By KV group.
    pub(crate) pools: Vec<PoolHandle>,
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

impl Running {
    /// Makes one KV pool of so many `blocks` for each group, and starts the thread.
    ///
    /// # Errors
    /// No thread can be had.
    pub(crate) fn start(loaded: Loaded, blocks: &[usize]) -> Result<Self, DecoderError> {
        let runner = Runner::new(loaded, blocks);
        let pools = runner.kv.iter().map(KvPool::handle).collect();
        let (jobs, queue) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("penstock-cpu0".into())
            .spawn(move || runner.serve(&queue))?;
        Ok(Self {
            pools,
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    pub(crate) fn submit(&self, plan: StepPlan) -> StepFuture {
        let promise = Promise::default();
        if let Some(jobs) = &self.jobs {
            // The thread serves until the sender is dropped.
            let _ = jobs.send((plan, Arc::clone(&promise)));
        }
        StepFuture { promise }
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
                seen: group.seen,
            })
            .collect();
        let Loaded {
            cpu,
            model,
            options,
            collectives,
            path,
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
        let draws = model.head().is_some() && collectives.draws();
        let grammars = draws.then(|| Grammars::new(path, options.threads));
        Self {
            slots: Slots::new(limits.slots, grammars),
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
            Ok(result) => {
                result.seconds = began.elapsed().as_secs_f64();
                result.masks = self.slots.take_mask_cost();
            }
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
        let mut result = sample_and_score(
            &self.cpu,
            &self.model,
            plan,
            &self.slots,
            &mut self.buffers,
            &mut self.head,
            &mut *self.collectives,
        )?;
        result.vectors = pool(
            &self.cpu,
            &self.model,
            plan,
            &mut self.slots,
            &self.buffers.x,
        );
        self.accept(plan, &result);
        self.note_sampled(plan, &result)?;
        Ok(result)
    }

    /// Takes the drawn tokens into their samplers; none on ranks that do not draw.
    fn accept(&mut self, plan: &StepPlan, result: &StepResult) {
        let mut rest = &result.tokens[..];
        for (&slot, &count) in plan.slots.iter().zip(&result.counts) {
            let (tokens, after) = rest.split_at(count as usize);
            self.slots.accept(slot, tokens);
            rest = after;
        }
    }

    /// Notes the last token of every sampled slot, on all ranks of the stage.
    fn note_sampled(&mut self, plan: &StepPlan, result: &StepResult) -> Result<(), DecoderError> {
        let sampled: Vec<usize> = (0..plan.slots.len())
            .filter(|&i| plan.sample[i] != 0 && self.slots.draws(plan.slots[i]))
            .collect();
        if !self.limits.last_sampled || sampled.is_empty() {
            return Ok(());
        }
        let mut end = 0;
        let last = |&i: &usize| {
            end += result.counts[i] as usize;
            // Ranks that do not draw have no tokens. Nor has a row that is not finite or not drawn;
            // what follows it is not read.
            let token = result.tokens[..end].last().copied().unwrap_or(0);
            token.max(0) as u32
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
