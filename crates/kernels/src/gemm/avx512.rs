//! Integer tiles on AVX-512 VNNI.
//!
//! `vpdpbusd` multiplies unsigned with signed bytes: weights are the unsigned side, activations are
//! broadcast as the signed one. A tile keeps up to 3 rows x 4 panels of integer and of f32 sums in
//! registers. With many rows the nibbles of `W4` are spread into bytes, and its scales into f32,
//! once for the whole block of panels; with few they are spread on the way. While weights are used,
//! the next ones are fetched from memory.

use std::arch::x86_64::*;
use std::cell::RefCell;

use super::{Mode, Tile};
use crate::buffer::Aligned;
use crate::isa::prefetch;
use crate::packed::{E2M1, GROUP, PANEL, WeightFormat};

/// Rows from which spreading the nibbles into a buffer pays.
const SPREAD_ROWS: usize = 7;
/// Rows and panels of one register tile.
const ROWS: usize = 3;
const PANELS: usize = 4;

/// Bytes between a stream of weights and what is fetched for it: measured best from memory.
const STREAM_AHEAD: usize = 8192;

/// Where a register tile finds its weights.
const BYTES: u8 = 0;
const NIBBLES: u8 = 1;
const SPREAD: u8 = 2;
/// Nibbles that are looked up in a table.
const TABLED: u8 = 3;

thread_local! {
    static SPREAD_CODES: RefCell<Aligned<u8>> = RefCell::new(Aligned::zeroed(0));
    static SPREAD_SCALES: RefCell<Aligned<f32>> = RefCell::new(Aligned::zeroed(0));
}

/// A block of up to [`PANELS`] panels as a register tile reads them.
struct Block {
    panel: usize,
    count: usize,
    /// Codes of the first panel, and bytes to the next.
    codes: *const u8,
    stride: usize,
    /// Scales of the first panel: f16 of the matrix, or f32 when spread.
    scales: *const u8,
    /// Packed codes and scales that are wanted in a while: fetched ahead, never dereferenced.
    ahead: (*const u8, *const u8),
}

/// # Safety
/// As `gemm::compute`; the CPU has AVX-512 with VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
pub(super) unsafe fn w8(tile: &Tile<'_>) {
    for (panel, count) in blocks(tile.panels.clone(), width(tile)) {
        // SAFETY: the caller's promises.
        unsafe { rows::<BYTES>(tile, &packed(tile, panel, count)) }
    }
}

/// # Safety
/// As `gemm::compute`; the CPU has AVX-512 with VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
pub(super) unsafe fn w4(tile: &Tile<'_>) {
    // SAFETY: the caller's promises.
    unsafe { nibbles::<NIBBLES>(tile) }
}

/// # Safety
/// As `gemm::compute`; the CPU has AVX-512 with VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
pub(super) unsafe fn mx4(tile: &Tile<'_>) {
    // SAFETY: the caller's promises.
    unsafe { nibbles::<TABLED>(tile) }
}

/// # Safety
/// As `gemm::compute`; the CPU has AVX-512 with VNNI.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
unsafe fn nibbles<const SOURCE: u8>(tile: &Tile<'_>) {
    for (panel, count) in blocks(tile.panels.clone(), width(tile)) {
        let block = packed(tile, panel, count);
        if tile.rows.len() < SPREAD_ROWS {
            // SAFETY: the caller's promises.
            unsafe { rows::<SOURCE>(tile, &block) }
            continue;
        }
        SPREAD_CODES.with_borrow_mut(|codes| {
            SPREAD_SCALES.with_borrow_mut(|scales| {
                // SAFETY: the caller's promises; the spread block has the shape `rows` expects.
                unsafe {
                    let spread = spread_block::<SOURCE>(tile, block, codes, scales);
                    rows::<SPREAD>(tile, &spread);
                }
            });
        });
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

/// The block with nibbles as bytes and scales as f32.
#[target_feature(enable = "avx512f,avx512bw,f16c")]
unsafe fn spread_block<const SOURCE: u8>(
    tile: &Tile<'_>,
    block: Block,
    codes: &mut Aligned<u8>,
    scales: &mut Aligned<f32>,
) -> Block {
    let (bytes, numbers) = (2 * block.stride, tile.w.panel_scales(block.panel).len());
    codes.ensure(block.count * bytes);
    scales.ensure(block.count * numbers);
    for i in 0..block.count {
        let (from, to) = (
            tile.w.panel(block.panel + i),
            &mut codes[i * bytes..(i + 1) * bytes],
        );
        // SAFETY: the CPU has AVX-512; `to` is twice as long as `from`, and the f32 as many as the
        // f16.
        unsafe {
            spread::<SOURCE>(from, to);
            widen(
                tile.w.panel_scales(block.panel + i),
                &mut scales[i * numbers..(i + 1) * numbers],
            );
        }
    }
    Block {
        codes: codes.as_ptr(),
        stride: bytes,
        scales: scales.as_ptr().cast(),
        ..block
    }
}

/// f16 to f32.
#[target_feature(enable = "avx512f")]
unsafe fn widen(halves: &[u16], out: &mut [f32]) {
    for (from, to) in halves.chunks_exact(PANEL).zip(out.chunks_exact_mut(PANEL)) {
        // SAFETY: both have 16 items.
        unsafe {
            _mm512_storeu_ps(
                to.as_mut_ptr(),
                _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())),
            )
        }
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

/// Nibbles to bytes, in the order of a `W8` panel.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn spread<const SOURCE: u8>(codes: &[u8], out: &mut [u8]) {
    assert_eq!(out.len(), 2 * codes.len());
    let lookup = Lookup::new();
    for (group, out) in codes.chunks_exact(256).zip(out.chunks_exact_mut(512)) {
        for j in 0..4 {
            // SAFETY: j * 64 + 64 <= 256 and (j + 4) * 64 + 64 <= 512.
            unsafe {
                let packed = _mm512_loadu_si512(group.as_ptr().add(j * 64).cast());
                let (low, high) = lookup.nibbles::<SOURCE>(packed);
                _mm512_storeu_si512(out.as_mut_ptr().add(j * 64).cast(), low);
                _mm512_storeu_si512(out.as_mut_ptr().add((j + 4) * 64).cast(), high);
            }
        }
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
            if SOURCE == NIBBLES || SOURCE == TABLED {
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
    // SAFETY: the block has group `at`: 16 f16 (`W8`), or 16 scales and 16 minima, f16 or f32.
    unsafe {
        match SOURCE {
            BYTES => (
                _mm512_cvtph_ps(_mm256_loadu_si256(block.scales.add(at * 32).cast())),
                _mm512_setzero_ps(),
            ),
            NIBBLES | TABLED => {
                let halves = _mm512_loadu_si512(block.scales.add(at * 64).cast());
                let min = _mm512_extracti64x4_epi64::<1>(halves);
                (
                    _mm512_cvtph_ps(_mm512_castsi512_si256(halves)),
                    _mm512_cvtph_ps(min),
                )
            }
            _ => {
                let scale = block.scales.add(at * 128).cast::<f32>();
                (_mm512_loadu_ps(scale), _mm512_loadu_ps(scale.add(PANEL)))
            }
        }
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
