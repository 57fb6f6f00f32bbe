//! From the residual stream to tokens: the rows that need logits, the head, then sampling and
//! scoring of each row.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use penstock_comm::Lost;
use penstock_kernels::{ActivationFormat, Aligned, Cpu, Logprob, logprob};
use penstock_wire::{NO_TOKEN, NOT_FINITE, StepPlan, StepResult};

use crate::collectives::Collectives;
use crate::forward::Buffers;
use crate::grammars;
use crate::model::Model;
use crate::results::Results;
use crate::slots::{Slot, Slots};
use crate::step::drafts;

/// Rows that go through the head at once: bounds the logits' memory.
pub const HEAD_ROWS: usize = 32;
/// Longest that the rows of a step wait for the masks of grammars. An ordinary one is there.
const MASK_WAIT: Duration = Duration::from_millis(5);

/// One row of logits and what to do with it.
struct Row {
    /// Row of the batch.
    row: usize,
    /// Sequence in the plan.
    index: usize,
    task: Task,
}

enum Task {
    /// Draw the token of this absolute position. `draft` is the token planned there; `first` is the
    /// row of the sequence's first draft.
    Sample {
        position: u64,
        draft: Option<i32>,
        first: usize,
    },
    /// Score this prompt token, with so many alternatives.
    Score { token: u32, alternatives: usize },
}

enum Found {
    NotFinite,
    Late,
    Token(i32, Option<Logprob>),
    Score(Logprob),
}

/// Buffers of the head.
pub(crate) struct HeadBuffers {
    rows: Aligned<f32>,
    logits: Aligned<f32>,
}

impl Default for HeadBuffers {
    fn default() -> Self {
        Self {
            rows: Aligned::zeroed(0),
            logits: Aligned::zeroed(0),
        }
    }
}

/// Samples and scores what the plan asks for. Every row of a sequence with drafts is drawn as it
/// would be without; drafts count as long as they equal the drawn tokens. Only one rank of the last
/// stage has the logits; the results of the others are empty.
///
/// # Errors
/// A rank is gone.
pub(crate) fn sample_and_score(
    cpu: &Cpu,
    model: &Model,
    plan: &StepPlan,
    slots: &Slots,
    buffers: &mut Buffers,
    head: &mut HeadBuffers,
    collectives: &mut dyn Collectives,
) -> Result<StepResult, Lost> {
    let (mut results, mut until) = (Results::new(plan.slots.len()), None);
    for rows in wanted(plan, slots).chunks(HEAD_ROWS) {
        if !compute(cpu, model, rows, buffers, head, collectives)? {
            continue;
        }
        let until = *until.get_or_insert_with(|| Instant::now() + MASK_WAIT);
        let vocab = model.spec.vocab;
        let logits = &head.logits;
        let found: Vec<OnceLock<Found>> = rows.iter().map(|_| OnceLock::new()).collect();
        cpu.threads().run(rows.len(), &|i| {
            if let Some(slot) = slots.get(plan.slots[rows[i].index]) {
                let logits = &logits[i * vocab..(i + 1) * vocab];
                let hidden = &head.rows[i * model.spec.hidden..(i + 1) * model.spec.hidden];
                let finite = hidden.iter().all(|x| x.is_finite());
                // A row has one task, so the cell is empty.
                let _ = found[i].set(match &rows[i].task {
                    Task::Sample { .. } if slot.undrawn => Found::Late,
                    _ if finite => read_row(cpu, logits, &rows[i], plan, slot, until),
                    _ => Found::NotFinite,
                });
            }
        });
        for (row, found) in rows.iter().zip(found) {
            let index = row.index;
            match (found.into_inner(), &row.task) {
                (Some(Found::Token(token, scored)), Task::Sample { draft, .. }) => {
                    results.token(index, token, *draft, scored);
                }
                (Some(Found::NotFinite), Task::Sample { .. }) => {
                    results.token(index, NOT_FINITE, None, None);
                }
                (Some(Found::Late), _) => results.late(index),
                (Some(Found::Score(scored)), _) => results.score(index, scored),
                _ => {}
            }
        }
    }
    Ok(results.finish())
}

/// Rows that need logits, in plan order.
fn wanted(plan: &StepPlan, slots: &Slots) -> Vec<Row> {
    let (mut rows, mut first) = (Vec::new(), 0);
    for index in 0..plan.slots.len() {
        let length = plan.lengths[index] as usize;
        let scores = slots
            .get(plan.slots[index])
            .and_then(|s| s.prompt_logprobs)
            .filter(|_| !plan.targets.is_empty());
        if let Some(alternatives) = scores {
            for row in first..first + length {
                if let Ok(token) = u32::try_from(plan.targets[row]) {
                    let task = Task::Score {
                        token,
                        alternatives,
                    };
                    rows.push(Row { row, index, task });
                }
            }
        }
        if plan.sample[index] != 0 && slots.draws(plan.slots[index]) {
            let end = first + length;
            let drafted = end - drafts(plan, index);
            rows.extend((drafted - 1..end).map(|row| {
                let position = plan.starts[index] as u64 + (row + 1 - first) as u64;
                let draft = (row + 1 < end).then(|| plan.tokens[row + 1]);
                let task = Task::Sample {
                    position,
                    draft,
                    first: drafted,
                };
                Row { row, index, task }
            }));
        }
        first += length;
    }
    rows
}

/// Final norm and head of the chosen rows; whether this rank has their logits.
fn compute(
    cpu: &Cpu,
    model: &Model,
    rows: &[Row],
    buffers: &mut Buffers,
    head: &mut HeadBuffers,
    collectives: &mut dyn Collectives,
) -> Result<bool, Lost> {
    let Some(linear) = model.head() else {
        return Ok(false);
    };
    let hidden = model.spec.hidden;
    head.rows.ensure(rows.len() * hidden);
    head.logits.ensure(rows.len() * model.spec.vocab);
    for (i, row) in rows.iter().enumerate() {
        head.rows[i * hidden..(i + 1) * hidden]
            .copy_from_slice(&buffers.x[row.row * hidden..(row.row + 1) * hidden]);
    }
    let norm = Some(&model.final_norm);
    let form: ActivationFormat = linear.activation_format();
    cpu.norm_quantize(
        &head.rows,
        rows.len(),
        hidden,
        norm,
        form,
        &mut buffers.acts,
    );
    let cuts = &model.shard.vocab;
    let has = collectives.gather_logits(cpu, linear, &buffers.acts, cuts, &mut head.logits)?;
    if let (Some(cap), true) = (model.spec.final_softcap, has) {
        cpu.softcap(&mut head.logits[..rows.len() * model.spec.vocab], cap);
    }
    Ok(has)
}

fn read_row(
    cpu: &Cpu,
    logits: &[f32],
    row: &Row,
    plan: &StepPlan,
    slot: &Slot,
    until: Instant,
) -> Found {
    let isa = cpu.isa();
    match row.task {
        Task::Score {
            token,
            alternatives,
        } => Found::Score(logprob(isa, logits, token, alternatives)),
        Task::Sample {
            position, first, ..
        } => {
            let drafts = &plan.tokens[first..=row.row];
            let mask = match slot.mask(drafts.len(), until) {
                grammars::Found::Mask(mask) => mask,
                grammars::Found::Late => return Found::Late,
                grammars::Found::Failed => {
                    let scored = slot.logprobs.map(|k| logprob(isa, logits, 0, k));
                    return Found::Token(NO_TOKEN, scored);
                }
            };
            let token = slot
                .sampler
                .draw(isa, logits, position, drafts, mask.as_ref());
            let scored = slot.logprobs.map(|k| logprob(isa, logits, token, k));
            Found::Token(token as i32, scored)
        }
    }
}
