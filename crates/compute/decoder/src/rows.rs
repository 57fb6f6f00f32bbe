//! The rows of a step's batch, one per token: their sequences, positions, and cache locations of
//! keys and values.

use penstock_kernels::{KvPosition, Sequence, StepLease};
use penstock_wire::StepPlan;

use crate::rope::Rope;

/// The sequences of a (checked) plan; their rows are consecutive.
pub(crate) fn sequences(plan: &StepPlan) -> Vec<Sequence> {
    let mut row = 0;
    let columns = plan.starts.iter().zip(&plan.lengths);
    let sequence = |(&start, &length): (&i32, &i32)| {
        row += length as usize;
        Sequence {
            start: start as usize,
            rows: row - length as usize..row,
        }
    };
    columns.map(sequence).collect()
}

/// Position of each row.
pub(crate) fn positions(sequences: &[Sequence]) -> Vec<usize> {
    let of = |s: &Sequence| s.start..s.start + s.rows.len();
    sequences.iter().flat_map(of).collect()
}

/// Writes the cosines and sines for each row's position to `cos_sin`.
pub(crate) fn angles(positions: &[usize], rope: &Rope, cos_sin: &mut [f32]) {
    for (&position, angles) in positions.iter().zip(cos_sin.chunks_exact_mut(rope.dims())) {
        rope.angles(position, angles);
    }
}

/// Cache location of each row's key and value in one KV group.
pub(crate) fn places(sequences: &[Sequence], kv: &StepLease<'_>) -> Vec<KvPosition> {
    let size = kv.layout().block_size;
    let of_sequence = |(i, s): (usize, &Sequence)| {
        let positions = s.start..s.start + s.rows.len();
        positions.map(move |position| KvPosition {
            block: kv.block(i, position / size),
            offset: position % size,
        })
    };
    sequences.iter().enumerate().flat_map(of_sequence).collect()
}
