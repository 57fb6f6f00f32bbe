//! Block scales of matrices stored as 8-bit floats: one per 128 x 128 block, in a separate tensor.

use penstock_checkpoint::{DType, ReadAhead, TensorView};

use crate::error::{DecoderError, not_finite, shape};

/// Rows and columns of a block.
const BLOCK: usize = 128;

/// Block scales of a matrix of 8-bit floats: a stored value times its block's scale is the weight.
pub(crate) struct BlockScales {
    scales: Vec<f32>,
    per_row: usize,
}

impl BlockScales {
    /// Reads the scales of `view` from the tensor `name`.
    pub(crate) fn read(
        tensors: &ReadAhead<'_>,
        view: &TensorView<'_>,
        name: &str,
    ) -> Result<Self, DecoderError> {
        let (stored, size) = (tensors.tensor(name)?, |n: usize| n.div_ceil(BLOCK));
        let expected: Vec<usize> = view.shape.iter().map(|&n| size(n)).collect();
        if stored.dtype != DType::F32 || view.shape.len() != 2 || stored.shape != expected {
            return Err(shape(&stored, expected));
        }
        let mut scales = vec![0.0; stored.rows() * stored.cols()];
        let each = scales.chunks_exact_mut(stored.cols()).enumerate();
        each.for_each(|(row, out)| stored.dequantize_row(row, out));
        let per_row = stored.cols();
        if let Some(row) = scales.chunks(per_row).position(|row| !finite(row)) {
            return Err(not_finite(&stored, row));
        }
        Ok(Self { scales, per_row })
    }

    /// Multiplies a whole row by its scales.
    pub(crate) fn apply(&self, row: usize, numbers: &mut [f32]) {
        let scales = &self.scales[row / BLOCK * self.per_row..];
        for (numbers, scale) in numbers.chunks_mut(BLOCK).zip(scales) {
            numbers.iter_mut().for_each(|x| *x *= scale);
        }
    }
}

/// Whether all values are finite. Branch-free: adding one to the exponent carries into the sign bit
/// only if the exponent is all ones (infinity or NaN).
pub(crate) fn finite(values: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    const LAST: u32 = 0x0080_0000;
    let carried = values
        .iter()
        .fold(0, |all, v| all | ((v.to_bits() & EXPONENT) + LAST));
    carried >> 31 == 0
}
