//! The rows of a step that need logits, and their purpose (sampling or scoring).

use penstock_wire::StepPlan;

use crate::slots::Slots;
use crate::step::drafts;

/// One row of logits and its purpose.
pub(crate) struct Row {
    /// Row index in the batch.
    pub(crate) row: usize,
    /// Sequence index in the plan.
    pub(crate) index: usize,
    pub(crate) task: Task,
}

pub(crate) enum Task {
    /// Sample the token at this absolute position. `draft` is the plan's draft token for this
    /// position; `first` is the batch row of the sequence's first draft.
    Sample {
        position: u64,
        draft: Option<i32>,
        first: usize,
    },
    /// Compute the log-probability of this prompt token, and report `alternatives` other tokens.
    Score { token: u32, alternatives: usize },
}

/// Rows that need logits, in plan order.
pub(crate) fn wanted(plan: &StepPlan, slots: &Slots) -> Vec<Row> {
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
