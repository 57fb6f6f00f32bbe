//! GEMM tiles on AVX2 with FMA: one panel (two vectors of 8 features) times up to 4 rows in
//! registers, bit for bit equal to the portable kernel.
//!
//! `vpmaddubsw` multiplies unsigned by signed bytes and adds pairs into 16 bits with saturation. No
//! sum here reaches the limit of 32,767. A lane sums half of the products of a `W4` group, at most
//! `16 * 15 * 127 = 30,480`, or four products of an `Mx4` group, `4 * 24 * 127 = 12,192`. A `W8`
//! weight is split into magnitude and sign, so that a pair is at most `2 * 128 * 127 = 32,512`.

use std::arch::x86_64::*;

use super::{Tile, generic};
use crate::packed::{E2M1, GROUP, PANEL, WeightFormat};

/// Rows per register tile.
const ROWS: usize = 4;
/// Prefetch distance in bytes along a stream of weights; the fastest value in measurements with
/// weights in main memory.
const AHEAD: usize = 8192;

/// Encodings of integer weights: nibbles with minima, nibbles through a table around 12, bytes,
/// nibbles around 8, nibbles with zero points.
const NIBBLES: u8 = 0;
const TABLED: u8 = 1;
const BYTES: u8 = 2;
const CENTRED: u8 = 3;
const ZEROED: u8 = 4;

/// Sums of one register tile: rows x the two halves of a panel.
type Sums<const M: usize> = [[__m256; 2]; M];
type Dots<const M: usize> = [[__m256i; 2]; M];

/// # Safety
/// Same as for `gemm::compute`; the CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn compute(tile: &Tile<'_>) {
    for panel in tile.panels.clone() {
        for row in tile.rows.clone().step_by(ROWS) {
            // SAFETY: the rows and the panel are in the tile.
            unsafe {
                match tile.rows.end - row {
                    1 => rows::<1>(tile, panel, row),
                    2 => rows::<2>(tile, panel, row),
                    3 => rows::<3>(tile, panel, row),
                    _ => rows::<ROWS>(tile, panel, row),
                }
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<const M: usize>(tile: &Tile<'_>, panel: usize, row: usize) {
    // SAFETY: the caller's rows and panel exist; `Tile::check` compared the shapes.
    unsafe {
        let sums = match tile.w.form() {
            WeightFormat::W4 => codes::<NIBBLES, M>(tile, panel, row),
            WeightFormat::S4 => codes::<CENTRED, M>(tile, panel, row),
            WeightFormat::Z4 => codes::<ZEROED, M>(tile, panel, row),
            WeightFormat::Mx4 => codes::<TABLED, M>(tile, panel, row),
            WeightFormat::W8 => codes::<BYTES, M>(tile, panel, row),
            WeightFormat::Bf16 => bf16::<M>(tile, panel, row),
            WeightFormat::F32 => f32::<M>(tile, panel, row),
        };
        for (m, sums) in sums.iter().enumerate() {
            let mut product = [0.0f32; PANEL];
            _mm256_storeu_ps(product.as_mut_ptr(), sums[0]);
            _mm256_storeu_ps(product.as_mut_ptr().add(PANEL / 2), sums[1]);
            generic::store(tile, panel, row + m, &product);
        }
    }
}

/// Integer formats: `W4` (with minima), `S4`, `Z4` (with zero points), `Mx4` and `W8`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn codes<const SOURCE: u8, const M: usize>(
    tile: &Tile<'_>,
    panel: usize,
    row: usize,
) -> Sums<M> {
    let (acts, groups) = (tile.acts, tile.w.groups());
    let (weights, scales) = (
        tile.w.panel(panel).as_ptr(),
        tile.w.panel_scales(panel).as_ptr(),
    );
    let form = tile.w.form();
    let (group_bytes, group_scales) = (form.panel_bytes(GROUP), form.scales_per_group());
    let mut sums = [[_mm256_setzero_ps(); 2]; M];
    for g in 0..groups {
        // SAFETY: a panel has `groups` groups of codes and scales; a row of activations has
        // `groups` groups of codes, scales and sums.
        unsafe {
            let (w, a) = (
                weights.add(g * group_bytes),
                acts.codes.as_ptr().add(row * acts.k_padded + g * GROUP),
            );
            let mut dots: Dots<M> = match SOURCE {
                NIBBLES | CENTRED | ZEROED => dots_w4(w, a, acts.k_padded),
                TABLED => dots_mx4(w, a, acts.k_padded),
                _ => dots_w8(w, a, acts.k_padded),
            };
            if SOURCE == CENTRED || SOURCE == TABLED {
                for (m, dots) in dots.iter_mut().enumerate() {
                    // `offsets` has -128 times the sum of the activation codes; `S4` needs -8 times
                    // the sum, `Mx4` -(8 + 4) times.
                    let offset = *acts.offsets.as_ptr().add((row + m) * groups + g);
                    let fourth = if SOURCE == TABLED { offset >> 5 } else { 0 };
                    let offset = (offset >> 4) + fourth;
                    *dots = dots.map(|dots| _mm256_add_epi32(dots, _mm256_set1_epi32(offset)));
                }
            }
            let scales = scales.add(g * group_scales);
            if SOURCE == ZEROED {
                let zeros = [0, 8].map(|at| bytes(scales.add(PANEL).cast::<u8>().add(at)));
                for (m, dots) in dots.iter_mut().enumerate() {
                    // Minus the sum of the activation codes, which fits the 16 bits of `madd`.
                    let sum = *acts.offsets.as_ptr().add((row + m) * groups + g) >> 7;
                    let sum = _mm256_set1_epi32(sum);
                    for h in 0..2 {
                        dots[h] = _mm256_add_epi32(dots[h], _mm256_madd_epi16(zeros[h], sum));
                    }
                }
            }
            if M < ROWS {
                for line in (0..group_bytes).step_by(64) {
                    _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(AHEAD + line).cast());
                }
            }
            for h in 0..2 {
                let scale = if SOURCE == TABLED {
                    powers(scales.add(h * 4).cast())
                } else {
                    halves(scales.add(h * 8))
                };
                for m in 0..M {
                    let act_scale =
                        _mm256_broadcast_ss(&*acts.scales.as_ptr().add((row + m) * groups + g));
                    sums[m][h] = _mm256_fmadd_ps(
                        _mm256_cvtepi32_ps(dots[m][h]),
                        _mm256_mul_ps(scale, act_scale),
                        sums[m][h],
                    );
                    if SOURCE == NIBBLES {
                        let act_sum = _mm256_broadcast_ss(
                            &*acts.scaled_sums.as_ptr().add((row + m) * groups + g),
                        );
                        sums[m][h] =
                            _mm256_fmadd_ps(halves(scales.add(PANEL + h * 8)), act_sum, sums[m][h]);
                    }
                }
            }
        }
    }
    sums
}

/// Dot products of one group of nibbles with M rows of activations at a stride of `stride`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn dots_w4<const M: usize>(weights: *const u8, acts: *const i8, stride: usize) -> Dots<M> {
    let (mask, ones) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1));
    let mut sums = [[_mm256_setzero_si256(); 2]; M];
    for j in 0..4 {
        // SAFETY: a group has 4 steps of 64 bytes, a row 32 activations.
        unsafe {
            let packed = [load(weights.add(j * 64)), load(weights.add(j * 64 + 32))];
            for m in 0..M {
                let (a, b) = (
                    broadcast(acts.add(m * stride + j * 4)),
                    broadcast(acts.add(m * stride + j * 4 + 16)),
                );
                for h in 0..2 {
                    let low = _mm256_maddubs_epi16(_mm256_and_si256(packed[h], mask), a);
                    let high = _mm256_maddubs_epi16(
                        _mm256_and_si256(_mm256_srli_epi16::<4>(packed[h]), mask),
                        b,
                    );
                    sums[m][h] = _mm256_add_epi16(sums[m][h], _mm256_add_epi16(low, high));
                }
            }
        }
    }
    for sum in sums.as_flattened_mut() {
        *sum = _mm256_madd_epi16(*sum, ones);
    }
    sums
}

/// Like [`dots_w4`], but decodes nibbles with [`E2M1`]. A 16-bit lane holds at most four products.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn dots_mx4<const M: usize>(weights: *const u8, acts: *const i8, stride: usize) -> Dots<M> {
    let (mask, ones) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1));
    // SAFETY: the table has 16 bytes.
    let table = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(E2M1.as_ptr().cast()) });
    let mut sums = [[_mm256_setzero_si256(); 2]; M];
    for j in 0..4 {
        // SAFETY: a group has 4 steps of 64 bytes, a row 32 activations.
        unsafe {
            for h in 0..2 {
                let packed = load(weights.add(j * 64 + h * 32));
                let low = _mm256_shuffle_epi8(table, _mm256_and_si256(packed, mask));
                let high = _mm256_and_si256(_mm256_srli_epi16::<4>(packed), mask);
                let high = _mm256_shuffle_epi8(table, high);
                for m in 0..M {
                    let (a, b) = (
                        broadcast(acts.add(m * stride + j * 4)),
                        broadcast(acts.add(m * stride + j * 4 + 16)),
                    );
                    let pairs = _mm256_add_epi16(
                        _mm256_maddubs_epi16(low, a),
                        _mm256_maddubs_epi16(high, b),
                    );
                    sums[m][h] = _mm256_add_epi32(sums[m][h], _mm256_madd_epi16(pairs, ones));
                }
            }
        }
    }
    sums
}

/// Dot products of one group of bytes with M rows of activations at a stride of `stride`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn dots_w8<const M: usize>(weights: *const u8, acts: *const i8, stride: usize) -> Dots<M> {
    let (flip, ones) = (_mm256_set1_epi8(-128), _mm256_set1_epi16(1));
    let mut sums = [[_mm256_setzero_si256(); 2]; M];
    for j in 0..8 {
        // SAFETY: a group has 8 steps of 64 bytes, a row 32 activations.
        unsafe {
            let signed = [
                _mm256_xor_si256(load(weights.add(j * 64)), flip),
                _mm256_xor_si256(load(weights.add(j * 64 + 32)), flip),
            ];
            for m in 0..M {
                let a = broadcast(acts.add(m * stride + j * 4));
                for h in 0..2 {
                    let pairs = _mm256_maddubs_epi16(
                        _mm256_abs_epi8(signed[h]),
                        _mm256_sign_epi8(a, signed[h]),
                    );
                    sums[m][h] = _mm256_add_epi32(sums[m][h], _mm256_madd_epi16(pairs, ones));
                }
            }
        }
    }
    sums
}

#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn bf16<const M: usize>(tile: &Tile<'_>, panel: usize, row: usize) -> Sums<M> {
    let (weights, k) = (tile.w.panel(panel).as_ptr(), tile.acts.k_padded);
    let second = _mm256_set1_epi32(0xffff_0000_u32 as i32);
    let mut sums = [[_mm256_setzero_ps(); 2]; M];
    for step in 0..k / 2 {
        // SAFETY: a panel has k / 2 steps of 64 bytes, a row k activations.
        unsafe {
            let pairs = [
                load(weights.add(step * 64)),
                load(weights.add(step * 64 + 32)),
            ];
            for m in 0..M {
                let a = broadcast(
                    tile.acts
                        .halves
                        .as_ptr()
                        .add((row + m) * k + 2 * step)
                        .cast(),
                );
                let (a0, a1) = (_mm256_slli_epi32::<16>(a), _mm256_and_si256(a, second));
                for h in 0..2 {
                    let (w0, w1) = (
                        _mm256_slli_epi32::<16>(pairs[h]),
                        _mm256_and_si256(pairs[h], second),
                    );
                    sums[m][h] = _mm256_fmadd_ps(
                        _mm256_castsi256_ps(w0),
                        _mm256_castsi256_ps(a0),
                        sums[m][h],
                    );
                    sums[m][h] = _mm256_fmadd_ps(
                        _mm256_castsi256_ps(w1),
                        _mm256_castsi256_ps(a1),
                        sums[m][h],
                    );
                }
            }
        }
    }
    sums
}

#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn f32<const M: usize>(tile: &Tile<'_>, panel: usize, row: usize) -> Sums<M> {
    let (weights, k) = (
        tile.w.panel(panel).as_ptr().cast::<f32>(),
        tile.acts.k_padded,
    );
    let mut sums = [[_mm256_setzero_ps(); 2]; M];
    for step in 0..k {
        // SAFETY: a panel has k steps of 16 weights, a row k activations.
        unsafe {
            let w = [
                _mm256_loadu_ps(weights.add(step * PANEL)),
                _mm256_loadu_ps(weights.add(step * PANEL + PANEL / 2)),
            ];
            for m in 0..M {
                let a = _mm256_broadcast_ss(&*tile.acts.floats.as_ptr().add((row + m) * k + step));
                for h in 0..2 {
                    sums[m][h] = _mm256_fmadd_ps(w[h], a, sums[m][h]);
                }
            }
        }
    }
    sums
}

/// # Safety
/// `bytes` points to 32 readable bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(bytes: *const u8) -> __m256i {
    // SAFETY: the caller guarantees 32 readable bytes.
    unsafe { _mm256_loadu_si256(bytes.cast()) }
}

/// # Safety
/// `bytes` points to 4 readable bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn broadcast(bytes: *const i8) -> __m256i {
    // SAFETY: the caller guarantees 4 readable bytes.
    _mm256_set1_epi32(unsafe { bytes.cast::<i32>().read_unaligned() })
}

/// # Safety
/// `exponents` points to 8 readable exponents.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn powers(exponents: *const u8) -> __m256 {
    // SAFETY: the caller guarantees 8 readable exponents.
    let exponents = unsafe { bytes(exponents) };
    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponents))
}

/// Zero-extends 8 bytes to 32 bits each.
///
/// # Safety
/// `bytes` points to 8 readable bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn bytes(bytes: *const u8) -> __m256i {
    // SAFETY: the caller guarantees 8 readable bytes.
    _mm256_cvtepu8_epi32(unsafe { _mm_loadl_epi64(bytes.cast()) })
}

/// # Safety
/// `numbers` points to 8 readable f16 numbers.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn halves(numbers: *const u16) -> __m256 {
    // SAFETY: the caller guarantees 8 readable numbers.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(numbers.cast()) })
}
