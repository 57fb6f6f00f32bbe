//! The portable GEMM tiles.

use half::f16;

use super::{Mode, Tile};
use crate::activations::bf16_value;
use crate::packed::{E2M1, GROUP, PANEL, WeightFormat, power_at, zero_at};

/// Portable kernel for any CPU.
///
/// # Safety
/// Same as for `gemm::compute`.
pub(super) unsafe fn compute(tile: &Tile<'_>) {
    for panel in tile.panels.clone() {
        for row in tile.rows.clone() {
            let product = match tile.w.form() {
                WeightFormat::W8 => w8(tile, panel, row),
                WeightFormat::W4 => w4(tile, panel, row),
                WeightFormat::S4 => s4(tile, panel, row),
                WeightFormat::Z4 => z4(tile, panel, row),
                WeightFormat::Mx4 => mx4(tile, panel, row),
                WeightFormat::Bf16 => bf16(tile, panel, row),
                WeightFormat::F32 => f32(tile, panel, row),
            };
            // SAFETY: the row and the panel are in the tile.
            unsafe { store(tile, panel, row, &product) }
        }
    }
}

/// Applies row scales and bias to one row of a panel, and stores it or adds it to the output,
/// depending on the tile's mode.
///
/// # Safety
/// Same as for `gemm::compute`; the row and the panel are in the tile.
#[inline(always)]
pub(super) unsafe fn store(tile: &Tile<'_>, panel: usize, row: usize, product: &[f32; PANEL]) {
    let offset = (row - tile.rows.start) * tile.ld + (panel - tile.panels.start) * PANEL;
    let mut product = *product;
    if let Some(scales) = tile.w.row_scales() {
        let scales = &scales[panel * PANEL..];
        product.iter_mut().zip(scales).for_each(|(p, s)| *p *= s);
    }
    for lane in 0..tile.features(panel) {
        let bias = tile.bias.map_or(0.0, |b| b[panel * PANEL + lane]);
        // SAFETY: the element is in the tile, which this call may write.
        unsafe {
            let out = tile.out.add(offset + lane);
            let value = product[lane] + bias;
            *out = if tile.mode == Mode::Add {
                *out + value
            } else {
                value
            };
        }
    }
}

#[inline(always)]
fn dot4(acc: &mut [i32; PANEL], weights: &[u8], acts: &[i8]) {
    // A sum of two u8 x i8 products overflows i16 (255 * 127 * 2), so pairs are summed in i32
    // without saturation.
    for lane in 0..PANEL {
        for b in 0..4 {
            acc[lane] += i32::from(weights[lane * 4 + b]) * i32::from(acts[b]);
        }
    }
}

#[inline(always)]
fn w8(tile: &Tile<'_>, panel: usize, row: usize) -> [f32; PANEL] {
    let (codes, scales) = (tile.w.panel(panel), tile.w.panel_scales(panel));
    let groups = tile.w.groups();
    let mut product = [0.0f32; PANEL];
    for g in 0..groups {
        let acts = &tile.acts.codes[row * tile.acts.k_padded + g * GROUP..][..GROUP];
        let mut dot = [tile.acts.offsets[row * groups + g]; PANEL];
        for j in 0..8 {
            dot4(
                &mut dot,
                &codes[g * 512 + j * 64..][..64],
                &acts[j * 4..][..4],
            );
        }
        let act_scale = tile.acts.scales[row * groups + g];
        for lane in 0..PANEL {
            let scale = f16::from_bits(scales[g * PANEL + lane]).to_f32() * act_scale;
            product[lane] = (dot[lane] as f32).mul_add(scale, product[lane]);
        }
    }
    product
}

/// Dot products of one group of nibbles.
#[inline(always)]
fn dot_nibbles(acc: &mut [i32; PANEL], codes: &[u8], acts: &[i8], entry: impl Fn(u8) -> u8) {
    for (j, packed) in codes.chunks_exact(64).enumerate() {
        let (mut low, mut high) = ([0u8; 64], [0u8; 64]);
        for i in 0..64 {
            low[i] = entry(packed[i] & 15);
            high[i] = entry(packed[i] >> 4);
        }
        dot4(acc, &low, &acts[j * 4..][..4]);
        dot4(acc, &high, &acts[j * 4 + 16..][..4]);
    }
}

/// Nibbles without minima: `entry` decodes a nibble; `scale` and `zero` give the scale and the
/// entry of weight 0 for a group and a lane.
#[inline(always)]
fn nibbles(
    tile: &Tile<'_>,
    panel: usize,
    row: usize,
    entry: impl Fn(u8) -> u8,
    scale: impl Fn(&[u16], usize, usize) -> f32,
    zero: impl Fn(&[u16], usize, usize) -> u8,
) -> [f32; PANEL] {
    let (codes, scales) = (tile.w.panel(panel), tile.w.panel_scales(panel));
    let groups = tile.w.groups();
    let mut product = [0.0f32; PANEL];
    for g in 0..groups {
        let acts = &tile.acts.codes[row * tile.acts.k_padded + g * GROUP..][..GROUP];
        // `offsets` has -128 times the sum of the activation codes; a lane needs minus its zero
        // times the sum.
        let sum = tile.acts.offsets[row * groups + g] >> 7;
        let mut dot = std::array::from_fn(|lane| sum * i32::from(zero(scales, g, lane)));
        dot_nibbles(&mut dot, &codes[g * 256..][..256], acts, &entry);
        let act_scale = tile.acts.scales[row * groups + g];
        for lane in 0..PANEL {
            let scale = scale(scales, g, lane) * act_scale;
            product[lane] = (dot[lane] as f32).mul_add(scale, product[lane]);
        }
    }
    product
}

#[inline(always)]
fn s4(tile: &Tile<'_>, panel: usize, row: usize) -> [f32; PANEL] {
    let scale = half_scale(WeightFormat::S4);
    nibbles(tile, panel, row, |code| code, scale, |_, _, _| 8)
}

#[inline(always)]
fn z4(tile: &Tile<'_>, panel: usize, row: usize) -> [f32; PANEL] {
    let scale = half_scale(WeightFormat::Z4);
    nibbles(tile, panel, row, |code| code, scale, zero_at)
}

#[inline(always)]
fn mx4(tile: &Tile<'_>, panel: usize, row: usize) -> [f32; PANEL] {
    let entry = |code: u8| E2M1[usize::from(code)];
    nibbles(tile, panel, row, entry, power_at, |_, _, _| 12)
}

/// The f16 scale of a group and a lane.
#[inline(always)]
fn half_scale(form: WeightFormat) -> impl Fn(&[u16], usize, usize) -> f32 {
    let words = form.scales_per_group();
    move |scales, g, lane| f16::from_bits(scales[g * words + lane]).to_f32()
}

#[inline(always)]
fn w4(tile: &Tile<'_>, panel: usize, row: usize) -> [f32; PANEL] {
    let (codes, scales) = (tile.w.panel(panel), tile.w.panel_scales(panel));
    let groups = tile.w.groups();
    let mut product = [0.0f32; PANEL];
    for g in 0..groups {
        let acts = &tile.acts.codes[row * tile.acts.k_padded + g * GROUP..][..GROUP];
        let mut dot = [0i32; PANEL];
        dot_nibbles(&mut dot, &codes[g * 256..][..256], acts, |code| code);
        let (act_scale, act_sum) = (
            tile.acts.scales[row * groups + g],
            tile.acts.scaled_sums[row * groups + g],
        );
        for lane in 0..PANEL {
            let scale = f16::from_bits(scales[g * 2 * PANEL + lane]).to_f32() * act_scale;
            let min = f16::from_bits(scales[g * 2 * PANEL + PANEL + lane]).to_f32();
            product[lane] = min.mul_add(act_sum, (dot[lane] as f32).mul_add(scale, product[lane]));
        }
    }
    product
}

#[inline(always)]
fn bf16(tile: &Tile<'_>, panel: usize, row: usize) -> [f32; PANEL] {
    let weights = tile.w.panel(panel);
    let acts = &tile.acts.halves[row * tile.acts.k_padded..][..tile.acts.k_padded];
    let mut product = [0.0f32; PANEL];
    for (pair, acts) in weights.chunks_exact(4 * PANEL).zip(acts.chunks_exact(2)) {
        let (a0, a1) = (bf16_value(acts[0]), bf16_value(acts[1]));
        for lane in 0..PANEL {
            let at = lane * 4;
            let w0 = bf16_value(u16::from_le_bytes([pair[at], pair[at + 1]]));
            let w1 = bf16_value(u16::from_le_bytes([pair[at + 2], pair[at + 3]]));
            product[lane] = w1.mul_add(a1, w0.mul_add(a0, product[lane]));
        }
    }
    product
}

#[inline(always)]
fn f32(tile: &Tile<'_>, panel: usize, row: usize) -> [f32; PANEL] {
    let weights = tile.w.panel(panel);
    let acts = &tile.acts.floats[row * tile.acts.k_padded..][..tile.acts.k_padded];
    let mut product = [0.0f32; PANEL];
    for (step, &a) in weights.chunks_exact(4 * PANEL).zip(acts) {
        for lane in 0..PANEL {
            let at = lane * 4;
            let w = f32::from_le_bytes([step[at], step[at + 1], step[at + 2], step[at + 3]]);
            product[lane] = w.mul_add(a, product[lane]);
        }
    }
    product
}
