//! Division of a batch's attention into tasks, shared by all layers of a step.

use std::cell::RefCell;
use std::ops::Range;

use super::split::{Call, Scratch, SoftmaxState, Stretch, finish};
use super::{AttentionMask, SPLIT, Scoring};
use crate::Cpu;
use crate::buffer::{HeadColumns, SharedHeads, SharedSlice};
use crate::kv::StepLease;

/// Query rows per task (rows x heads of the group): enough to reuse keys from the L1 cache, few
/// enough for load balance.
const TASK_ROWS: usize = 48;
/// Chunks of tasks per thread. Within a chunk, the next task's keys are prefetched.
const CHUNKS: usize = 8;

/// Heads of an attention layer, or of one rank's part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadShape {
    /// Query heads.
    pub heads: usize,
    /// Number of query heads per KV head, over all ranks.
    pub group: usize,
    /// Number of query heads of the first KV head's group that are on another rank. Nonzero if the
    /// partition over ranks splits a group.
    pub skipped: usize,
    /// Numbers per query and key head.
    pub head_dim: usize,
    /// Numbers per value head.
    pub value_dim: usize,
}

impl HeadShape {
    /// Shape with all `heads` query heads, a multiple of `kv_heads`.
    pub fn whole(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            heads,
            group: heads / kv_heads,
            skipped: 0,
            head_dim,
            value_dim: head_dim,
        }
    }

    /// Number of KV heads that these query heads read.
    pub fn kv_heads(&self) -> usize {
        (self.skipped + self.heads).div_ceil(self.group)
    }

    /// Range of the query heads that read KV head `kv`.
    pub fn queries(&self, kv: usize) -> Range<usize> {
        let from = (kv * self.group).saturating_sub(self.skipped);
        from..((kv + 1) * self.group - self.skipped).min(self.heads)
    }
}

/// One sequence's rows in the batch.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// Absolute position of its first row.
    pub start: usize,
    /// Its row range in the batch.
    pub rows: Range<usize>,
}

struct Task {
    sequence: usize,
    head: usize,
    rows: Range<usize>,
    /// For a task with a single split: the split, and the index of its result in
    /// [`AttentionPlan::partials`]. `None` = all splits.
    lone: Option<(usize, usize)>,
}

impl Task {
    /// Splits of this task, in order.
    fn splits(&self, sequence: &Sequence, seen: AttentionMask) -> Range<usize> {
        let position = |row: usize| sequence.start + row - sequence.rows.start;
        let first = seen.first(position(self.rows.start)) / SPLIT;
        match self.lone {
            None => first..position(self.rows.end - 1) / SPLIT + 1,
            Some((split, _)) => split.max(first)..split + 1,
        }
    }

    /// Keys and values of one split, starting at the first block that the task's rows attend to.
    /// Earlier blocks are not leased.
    fn stretch(&self, call: &Call<'_>, sequence: &Sequence, split: usize) -> Stretch {
        let position = |row: usize| sequence.start + row - sequence.rows.start;
        let size = call.kv.layout().block_size;
        let seen = call.scoring.seen.first(position(self.rows.start)) / size * size;
        let end = position(self.rows.end);
        Stretch {
            sequence: self.sequence,
            head: self.head,
            tokens: seen.max(split * SPLIT)..end.min((split + 1) * SPLIT),
        }
    }
}

/// The attention tasks of one step.
pub struct AttentionPlan {
    sequences: Vec<Sequence>,
    shape: HeadShape,
    tasks: Vec<Task>,
    partials: Vec<SoftmaxState>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

impl AttentionPlan {
    /// Plans the batch. If too few decode sequences are in the batch to occupy all threads, each of
    /// their splits becomes a separate task.
    pub fn new(sequences: Vec<Sequence>, shape: HeadShape, threads: usize) -> Self {
        let scarce = sequences.len() * shape.kv_heads() < 4 * threads
            && sequences.iter().all(|s| s.rows.len() == 1);
        let (mut tasks, mut partials) = (Vec::new(), 0);
        for (sequence, s) in sequences.iter().enumerate() {
            let splits = s.start / SPLIT + 1;
            for head in 0..shape.kv_heads() {
                let chunk = (TASK_ROWS / shape.queries(head).len()).max(1);
                if scarce && threads > 1 && splits > 1 {
                    tasks.extend((0..splits).map(|n| Task {
                        sequence,
                        head,
                        rows: s.rows.clone(),
                        lone: Some((n, partials + n)),
                    }));
                    partials += splits;
                    continue;
                }
                let starts = s.rows.clone().step_by(chunk);
                tasks.extend(starts.map(|row| Task {
                    sequence,
                    head,
                    rows: row..s.rows.end.min(row + chunk),
                    lone: None,
                }));
            }
        }
        // Longest tasks first, so that all threads finish at about the same time.
        tasks.sort_by_key(|t| {
            std::cmp::Reverse(
                sequences[t.sequence].start + t.rows.end - sequences[t.sequence].rows.start,
            )
        });
        Self {
            sequences,
            shape,
            tasks,
            partials: std::iter::repeat_with(SoftmaxState::default)
                .take(partials)
                .collect(),
        }
    }

    /// Computes the attention of row i of `q` over the leased keys up to the row's own position,
    /// and writes row i of each head of `out`. `q` has heads x head_dim numbers per row, with row
    /// stride `q_ld`, after rotation. The keys of all rows must be stored already. The lease has
    /// the plan's sequences in the same order. The sinks in `scoring`, if any, are one per query
    /// head.
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &mut self,
        cpu: &Cpu,
        kv: &StepLease<'_>,
        layer: usize,
        scoring: Scoring<'_>,
        q: &[f32],
        q_ld: usize,
        out: HeadColumns<'_>,
    ) {
        let dim = kv.layout().value_dim();
        let call = Call {
            isa: cpu.isa(),
            kv,
            layer,
            scoring,
        };
        let Self {
            sequences,
            shape,
            tasks,
            partials,
        } = self;
        let (out, partials) = (out.share(), SharedSlice::new(partials));
        let chunk = tasks.len().div_ceil(CHUNKS * cpu.threads().count()).max(1);
        cpu.threads().run(tasks.len().div_ceil(chunk), &|c| {
            SCRATCH.with_borrow_mut(|scratch| {
                let end = tasks.len().min((c + 1) * chunk);
                for i in c * chunk..end {
                    let task = &tasks[i];
                    let sequence = &sequences[task.sequence];
                    let layout = kv.layout();
                    scratch.reset(
                        task.rows.len() * shape.queries(task.head).len(),
                        layout.dim(),
                        dim,
                    );
                    let positions = load(scratch, shape, task, sequence, q, q_ld, layout.dim());
                    scratch.round_queries(call.isa, kv.layout().dtype);
                    let splits = task.splits(sequence, scoring.seen);
                    for split in splits.clone() {
                        let stretch = task.stretch(&call, sequence, split);
                        let ahead = match tasks[..end].get(i + 1) {
                            _ if split + 1 < splits.end => {
                                Some(task.stretch(&call, sequence, split + 1))
                            }
                            Some(next) => {
                                let sequence = &sequences[next.sequence];
                                let first = next.splits(sequence, scoring.seen).start;
                                Some(next.stretch(&call, sequence, first))
                            }
                            None => None,
                        };
                        // Prefetch for decode only: prefill reuses its keys, so they are already in
                        // the CPU cache.
                        let ahead = ahead.filter(|_| task.rows.len() == 1);
                        scratch.attend(&call, &positions, &stretch, ahead.as_ref());
                    }
                    match task.lone {
                        None => write(&scratch.state, shape, task, dim, scoring, &out),
                        // SAFETY: every single-split task has its own slot.
                        Some((_, slot)) => std::mem::swap(
                            unsafe { &mut partials.slice(slot, 1)[0] },
                            &mut scratch.state,
                        ),
                    }
                }
            });
        });
        self.merge_lone(cpu, dim, scoring, &out);
    }

    /// Merges the results of single-split tasks in ascending order, with the same arithmetic as a
    /// task that processes all splits.
    fn merge_lone(&self, cpu: &Cpu, dim: usize, scoring: Scoring<'_>, out: &SharedHeads<'_>) {
        let mut state = SoftmaxState::default();
        for task in self.tasks.iter().filter(|t| matches!(t.lone, Some((0, _)))) {
            let Some((_, slot)) = task.lone else { continue };
            let splits = self.sequences[task.sequence].start / SPLIT + 1;
            let group = self.shape.queries(task.head).len();
            state.reset(group, dim);
            for part in &self.partials[slot..slot + splits] {
                for row in 0..group {
                    if part.max[row] > f32::NEG_INFINITY {
                        state.merge(
                            cpu.isa(),
                            row,
                            dim,
                            part.max[row],
                            part.sum[row],
                            &part.values[row * dim..(row + 1) * dim],
                        );
                    }
                }
            }
            write(&state, &self.shape, task, dim, scoring, out);
        }
    }
}

/// Copies the task's queries (row by row, all heads of the group) and returns the position of each.
fn load(
    scratch: &mut Scratch,
    shape: &HeadShape,
    task: &Task,
    sequence: &Sequence,
    q: &[f32],
    q_ld: usize,
    dim: usize,
) -> Vec<usize> {
    let group = shape.queries(task.head);
    let mut positions = Vec::with_capacity(task.rows.len() * group.len());
    for row in task.rows.clone() {
        for head in group.clone() {
            let from = row * q_ld + head * shape.head_dim;
            scratch.queries[positions.len() * dim..][..shape.head_dim]
                .copy_from_slice(&q[from..from + shape.head_dim]);
            positions.push(sequence.start + row - sequence.rows.start);
        }
    }
    positions
}

fn write(
    state: &SoftmaxState,
    shape: &HeadShape,
    task: &Task,
    dim: usize,
    scoring: Scoring<'_>,
    out: &SharedHeads<'_>,
) {
    let group = shape.queries(task.head);
    let stats = state.max.iter().zip(&state.sum);
    let mut values = state.values.chunks_exact(dim).zip(stats);
    for row in task.rows.clone() {
        for head in group.clone() {
            let Some((values, (&max, &sum))) = values.next() else {
                return;
            };
            // SAFETY: a task owns its rows of its heads.
            let out = unsafe { out.slice(row, head, shape.value_dim) };
            let factor = finish(max, sum, scoring.sinks.map(|sinks| sinks[head]));
            out.iter_mut()
                .zip(values)
                .for_each(|(o, v)| *o = v * factor);
        }
    }
}
