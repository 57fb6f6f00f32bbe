//! Tensors of a checkpoint as rows to pack: exact codes where the file has groups of 32, f32
//! otherwise.

use std::ops::Range;

use half::f16;
use penstock_formats::{DType, TensorView, k_scale_min};
use penstock_kernels::{Form, GROUP, GroupRow, RowSource};

/// A matrix in a checkpoint.
pub(crate) struct TensorRows<'a> {
    pub(crate) view: TensorView<'a>,
    /// Head size, when rows stand in interleaved rotation order and are to be read in half-split
    /// order.
    pub(crate) interleaved: Option<usize>,
    /// The first row to read.
    pub(crate) first: usize,
    /// The columns to read; they begin with a group of 32, and end with one or with the row.
    pub(crate) columns: Range<usize>,
}

/// Row in the file of output feature `row`, when the rows of heads of size `interleaved` stand in
/// interleaved rotation order.
///
/// Half-split order puts the first items of all pairs before the second ones; interleaved order
/// keeps pairs together.
pub(crate) fn stored_row(row: usize, interleaved: Option<usize>) -> usize {
    let Some(head) = interleaved else { return row };
    let (start, i) = (row / head * head, row % head);
    start + i % (head / 2) * 2 + i / (head / 2)
}

impl TensorRows<'_> {
    fn stored(&self, row: usize) -> usize {
        stored_row(self.first + row, self.interleaved)
    }
}

impl RowSource for TensorRows<'_> {
    fn fill_f32(&self, row: usize, out: &mut [f32]) {
        if self.columns.len() == self.view.cols() {
            return self.view.dequantize_row(self.stored(row), out);
        }
        let mut whole = vec![0.0; self.view.cols()];
        self.view.dequantize_row(self.stored(row), &mut whole);
        out.copy_from_slice(&whole[self.columns.clone()]);
    }

    fn fill_groups(&self, form: Form, row: usize, out: &mut GroupRow) -> bool {
        if self.columns.len() == self.view.cols() {
            return self.whole_groups(form, row, out);
        }
        let mut whole = GroupRow::new(self.view.cols().next_multiple_of(GROUP));
        let filled = self.whole_groups(form, row, &mut whole);
        if filled {
            let first = self.columns.start / GROUP;
            let groups = first..first + out.scales.len();
            out.codes
                .copy_from_slice(&whole.codes[groups.start * GROUP..groups.end * GROUP]);
            out.scales.copy_from_slice(&whole.scales[groups.clone()]);
            out.mins.copy_from_slice(&whole.mins[groups]);
        }
        filled
    }
}

impl TensorRows<'_> {
    /// A whole row's codes, when the file has groups of 32 of this form.
    fn whole_groups(&self, form: Form, row: usize, out: &mut GroupRow) -> bool {
        let bytes = self.view.row_bytes(self.stored(row));
        match (form, self.view.dtype) {
            (Form::W8, DType::Q8_0) => bytes
                .chunks_exact(34)
                .enumerate()
                .for_each(|(g, b)| q8_0(b, g, out)),
            (Form::W4, DType::Q4_0) => bytes
                .chunks_exact(18)
                .enumerate()
                .for_each(|(g, b)| q4_0(b, g, out)),
            (Form::W4, DType::Q4_1) => bytes
                .chunks_exact(20)
                .enumerate()
                .for_each(|(g, b)| q4_1(b, g, out)),
            (Form::W4, DType::Q4K) => bytes
                .chunks_exact(144)
                .enumerate()
                .for_each(|(s, b)| q4_k(b, s, out)),
            _ => return false,
        }
        true
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Low nibbles are the first half of the codes, high ones the second.
fn nibbles(bytes: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(bytes.len());
    for ((b, l), h) in bytes.iter().zip(low).zip(high) {
        (*l, *h) = (b & 15, b >> 4);
    }
}

fn q8_0(block: &[u8], g: usize, out: &mut GroupRow) {
    out.scales[g] = half_at(block, 0);
    for (code, &q) in out.codes[g * GROUP..(g + 1) * GROUP]
        .iter_mut()
        .zip(&block[2..])
    {
        *code = q ^ 0x80;
    }
}

fn q4_0(block: &[u8], g: usize, out: &mut GroupRow) {
    out.scales[g] = half_at(block, 0);
    out.mins[g] = -8.0 * out.scales[g];
    nibbles(&block[2..], &mut out.codes[g * GROUP..(g + 1) * GROUP]);
}

fn q4_1(block: &[u8], g: usize, out: &mut GroupRow) {
    out.scales[g] = half_at(block, 0);
    out.mins[g] = half_at(block, 2);
    nibbles(&block[4..], &mut out.codes[g * GROUP..(g + 1) * GROUP]);
}

fn q4_k(block: &[u8], s: usize, out: &mut GroupRow) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let mut packed = [0u8; 12];
    packed.copy_from_slice(&block[4..16]);
    for j in 0..8 {
        let (scale, min) = k_scale_min(&packed, j);
        out.scales[s * 8 + j] = d * f32::from(scale);
        out.mins[s * 8 + j] = -dmin * f32::from(min);
    }
    for (c, bytes) in block[16..].chunks_exact(32).enumerate() {
        let at = s * 256 + c * 64;
        nibbles(bytes, &mut out.codes[at..at + 64]);
    }
}
