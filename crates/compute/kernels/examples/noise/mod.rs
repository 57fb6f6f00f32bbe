//! Random weights for the examples.

use penstock_kernels::{GroupRow, RowSource, WeightFormat};

/// Pseudo-random numbers from -0.5 to 0.5.
pub(crate) struct Noise;

impl RowSource for Noise {
    fn fill_f32(&self, row: usize, out: &mut [f32]) {
        let mut state = row as u32 * 747_796_405 + 1;
        for v in out {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *v = (state >> 8) as f32 / (1u32 << 24) as f32 - 0.5;
        }
    }

    fn fill_groups(&self, _: WeightFormat, _: usize, _: &mut GroupRow) -> bool {
        false
    }
}
