//! Results of pooled sequences: the hidden state after the final norm (of the last token, or the
//! mean of all tokens), or its classification logits.

use penstock_kernels::Cpu;
use penstock_wire::{StepPlan, VectorTable};

use crate::model::Model;
use crate::pooled::Pooled;
use crate::slots::Slots;

/// Vectors of the sequences that the plan completes, from the residual stream `x`. The plan must
/// already be applied to the slots. A vector with a non-finite number becomes empty. Only the
/// sampling rank returns vectors.
pub(crate) fn pool(
    cpu: &Cpu,
    model: &Model,
    plan: &StepPlan,
    slots: &mut Slots,
    x: &[f32],
) -> VectorTable {
    let reads = model.head().is_some() && model.shard.rank == 0;
    let hidden = model.spec.hidden;
    let (mut vectors, mut first) = (VectorTable::new(), 0);
    let mut normed = Vec::new();
    for (index, &slot) in plan.slots.iter().enumerate() {
        let length = plan.lengths[index] as usize;
        let rows = first..first + length;
        first += length;
        let Some(pooled) = slots.pooled(slot) else {
            continue;
        };
        normed.resize(hidden, 0.0);
        let ends = plan.sample[index] != 0;
        let row = |row: usize| &x[row * hidden..(row + 1) * hidden];
        let vector = match pooled {
            _ if !reads => None,
            Pooled::Last => ends.then(|| {
                cpu.norm(row(rows.end - 1), &model.final_norm, &mut normed);
                normed.clone()
            }),
            Pooled::Mean(mean) => {
                for at in rows {
                    cpu.norm(row(at), &model.final_norm, &mut normed);
                    mean.add(&normed);
                }
                ends.then(|| mean.value(length))
            }
        };
        pooled.advance(length);
        if let Some(vector) = vector {
            let finite = vector.iter().all(|x| x.is_finite());
            let vector = if finite {
                model.labelled(vector)
            } else {
                Vec::new()
            };
            vectors.push((index as u32, vector));
        }
    }
    vectors
}
