//! Activations in the format that the weight format requires.

use half::bf16;

use crate::buffer::{Aligned, SharedSlice};
use crate::packed::{GROUP, WeightFormat};

/// A batch of activation rows, `m` x `k`, converted for matrix multiplication.
///
/// The buffers are reused from call to call and only grow.
pub struct Activations {
    pub(crate) kind: ActivationFormat,
    pub(crate) m: usize,
    pub(crate) k_padded: usize,
    /// Int8: codes, `m` x `k_padded`.
    pub(crate) codes: Aligned<i8>,
    /// Int8: one scale per 32 inputs.
    pub(crate) scales: Aligned<f32>,
    /// Int8: scale times the sum of the group's codes. For `W4` weights, the product adds this sum
    /// times the minimum of the weight group.
    pub(crate) scaled_sums: Aligned<f32>,
    /// Int8: -128 times the sum of the group's codes. Added to a dot product, it cancels the +128
    /// offset of `W8` codes; a fraction of it cancels the smaller offsets of `S4` and `Mx4` codes.
    /// For `Z4`, a 128th of it is multiplied by the zero point.
    pub(crate) offsets: Aligned<i32>,
    /// Bf16: values.
    pub(crate) halves: Aligned<u16>,
    /// F32: values.
    pub(crate) floats: Aligned<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationFormat {
    /// Signed 8-bit codes with one f32 scale per 32 inputs.
    Int8,
    Bf16,
    F32,
}

impl ActivationFormat {
    /// The activation format for weights of `form`.
    pub fn of(form: WeightFormat) -> Self {
        match form {
            WeightFormat::W4
            | WeightFormat::S4
            | WeightFormat::Z4
            | WeightFormat::Mx4
            | WeightFormat::W8 => Self::Int8,
            WeightFormat::Bf16 => Self::Bf16,
            WeightFormat::F32 => Self::F32,
        }
    }
}

impl Default for Activations {
    fn default() -> Self {
        Self {
            kind: ActivationFormat::F32,
            m: 0,
            k_padded: 0,
            codes: Aligned::zeroed(0),
            scales: Aligned::zeroed(0),
            scaled_sums: Aligned::zeroed(0),
            offsets: Aligned::zeroed(0),
            halves: Aligned::zeroed(0),
            floats: Aligned::zeroed(0),
        }
    }
}

impl Activations {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.m
    }

    /// Resizes the buffers for `m` rows of `k` inputs.
    pub(crate) fn reset(&mut self, kind: ActivationFormat, m: usize, k: usize) {
        let k_padded = k.next_multiple_of(GROUP);
        (self.kind, self.m, self.k_padded) = (kind, m, k_padded);
        match kind {
            ActivationFormat::Int8 => {
                self.codes.ensure(m * k_padded);
                let groups = m * k_padded / GROUP;
                self.scales.ensure(groups);
                self.scaled_sums.ensure(groups);
                self.offsets.ensure(groups);
            }
            ActivationFormat::Bf16 => self.halves.ensure(m * k_padded),
            ActivationFormat::F32 => self.floats.ensure(m * k_padded),
        }
    }
}

/// A view of [`Activations`] for parallel tasks, each of which writes its own rows.
pub(crate) struct SharedActivations<'a> {
    k_padded: usize,
    codes: SharedSlice<'a, i8>,
    scales: SharedSlice<'a, f32>,
    scaled_sums: SharedSlice<'a, f32>,
    offsets: SharedSlice<'a, i32>,
    halves: SharedSlice<'a, u16>,
    floats: SharedSlice<'a, f32>,
}

impl Activations {
    pub(crate) fn share(&mut self) -> SharedActivations<'_> {
        SharedActivations {
            k_padded: self.k_padded,
            codes: SharedSlice::new(&mut self.codes),
            scales: SharedSlice::new(&mut self.scales),
            scaled_sums: SharedSlice::new(&mut self.scaled_sums),
            offsets: SharedSlice::new(&mut self.offsets),
            halves: SharedSlice::new(&mut self.halves),
            floats: SharedSlice::new(&mut self.floats),
        }
    }
}

impl SharedActivations<'_> {
    /// Copies row `from` of `acts`, which has the same format and number of inputs, to row `to`.
    ///
    /// # Safety
    /// No other task accesses row `to`.
    pub(crate) unsafe fn copy_row(&self, to: usize, acts: &Activations, from: usize) {
        let (k, groups) = (self.k_padded, self.k_padded / GROUP);
        // SAFETY: the caller guarantees that no other task accesses row `to`.
        unsafe {
            match acts.kind {
                ActivationFormat::Int8 => {
                    copy(&self.codes, to, &acts.codes, from, k);
                    copy(&self.scales, to, &acts.scales, from, groups);
                    copy(&self.scaled_sums, to, &acts.scaled_sums, from, groups);
                    copy(&self.offsets, to, &acts.offsets, from, groups);
                }
                ActivationFormat::Bf16 => copy(&self.halves, to, &acts.halves, from, k),
                ActivationFormat::F32 => copy(&self.floats, to, &acts.floats, from, k),
            }
        }
    }
}

impl SharedActivations<'_> {
    /// Multiplies a row by `factor`. Quantised rows keep their codes; only the scales change.
    ///
    /// # Safety
    /// No other task accesses the row.
    pub(crate) unsafe fn scale_row(&self, row: usize, kind: ActivationFormat, factor: f32) {
        let (k, groups) = (self.k_padded, self.k_padded / GROUP);
        let scale = |numbers: &mut [f32]| numbers.iter_mut().for_each(|v| *v *= factor);
        // SAFETY: the caller guarantees that no other task accesses the row.
        unsafe {
            match kind {
                ActivationFormat::Int8 => {
                    scale(self.scales.slice(row * groups, groups));
                    scale(self.scaled_sums.slice(row * groups, groups));
                }
                ActivationFormat::Bf16 => {
                    for half in self.halves.slice(row * k, k) {
                        *half = bf16_bits(bf16_value(*half) * factor);
                    }
                }
                ActivationFormat::F32 => scale(self.floats.slice(row * k, k)),
            }
        }
    }
}

/// Copies row `from` of `rows`, which have `n` items each, to row `to` of `out`.
///
/// # Safety
/// No other task accesses row `to`.
unsafe fn copy<T: Copy>(out: &SharedSlice<'_, T>, to: usize, rows: &[T], from: usize, n: usize) {
    // SAFETY: the caller guarantees that no other task accesses row `to`.
    let out = unsafe { out.slice(to * n, n) };
    out.copy_from_slice(&rows[from * n..(from + 1) * n]);
}

/// Quantises one row: scale = absolute maximum / 127 for each group, codes rounded to nearest even.
///
/// If `k` is less than `32 * scales.len()`, the rest is zero-padded.
#[inline(always)]
pub(crate) fn quantize_row(
    x: &[f32],
    codes: &mut [i8],
    scales: &mut [f32],
    scaled_sums: &mut [f32],
    offsets: &mut [i32],
) {
    for g in 0..scales.len() {
        let mut group = [0.0f32; GROUP];
        let start = (g * GROUP).min(x.len());
        let end = (start + GROUP).min(x.len());
        group[..end - start].copy_from_slice(&x[start..end]);
        let mut lanes = [0.0f32; 16];
        for i in 0..16 {
            lanes[i] = group[i].abs().max(group[i + 16].abs());
        }
        let max = lanes.iter().fold(0.0f32, |m, &v| m.max(v));
        let inverse = if max > 1e-30 { 127.0 / max } else { 0.0 };
        let mut rounded = [0i32; GROUP];
        for i in 0..GROUP {
            // Adding 1.5 * 2^23 leaves the nearest-even integer in the low mantissa bits, because
            // |value| <= 127.
            rounded[i] =
                ((group[i] * inverse + 12_582_912.0).to_bits() as i32).wrapping_sub(0x4B40_0000);
        }
        let mut sum = 0;
        for i in 0..GROUP {
            codes[g * GROUP + i] = rounded[i] as i8;
            sum += rounded[i];
        }
        let scale = max / 127.0;
        scales[g] = scale;
        scaled_sums[g] = scale * sum as f32;
        offsets[g] = -128 * sum;
    }
}

/// Rounds one row to bf16, zero-padded.
#[inline(always)]
pub(crate) fn bf16_row(x: &[f32], out: &mut [u16]) {
    for (o, &v) in out.iter_mut().zip(x) {
        *o = bf16_bits(v);
    }
    let pad = x.len().min(out.len());
    out[pad..].fill(0);
}

/// Rounds to nearest even; NaN stays NaN.
#[inline(always)]
pub(crate) fn bf16_bits(v: f32) -> u16 {
    let bits = v.to_bits();
    if v.to_bits() & 0x7fff_ffff > 0x7f80_0000 {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Converts bf16 bits to f32.
#[inline(always)]
pub(crate) fn bf16_value(bits: u16) -> f32 {
    bf16::from_bits(bits).to_f32()
}
