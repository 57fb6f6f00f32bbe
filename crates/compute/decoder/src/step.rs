//! Checks of a plan against the decoder's limits: an invalid plan is rejected before any memory
//! access that depends on it.

use penstock_kernels::AttentionMask;
use penstock_wire::{LAST_SAMPLED, Registration, StepPlan};

use crate::error::DecoderError;
use crate::model::{KvGroup, Model};
use crate::options::Options;

/// Limits that a plan is checked against.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub(crate) struct Limits {
    pub(crate) slots: usize,
    pub(crate) tokens: usize,
    pub(crate) vocab: usize,
    pub(crate) max_position: usize,
    pub(crate) block_size: usize,
    pub(crate) groups: Vec<GroupLimits>,
    /// Whether plans may use `LAST_SAMPLED`. Only decoders with one pipeline stage: only the last
    /// stage has the sampled tokens.
    pub(crate) last_sampled: bool,
}

/// Limits of one KV group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupLimits {
    pub(crate) blocks: usize,
    /// The attention mask.
    pub(crate) seen: AttentionMask,
}

impl Limits {
    /// Limits of a decoder with `blocks[i]` blocks in KV group `i`.
    pub(crate) fn new(model: &Model, options: &Options, blocks: &[usize]) -> Self {
        let groups = model.kv_groups().iter().zip(blocks);
        let limits = |(group, &blocks): (&KvGroup, &usize)| GroupLimits {
            blocks,
            seen: group.seen,
        };
        Self {
            slots: options.max_num_seqs,
            tokens: options.max_batched_tokens,
            vocab: model.spec.vocab,
            max_position: model.spec.max_position,
            block_size: options.block_size,
            groups: groups.map(limits).collect(),
            last_sampled: model.shard.stage[1] == 1,
        }
    }
}

pub(crate) fn refuse<T>(message: impl Into<String>) -> Result<T, DecoderError> {
    Err(DecoderError::Plan(message.into()))
}

/// Number of draft tokens at the end of the plan's tokens of sequence `i`.
pub(crate) fn drafts(plan: &StepPlan, i: usize) -> usize {
    plan.drafts.get(i).map_or(0, |&d| d as usize)
}

/// Checks everything in the plan that does not depend on the state of the slots.
pub(crate) fn check(plan: &StepPlan, limits: &Limits) -> Result<(), DecoderError> {
    check_columns(plan, limits)?;
    check_tokens(plan, limits)?;
    let registered = |r: &Registration| check_registration(r, plan.grammars.len(), limits);
    plan.registrations.iter().try_for_each(registered)?;
    check_added(plan, limits)?;
    check_range("slot", &plan.slots, limits.slots)?;
    check_distinct("slot", plan.slots.clone())
}

fn check_columns(plan: &StepPlan, limits: &Limits) -> Result<(), DecoderError> {
    let (n, tokens) = (plan.slots.len(), plan.tokens.len());
    let entries = n * limits.groups.len();
    let optional = |column: &[i32], len| column.is_empty() || column.len() == len;
    let equal = [plan.starts.len(), plan.lengths.len(), plan.sample.len()]
        .iter()
        .all(|&len| len == n);
    let sum: i64 = plan.lengths.iter().map(|&l| i64::from(l)).sum();
    if !equal || !optional(&plan.drafts, n) || sum != tokens as i64 {
        return refuse(format!(
            "columns of {n} sequences and {tokens} tokens differ in length"
        ));
    }
    if plan.kept.len() != entries || plan.added_offsets.len() != entries + 1 {
        return refuse(format!(
            "columns of {entries} block tables differ in length"
        ));
    }
    if !optional(&plan.targets, tokens) {
        return refuse("targets and tokens differ in length");
    }
    if tokens == 0 || tokens > limits.tokens {
        return refuse(format!("{tokens} tokens, not in 1..={}", limits.tokens));
    }
    Ok(())
}

fn check_tokens(plan: &StepPlan, limits: &Limits) -> Result<(), DecoderError> {
    (0..plan.slots.len()).try_for_each(|i| check_sequence(plan, i, limits))?;
    let mut rest = plan.tokens.as_slice();
    for &length in &plan.lengths {
        // Lengths are positive, and their sum is the number of tokens.
        let (own, others) = rest.split_at(length as usize);
        let known = &own[usize::from(own[0] == LAST_SAMPLED)..];
        check_range("token id", known, limits.vocab)?;
        rest = others;
    }
    let targets = plan.targets.iter().filter(|&&t| t != -1);
    check_range("target token id", targets, limits.vocab)
}

/// Checks positions and drafts of sequence `i`.
fn check_sequence(plan: &StepPlan, i: usize, limits: &Limits) -> Result<(), DecoderError> {
    let (start, length) = (i64::from(plan.starts[i]), i64::from(plan.lengths[i]));
    if start < 0 || length < 1 || start + length > limits.max_position as i64 {
        return refuse(format!(
            "sequence {i}: positions {start}..{} are outside 0..{}",
            start + length,
            limits.max_position
        ));
    }
    let drafts = plan.drafts.get(i).map_or(0, |&d| i64::from(d));
    let most = if plan.sample[i] == 0 { 0 } else { length - 1 };
    if drafts < 0 || drafts > most {
        return refuse(format!("sequence {i}: {drafts} drafts, not in 0..={most}"));
    }
    Ok(())
}

fn check_registration(
    r: &Registration,
    grammars: usize,
    limits: &Limits,
) -> Result<(), DecoderError> {
    let alternatives = usize::try_from(r.prompt_logprobs).unwrap_or(0);
    let problem = if r.slot as usize >= limits.slots {
        format!("is not under {}", limits.slots)
    } else if r.prompt_logprobs < -1 || alternatives > limits.vocab {
        let (wanted, vocab) = (r.prompt_logprobs, limits.vocab);
        format!("wants {wanted} alternatives from a vocabulary of {vocab}")
    } else if r.grammar as usize > grammars {
        format!("names grammar {}; the plan has {grammars}", r.grammar)
    } else if r.adapter != 0 {
        format!("names adapter {}; this decoder has none", r.adapter)
    } else {
        return Ok(());
    };
    refuse(format!("registered slot {} {problem}", r.slot))
}

/// Checks the updates of the block tables as far as possible without the current tables.
fn check_added(plan: &StepPlan, limits: &Limits) -> Result<(), DecoderError> {
    let offsets = &plan.added_offsets;
    let ascending = offsets.is_sorted() && offsets.first() == Some(&0);
    if !ascending || offsets.last().copied() != i32::try_from(plan.added.len()).ok() {
        let len = plan.added.len();
        return refuse(format!(
            "offsets of {len} added blocks do not ascend from 0 to {len}"
        ));
    }
    let groups = limits.groups.iter().cycle();
    for (range, group) in offsets.windows(2).zip(groups) {
        let blocks = &plan.added[range[0] as usize..range[1] as usize];
        let blocks = blocks.iter().filter(|&&b| b != -1);
        check_range("block", blocks, group.blocks)?;
    }
    Ok(())
}

pub(crate) fn check_distinct(what: &str, mut values: Vec<i32>) -> Result<(), DecoderError> {
    values.sort_unstable();
    match values.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => refuse(format!("{what} {} appears twice", pair[0])),
        None => Ok(()),
    }
}

fn check_range<'a>(
    what: &str,
    values: impl IntoIterator<Item = &'a i32>,
    limit: usize,
) -> Result<(), DecoderError> {
    let outside = |v: &&i32| usize::try_from(**v).map_or(true, |v| v >= limit);
    match values.into_iter().find(outside) {
        Some(v) => refuse(format!("{what} {v} is not in 0..{limit}")),
        None => Ok(()),
    }
}
