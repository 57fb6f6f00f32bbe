//! One step of the decoder: checks the plan, applies it to the slots, leases its blocks, computes
//! and samples.

use std::time::Instant;

use penstock_kernels::{Cpu, KvPool, PoolHandle, StepLease};
use penstock_structured_output::Grammars;
use penstock_wire::{StepPlan, StepResult};

use crate::buffers::{Buffers, HeadBuffers};
use crate::collectives::Collectives;
use crate::error::DecoderError;
use crate::forward::forward;
use crate::loaded::Loaded;
use crate::logits::sample_and_score;
use crate::model::Model;
use crate::pooling::pool;
use crate::slots::Slots;
use crate::step::{Limits, check};

pub(crate) type Outcome = Result<StepResult, DecoderError>;

pub(crate) struct Runner {
    cpu: Cpu,
    model: Model,
    /// One pool per KV group.
    kv: Vec<KvPool>,
    limits: Limits,
    slots: Slots,
    buffers: Buffers,
    head: HeadBuffers,
    collectives: Box<dyn Collectives>,
}

impl Runner {
    /// Creates a runner with one KV pool per group, of `blocks[group]` blocks.
    pub(crate) fn new(loaded: Loaded, blocks: &[usize]) -> Self {
        let groups = loaded.model.kv_groups().iter().zip(blocks);
        let kv = groups
            .map(|(group, &blocks)| KvPool::new(loaded.layout(group), blocks))
            .collect();
        let limits = Limits::new(&loaded.model, &loaded.options, blocks);
        let Loaded {
            cpu,
            model,
            options,
            collectives,
            path,
        } = loaded;
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

    /// Handles of the KV pools, by group.
    pub(crate) fn pools(&self) -> Vec<PoolHandle> {
        self.kv.iter().map(KvPool::handle).collect()
    }

    /// Number of expert weight reads, summed over all layers and steps.
    pub(crate) fn experts_read(&self) -> u64 {
        self.buffers.inner.experts_read()
    }

    /// Shuts down the collectives: other ranks' operations that wait for this rank fail with
    /// `reason`.
    pub(crate) fn end(&mut self, reason: &str) {
        self.collectives.end(reason);
    }

    /// Computes the step that `plan` describes.
    ///
    /// # Errors
    /// The plan is invalid, or the forward pass failed.
    pub(crate) fn step(&mut self, mut plan: StepPlan) -> Outcome {
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

    /// Passes the sampled tokens to their sequences' samplers. No-op on ranks that do not sample.
    fn accept(&mut self, plan: &StepPlan, result: &StepResult) {
        let mut rest = &result.tokens[..];
        for (&slot, &count) in plan.slots.iter().zip(&result.counts) {
            let (tokens, after) = rest.split_at(count as usize);
            self.slots.accept(slot, tokens);
            rest = after;
        }
    }

    /// Records the last sampled token of each slot on all ranks of the stage, because the next plan
    /// may refer to it as `LAST_SAMPLED`.
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
            // Placeholder 0 for a missing token. On ranks that do not sample, the broadcast below
            // replaces it. After a row that is not finite or was not sampled, no result depends on
            // it.
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
