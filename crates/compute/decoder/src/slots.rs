//! Slots: per-sequence state between steps.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use penstock_kernels::{KvPool, SequenceBlocks, StepLease};
use penstock_structured_output::{Constraint, Grammars, RowMask};
use penstock_wire::{
    Grammar, LAST_SAMPLED, LATE_MASK, MaskCost, Registration, SamplingParams, StepPlan,
};

use crate::error::DecoderError;
use crate::pooled::Pooled;
use crate::sampler::Sampler;
use crate::step::{GroupLimits, Limits, check_distinct, drafts, refuse};

/// A registered sequence.
pub(crate) struct Slot {
    pub(crate) sampler: Sampler,
    constraint: Option<Arc<Constraint>>,
    /// Number of alternatives to report with each sampled token; `None` = no log-probabilities.
    pub(crate) logprobs: Option<usize>,
    /// Number of alternatives to report with each prompt token; `None` = no log-probabilities.
    pub(crate) prompt_logprobs: Option<usize>,
    /// `Some` if the sequence produces a vector instead of tokens.
    pooled: Option<Pooled>,
    /// One block table per KV group.
    tables: Vec<BlockTable>,
    /// Last sampled token.
    last: Option<i32>,
    /// True if the last row was not sampled, so that [`LAST_SAMPLED`] has no value. Rows that refer
    /// to `LAST_SAMPLED` are then computed with an arbitrary token and not sampled.
    pub(crate) undrawn: bool,
}

enum SlotState {
    Empty,
    /// A plan that used the slot failed; the slot's state is undefined.
    Failed,
    Ready(Box<Slot>),
}

/// All slots of a decoder.
pub(crate) struct Slots {
    states: Vec<SlotState>,
    /// `None` on ranks that do not sample.
    grammars: Option<Grammars>,
}

impl Slots {
    pub(crate) fn new(count: usize, grammars: Option<Grammars>) -> Self {
        Self {
            states: (0..count).map(|_| SlotState::Empty).collect(),
            grammars,
        }
    }

    /// The cost of grammar masks since the previous call.
    pub(crate) fn take_mask_cost(&self) -> MaskCost {
        let cost = self.grammars.as_ref().map(Grammars::take_cost);
        cost.unwrap_or_default()
    }

    /// The slot of a scheduled sequence.
    pub(crate) fn get(&self, slot: i32) -> Option<&Slot> {
        match self.states.get(slot as usize) {
            Some(SlotState::Ready(slot)) => Some(slot),
            _ => None,
        }
    }

    /// True if a step of the scheduled sequence produces tokens (it is not pooled).
    pub(crate) fn draws(&self, slot: i32) -> bool {
        self.get(slot).is_some_and(|slot| slot.pooled.is_none())
    }

    /// Pooling state of a scheduled sequence.
    pub(crate) fn pooled(&mut self, slot: i32) -> Option<&mut Pooled> {
        match self.states.get_mut(slot as usize) {
            Some(SlotState::Ready(slot)) => slot.pooled.as_mut(),
            _ => None,
        }
    }

    /// Applies the (checked) plan: registrations and updates of block tables. Replaces
    /// [`LAST_SAMPLED`] in the plan's tokens by each slot's last sampled token.
    pub(crate) fn apply(
        &mut self,
        plan: &mut StepPlan,
        limits: &Limits,
    ) -> Result<(), DecoderError> {
        for registration in &plan.registrations {
            let grammar = (registration.grammar as usize).checked_sub(1);
            let grammar = grammar.and_then(|i| plan.grammars.get(i));
            let slot = Slot::new(
                registration,
                limits.groups.len(),
                grammar,
                self.grammars.as_ref(),
            )?;
            self.states[registration.slot as usize] = SlotState::Ready(Box::new(slot));
        }
        let (mut row, groups) = (0, limits.groups.len());
        for i in 0..plan.slots.len() {
            let slot = get_mut(&mut self.states, plan.slots[i])?;
            for (g, group) in limits.groups.iter().enumerate() {
                let at = i * groups + g;
                let added = plan.added_offsets[at] as usize..plan.added_offsets[at + 1] as usize;
                let table = &mut slot.tables[g];
                let updated = table.update(plan.kept[at], &plan.added[added]);
                let checked = updated.and_then(|()| table.check(plan, i, group, limits));
                if let Err(problem) = checked {
                    return refuse(format!("sequence {i}, KV group {g}: {problem}"));
                }
            }
            if let Some(pooled) = &slot.pooled {
                let checked = pooled.check(plan.starts[i] as usize, drafts(plan, i));
                checked.or_else(|problem| refuse(format!("sequence {i}: {problem}")))?;
            }
            if plan.tokens[row] == LAST_SAMPLED {
                plan.tokens[row] = match slot.last {
                    Some(token) if limits.last_sampled => token,
                    Some(_) => return refuse("LAST_SAMPLED with several pipeline stages"),
                    None => return refuse(format!("slot {} has no last token", plan.slots[i])),
                };
            } else {
                slot.undrawn = false;
            }
            if let (Some(constraint), drafts @ 1..) = (&slot.constraint, drafts(plan, i)) {
                let end = row + plan.lengths[i] as usize;
                constraint.expect(&plan.tokens[end - drafts..end]);
                constraint.queue();
            }
            row += plan.lengths[i] as usize;
        }
        (0..groups).try_for_each(|g| {
            let mut written = Vec::with_capacity(plan.slots.len());
            for i in 0..plan.slots.len() {
                let (start, end, size) = span(plan, i, limits);
                let table = self.table(plan, i, g);
                written.extend_from_slice(&table[start / size..end.div_ceil(size)]);
            }
            check_distinct("block to be written", written)
        })
    }

    /// Marks the slots of a failed plan as unusable until they are registered again.
    pub(crate) fn fail(&mut self, plan: &StepPlan) {
        let registered = plan.registrations.iter().map(|r| r.slot as usize);
        let scheduled = plan.slots.iter().filter_map(|&s| usize::try_from(s).ok());
        for slot in registered.chain(scheduled) {
            if let Some(state) = self.states.get_mut(slot) {
                *state = SlotState::Failed;
            }
        }
    }

    /// Records the last sampled token of `slot`.
    pub(crate) fn sampled(&mut self, slot: i32, token: i32) {
        if let Ok(slot) = get_mut(&mut self.states, slot) {
            slot.last = Some(token);
        }
    }

    /// Passes a step's tokens to the sampler and the grammar of `slot`. A negative last value is
    /// not a token and is skipped.
    pub(crate) fn accept(&mut self, slot: i32, tokens: &[i32]) {
        let Ok(slot) = get_mut(&mut self.states, slot) else {
            return;
        };
        let tokens = match tokens.split_last() {
            Some((&last @ ..0, before)) => {
                slot.undrawn |= last == LATE_MASK;
                before
            }
            _ => tokens,
        };
        for &token in tokens {
            slot.sampler.accept(token as u32);
        }
        if let (Some(constraint), false) = (&slot.constraint, tokens.is_empty()) {
            constraint.accept(tokens);
            constraint.queue();
        }
    }

    /// Leases the blocks of one KV group that the (applied) plan accesses.
    pub(crate) fn lease<'a>(
        &self,
        plan: &StepPlan,
        group: usize,
        limits: &Limits,
        pool: &'a mut KvPool,
    ) -> Result<StepLease<'a>, DecoderError> {
        let seen = limits.groups[group].seen;
        let blocks = |i| {
            let (start, end, size) = span(plan, i, limits);
            SequenceBlocks {
                table: self.table(plan, i, group),
                seen: seen.first(start) / size..end.div_ceil(size),
                writes_from: start / size,
            }
        };
        pool.lease((0..plan.slots.len()).map(blocks).collect())
            .or_else(|busy| refuse(format!("{busy}: its transfer must end first")))
    }

    /// The block table of sequence `i` of the (applied) plan.
    fn table(&self, plan: &StepPlan, i: usize, group: usize) -> Arc<Vec<i32>> {
        let slot = self.get(plan.slots[i]);
        slot.map_or_else(Arc::default, |slot| Arc::clone(&slot.tables[group].blocks))
    }
}

fn get_mut(states: &mut [SlotState], slot: i32) -> Result<&mut Slot, DecoderError> {
    match states.get_mut(slot as usize) {
        Some(SlotState::Ready(slot)) => Ok(slot),
        Some(SlotState::Failed) => refuse(format!(
            "slot {slot} was in a plan that failed; register it again"
        )),
        _ => refuse(format!("slot {slot} was never registered")),
    }
}

/// First position of sequence `i` in the plan, end of its positions (exclusive), and block size.
fn span(plan: &StepPlan, i: usize, limits: &Limits) -> (usize, usize, usize) {
    let start = plan.starts[i] as usize;
    (start, start + plan.lengths[i] as usize, limits.block_size)
}

impl Slot {
    /// The grammar's token mask after `drafts` drafts. Waits for the mask until the deadline
    /// `until`.
    pub(crate) fn mask(&self, drafts: usize, until: Instant) -> RowMask {
        let constraint = self.constraint.as_ref();
        constraint.map_or(RowMask::Mask(None), |c| c.mask(drafts, until))
    }

    fn new(
        r: &Registration,
        groups: usize,
        grammar: Option<&Vec<u8>>,
        grammars: Option<&Grammars>,
    ) -> Result<Self, DecoderError> {
        let params = SamplingParams::decode(&r.sampling)
            .or_else(|e| refuse(format!("registered slot {}: {e}", r.slot)))?;
        let logprobs = params.logprobs.map(usize::from);
        let output = r.history.get(r.prompt_len as usize..).unwrap_or_default();
        let wrong = |e| refuse(format!("registered slot {}: {e}", r.slot));
        let grammar = grammar.map(|bytes| Grammar::decode(bytes)).transpose();
        let constraint = (grammar.or_else(wrong)?).zip(grammars);
        let constraint = constraint
            .map(|(grammar, grammars)| grammars.start(grammar, &params.suppressed, output));
        Ok(Self {
            constraint,
            sampler: Sampler::new(params, &r.history, r.prompt_len as usize),
            logprobs,
            prompt_logprobs: usize::try_from(r.prompt_logprobs).ok(),
            pooled: Pooled::new(r.pooling),
            tables: vec![BlockTable::default(); groups],
            last: None,
            undrawn: false,
        })
    }
}

/// Block table of a sequence in one KV group; -1 = no block.
#[derive(Clone, Default)]
struct BlockTable {
    /// Block numbers, shared with the lease of a step.
    blocks: Arc<Vec<i32>>,
    /// From this index on, every entry is a block number, never -1.
    whole_from: usize,
}

impl BlockTable {
    fn update(&mut self, kept: i32, added: &[i32]) -> Result<(), String> {
        let len = self.blocks.len();
        let Some(kept) = usize::try_from(kept).ok().filter(|&kept| kept <= len) else {
            return Err(format!("keeps {kept} of {len} blocks"));
        };
        let blocks = Arc::make_mut(&mut self.blocks);
        blocks.truncate(kept);
        if self.whole_from > kept {
            self.whole_from = after_last_hole(blocks);
        }
        blocks.extend_from_slice(added);
        if let holes @ 1.. = after_last_hole(added) {
            self.whole_from = kept + holes;
        }
        Ok(())
    }

    /// Checks that the table has all blocks that sequence `i` reads or writes.
    fn check(
        &self,
        plan: &StepPlan,
        i: usize,
        group: &GroupLimits,
        limits: &Limits,
    ) -> Result<(), String> {
        let (start, end, size) = span(plan, i, limits);
        let needed: Range<usize> = group.seen.first(start) / size..end.div_ceil(size);
        if self.blocks.len() < needed.end {
            let (have, need) = (self.blocks.len(), needed.end);
            return Err(format!("{have} blocks where {need} are needed"));
        }
        if needed.start < self.whole_from {
            return Err(format!("no block for a part of {needed:?}"));
        }
        Ok(())
    }
}

fn after_last_hole(blocks: &[i32]) -> usize {
    blocks.iter().rposition(|&b| b == -1).map_or(0, |i| i + 1)
}
