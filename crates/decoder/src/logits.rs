//! From the residual stream to tokens: which rows need logits, the head, and what is read off each
//! row.

use penstock_comm::Lost;
use penstock_kernels::{ActForm, Aligned, Cpu, Logprob, argmax, logprob, sample};

use crate::collectives::Collectives;
use crate::forward::Buffers;
use crate::model::Model;
use crate::step::{Registration, StepOutput, StepPlan};

/// Rows that go through the head at once: bounds the logits' memory.
pub(crate) const CHUNK: usize = 32;

/// One row of logits and what to do with it.
struct Row {
    /// Row of the batch.
    row: usize,
    /// Sequence in the plan.
    index: usize,
    task: Task,
}

enum Task {
    /// Draw the token of this absolute position.
    Sample { position: u64 },
    /// Score this prompt token, with so many alternatives.
    Score { token: u32, alternatives: usize },
}

enum Found {
    Token(u32, Option<Logprob>),
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

/// Samples and scores what the plan asks for. `slots[slot]` is the registration of each scheduled
/// slot. One rank of the last stage reads the logits off; what the others return is empty.
///
/// # Errors
/// A peer is gone.
pub(crate) fn read_off(
    cpu: &Cpu,
    model: &Model,
    plan: &StepPlan,
    slots: &[Option<Registration>],
    buffers: &mut Buffers,
    head: &mut HeadBuffers,
    collectives: &mut dyn Collectives,
) -> Result<StepOutput, Lost> {
    let mut output = StepOutput {
        counts: vec![0; plan.sequences()],
        ..StepOutput::default()
    };
    for rows in wanted(plan, slots).chunks(CHUNK) {
        if !compute(cpu, model, rows, buffers, head, collectives)? {
            continue;
        }
        let vocab = model.spec.vocab;
        let logits = &head.logits;
        let results: Vec<std::sync::OnceLock<Found>> =
            rows.iter().map(|_| std::sync::OnceLock::new()).collect();
        cpu.pool().run(rows.len(), &|i| {
            let slot = slots[plan.slots[rows[i].index] as usize].as_ref();
            if let Some(slot) = slot {
                // A row has one task, so the cell is empty.
                let _ = results[i].set(read_row(
                    cpu,
                    &logits[i * vocab..(i + 1) * vocab],
                    &rows[i].task,
                    slot,
                ));
            }
        });
        rows.iter()
            .zip(results)
            .for_each(|(row, found)| record(row, found.into_inner(), &mut output));
    }
    Ok(output)
}

/// Rows that need logits, in plan order.
fn wanted(plan: &StepPlan, slots: &[Option<Registration>]) -> Vec<Row> {
    let (mut rows, mut first) = (Vec::new(), 0);
    for index in 0..plan.sequences() {
        let length = plan.lengths[index] as usize;
        let scores = slots[plan.slots[index] as usize]
            .as_ref()
            .and_then(|s| s.prompt_logprobs);
        if let (Some(alternatives), false) = (scores, plan.targets.is_empty()) {
            for row in first..first + length {
                if let Ok(token) = u32::try_from(plan.targets[row]) {
                    rows.push(Row {
                        row,
                        index,
                        task: Task::Score {
                            token,
                            alternatives,
                        },
                    });
                }
            }
        }
        if plan.sample[index] != 0 {
            let position = plan.starts[index] as u64 + length as u64;
            rows.push(Row {
                row: first + length - 1,
                index,
                task: Task::Sample { position },
            });
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
    let form: ActForm = linear.act_form();
    cpu.prepare(
        &head.rows,
        rows.len(),
        hidden,
        norm,
        form,
        &mut buffers.acts,
    );
    let cuts = &model.shard.vocab;
    collectives.gather_logits(cpu, linear, &buffers.acts, cuts, &mut head.logits)
}

fn read_row(cpu: &Cpu, logits: &[f32], task: &Task, slot: &Registration) -> Found {
    let isa = cpu.isa();
    match *task {
        Task::Score {
            token,
            alternatives,
        } => Found::Score(logprob(isa, logits, token, alternatives)),
        Task::Sample { position } => {
            let greedy = slot.sampling.temperature <= 0.0;
            let token = if greedy {
                argmax(isa, logits)
            } else {
                sample(isa, logits, &slot.sampling, position)
            };
            Found::Token(token, slot.logprobs.map(|k| logprob(isa, logits, token, k)))
        }
    }
}

fn record(row: &Row, found: Option<Found>, output: &mut StepOutput) {
    match found {
        Some(Found::Token(token, scored)) => {
            output.counts[row.index] = 1;
            output.tokens.push(token as i32);
            output.logprobs.extend(scored.map(|s| (row.index, s)));
        }
        Some(Found::Score(scored)) => match output.prompt_logprobs.last_mut() {
            Some((index, scores)) if *index == row.index => scores.push(scored),
            _ => output.prompt_logprobs.push((row.index, vec![scored])),
        },
        None => {}
    }
}
