//! Integer tiles on AVX-512 VNNI.
//!
//! `vpdpbusd` multiplies unsigned with signed bytes: weights are the unsigned side, activations are
//! broadcast as the signed one. A tile keeps up to 3 rows x 4 panels of integer and of f32 sums in
//! registers. The nibbles of `W4` are spread into bytes on the way, whatever the rows: the units
//! that do it are not those of the products, and nibbles spread beforehand would come from the
//! second cache twice as wide. While weights are used, the next ones are fetched from memory.

use std::arch::x86_64::*;

use super::{Mode, Tile};
use crate::isa::prefetch;
use crate::packed::{E2M1, GROUP, PANEL, WeightFormat};

/// Rows and panels of one register tile.
const ROWS: usize = 3;
const PANELS: usize = 4;

/// Bytes between a stream of weights and what is fetched for it: measured best from memory.
const STREAM_AHEAD: usize = 8192;

/// Where a register tile finds its weights.
const BYTES: u8 = 0;
const NIBBLES: u8 = 1;
/// Nibbles that are looked up in a table.
const TABLED: u8 = 2;

/// A block of up to [`PANELS`] panels as a register tile reads them.
struct Block {
    panel: usize,
    count: usize,
    /// Codes of the first panel, and bytes to the next.
    codes: *const u8,
    stride: usize,
    /// Scales of the first panel.
    scales: *const u8,
    /// Packed codes and scales that are wanted in a while: fetched ahead, never dereferenced.
    ahead: (*const u8, *const u8),
}

/// # Safety
/// As `gemm::compute`; the CPU has AVX-512 with VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
pub(super) unsafe fn w8(tile: &Tile<'_>) {
    // SAFETY: the caller's promises.
    unsafe { panels::<BYTES>(tile) }
}

/// # Safety
/// As `gemm::compute`; the CPU has AVX-512 with VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
pub(super) unsafe fn w4(tile: &Tile<'_>) {
    // SAFETY: the caller's promises.
    unsafe { panels::<NIBBLES>(tile) }
}

/// # Safety
/// As `gemm::compute`; the CPU has AVX-512 with VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
pub(super) unsafe fn mx4(tile: &Tile<'_>) {
    // SAFETY: the caller's promises.
    unsafe { panels::<TABLED>(tile) }
}

/// # Safety
/// As `gemm::compute`; the CPU has AVX-512 with VNNI.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
unsafe fn panels<const SOURCE: u8>(tile: &Tile<'_>) {
    for (panel, count) in blocks(tile.panels.clone(), width(tile)) {
        // SAFETY: the caller's promises.
        unsafe { rows::<SOURCE>(tile, &packed(tile, panel, count)) }
    }
}

/// Panels of a block. Few rows only stream the weights from memory, and one stream is fetched
/// better than four.
fn width(tile: &Tile<'_>) -> usize {
    if tile.rows.len() <= ROWS { 1 } else { PANELS }
}

/// The block as it lies in the matrix.
fn packed(tile: &Tile<'_>, panel: usize, count: usize) -> Block {
    let (codes, scales) = (tile.w.panel(panel), tile.w.panel_scales(panel));
    // With few rows a fixed distance down the stream; else the whole next block.
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

/// Cuts a range into (start, count <= size).
fn blocks(range: std::ops::Range<usize>, size: usize) -> impl Iterator<Item = (usize, usize)> {
    let end = range.end;
    range
        .step_by(size)
        .map(move |start| (start, size.min(end - start)))
}

/// What two nibbles of a byte stand for.
#[derive(Clone, Copy)]
struct Lookup {
    mask: __m512i,
    table: __m512i,
}

impl Lookup {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn new() -> Self {
        // SAFETY: the table has 16 bytes.
        let table = unsafe { _mm_loadu_si128(E2M1.as_ptr().cast()) };
        Self {
            mask: _mm512_set1_epi8(15),
            table: _mm512_broadcast_i32x4(table),
        }
    }

    /// The low nibbles and the high ones.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn nibbles<const SOURCE: u8>(self, packed: __m512i) -> (__m512i, __m512i) {
        let low = _mm512_and_si512(packed, self.mask);
        let high = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), self.mask);
        if SOURCE == TABLED {
            return (
                _mm512_shuffle_epi8(self.table, low),
                _mm512_shuffle_epi8(self.table, high),
            );
        }
        (low, high)
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
unsafe fn rows<const SOURCE: u8>(tile: &Tile<'_>, block: &Block) {
    for (row, height) in blocks(tile.rows.clone(), ROWS) {
        // SAFETY: rows and panels lie in the tile.
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
    let ahead = Ahead::new(tile, block, row);
    let mut sums = [[_mm512_setzero_ps(); N]; M];
    // SAFETY: all offsets stay inside the panels, the activations' rows and their groups, whose
    // shapes `Tile::check` compared.
    unsafe {
        let act_codes = acts.codes.as_ptr().add(row * acts.k_padded);
        for g in 0..groups {
            ahead.fetch::<N>(g);
            let broadcast = |m: usize, j: usize| {
                _mm512_set1_epi32(
                    act_codes
                        .add(m * acts.k_padded + g * GROUP + j * 4)
                        .cast::<i32>()
                        .read_unaligned(),
                )
            };
            let mut dots = [[_mm512_setzero_si512(); N]; M];
            if SOURCE == BYTES {
                for (m, dots) in dots.iter_mut().enumerate() {
                    *dots =
                        [_mm512_set1_epi32(*acts.offsets.as_ptr().add((row + m) * groups + g)); N];
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
                    if SOURCE != BYTES {
                        sums[m][n] = _mm512_fmadd_ps(
                            min,
                            _mm512_set1_ps(*acts.scaled_sums.as_ptr().add(at)),
                            sums[m][n],
                        );
                    }
                }
            }
        }
        // A copy, because `store` indexes at run time: the sums themselves then stay in registers.
        let finished = sums;
        store(tile, block.panel, row, &finished);
    }
}

/// Scales and minima of group `at`, counted from the block's first panel.
#[inline]
#[target_feature(enable = "avx512f,f16c")]
unsafe fn scale_and_min<const SOURCE: u8>(block: &Block, at: usize) -> (__m512, __m512) {
    // SAFETY: the block has group `at`: 16 f16 (`W8`), or 16 scales and 16 minima.
    unsafe {
        if SOURCE == BYTES {
            let scales = _mm256_loadu_si256(block.scales.add(at * 32).cast());
            return (_mm512_cvtph_ps(scales), _mm512_setzero_ps());
        }
        let halves = _mm512_loadu_si512(block.scales.add(at * 64).cast());
        let min = _mm512_extracti64x4_epi64::<1>(halves);
        (
            _mm512_cvtph_ps(_mm512_castsi512_si256(halves)),
            _mm512_cvtph_ps(min),
        )
    }
}

/// Fetches weights that are wanted in a while into the second cache, a part of them with each row
/// of register tiles.
struct Ahead {
    codes: *const u8,
    scales: *const u8,
    /// Groups of a panel, and the packed bytes of one group's codes and scales.
    groups: usize,
    bytes: (usize, usize),
    phase: usize,
    phases: usize,
}

impl Ahead {
    fn new(tile: &Tile<'_>, block: &Block, row: usize) -> Self {
        let bytes = if tile.w.form() == WeightFormat::W8 {
            (512, 32)
        } else {
            (256, 64)
        };
        let (phase, phases) = (
            (row - tile.rows.start) / ROWS,
            tile.rows.len().div_ceil(ROWS),
        );
        Self {
            codes: block.ahead.0,
            scales: block.ahead.1,
            groups: tile.w.groups(),
            bytes,
            phase,
            phases,
        }
    }

    /// Fetches what corresponds to group `g` of `N` panels, if it is this phase's turn.
    #[inline(always)]
    fn fetch<const N: usize>(&self, g: usize) {
        if self.phases > 1 && g % self.phases != self.phase {
            return;
        }
        for n in 0..N {
            let at = n * self.groups + g;
            for line in (0..self.bytes.0).step_by(64) {
                prefetch(self.codes.wrapping_add(at * self.bytes.0 + line));
            }
            prefetch(self.scales.wrapping_add(at * self.bytes.1));
        }
    }
}

/// Writes a register tile, with bias and mode.
///
/// # Safety
/// As `gemm::compute`; the tile's rows from `row` and panels from `panel` on exist.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn store<const M: usize, const N: usize>(
    tile: &Tile<'_>,
    panel: usize,
    row: usize,
    sums: &[[__m512; N]; M],
) {
    for n in 0..N {
        let features = tile.features(panel + n);
        let mask = ((1u32 << features) - 1) as __mmask16;
        for (m, sums) in sums.iter().enumerate() {
            // SAFETY: the masked lanes are elements of the tile (and of the bias).
            unsafe {
                let out = tile.out.add(
                    (row + m - tile.rows.start) * tile.ld + (panel + n - tile.panels.start) * PANEL,
                );
                let mut value = sums[n];
                if let Some(bias) = tile.bias {
                    value = _mm512_add_ps(
                        value,
                        _mm512_maskz_loadu_ps(mask, bias.as_ptr().add((panel + n) * PANEL)),
                    );
                }
                if tile.mode == Mode::Add {
                    value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), value);
                }
                _mm512_mask_storeu_ps(out, mask, value);
            }
        }
    }
}
