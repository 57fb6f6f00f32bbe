//! Incremental construction of a step's result.

use penstock_kernels::Logprob;
use penstock_wire::{LATE_MASK, LogprobRow, LogprobTable, NOT_FINITE, StepResult};

use crate::head_rows::{Row, Task};

/// Outcome of one row of logits.
pub(crate) enum RowOutcome {
    Token(i32, Option<Logprob>),
    /// The grammar mask was late: no token was sampled.
    Late,
    NotFinite,
    Score(Logprob),
}

pub(crate) struct Results {
    result: StepResult,
    /// Per sequence: whether all drafts so far were accepted, so that the next sampled token
    /// belongs to the result.
    open: Vec<bool>,
}

impl Results {
    pub(crate) fn new(sequences: usize) -> Self {
        Self {
            result: StepResult {
                counts: vec![0; sequences],
                ..StepResult::default()
            },
            open: vec![true; sequences],
        }
    }

    /// Adds the outcome of `row`. Must be called in row order.
    pub(crate) fn take(&mut self, row: &Row, found: RowOutcome) {
        let index = row.index;
        match found {
            RowOutcome::Token(token, scored) => self.token(row, token, scored),
            // Only the sequence's first row reports a late mask. In a later row, a late mask counts
            // as a rejected draft: the sequence's result ends before it.
            RowOutcome::Late => {
                if self.result.counts[index] == 0 {
                    self.token(row, LATE_MASK, None);
                }
                self.open[index] = false;
            }
            RowOutcome::NotFinite => self.token(row, NOT_FINITE, None),
            RowOutcome::Score(scored) => push(&mut self.result.prompt_logprobs, index, scored),
        }
    }

    fn token(&mut self, row: &Row, token: i32, scored: Option<Logprob>) {
        let index = row.index;
        if !self.open[index] {
            return;
        }
        let Task::Sample { draft, .. } = row.task else {
            return;
        };
        self.open[index] = draft == Some(token);
        self.result.counts[index] += 1;
        self.result.tokens.push(token);
        if let Some(scored) = scored {
            push(&mut self.result.logprobs, index, scored);
        }
    }

    pub(crate) fn finish(self) -> StepResult {
        self.result
    }
}

fn push(table: &mut LogprobTable, index: usize, scored: Logprob) {
    let row = LogprobRow {
        logprob: scored.logprob,
        rank: scored.rank,
        alternatives: scored.top,
    };
    match table.last_mut() {
        Some((last, rows)) if *last == index as u32 => rows.push(row),
        _ => table.push((index as u32, vec![row])),
    }
}
