//! Integer tiles on AVX-512 VNNI.
//!
//! `vpdpbusd` multiplies unsigned with signed bytes: weights are the unsigned side, activations are broadcast as the signed one. A tile keeps
//! up to 3 rows x 4 panels of integer and of f32 sums in registers. With many rows the nibbles of `W4` are spread into bytes once for the whole
//! tile; with few they are spread on the way.

use std::arch::x86_64::*;
use std::cell::RefCell;

use super::{Mode, Tile};
use crate::buffer::Aligned;
use crate::packed::{GROUP, PANEL};

/// Rows from which spreading the nibbles into a buffer pays.
const SPREAD_ROWS: usize = 8;
/// Rows and panels of one register tile.
const ROWS: usize = 3;
const PANELS: usize = 4;

/// Where a register tile finds its weights.
const BYTES: u8 = 0;
const NIBBLES: u8 = 1;
const SPREAD: u8 = 2;

thread_local! {
    static SPREAD_BUFFER: RefCell<Aligned<u8>> = RefCell::new(Aligned::zeroed(0));
}

/// # Safety
/// As `gemm::compute`; the CPU has AVX-512 with VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
pub(super) unsafe fn w8(tile: &Tile<'_>) {
    for (panel, count) in blocks(tile.panels.clone(), PANELS) {
        let codes = tile.w.panel(panel);
        // SAFETY: the caller's promises.
        unsafe { rows::<BYTES>(tile, panel, count, codes.as_ptr(), codes.len()) }
    }
}

/// # Safety
/// As `gemm::compute`; the CPU has AVX-512 with VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
pub(super) unsafe fn w4(tile: &Tile<'_>) {
    for (panel, count) in blocks(tile.panels.clone(), PANELS) {
        let codes = tile.w.panel(panel);
        if tile.rows.len() < SPREAD_ROWS {
            // SAFETY: the caller's promises.
            unsafe { rows::<NIBBLES>(tile, panel, count, codes.as_ptr(), codes.len()) }
            continue;
        }
        SPREAD_BUFFER.with_borrow_mut(|buffer| {
            let bytes = 2 * codes.len();
            buffer.ensure(count * bytes);
            for i in 0..count {
                // SAFETY: the CPU has AVX-512; the buffer has room for `count` spread panels.
                unsafe { spread(tile.w.panel(panel + i), &mut buffer[i * bytes..(i + 1) * bytes]) }
            }
            // SAFETY: the caller's promises.
            unsafe { rows::<SPREAD>(tile, panel, count, buffer.as_ptr(), bytes) }
        });
    }
}

/// Cuts a range into (start, count <= size).
fn blocks(range: std::ops::Range<usize>, size: usize) -> impl Iterator<Item = (usize, usize)> {
    let end = range.end;
    range.step_by(size).map(move |start| (start, size.min(end - start)))
}

/// Nibbles to bytes, in the order of a `W8` panel.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn spread(codes: &[u8], out: &mut [u8]) {
    assert_eq!(out.len(), 2 * codes.len());
    let mask = _mm512_set1_epi8(15);
    for (group, out) in codes.chunks_exact(256).zip(out.chunks_exact_mut(512)) {
        for j in 0..4 {
            // SAFETY: j * 64 + 64 <= 256 and (j + 4) * 64 + 64 <= 512.
            unsafe {
                let packed = _mm512_loadu_si512(group.as_ptr().add(j * 64).cast());
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), mask);
                _mm512_storeu_si512(out.as_mut_ptr().add(j * 64).cast(), _mm512_and_si512(packed, mask));
                _mm512_storeu_si512(out.as_mut_ptr().add((j + 4) * 64).cast(), high);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
unsafe fn rows<const SOURCE: u8>(tile: &Tile<'_>, panel: usize, count: usize, codes: *const u8, stride: usize) {
    for (row, height) in blocks(tile.rows.clone(), ROWS) {
        // SAFETY: rows and panels lie in the tile; `codes` holds `count` panels, `stride` bytes apart.
        unsafe {
            match (height, count) {
                (3, 4) => registers::<SOURCE, 3, 4>(tile, panel, row, codes, stride),
                (3, 3) => registers::<SOURCE, 3, 3>(tile, panel, row, codes, stride),
                (3, 2) => registers::<SOURCE, 3, 2>(tile, panel, row, codes, stride),
                (3, _) => registers::<SOURCE, 3, 1>(tile, panel, row, codes, stride),
                (2, 4) => registers::<SOURCE, 2, 4>(tile, panel, row, codes, stride),
                (2, 3) => registers::<SOURCE, 2, 3>(tile, panel, row, codes, stride),
                (2, 2) => registers::<SOURCE, 2, 2>(tile, panel, row, codes, stride),
                (2, _) => registers::<SOURCE, 2, 1>(tile, panel, row, codes, stride),
                (_, 4) => registers::<SOURCE, 1, 4>(tile, panel, row, codes, stride),
                (_, 3) => registers::<SOURCE, 1, 3>(tile, panel, row, codes, stride),
                (_, 2) => registers::<SOURCE, 1, 2>(tile, panel, row, codes, stride),
                _ => registers::<SOURCE, 1, 1>(tile, panel, row, codes, stride),
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
unsafe fn registers<const SOURCE: u8, const M: usize, const N: usize>(
    tile: &Tile<'_>,
    panel: usize,
    row: usize,
    codes: *const u8,
    stride: usize,
) {
    let groups = tile.w.groups();
    let acts = tile.acts;
    let affine = SOURCE != BYTES;
    let scale_step = if affine { 2 * PANEL } else { PANEL };
    let scales = tile.w.panel_scales(panel).as_ptr();
    let scale_stride = scale_step * groups;
    let mut sums = [[_mm512_setzero_ps(); N]; M];
    // SAFETY: all offsets stay inside the panels, the activations' rows and their groups, whose shapes `Tile::check` compared.
    unsafe {
        let act_codes = acts.codes.as_ptr().add(row * acts.k_padded);
        for g in 0..groups {
            let mut dots = [[_mm512_setzero_si512(); N]; M];
            if !affine {
                for (m, dots) in dots.iter_mut().enumerate() {
                    *dots = [_mm512_set1_epi32(*acts.offsets.as_ptr().add((row + m) * groups + g)); N];
                }
            }
            let broadcast = |m: usize, j: usize| {
                _mm512_set1_epi32(act_codes.add(m * acts.k_padded + g * GROUP + j * 4).cast::<i32>().read_unaligned())
            };
            if SOURCE == NIBBLES {
                let mask = _mm512_set1_epi8(15);
                for j in 0..4 {
                    let mut low = [_mm512_setzero_si512(); N];
                    let mut high = low;
                    for n in 0..N {
                        let packed = _mm512_loadu_si512(codes.add(n * stride + g * 256 + j * 64).cast());
                        low[n] = _mm512_and_si512(packed, mask);
                        high[n] = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), mask);
                    }
                    for m in 0..M {
                        let (a, b) = (broadcast(m, j), broadcast(m, j + 4));
                        for n in 0..N {
                            dots[m][n] = _mm512_dpbusd_epi32(dots[m][n], low[n], a);
                            dots[m][n] = _mm512_dpbusd_epi32(dots[m][n], high[n], b);
                        }
                    }
                }
            } else {
                for j in 0..8 {
                    let mut w = [_mm512_setzero_si512(); N];
                    for n in 0..N {
                        w[n] = _mm512_loadu_si512(codes.add(n * stride + g * 512 + j * 64).cast());
                    }
                    for m in 0..M {
                        let a = broadcast(m, j);
                        for n in 0..N {
                            dots[m][n] = _mm512_dpbusd_epi32(dots[m][n], w[n], a);
                        }
                    }
                }
            }
            for n in 0..N {
                let at = scales.add(n * scale_stride + g * scale_step);
                let scale = _mm512_cvtph_ps(_mm256_loadu_si256(at.cast()));
                for m in 0..M {
                    let act_scale = _mm512_set1_ps(*acts.scales.as_ptr().add((row + m) * groups + g));
                    sums[m][n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[m][n]), _mm512_mul_ps(scale, act_scale), sums[m][n]);
                }
                if affine {
                    let min = _mm512_cvtph_ps(_mm256_loadu_si256(at.add(PANEL).cast()));
                    for m in 0..M {
                        let act_sum = _mm512_set1_ps(*acts.scaled_sums.as_ptr().add((row + m) * groups + g));
                        sums[m][n] = _mm512_fmadd_ps(min, act_sum, sums[m][n]);
                    }
                }
            }
        }
        // A copy, because `store` indexes at run time: the sums themselves then stay in registers.
        let finished = sums;
        store(tile, panel, row, &finished);
    }
}

/// Writes a register tile, with bias and mode.
///
/// # Safety
/// As `gemm::compute`; the tile's rows from `row` and panels from `panel` on exist.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn store<const M: usize, const N: usize>(tile: &Tile<'_>, panel: usize, row: usize, sums: &[[__m512; N]; M]) {
    for n in 0..N {
        let features = tile.features(panel + n);
        let mask = ((1u32 << features) - 1) as __mmask16;
        for (m, sums) in sums.iter().enumerate() {
            // SAFETY: the masked lanes are elements of the tile (and of the bias).
            unsafe {
                let out = tile.out.add((row + m - tile.rows.start) * tile.ld + (panel + n - tile.panels.start) * PANEL);
                let mut value = sums[n];
                if let Some(bias) = tile.bias {
                    value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, bias.as_ptr().add((panel + n) * PANEL)));
                }
                if tile.mode == Mode::Add {
                    value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), value);
                }
                _mm512_mask_storeu_ps(out, mask, value);
            }
        }
    }
}
