//! From the residual stream to tokens: the output head, then sampling or scoring of each row.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use penstock_collectives::GroupError;
use penstock_kernels::{ActivationFormat, Cpu, logprob};
use penstock_structured_output::RowMask;
use penstock_wire::{NO_TOKEN, StepPlan, StepResult};

use crate::buffers::{Buffers, HeadBuffers};
use crate::collectives::Collectives;
use crate::head_rows::{Row, Task, wanted};
use crate::model::Model;
use crate::results::{Results, RowOutcome};
use crate::slots::{Slot, Slots};

/// Maximum rows per pass through the head; bounds the memory of the logits.
pub const HEAD_ROWS: usize = 32;
/// Maximum time that a step waits for late grammar masks.
const MASK_WAIT: Duration = Duration::from_millis(5);

/// Samples or scores the rows that the plan requests. Every row of a sequence with draft tokens is
/// sampled as in ordinary decode. Drafts are accepted up to the first one that differs from the
/// sampled token. Only one rank of the last stage has the logits; other ranks return empty results.
///
/// # Errors
/// A rank is lost.
pub(crate) fn sample_and_score(
    cpu: &Cpu,
    model: &Model,
    plan: &StepPlan,
    slots: &Slots,
    buffers: &mut Buffers,
    head: &mut HeadBuffers,
    collectives: &mut dyn Collectives,
) -> Result<StepResult, GroupError> {
    let (mut results, mut until) = (Results::new(plan.slots.len()), None);
    let (vocab, hidden) = (model.spec.vocab, model.spec.hidden);
    for rows in wanted(plan, slots).chunks(HEAD_ROWS) {
        if !compute(cpu, model, rows, buffers, head, collectives)? {
            continue;
        }
        let until = *until.get_or_insert_with(|| Instant::now() + MASK_WAIT);
        let found: Vec<OnceLock<RowOutcome>> = rows.iter().map(|_| OnceLock::new()).collect();
        cpu.threads().run(rows.len(), &|i| {
            let logits = &head.logits[i * vocab..(i + 1) * vocab];
            let states = &head.rows[i * hidden..(i + 1) * hidden];
            let finite = states.iter().all(|x| x.is_finite());
            let slot = slots.get(plan.slots[rows[i].index]);
            let read = slot.map(|slot| match rows[i].task {
                Task::Sample { .. } if slot.undrawn => RowOutcome::Late,
                _ if !finite => RowOutcome::NotFinite,
                Task::Sample {
                    position, first, ..
                } => {
                    let drafts = &plan.tokens[first..=rows[i].row];
                    draw(cpu, logits, position, drafts, slot, until)
                }
                Task::Score {
                    token,
                    alternatives,
                } => RowOutcome::Score(logprob(cpu.isa(), logits, token, alternatives)),
            });
            if let Some(read) = read {
                // Each row is processed once, so its cell is empty.
                let _ = found[i].set(read);
            }
        });
        for (row, found) in rows.iter().zip(found) {
            if let Some(found) = found.into_inner() {
                results.take(row, found);
            }
        }
    }
    Ok(results.finish())
}

/// Computes the final norm and the output head for `rows`. Returns true if this rank receives the
/// logits.
fn compute(
    cpu: &Cpu,
    model: &Model,
    rows: &[Row],
    buffers: &mut Buffers,
    head: &mut HeadBuffers,
    collectives: &mut dyn Collectives,
) -> Result<bool, GroupError> {
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

/// Samples the token at `position`, which follows `drafts`.
fn draw(
    cpu: &Cpu,
    logits: &[f32],
    position: u64,
    drafts: &[i32],
    slot: &Slot,
    until: Instant,
) -> RowOutcome {
    let isa = cpu.isa();
    let scored = |token| slot.logprobs.map(|k| logprob(isa, logits, token, k));
    match slot.mask(drafts.len(), until) {
        RowMask::Mask(mask) => {
            let sampler = &slot.sampler;
            let token = sampler.draw(isa, logits, position, drafts, mask.as_ref());
            RowOutcome::Token(token as i32, scored(token))
        }
        RowMask::Late => RowOutcome::Late,
        RowMask::Failed => RowOutcome::Token(NO_TOKEN, scored(0)),
    }
}
