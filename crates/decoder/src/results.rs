//! The result of a step while it grows.

use penstock_kernels::Logprob;
use penstock_wire::{LATE_MASK, LogprobRow, LogprobTable, StepResult};

pub(crate) struct Results {
    result: StepResult,
    /// Whether a sequence's next drawn token counts: all drafts before it were right.
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

    /// Takes the token drawn for sequence `index`, in the order of its rows; `draft` is the one
    /// that was planned there.
    pub(crate) fn token(
        &mut self,
        index: usize,
        token: i32,
        draft: Option<i32>,
        scored: Option<Logprob>,
    ) {
        if !self.open[index] {
            return;
        }
        self.open[index] = draft == Some(token);
        self.result.counts[index] += 1;
        self.result.tokens.push(token);
        if let Some(scored) = scored {
            push(&mut self.result.logprobs, index, scored);
        }
    }

    /// Takes note that a row of sequence `index` was not drawn. After others that were, it is as if
    /// their drafts had been wrong.
    pub(crate) fn late(&mut self, index: usize) {
        if self.result.counts[index] == 0 {
            self.token(index, LATE_MASK, None, None);
        }
        self.open[index] = false;
    }

    /// Takes the score of a prompt token.
    pub(crate) fn score(&mut self, index: usize, scored: Logprob) {
        push(&mut self.result.prompt_logprobs, index, scored);
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
