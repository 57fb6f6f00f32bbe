//! Integer GEMM tiles on AVX-512 VNNI.
//!
//! `vpdpbusd` multiplies unsigned by signed bytes: weights are the unsigned operand, broadcast
//! activations the signed one. A tile keeps up to 3 rows x 4 panels of integer and f32 sums in
//! registers. Nibbles are unpacked to bytes in the inner loop for any number of rows:
//! unpacking runs on other execution ports than the products, and unpacked weights would double the
//! traffic from the L2 cache. Upcoming weights are prefetched from memory.

use std::arch::x86_64::*;

use super::Tile;
use super::amx;
use super::panels::{
    Ahead, BYTES, Block, CENTRED, Lookup, NIBBLES, PANELS, TABLED, ZEROED, first_dots, has_minima,
    scale_and_min, store, zero_points,
};
use crate::amx::IntegerTiles;
use crate::packed::GROUP;

/// Rows per register tile, which has up to [`PANELS`] panels.
const ROWS: usize = 3;

/// Prefetch distance in bytes along a stream of weights; the fastest value in measurements with
/// weights in main memory.
const STREAM_AHEAD: usize = 8192;

/// # Safety
/// Same as for `gemm::compute`; the CPU has AVX-512 with VNNI, and `U`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
pub(super) unsafe fn w8<U: IntegerTiles>(tile: &Tile<'_>) {
    // SAFETY: the caller upholds this function's contract, which includes the contract of `panels`.
    unsafe { panels::<BYTES, U>(tile) }
}

/// # Safety
/// Same as for `gemm::compute`; the CPU has AVX-512 with VNNI, and `U`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
pub(super) unsafe fn w4<U: IntegerTiles>(tile: &Tile<'_>) {
    // SAFETY: the caller upholds this function's contract, which includes the contract of `panels`.
    unsafe { panels::<NIBBLES, U>(tile) }
}

/// # Safety
/// Same as for `gemm::compute`; the CPU has AVX-512 with VNNI, and `U`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
pub(super) unsafe fn s4<U: IntegerTiles>(tile: &Tile<'_>) {
    // SAFETY: the caller upholds this function's contract, which includes the contract of `panels`.
    unsafe { panels::<CENTRED, U>(tile) }
}

/// # Safety
/// Same as for `gemm::compute`; the CPU has AVX-512 with VNNI, and `U`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
pub(super) unsafe fn z4<U: IntegerTiles>(tile: &Tile<'_>) {
    // SAFETY: the caller upholds this function's contract, which includes the contract of `panels`.
    unsafe { panels::<ZEROED, U>(tile) }
}

/// # Safety
/// Same as for `gemm::compute`; the CPU has AVX-512 with VNNI, and `U`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
pub(super) unsafe fn mx4<U: IntegerTiles>(tile: &Tile<'_>) {
    // SAFETY: the caller upholds this function's contract, which includes the contract of `panels`.
    unsafe { panels::<TABLED, U>(tile) }
}

/// # Safety
/// Same as for `gemm::compute`; the CPU has AVX-512 with VNNI, and `U`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
unsafe fn panels<const SOURCE: u8, U: IntegerTiles>(tile: &Tile<'_>) {
    for (panel, count) in blocks(tile.panels.clone(), width(tile)) {
        // SAFETY: the caller upholds this function's contract; the panels lie in the tile.
        unsafe {
            let block = packed(tile, panel, count);
            let first = amx::rows::<SOURCE, U>(tile, &block);
            rows::<SOURCE>(tile, &block, first);
        }
    }
}

/// Panels per block. With few rows, reading the weights from memory dominates, and prefetching one
/// stream is faster than prefetching four.
fn width(tile: &Tile<'_>) -> usize {
    if tile.rows.len() <= ROWS { 1 } else { PANELS }
}

/// The block of `count` panels from `panel` on, as stored in the matrix.
fn packed(tile: &Tile<'_>, panel: usize, count: usize) -> Block {
    let (codes, scales) = (tile.w.panel(panel), tile.w.panel_scales(panel));
    // With few rows, prefetch at a fixed distance; otherwise prefetch the whole next block.
    let distance = if tile.rows.len() <= ROWS {
        STREAM_AHEAD
    } else {
        count * codes.len()
    };
    let ahead = (
        codes.as_ptr().wrapping_add(distance),
        scales
            .as_ptr()
            .cast::<u8>()
            .wrapping_add(distance * 2 * scales.len() / codes.len()),
    );
    Block {
        panel,
        count,
        codes: codes.as_ptr(),
        stride: codes.len(),
        scales: scales.as_ptr().cast(),
        ahead,
    }
}

/// Splits a range into (start, count), with counts of at most `size`.
fn blocks(range: std::ops::Range<usize>, size: usize) -> impl Iterator<Item = (usize, usize)> {
    let end = range.end;
    range
        .step_by(size)
        .map(move |start| (start, size.min(end - start)))
}

/// Computes the rows of a tile from `first` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
unsafe fn rows<const SOURCE: u8>(tile: &Tile<'_>, block: &Block, first: usize) {
    for (row, height) in blocks(first..tile.rows.end, ROWS) {
        // SAFETY: the rows and panels are in the tile.
        unsafe {
            match (height, block.count) {
                (3, 4) => registers::<SOURCE, 3, 4>(tile, block, row),
                (3, 3) => registers::<SOURCE, 3, 3>(tile, block, row),
                (3, 2) => registers::<SOURCE, 3, 2>(tile, block, row),
                (3, _) => registers::<SOURCE, 3, 1>(tile, block, row),
                (2, 4) => registers::<SOURCE, 2, 4>(tile, block, row),
                (2, 3) => registers::<SOURCE, 2, 3>(tile, block, row),
                (2, 2) => registers::<SOURCE, 2, 2>(tile, block, row),
                (2, _) => registers::<SOURCE, 2, 1>(tile, block, row),
                (_, 4) => registers::<SOURCE, 1, 4>(tile, block, row),
                (_, 3) => registers::<SOURCE, 1, 3>(tile, block, row),
                (_, 2) => registers::<SOURCE, 1, 2>(tile, block, row),
                _ => registers::<SOURCE, 1, 1>(tile, block, row),
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
unsafe fn registers<const SOURCE: u8, const M: usize, const N: usize>(
    tile: &Tile<'_>,
    block: &Block,
    row: usize,
) {
    let (groups, acts) = (tile.w.groups(), tile.acts);
    let phase = (row - tile.rows.start) / ROWS;
    let ahead = Ahead::part(tile, block, (phase, tile.rows.len().div_ceil(ROWS)));
    let mut sums = [[_mm512_setzero_ps(); N]; M];
    // SAFETY: all offsets are inside the panels, the activation rows and their groups, whose shapes
    // `Tile::check` compared.
    unsafe {
        let act_codes = acts.codes.as_ptr().add(row * acts.k_padded);
        for g in 0..groups {
            ahead.fetch(N, g);
            let broadcast = |m: usize, j: usize| {
                _mm512_set1_epi32(
                    act_codes
                        .add(m * acts.k_padded + g * GROUP + j * 4)
                        .cast::<i32>()
                        .read_unaligned(),
                )
            };
            let mut dots = [[_mm512_setzero_si512(); N]; M];
            let mut zeros = [_mm512_setzero_si512(); N];
            for n in 0..N {
                zeros[n] = zero_points::<SOURCE>(block, n * groups + g);
            }
            for (m, dots) in dots.iter_mut().enumerate() {
                let offset = *acts.offsets.as_ptr().add((row + m) * groups + g);
                for n in 0..N {
                    dots[n] = first_dots::<SOURCE>(offset, zeros[n]);
                }
            }
            if SOURCE != BYTES {
                let lookup = Lookup::new();
                for j in 0..4 {
                    let mut low = [_mm512_setzero_si512(); N];
                    let mut high = low;
                    for n in 0..N {
                        let packed = _mm512_loadu_si512(
                            block.codes.add(n * block.stride + g * 256 + j * 64).cast(),
                        );
                        (low[n], high[n]) = lookup.nibbles::<SOURCE>(packed);
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
                        w[n] = _mm512_loadu_si512(
                            block.codes.add(n * block.stride + g * 512 + j * 64).cast(),
                        );
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
                let (scale, min) = scale_and_min::<SOURCE>(block, n * groups + g);
                for m in 0..M {
                    let at = (row + m) * groups + g;
                    let scale = _mm512_mul_ps(scale, _mm512_set1_ps(*acts.scales.as_ptr().add(at)));
                    sums[m][n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[m][n]), scale, sums[m][n]);
                    if has_minima(SOURCE) {
                        sums[m][n] = _mm512_fmadd_ps(
                            min,
                            _mm512_set1_ps(*acts.scaled_sums.as_ptr().add(at)),
                            sums[m][n],
                        );
                    }
                }
            }
        }
        // A copy, because `store` indexes at run time, which would force the sums themselves out of
        // registers.
        let finished = sums;
        store(tile, block.panel, row, &finished);
    }
}
