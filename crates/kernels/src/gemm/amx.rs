//! Integer tiles on AMX.
//!
//! A group of 32 inputs of one panel, as `W8` lays it out, is a weight tile (`crate::amx`). The
//! nibbles of `W4` are spread into one before. So tiles and vectors share one copy of the weights.
//! Each group has scales of its own, so its dots go through memory (the first cache) to vectors,
//! which do with them what the AVX-512 tiles do, in the same order: the same bits. A few groups of
//! all panels of a block are taken with [`ROWS`] rows at a time, because those codes, dots and sums
//! fit the first cache together.

use std::arch::x86_64::*;

use super::Tile;
use super::panels::{
    Ahead, BYTES, Block, Lookup, PANELS, first_dots, has_minima, scale_and_min, store,
};
use crate::amx::{HEIGHT, IntegerTiles};
use crate::packed::{GROUP, PANEL};

/// Activation rows taken at a time.
const ROWS: usize = 3 * HEIGHT;
/// Groups taken at a time.
const GROUPS: usize = 4;

/// Bytes of a weight tile.
const TILE: usize = GROUP * PANEL;

/// Dot products of 16 rows with a panel, for one group.
#[repr(align(64))]
struct Dots([i32; HEIGHT * PANEL]);

/// The codes of a panel's group as bytes.
#[repr(align(64))]
struct Codes([u8; TILE]);

/// Sums of [`ROWS`] rows and the panels of a block.
#[repr(align(64))]
struct Sums([f32; ROWS * PANELS * PANEL]);

/// Computes the tile's rows with a block of panels, and returns the first row that is left: fewer
/// than [`IntegerTiles::FEWEST`] are.
///
/// # Safety
/// As `gemm::compute`; the CPU has AVX-512 and `U`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")]
pub(super) unsafe fn rows<const SOURCE: u8, U: IntegerTiles>(
    tile: &Tile<'_>,
    block: &Block,
) -> usize {
    let (mut row, end) = (tile.rows.start, tile.rows.end);
    if end - row < U::FEWEST {
        return row;
    }
    let height = HEIGHT.min(end - row);
    // SAFETY: the caller's promises; the rows lie in the tile, which has `height` of them.
    unsafe {
        U::configure(height);
        while end - row >= U::FEWEST {
            let count = ROWS.min(end - row);
            let stripe = Stripe {
                tile,
                block,
                row,
                count,
                height,
            };
            stripe.compute::<SOURCE, U>();
            row += count;
        }
        U::release();
    }
    row
}

/// Some rows of a tile and a block of panels.
struct Stripe<'a> {
    tile: &'a Tile<'a>,
    block: &'a Block,
    row: usize,
    count: usize,
    /// Rows of one product; the tile has as many, the stripe maybe not.
    height: usize,
}

impl Stripe<'_> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")]
    unsafe fn compute<const SOURCE: u8, U: IntegerTiles>(&self) {
        let mut sums = Sums([0.0; ROWS * PANELS * PANEL]);
        let ahead = Ahead::whole(self.tile, self.block);
        let (groups, whole) = (self.tile.w.groups(), self.tile.w.groups() / GROUPS * GROUPS);
        // SAFETY: groups and panels exist; the caller's promises.
        unsafe {
            for first in (0..whole).step_by(GROUPS) {
                if self.row == self.tile.rows.start {
                    (first..first + GROUPS).for_each(|g| ahead.fetch(self.block.count, g));
                }
                for panel in 0..self.block.count {
                    self.add_groups::<SOURCE, U, GROUPS>(panel, first, &mut sums);
                }
            }
            for first in whole..groups {
                for panel in 0..self.block.count {
                    self.add_groups::<SOURCE, U, 1>(panel, first, &mut sums);
                }
            }
            for row in 0..self.count {
                for panel in 0..self.block.count {
                    let sum = _mm512_load_ps(sums.at(row, panel));
                    store(
                        self.tile,
                        self.block.panel + panel,
                        self.row + row,
                        &[[sum]],
                    );
                }
            }
        }
    }

    /// The weight tiles of `G` groups from `first` on: in the panel, or spread.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn codes<const SOURCE: u8, const G: usize>(
        &self,
        panel: usize,
        first: usize,
        spread: &mut [Codes; G],
    ) -> *const u8 {
        let codes = self.block.codes.wrapping_add(panel * self.block.stride);
        if SOURCE == BYTES {
            return codes.wrapping_add(first * TILE);
        }
        let lookup = Lookup::new();
        for (g, out) in spread.iter_mut().enumerate() {
            let codes = codes.wrapping_add((first + g) * TILE / 2);
            for j in 0..4 {
                // SAFETY: a group has 256 bytes of nibbles and 512 of codes.
                unsafe {
                    let packed = _mm512_loadu_si512(codes.add(j * 64).cast());
                    let (low, high) = lookup.nibbles::<SOURCE>(packed);
                    let out = out.0.as_mut_ptr();
                    _mm512_store_si512(out.add(j * 64).cast(), low);
                    _mm512_store_si512(out.add((j + 4) * 64).cast(), high);
                }
            }
        }
        spread.as_ptr().cast()
    }

    /// Adds `G` groups from `first` on to the sums of a panel.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")]
    unsafe fn add_groups<const SOURCE: u8, U: IntegerTiles, const G: usize>(
        &self,
        panel: usize,
        first: usize,
        sums: &mut Sums,
    ) {
        let (groups, acts) = (self.tile.w.groups(), self.tile.acts);
        let mut dots = [const { Dots([0; HEIGHT * PANEL]) }; G];
        let mut scales = [(_mm512_setzero_ps(), _mm512_setzero_ps()); G];
        let end = self.row + self.count;
        // SAFETY: a block has `groups` groups of codes and of scales in each panel; the tile's rows
        // are at least `height`, so that `top` is one of them.
        unsafe {
            for (g, scales) in scales.iter_mut().enumerate() {
                *scales = scale_and_min::<SOURCE>(self.block, panel * groups + first + g);
            }
            let mut spread = [const { Codes([0; TILE]) }; G];
            let codes = self.codes::<SOURCE, G>(panel, first, &mut spread);
            for row in (self.row..end).step_by(HEIGHT) {
                let top = row.min(end - self.height);
                for (g, dots) in dots.iter_mut().enumerate() {
                    let rows = acts
                        .codes
                        .as_ptr()
                        .add(top * acts.k_padded + (first + g) * GROUP);
                    let (weights, out) = (codes.add(g * TILE), dots.0.as_mut_ptr());
                    if g % 2 == 0 {
                        U::dots::<0>(self.height, rows, acts.k_padded, weights, out);
                    } else {
                        U::dots::<1>(self.height, rows, acts.k_padded, weights, out);
                    }
                }
                for row in row..end.min(row + HEIGHT) {
                    let sum = sums.at_mut(row - self.row, panel);
                    let mut total = _mm512_load_ps(sum);
                    for g in 0..G {
                        let at = row * groups + first + g;
                        let dots = dots[g].0.as_ptr().add((row - top) * PANEL);
                        total = add_group::<SOURCE>(self.tile, at, dots, scales[g], total);
                    }
                    _mm512_store_ps(sum, total);
                }
            }
        }
    }
}

impl Sums {
    fn at(&self, row: usize, panel: usize) -> *const f32 {
        self.0[(row * PANELS + panel) * PANEL..][..PANEL].as_ptr()
    }

    fn at_mut(&mut self, row: usize, panel: usize) -> *mut f32 {
        self.0[(row * PANELS + panel) * PANEL..][..PANEL].as_mut_ptr()
    }
}

/// What `avx512::registers` does with the dots of one group, whose activations have index `at`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")]
unsafe fn add_group<const SOURCE: u8>(
    tile: &Tile<'_>,
    at: usize,
    dots: *const i32,
    (scale, min): (__m512, __m512),
    sum: __m512,
) -> __m512 {
    let acts = tile.acts;
    // SAFETY: `at` is a group of a row; `dots` are 16 numbers of a line of their own.
    unsafe {
        let mut dots = _mm512_load_si512(dots.cast());
        dots = _mm512_add_epi32(dots, first_dots::<SOURCE>(*acts.offsets.as_ptr().add(at)));
        let scale = _mm512_mul_ps(scale, _mm512_set1_ps(*acts.scales.as_ptr().add(at)));
        let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scale, sum);
        if !has_minima(SOURCE) {
            return sum;
        }
        _mm512_fmadd_ps(min, _mm512_set1_ps(*acts.scaled_sums.as_ptr().add(at)), sum)
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

    const INTEGER: [WeightFormat; 4] = [
        WeightFormat::W4,
        WeightFormat::S4,
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

    /// One tile's product.
    fn product(isa: Isa, tile: &Tile<'_>, out: &mut [f32]) {
        let tile = Tile {
            out: out.as_mut_ptr(),
            rows: tile.rows.clone(),
            panels: tile.panels.clone(),
            ..*tile
        };
        // SAFETY: `out` has the tile's rows and columns; the test asked for the set.
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
