//! Packed weight matrices in the layout of the kernels.
//!
//! A matrix of `n` output features and `k` input features is cut into panels of 16 output features.
//! `k` is padded to a multiple of 32 with zero weights. One panel holds, per group of 32 inputs
//! (`W4`, `S4`, `Z4`, `Mx4`, `W8`) or for all inputs (`Bf16`, `F32`):
//!
//! ```text
//! W8    codes   [group][k/4 = 8][feature 16][4] u8, weight + 128
//!       scales  [group][16] f16
//! W4    codes   [group][4][feature 16][4] u8: step j in low nibbles, step j + 4 in high ones
//!       scales  [group][16 scale, 16 min] f16
//! S4    codes   as W4
//!       scales  [group][16] f16
//! Z4    codes   as W4
//!       scales  [group][16 scale f16, 16 zero point u8]
//! Mx4   codes   as W4, with codes as indices into `E2M1`
//!       scales  [group][16] u8, the exponent bits of an f32
//! Bf16  [k/2][feature 16][2] bf16
//! F32   [k][feature 16] f32
//! ```
//!
//! One vector load thus covers 16 features times the 4 (8-bit) or 2 (bf16) inputs of one
//! dot-product instruction; the activations are broadcast. A weight is `scale * code + min` (`W4`),
//! `scale * (code - 8)` (`S4`), `scale * (code - zero point)` (`Z4`), `scale * (code - 128)` (`W8`)
//! or `scale * (entry - 12)` (`Mx4`).

use half::{bf16, f16};

use crate::buffer::{Aligned, SharedSlice};
use crate::threads::ThreadPool;

/// Output features per panel.
pub const PANEL: usize = 16;
/// Number of inputs that share a scale.
pub const GROUP: usize = 32;

/// Number format of weights in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightFormat {
    /// 4-bit codes with an f16 scale and minimum per 32 inputs.
    W4,
    /// 4-bit codes around 8 with an f16 scale per 32 inputs.
    S4,
    /// 4-bit codes with an f16 scale and a zero point, 0 to 15, per 32 inputs.
    Z4,
    /// 4-bit floating point (OCP Microscaling's E2M1) with a power-of-two scale per 32 inputs.
    Mx4,
    /// 8-bit codes with an f16 scale per 32 inputs.
    W8,
    Bf16,
    F32,
}

impl WeightFormat {
    /// Spelling in logs and in the cache identity.
    pub fn name(self) -> &'static str {
        match self {
            Self::W4 => "w4",
            Self::S4 => "s4",
            Self::Z4 => "z4",
            Self::Mx4 => "mx4",
            Self::W8 => "w8",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }

    /// Bytes of one panel's codes for `k` padded inputs.
    pub(crate) fn panel_bytes(self, k: usize) -> usize {
        PANEL * k * self.bits() / 8
    }

    /// Number of 16-bit words for the scales (and minima or zero points) of one group in one panel.
    pub(crate) fn scales_per_group(self) -> usize {
        match self {
            Self::W4 => 2 * PANEL,
            Self::Z4 => PANEL + PANEL / 2,
            Self::S4 | Self::W8 => PANEL,
            Self::Mx4 => PANEL / 2,
            Self::Bf16 | Self::F32 => 0,
        }
    }

    fn bits(self) -> usize {
        match self {
            Self::W4 | Self::S4 | Self::Z4 | Self::Mx4 => 4,
            Self::W8 => 8,
            Self::Bf16 => 16,
            Self::F32 => 32,
        }
    }
}

/// Codes of one output feature's weights. A file that is already quantised in groups of 32 supplies
/// its codes directly, without a second rounding.
pub struct GroupRow {
    /// `k` codes: 0..=15 for the 4-bit forms, weight + 128 for `W8`.
    pub codes: Vec<u8>,
    /// One scale per 32 inputs.
    pub scales: Vec<f32>,
    /// One number per 32 inputs: the minimum (`W4`) or the zero point, an integer from 0 to 15
    /// (`Z4`).
    pub mins: Vec<f32>,
}

impl GroupRow {
    /// Zeros for `k` inputs (a multiple of 32).
    pub fn new(k: usize) -> Self {
        Self {
            codes: vec![0; k],
            scales: vec![0.0; k / GROUP],
            mins: vec![0.0; k / GROUP],
        }
    }

    /// Quantises weights to `form`. `W8`: scale = absolute maximum / 127. `S4`: scale = the number
    /// with the largest magnitude / -8. `W4`: 15 steps from minimum to maximum. `Z4`: 15 steps from
    /// the minimum, or 0 if all are positive, to the maximum, or 0 if all are negative. `Mx4`: a
    /// power of two. Scales are rounded to f16 before the codes are computed, so that codes match
    /// the stored scales.
    pub fn quantize(&mut self, form: WeightFormat, weights: &[f32]) {
        for (g, group) in weights.chunks(GROUP).enumerate() {
            let codes = &mut self.codes[g * GROUP..g * GROUP + group.len()];
            let (scale, min) = match form {
                WeightFormat::W8 => symmetric(group, codes),
                WeightFormat::S4 => centred(group, codes),
                WeightFormat::Z4 => zero_pointed(group, codes),
                WeightFormat::Mx4 => (microscaled(group, codes), 0.0),
                _ => affine(group, codes),
            };
            self.scales[g] = scale;
            self.mins[g] = min;
        }
    }
}

fn symmetric(group: &[f32], codes: &mut [u8]) -> (f32, f32) {
    let max = group.iter().fold(0.0f32, |m, w| m.max(w.abs()));
    let scale = f16::from_f32(max / 127.0).to_f32();
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    for (code, weight) in codes.iter_mut().zip(group) {
        *code = ((weight * inverse).round_ties_even().clamp(-127.0, 127.0) + 128.0) as u8;
    }
    (scale, 0.0)
}

fn centred(group: &[f32], codes: &mut [u8]) -> (f32, f32) {
    let farthest = group
        .iter()
        .fold(0.0f32, |far, &w| if w.abs() > far.abs() { w } else { far });
    let scale = f16::from_f32(farthest / -8.0).to_f32();
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    for (code, weight) in codes.iter_mut().zip(group) {
        *code = ((weight * inverse).round_ties_even().clamp(-8.0, 7.0) + 8.0) as u8;
    }
    (scale, 0.0)
}

fn zero_pointed(group: &[f32], codes: &mut [u8]) -> (f32, f32) {
    let (low, high) = group
        .iter()
        .fold((0.0f32, 0.0f32), |(l, h), &w| (l.min(w), h.max(w)));
    let scale = f16::from_f32((high - low) / 15.0).to_f32();
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let zero = (-low * inverse).round_ties_even().clamp(0.0, 15.0);
    for (code, weight) in codes.iter_mut().zip(group) {
        *code = (weight * inverse + zero).round_ties_even().clamp(0.0, 15.0) as u8;
    }
    (scale, zero)
}

fn affine(group: &[f32], codes: &mut [u8]) -> (f32, f32) {
    let (low, high) = group
        .iter()
        .fold((f32::MAX, f32::MIN), |(l, h), &w| (l.min(w), h.max(w)));
    let min = f16::from_f32(low).to_f32();
    let scale = f16::from_f32((high - min).max(0.0) / 15.0).to_f32();
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    for (code, weight) in codes.iter_mut().zip(group) {
        *code = ((weight - min) * inverse)
            .round_ties_even()
            .clamp(0.0, 15.0) as u8;
    }
    (scale, min)
}

/// Values of the `Mx4` codes: 12 plus twice 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
pub(crate) const E2M1: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// Scale of an `Mx4` group whose largest number is 6 times `2^exponent`: half of that power,
/// because the entries of [`E2M1`] are doubled. A scale below the smallest normal f32 is 0.
/// Exponent 128, which is NaN in files, gives infinity.
pub fn microscale(exponent: i32) -> f32 {
    let bits = if exponent > 127 {
        255
    } else {
        (exponent + 126).max(0)
    };
    f32::from_bits((bits as u32) << EXPONENT)
}

/// Bit position of an f32's exponent.
const EXPONENT: u32 = 23;

/// The scale of output feature `lane` of an `Mx4` panel in group `group`.
pub(crate) fn power_at(scales: &[u16], group: usize, lane: usize) -> f32 {
    f32::from_bits(u32::from(byte_at(scales, group * PANEL + lane)) << EXPONENT)
}

/// The zero point of output feature `lane` of a `Z4` panel in group `group`.
pub(crate) fn zero_at(scales: &[u16], group: usize, lane: usize) -> u8 {
    byte_at(scales, zero_index(group, lane))
}

/// Index of a zero point among the bytes of a `Z4` panel's scales.
fn zero_index(group: usize, lane: usize) -> usize {
    2 * (group * WeightFormat::Z4.scales_per_group() + PANEL) + lane
}

fn byte_at(words: &[u16], at: usize) -> u8 {
    words[at / 2].to_le_bytes()[at % 2]
}

fn set_byte(words: &mut [u16], at: usize, byte: u8) {
    let mut both = words[at / 2].to_le_bytes();
    both[at % 2] = byte;
    words[at / 2] = u16::from_le_bytes(both);
}

fn microscaled(group: &[f32], codes: &mut [u8]) -> f32 {
    let max = group.iter().fold(0.0f32, |m, w| m.max(w.abs()));
    let exponent = (max / 6.0).max(1e-7).log2().ceil() as i32;
    let scale = microscale(exponent);
    for (code, weight) in codes.iter_mut().zip(group) {
        let wanted = weight / scale + 12.0;
        let off = |code: &u8| (f32::from(E2M1[usize::from(*code)]) - wanted).abs();
        let nearest = (0..16u8).min_by(|a, b| off(a).total_cmp(&off(b)));
        *code = nearest.unwrap_or(0);
    }
    scale
}

/// Source of the rows of a matrix to pack.
pub trait RowSource: Sync {
    /// Writes output feature `row` as `k` f32 weights.
    fn fill_f32(&self, row: usize, out: &mut [f32]);

    /// Writes `row` as codes of `form` if the source stores exactly such codes; otherwise returns
    /// `false`.
    fn fill_groups(&self, form: WeightFormat, row: usize, out: &mut GroupRow) -> bool;

    /// A source of only these rows, with unchanged indices, if the rows are read faster together
    /// than one by one.
    fn slab(&self, _rows: std::ops::Range<usize>) -> Option<Box<dyn RowSource + '_>> {
        None
    }
}

/// A packed matrix of `n` output features x `k` inputs.
pub struct Packed {
    form: WeightFormat,
    n: usize,
    k: usize,
    k_padded: usize,
    codes: Aligned<u8>,
    scales: Aligned<u16>,
    row_scales: Option<Vec<f32>>,
}

impl Packed {
    /// Packs `source` (n output features, k inputs) on all threads of the pool.
    pub fn pack(
        pool: &ThreadPool,
        form: WeightFormat,
        n: usize,
        k: usize,
        source: &dyn RowSource,
    ) -> Self {
        let k_padded = k.next_multiple_of(GROUP);
        let panels = n.div_ceil(PANEL);
        let panel_bytes = form.panel_bytes(k_padded);
        let panel_scales = form.scales_per_group() * k_padded / GROUP;
        let mut codes = Aligned::lasting(panels * panel_bytes);
        let mut scales = Aligned::lasting(panels * panel_scales);
        let (all_codes, all_scales) = (SharedSlice::new(&mut codes), SharedSlice::new(&mut scales));
        pool.run(panels, &|panel| {
            let rows = panel * PANEL..n.min((panel + 1) * PANEL);
            let slab = source.slab(rows.clone());
            let source = slab.as_deref().unwrap_or(source);
            // SAFETY: each task writes its own panel.
            let (codes, scales) = unsafe {
                (
                    all_codes.slice(panel * panel_bytes, panel_bytes),
                    all_scales.slice(panel * panel_scales, panel_scales),
                )
            };
            match form {
                WeightFormat::Bf16 | WeightFormat::F32 => pack_floats(form, k, rows, source, codes),
                _ => pack_codes(form, k, rows, source, codes, scales),
            }
        });
        Self {
            form,
            n,
            k,
            k_padded,
            codes,
            scales,
            row_scales: None,
        }
    }

    /// Sets a scale for each output feature. Products are multiplied by it after the sum over the
    /// inputs. Codes that are exact in bf16, such as 8-bit integers and E4M3, thus stay exact with
    /// f32 scales.
    ///
    /// # Panics
    /// There is not one scale per output feature.
    #[must_use]
    pub fn with_row_scales(self, scales: Vec<f32>) -> Self {
        assert_eq!(scales.len(), self.n, "one scale per output feature");
        Self {
            row_scales: Some(scales),
            ..self
        }
    }

    pub(crate) fn row_scales(&self) -> Option<&[f32]> {
        self.row_scales.as_deref()
    }

    pub fn form(&self) -> WeightFormat {
        self.form
    }

    /// Number of output features.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Number of inputs.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Number of inputs with padding.
    pub(crate) fn k_padded(&self) -> usize {
        self.k_padded
    }

    /// Number of panels of 16 output features.
    pub(crate) fn panels(&self) -> usize {
        self.n.div_ceil(PANEL)
    }

    /// Number of groups of 32 inputs.
    pub(crate) fn groups(&self) -> usize {
        self.k_padded / GROUP
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        let row_scales = self.row_scales.as_ref().map_or(0, Vec::len);
        self.codes.len() + 2 * self.scales.len() + 4 * row_scales
    }

    /// The codes of one panel.
    pub(crate) fn panel(&self, panel: usize) -> &[u8] {
        let bytes = self.form.panel_bytes(self.k_padded);
        &self.codes[panel * bytes..(panel + 1) * bytes]
    }

    /// The scales of one panel.
    pub(crate) fn panel_scales(&self, panel: usize) -> &[u16] {
        let count = self.form.scales_per_group() * self.groups();
        &self.scales[panel * count..(panel + 1) * count]
    }

    /// Output feature `row` as `k` f32 weights, exactly as the kernels use them; with row scales,
    /// rounded to f32 once.
    pub fn row_f32(&self, row: usize, out: &mut [f32]) {
        let (codes, scales, lane) = (
            self.panel(row / PANEL),
            self.panel_scales(row / PANEL),
            row % PANEL,
        );
        for (i, weight) in out.iter_mut().enumerate().take(self.k) {
            let (g, j, b) = (i / GROUP, i % GROUP / 4, i % 4);
            let scale = |at: usize| f16::from_bits(scales[at]).to_f32();
            *weight = match self.form {
                WeightFormat::W8 => {
                    scale(g * PANEL + lane)
                        * (f32::from(codes[g * 512 + j * 64 + lane * 4 + b]) - 128.0)
                }
                WeightFormat::W4 | WeightFormat::S4 | WeightFormat::Z4 | WeightFormat::Mx4 => {
                    let byte = codes[g * 256 + (j % 4) * 64 + lane * 4 + b];
                    let code = if j < 4 { byte & 15 } else { byte >> 4 };
                    match self.form {
                        WeightFormat::Mx4 => {
                            let entry = f32::from(E2M1[usize::from(code)]) - 12.0;
                            power_at(scales, g, lane) * entry
                        }
                        WeightFormat::S4 => scale(g * PANEL + lane) * (f32::from(code) - 8.0),
                        WeightFormat::Z4 => {
                            let zero = f32::from(zero_at(scales, g, lane));
                            scale(g * self.form.scales_per_group() + lane)
                                * (f32::from(code) - zero)
                        }
                        _ => scale(g * 2 * PANEL + lane)
                            .mul_add(f32::from(code), scale(g * 2 * PANEL + PANEL + lane)),
                    }
                }
                WeightFormat::Bf16 => {
                    let at = (i / 2 * PANEL + lane) * 4 + i % 2 * 2;
                    bf16::from_le_bytes([codes[at], codes[at + 1]]).to_f32()
                }
                WeightFormat::F32 => {
                    let at = (i * PANEL + lane) * 4;
                    f32::from_le_bytes([codes[at], codes[at + 1], codes[at + 2], codes[at + 3]])
                }
            };
        }
        if let Some(scales) = &self.row_scales {
            out[..self.k].iter_mut().for_each(|w| *w *= scales[row]);
        }
    }
}

fn pack_codes(
    form: WeightFormat,
    k: usize,
    rows: std::ops::Range<usize>,
    source: &dyn RowSource,
    codes: &mut [u8],
    scales: &mut [u16],
) {
    let (mut row_codes, mut weights) = (GroupRow::new(k.next_multiple_of(GROUP)), vec![0.0; k]);
    let per_group = form.scales_per_group();
    for (lane, row) in rows.enumerate() {
        if !source.fill_groups(form, row, &mut row_codes) {
            source.fill_f32(row, &mut weights);
            row_codes.quantize(form, &weights);
        }
        for (g, group) in row_codes.codes.chunks_exact(GROUP).enumerate() {
            let (scale, min) = (row_codes.scales[g], row_codes.mins[g]);
            if form == WeightFormat::Mx4 {
                let exponent = (scale.to_bits() >> EXPONENT) as u8;
                set_byte(scales, g * PANEL + lane, exponent);
            } else {
                scales[g * per_group + lane] = f16::from_f32(scale).to_bits();
            }
            match form {
                WeightFormat::W4 => {
                    scales[g * per_group + PANEL + lane] = f16::from_f32(min).to_bits();
                }
                WeightFormat::Z4 => set_byte(scales, zero_index(g, lane), min as u8),
                _ => {}
            }
            let bytes = form.panel_bytes(GROUP);
            let out = codes[g * bytes..(g + 1) * bytes].chunks_exact_mut(4 * PANEL);
            let (first, second) = group.split_at(GROUP / 2);
            match form {
                WeightFormat::W8 => {
                    let steps = out.zip(group.chunks_exact(4));
                    steps.for_each(|(out, four)| out[lane * 4..][..4].copy_from_slice(four));
                }
                _ => {
                    let steps = first.chunks_exact(4).zip(second.chunks_exact(4));
                    for (out, (low, high)) in out.zip(steps) {
                        let out = &mut out[lane * 4..][..4];
                        (0..4).for_each(|b| out[b] = low[b] | high[b] << 4);
                    }
                }
            }
        }
    }
}

fn pack_floats(
    form: WeightFormat,
    k: usize,
    rows: std::ops::Range<usize>,
    source: &dyn RowSource,
    codes: &mut [u8],
) {
    let mut weights = vec![0.0; k];
    for (lane, row) in rows.enumerate() {
        source.fill_f32(row, &mut weights);
        for (i, &weight) in weights.iter().enumerate() {
            if form == WeightFormat::Bf16 {
                let at = (i / 2 * PANEL + lane) * 4 + i % 2 * 2;
                codes[at..at + 2].copy_from_slice(&bf16::from_f32(weight).to_le_bytes());
            } else {
                let at = (i * PANEL + lane) * 4;
                codes[at..at + 4].copy_from_slice(&weight.to_le_bytes());
            }
        }
    }
}
