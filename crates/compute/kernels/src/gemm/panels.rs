//! Blocks of panels for the AVX-512 and AMX tiles: weight decoding, prefetch and output.

use std::arch::x86_64::*;

use super::{Mode, Tile};
use crate::isa::prefetch;
use crate::packed::{E2M1, GROUP, PANEL};

/// Maximum panels per block.
pub(super) const PANELS: usize = 4;

/// Encodings of a register tile's weights. `BYTES` are 8-bit codes; [`NIBBLES`] are 4-bit codes
/// with minima.
pub(super) const BYTES: u8 = 0;
pub(super) const NIBBLES: u8 = 1;
/// Nibbles looked up in a table of entries around 12, with powers of two as scales.
pub(super) const TABLED: u8 = 2;
/// Nibbles around 8, without minima.
pub(super) const CENTRED: u8 = 3;
/// Nibbles with zero points.
pub(super) const ZEROED: u8 = 4;

/// Whether the groups of the encoding `source` have minima.
pub(super) const fn has_minima(source: u8) -> bool {
    source == NIBBLES
}

/// A block of up to [`PANELS`] panels as a register tile reads it.
pub(super) struct Block {
    pub(super) panel: usize,
    pub(super) count: usize,
    /// Codes of the first panel.
    pub(super) codes: *const u8,
    /// Distance in bytes between the codes of consecutive panels.
    pub(super) stride: usize,
    /// Scales of the first panel.
    pub(super) scales: *const u8,
    /// Addresses of packed codes and scales to prefetch; never dereferenced.
    pub(super) ahead: (*const u8, *const u8),
}

/// Decoder of the two nibbles of a byte.
#[derive(Clone, Copy)]
pub(super) struct Lookup {
    mask: __m512i,
    table: __m512i,
}

impl Lookup {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn new() -> Self {
        // SAFETY: the table has 16 bytes.
        let table = unsafe { _mm_loadu_si128(E2M1.as_ptr().cast()) };
        Self {
            mask: _mm512_set1_epi8(15),
            table: _mm512_broadcast_i32x4(table),
        }
    }

    /// The low and the high nibbles, decoded.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn nibbles<const SOURCE: u8>(self, packed: __m512i) -> (__m512i, __m512i) {
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

/// Initial value of a group's dot products, which cancels the offset of the codes. `offset` is the
/// group's entry in `Activations::offsets`, `zeros` are the panel's [`zero_points`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn first_dots<const SOURCE: u8>(offset: i32, zeros: __m512i) -> __m512i {
    match SOURCE {
        BYTES => _mm512_set1_epi32(offset),
        // Divides by 16: from -128 times the sum of the activation codes to -8 times.
        CENTRED => _mm512_srai_epi32::<4>(_mm512_set1_epi32(offset)),
        // From -128 times the sum of the activation codes to -(8 + 4) times.
        TABLED => {
            let offset = _mm512_set1_epi32(offset);
            _mm512_add_epi32(
                _mm512_srai_epi32::<4>(offset),
                _mm512_srai_epi32::<5>(offset),
            )
        }
        // A 128th is minus the sum of the activation codes, which fits the 16 bits of `madd`.
        ZEROED => _mm512_madd_epi16(zeros, _mm512_set1_epi32(offset >> 7)),
        _ => _mm512_setzero_si512(),
    }
}

/// Zero points of group `at`, counted from the first group of the block's first panel; 0 for
/// encodings without zero points.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn zero_points<const SOURCE: u8>(block: &Block, at: usize) -> __m512i {
    if SOURCE != ZEROED {
        return _mm512_setzero_si512();
    }
    // SAFETY: the block has group `at`: 16 f16 and 16 zero points.
    let zeros = unsafe { _mm_loadu_si128(block.scales.add(at * 48 + 32).cast()) };
    _mm512_cvtepu8_epi32(zeros)
}

/// Scales and minima of group `at`, counted from the first group of the block's first panel.
#[inline]
#[target_feature(enable = "avx512f,f16c")]
pub(super) unsafe fn scale_and_min<const SOURCE: u8>(block: &Block, at: usize) -> (__m512, __m512) {
    // SAFETY: the block has group `at`: 16 exponents, 16 f16, 16 f16 and 16 zero points, or 16
    // scales and 16 minima.
    unsafe {
        if SOURCE == TABLED {
            let exponents = _mm_loadu_si128(block.scales.add(at * PANEL).cast());
            let scales = _mm512_slli_epi32::<23>(_mm512_cvtepu8_epi32(exponents));
            return (_mm512_castsi512_ps(scales), _mm512_setzero_ps());
        }
        if !has_minima(SOURCE) {
            let bytes = if SOURCE == ZEROED { 48 } else { 32 };
            let scales = _mm256_loadu_si256(block.scales.add(at * bytes).cast());
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

/// Prefetch of upcoming weights into the L2 cache, all at once or spread over the rows of register
/// tiles.
pub(super) struct Ahead {
    codes: *const u8,
    scales: *const u8,
    /// Groups per panel.
    groups: usize,
    /// Packed bytes of one group's codes and scales.
    bytes: (usize, usize),
    phase: usize,
    phases: usize,
}

impl Ahead {
    /// A prefetch of part `phase` of `phases` of the upcoming weights.
    pub(super) fn part(tile: &Tile<'_>, block: &Block, (phase, phases): (usize, usize)) -> Self {
        Self {
            phase,
            phases,
            ..Self::whole(tile, block)
        }
    }

    /// A prefetch of all upcoming weights.
    pub(super) fn whole(tile: &Tile<'_>, block: &Block) -> Self {
        let form = tile.w.form();
        let bytes = (form.panel_bytes(GROUP), 2 * form.scales_per_group());
        Self {
            codes: block.ahead.0,
            scales: block.ahead.1,
            groups: tile.w.groups(),
            bytes,
            phase: 0,
            phases: 1,
        }
    }

    /// Prefetches the upcoming weights that correspond to group `g` of each of `panels` panels, if
    /// `g` is in this phase.
    #[inline(always)]
    pub(super) fn fetch(&self, panels: usize, g: usize) {
        if self.phases > 1 && g % self.phases != self.phase {
            return;
        }
        for n in 0..panels {
            let at = n * self.groups + g;
            for line in (0..self.bytes.0).step_by(64) {
                prefetch(self.codes.wrapping_add(at * self.bytes.0 + line));
            }
            prefetch(self.scales.wrapping_add(at * self.bytes.1));
        }
    }
}

/// Applies row scales and bias to a register tile, and stores it or adds it to the output,
/// depending on the tile's mode.
///
/// # Safety
/// Same as for `gemm::compute`; the tile's rows from `row` and panels from `panel` on exist.
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
            // SAFETY: the masked lanes are elements of the tile, of the row scales and of the bias.
            unsafe {
                let out = tile.out.add(
                    (row + m - tile.rows.start) * tile.ld + (panel + n - tile.panels.start) * PANEL,
                );
                let mut value = sums[n];
                if let Some(scales) = tile.w.row_scales() {
                    value = _mm512_mul_ps(
                        value,
                        _mm512_maskz_loadu_ps(mask, scales.as_ptr().add((panel + n) * PANEL)),
                    );
                }
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
