//! bf16 (`vdpbf16ps`) and f32 GEMM tiles on AVX-512: up to 6 rows x 4 panels of sums in registers,
//! inputs in ascending order.

use std::arch::x86_64::*;
use std::mem::transmute;

use super::Tile;
use super::panels::store;

const ROWS: usize = 6;
const PANELS: usize = 4;

/// # Safety
/// Same as for `gemm::compute`; the CPU has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,fma")]
pub(super) unsafe fn bf16(tile: &Tile<'_>) {
    // SAFETY: the caller upholds this function's contract, which `tiles` shares.
    unsafe { tiles::<true>(tile) }
}

/// # Safety
/// Same as for `gemm::compute`; the CPU has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,fma")]
pub(super) unsafe fn f32(tile: &Tile<'_>) {
    // SAFETY: the caller upholds this function's contract, which `tiles` shares.
    unsafe { tiles::<false>(tile) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,fma")]
unsafe fn tiles<const HALF: bool>(tile: &Tile<'_>) {
    let mut panel = tile.panels.start;
    while panel < tile.panels.end {
        let count = PANELS.min(tile.panels.end - panel);
        let mut row = tile.rows.start;
        while row < tile.rows.end {
            let height = ROWS.min(tile.rows.end - row);
            // SAFETY: the rows and panels are in the tile.
            unsafe {
                match (height, count) {
                    (6, 4) => registers::<HALF, 6, 4>(tile, panel, row),
                    (6, _) => by_panel::<HALF, 6>(tile, panel, row, count),
                    (5, 4) => registers::<HALF, 5, 4>(tile, panel, row),
                    (4, 4) => registers::<HALF, 4, 4>(tile, panel, row),
                    (3, 4) => registers::<HALF, 3, 4>(tile, panel, row),
                    (2, 4) => registers::<HALF, 2, 4>(tile, panel, row),
                    (1, 4) => registers::<HALF, 1, 4>(tile, panel, row),
                    _ => (row..row + height)
                        .for_each(|row| by_panel::<HALF, 1>(tile, panel, row, count)),
                }
            }
            row += height;
        }
        panel += count;
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,fma")]
unsafe fn by_panel<const HALF: bool, const M: usize>(
    tile: &Tile<'_>,
    panel: usize,
    row: usize,
    count: usize,
) {
    for panel in panel..panel + count {
        // SAFETY: the caller guarantees that the panels and the rows from `row` on are in the tile.
        unsafe { registers::<HALF, M, 1>(tile, panel, row) }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,fma")]
unsafe fn registers<const HALF: bool, const M: usize, const N: usize>(
    tile: &Tile<'_>,
    panel: usize,
    row: usize,
) {
    let (acts, k) = (tile.acts, tile.acts.k_padded);
    let weights = tile.w.panel(panel).as_ptr();
    let stride = tile.w.panel(panel).len();
    let steps = if HALF { k / 2 } else { k };
    let mut sums = [[_mm512_setzero_ps(); N]; M];
    // SAFETY: a panel has `steps` vectors of 64 bytes, panels have a stride of `stride`, and each
    // activation row has `k` items.
    unsafe {
        for step in 0..steps {
            let mut w = [_mm512_setzero_ps(); N];
            for n in 0..N {
                w[n] = _mm512_loadu_ps(weights.add(n * stride + step * 64).cast());
            }
            for m in 0..M {
                if HALF {
                    let pair = acts
                        .halves
                        .as_ptr()
                        .add((row + m) * k + 2 * step)
                        .cast::<i32>()
                        .read_unaligned();
                    let a: __m512bh = transmute(_mm512_set1_epi32(pair));
                    for n in 0..N {
                        sums[m][n] =
                            _mm512_dpbf16_ps(sums[m][n], transmute::<__m512, __m512bh>(w[n]), a);
                    }
                } else {
                    let a = _mm512_set1_ps(*acts.floats.as_ptr().add((row + m) * k + step));
                    for n in 0..N {
                        sums[m][n] = _mm512_fmadd_ps(w[n], a, sums[m][n]);
                    }
                }
            }
        }
        // A copy, because `store` indexes at run time, which would force the sums themselves out of
        // registers.
        let finished = sums;
        store(tile, panel, row, &finished);
    }
}
