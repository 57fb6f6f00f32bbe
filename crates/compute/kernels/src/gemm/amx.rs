//! Integer GEMM tiles on AMX.
//!
//! A group of 32 inputs of one panel becomes an AMX weight tile once its codes are unpacked to
//! signed bytes. Codes are unpacked for a block of panels and reused for all rows of a task; thus
//! tiles and vectors share one packed copy of the weights. Each group has its own scales, so its
//! dot products are stored in the L1 cache and scaled by vector code. The vector code does the
//! same operations in the same order as the AVX-512 kernel, so results are bit-identical.
//!
//! ```text
//!   for 3 groups:  codes of 4 panels -> 12 weight tiles
//!     for 16 rows: 12 products -> dots    the tile unit, until all are stored
//!                  dots -> sums           vectors
//! ```
//!
//! Products and vector code alternate instead of overlapping, because the CPU issues floating-point
//! instructions at half rate next to tile instructions. The results and operands of 12 products fit
//! the L1 cache.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::Tile;
use super::panels::{
    Ahead, BYTES, Block, CENTRED, Lookup, PANELS, TABLED, ZEROED, has_minima, scale_and_min, store,
    zero_points,
};
use crate::amx::{HEIGHT, IntegerTiles};
use crate::packed::{GROUP, PANEL};
use crate::tasks;

/// Groups of inputs per iteration.
const GROUPS: usize = 3;
/// Activation rows per pass over a block; also the maximum of a task.
const ROWS: usize = tasks::ROWS;
/// Rows whose sums are computed at once: enough to hide the latency of the additions.
const TOGETHER: usize = 4;

/// A thread's scratch buffers, in the L1 and L2 caches.
#[repr(align(64))]
struct Work {
    /// Weight tiles, indexed by `panel * G + group`.
    codes: [MaybeUninit<[i8; GROUP * PANEL]>; GROUPS * PANELS],
    /// Dot products of 16 rows, indexed by `panel * G + group`.
    dots: [MaybeUninit<[i32; HEIGHT * PANEL]>; GROUPS * PANELS],
    /// Sums, indexed by `row * PANELS + panel`.
    sums: [MaybeUninit<[f32; PANEL]>; ROWS * PANELS],
}

/// Computes the tile's rows with a block of panels. Returns the first row that is not computed;
/// fewer than [`IntegerTiles::FEWEST`] rows remain from there.
///
/// # Safety
/// Same as for `gemm::compute`; the CPU has AVX-512 and `U`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")]
pub(super) unsafe fn rows<const SOURCE: u8, U: IntegerTiles>(
    tile: &Tile<'_>,
    block: &Block,
) -> usize {
    let (mut row, end) = (tile.rows.start, tile.rows.end);
    if end - row < U::FEWEST {
        return row;
    }
    let mut work = Work {
        codes: [const { MaybeUninit::uninit() }; _],
        dots: [const { MaybeUninit::uninit() }; _],
        sums: [const { MaybeUninit::uninit() }; _],
    };
    let height = HEIGHT.min(end - row);
    // SAFETY: the caller upholds this function's contract; the rows lie in the tile, which has at
    // least `height` rows.
    unsafe {
        U::configure(height);
        while end - row >= U::FEWEST {
            let count = whole(ROWS.min(end - row), U::FEWEST);
            let part = Part {
                tile,
                block,
                rows: row..row + count,
                height,
            };
            part.compute::<SOURCE, U>(&mut work);
            row += count;
        }
        U::release();
    }
    row
}

/// Number of rows to compute on tiles. Excludes a small remainder, because a product of few rows
/// costs as much as a full one.
fn whole(rows: usize, fewest: usize) -> usize {
    let rest = rows % HEIGHT;
    rows - if rest < fewest { rest } else { 0 }
}

/// Some rows of a tile and a block of panels.
struct Part<'a> {
    tile: &'a Tile<'a>,
    block: &'a Block,
    rows: Range<usize>,
    /// Rows per product; the tile has at least this many, a part may have fewer.
    height: usize,
}

impl Part<'_> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")]
    unsafe fn compute<const SOURCE: u8, U: IntegerTiles>(&self, work: &mut Work) {
        let groups = self.tile.w.groups();
        // SAFETY: the caller upholds the contract of `rows`; groups and panels exist, and all sums
        // are set before they are read.
        unsafe {
            for first in (0..groups).step_by(GROUPS) {
                match groups - first {
                    1 => self.add_groups::<SOURCE, U, 1>(first, work),
                    2 => self.add_groups::<SOURCE, U, 2>(first, work),
                    _ => self.add_groups::<SOURCE, U, GROUPS>(first, work),
                }
            }
            for (i, row) in self.rows.clone().enumerate() {
                for panel in 0..self.block.count {
                    let sum = _mm512_load_ps(work.sums[i * PANELS + panel].as_ptr().cast());
                    store(self.tile, self.block.panel + panel, row, &[[sum]]);
                }
            }
        }
    }

    /// Adds groups `first` to `first + G` to all sums; if `first` is 0, overwrites the sums.
    ///
    /// # Safety
    /// The groups exist; the sums were set if `first` is not 0.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")]
    unsafe fn add_groups<const SOURCE: u8, U: IntegerTiles, const G: usize>(
        &self,
        first: usize,
        work: &mut Work,
    ) {
        let (acts, panels) = (self.tile.acts, self.block.count);
        if self.rows.start == self.tile.rows.start {
            let ahead = Ahead::whole(self.tile, self.block);
            (first..first + G).for_each(|g| ahead.fetch(panels, g));
        }
        // SAFETY: each panel of the block has these groups of codes; each row of activations has 32
        // codes per group; `top` and the rows after it are rows of the tile.
        unsafe {
            for panel in 0..panels {
                self.spread::<SOURCE, G>(panel, first, work);
            }
            for row in self.rows.clone().step_by(HEIGHT) {
                let top = row.min(self.rows.end - self.height);
                let codes = acts.codes.as_ptr().add(top * acts.k_padded + first * GROUP);
                U::dots::<G>(
                    self.height,
                    (codes, acts.k_padded),
                    work.codes.as_ptr().cast(),
                    work.dots.as_mut_ptr().cast(),
                    panels,
                );
                let rows = row..self.rows.end.min(row + HEIGHT);
                for panel in 0..panels {
                    self.add_dots::<SOURCE, G>((panel, first), rows.clone(), top, work);
                }
            }
        }
    }

    /// Unpacks the codes of `G` groups of a panel to weight tiles.
    ///
    /// # Safety
    /// The groups exist.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn spread<const SOURCE: u8, const G: usize>(
        &self,
        panel: usize,
        first: usize,
        work: &mut Work,
    ) {
        let codes = self.block.codes.wrapping_add(panel * self.block.stride);
        let lookup = Lookup::new();
        let tile = GROUP * PANEL;
        for (g, out) in work.codes[panel * G..][..G].iter_mut().enumerate() {
            let out = out.as_mut_ptr().cast::<i8>();
            let at = panel * self.tile.w.groups() + first + g;
            // SAFETY: a group has 512 bytes of codes, or 256 bytes of nibbles; the block has group
            // `at`.
            unsafe {
                let zero = if SOURCE == ZEROED {
                    // Broadcasts each feature's zero point to the bytes of its 4 inputs.
                    let zeros = zero_points::<SOURCE>(self.block, at);
                    _mm512_mullo_epi32(zeros, _mm512_set1_epi32(0x0101_0101))
                } else {
                    _mm512_set1_epi8(zero_code(SOURCE))
                };
                if SOURCE == BYTES {
                    let codes = codes.add((first + g) * tile);
                    for at in (0..tile).step_by(64) {
                        let code = _mm512_loadu_si512(codes.add(at).cast());
                        _mm512_store_si512(out.add(at).cast(), _mm512_sub_epi8(code, zero));
                    }
                    continue;
                }
                let codes = codes.add((first + g) * tile / 2);
                for at in (0..tile / 2).step_by(64) {
                    let packed = _mm512_loadu_si512(codes.add(at).cast());
                    let (low, high) = lookup.nibbles::<SOURCE>(packed);
                    _mm512_store_si512(out.add(at).cast(), _mm512_sub_epi8(low, zero));
                    let out = out.add(tile / 2 + at);
                    _mm512_store_si512(out.cast(), _mm512_sub_epi8(high, zero));
                }
            }
        }
    }

    /// Adds the dot products of groups `first` to `first + G` to the sums of some rows and one
    /// panel. `top` is the row of the first dot products.
    ///
    /// # Safety
    /// The dot products are computed; the sums are set if `first` is not 0.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")]
    unsafe fn add_dots<const SOURCE: u8, const G: usize>(
        &self,
        (panel, first): (usize, usize),
        rows: Range<usize>,
        top: usize,
        work: &mut Work,
    ) {
        let groups = self.tile.w.groups();
        let mut scales = [(_mm512_setzero_ps(), _mm512_setzero_ps()); G];
        let mut row = rows.start;
        // SAFETY: the block has these groups; rows lie in the part and, from `top` on, in the dots.
        unsafe {
            for (g, scales) in scales.iter_mut().enumerate() {
                *scales = scale_and_min::<SOURCE>(self.block, panel * groups + first + g);
            }
            while rows.end - row >= TOGETHER {
                self.add_rows::<SOURCE, G, TOGETHER>((panel, first), row, top, &scales, work);
                row += TOGETHER;
            }
            for row in row..rows.end {
                self.add_rows::<SOURCE, G, 1>((panel, first), row, top, &scales, work);
            }
        }
    }

    /// Scales and adds each group's dot products, as `avx512::registers` does.
    ///
    /// # Safety
    /// Same as for [`Part::add_dots`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")]
    unsafe fn add_rows<const SOURCE: u8, const G: usize, const M: usize>(
        &self,
        (panel, first): (usize, usize),
        row: usize,
        top: usize,
        scales: &[(__m512, __m512); G],
        work: &mut Work,
    ) {
        let (groups, acts) = (self.tile.w.groups(), self.tile.acts);
        let mut totals = [_mm512_setzero_ps(); M];
        // SAFETY: the caller guarantees that the dot products are computed, and that the sums are
        // set if `first` is not 0.
        unsafe {
            let dots = work.dots.as_ptr().add(panel * G).cast::<i32>();
            let dots = dots.add((row - top) * PANEL);
            let at = (row - self.rows.start) * PANELS + panel;
            let sums = work.sums.as_mut_ptr().add(at).cast::<f32>();
            let act = row * groups + first;
            let act_scales = acts.scales.as_ptr().add(act);
            let act_sums = acts.scaled_sums.as_ptr().add(act);
            if first > 0 {
                for (m, total) in totals.iter_mut().enumerate() {
                    *total = _mm512_load_ps(sums.add(m * PANELS * PANEL));
                }
            }
            for (g, &(scale, min)) in scales.iter().enumerate() {
                for (m, total) in totals.iter_mut().enumerate() {
                    let dots = dots.add((g * HEIGHT + m) * PANEL);
                    let dots = _mm512_cvtepi32_ps(_mm512_load_si512(dots.cast()));
                    let act_scale = _mm512_set1_ps(*act_scales.add(m * groups + g));
                    *total = _mm512_fmadd_ps(dots, _mm512_mul_ps(scale, act_scale), *total);
                    if has_minima(SOURCE) {
                        let act_sum = _mm512_set1_ps(*act_sums.add(m * groups + g));
                        *total = _mm512_fmadd_ps(min, act_sum, *total);
                    }
                }
            }
            for (m, total) in totals.into_iter().enumerate() {
                _mm512_store_ps(sums.add(m * PANELS * PANEL), total);
            }
        }
    }
}

/// The code that represents weight zero in all groups; formats with minima or zero points have no
/// such code.
const fn zero_code(source: u8) -> i8 {
    match source {
        BYTES => -128,
        CENTRED => 8,
        TABLED => 12,
        _ => 0,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::gemm::{self, Mode};
    use crate::{
        ActivationFormat, Activations, Cpu, GroupRow, Isa, Packed, RowSource, ThreadPool,
        WeightFormat,
    };

    const INTEGER: [WeightFormat; 5] = [
        WeightFormat::W4,
        WeightFormat::S4,
        WeightFormat::Z4,
        WeightFormat::Mx4,
        WeightFormat::W8,
    ];

    /// A linear congruential generator.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            self.0 >> 33
        }

        fn number(&mut self) -> f32 {
            self.next() as f32 / (1u64 << 30) as f32 - 1.0
        }
    }

    struct Rows {
        k: usize,
        weights: Vec<f32>,
    }

    impl RowSource for Rows {
        fn fill_f32(&self, row: usize, out: &mut [f32]) {
            out.copy_from_slice(&self.weights[row * self.k..][..self.k]);
        }

        fn fill_groups(&self, _: WeightFormat, _: usize, _: &mut GroupRow) -> bool {
            false
        }
    }

    /// Product of one tile.
    fn product(isa: Isa, tile: &Tile<'_>, out: &mut [f32]) {
        let tile = Tile {
            out: out.as_mut_ptr(),
            rows: tile.rows.clone(),
            panels: tile.panels.clone(),
            ..*tile
        };
        // SAFETY: `out` has the tile's rows and columns; the test checks that the set is available.
        unsafe { gemm::compute(isa, &tile) }
    }

    proptest! {
        #[test]
        fn tiles_have_the_bits_of_the_portable_kernel(
            form in proptest::sample::select(&INTEGER[..]),
            (m, first) in (1usize..120).prop_flat_map(|m| (Just(m), 0..m)),
            k in 1usize..330, n in 1usize..150, add in any::<bool>(), seed in any::<u64>(),
        ) {
            if !Isa::Amx.available() {
                println!("skipped: this CPU lacks AVX-512, which computes beside the tiles");
                return Ok(());
            }
            let mut random = Random(seed);
            let weights = (0..n * k).map(|_| random.number()).collect();
            let pool = ThreadPool::new(1).unwrap();
            let w = Packed::pack(&pool, form, n, k, &Rows { k, weights });
            let x: Vec<f32> = (0..m * k).map(|_| 3.0 * random.number()).collect();
            let bias: Vec<f32> = (0..n).map(|_| random.number()).collect();
            let mut acts = Activations::default();
            let cpu = Cpu::new(Isa::Portable, 1).unwrap();
            cpu.norm_quantize(&x, m, k, None, ActivationFormat::Int8, &mut acts);
            let panel = random.next() as usize % w.panels();
            let tile = Tile {
                w: &w, acts: &acts, rows: first..m, panels: panel..w.panels(),
                out: std::ptr::null_mut(), ld: n + 3,
                mode: if add { Mode::Add } else { Mode::Store },
                bias: Some(&bias),
            };
            let mut want = vec![0.5; m * (n + 3)];
            let mut got = want.clone();
            product(Isa::Portable, &tile, &mut want);
            product(Isa::Amx, &tile, &mut got);
            let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&got), bits(&want));
        }
    }
}
