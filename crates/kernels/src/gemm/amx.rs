//! Integer tiles on AMX (Intel's instruction set reference, "TDPBSUD").
//!
//! A group of 32 inputs of one panel, as `W8` lays it out, is a weight tile: 8 rows of 16 features
//! x 4 inputs. The nibbles of `W4` are spread into one before. So tiles and vectors share one copy
//! of the weights. One instruction
//! multiplies it with 16 activation rows:
//!
//! ```text
//!   activations 16 rows x 32 codes  *  weights 8 x (16 features x 4)  =  dots 16 rows x 16 i32
//! ```
//!
//! Each group has scales of its own, so its dots go through memory (the first cache) to vectors,
//! which do with them what the AVX-512 tiles do, in the same order: the same bits. A few groups of
//! all panels of a block are taken with [`ROWS`] rows at a time, because those codes, dots and sums
//! fit the first cache together.

use std::arch::asm;
use std::arch::x86_64::*;

use super::Tile;
use super::panels::{
    Ahead, BYTES, Block, Lookup, PANELS, first_dots, has_minima, scale_and_min, store,
};
use crate::packed::{GROUP, PANEL};

/// Activation rows of one tile.
const HEIGHT: usize = 16;
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

/// A unit that multiplies tiles; its emulation tests what is around the instructions.
pub(super) trait TileUnit {
    /// Fewest rows for which tiles pay.
    const FEWEST: usize;

    /// Prepares products of `rows` activation rows, up to 16.
    ///
    /// # Safety
    /// The CPU and the operating system have the unit.
    unsafe fn configure(rows: usize);

    /// `out[row][feature] = sum of acts[row][i] * weights[i / 4][feature][i % 4]` over 32 inputs.
    ///
    /// # Safety
    /// The unit is configured for `rows`; each row has 32 codes, `stride` bytes apart; `weights`
    /// has 512 bytes and `out` 16 numbers for each row.
    unsafe fn dots(rows: usize, acts: *const i8, stride: usize, weights: *const u8, out: *mut i32);

    /// Gives the unit's state back, so that no context switch saves it.
    ///
    /// # Safety
    /// The CPU has the unit.
    unsafe fn release();
}

/// No tiles: all rows go through vectors.
pub(super) enum Absent {}

impl TileUnit for Absent {
    const FEWEST: usize = usize::MAX;

    unsafe fn configure(_: usize) {}
    unsafe fn dots(_: usize, _: *const i8, _: usize, _: *const u8, _: *mut i32) {}
    unsafe fn release() {}
}

/// The tiles of AMX: 0 holds dots, 1 activations, 2 weights.
pub(super) enum Amx {}

/// What `ldtilecfg` reads: the palette, bytes of a row and rows of each tile.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl TileUnit for Amx {
    const FEWEST: usize = 8;

    unsafe fn configure(rows: usize) {
        let mut wanted = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        wanted.row_bytes[..3].copy_from_slice(&[64, GROUP as u16, 64]);
        wanted.rows[..3].copy_from_slice(&[rows as u8, rows as u8, (GROUP / 4) as u8]);
        // SAFETY: the configuration is one of palette 1, which every AMX has; the compiler keeps
        // nothing in tiles.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const wanted, options(nostack, readonly));
        }
    }

    #[inline(always)]
    unsafe fn dots(_: usize, acts: *const i8, stride: usize, weights: *const u8, out: *mut i32) {
        // SAFETY: the caller's promise; the tiles are the ones that `configure` gave these shapes.
        unsafe {
            asm!(
                "tileloadd tmm1, [{acts} + {stride}]",
                "tileloadd tmm2, [{weights} + {line}]",
                "tilezero tmm0",
                "tdpbsud tmm0, tmm1, tmm2",
                "tilestored [{out} + {line}], tmm0",
                acts = in(reg) acts,
                stride = in(reg) stride,
                weights = in(reg) weights,
                line = in(reg) 64usize,
                out = in(reg) out,
                out("tmm0") _,
                out("tmm1") _,
                out("tmm2") _,
                options(nostack, preserves_flags),
            );
        }
    }

    unsafe fn release() {
        // SAFETY: the caller's promise.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }
}

/// Computes the tile's rows with a block of panels, and returns the first row that is left: fewer
/// than [`TileUnit::FEWEST`] are.
///
/// # Safety
/// As `gemm::compute`; the CPU has AVX-512 and `U`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")]
pub(super) unsafe fn rows<const SOURCE: u8, U: TileUnit>(tile: &Tile<'_>, block: &Block) -> usize {
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
    unsafe fn compute<const SOURCE: u8, U: TileUnit>(&self) {
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
    unsafe fn add_groups<const SOURCE: u8, U: TileUnit, const G: usize>(
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
                    U::dots(self.height, rows, acts.k_padded, weights, out);
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
    use crate::gemm::{self, Mode, avx512};
    use crate::{
        ActivationFormat, Activations, Cpu, GroupRow, Isa, Packed, RowSource, ThreadPool,
        WeightFormat,
    };

    /// Tiles in plain Rust, for CPUs that have none.
    enum Emulated {}

    impl TileUnit for Emulated {
        const FEWEST: usize = Amx::FEWEST;

        unsafe fn configure(rows: usize) {
            assert!((1..=HEIGHT).contains(&rows), "{rows} rows in a tile");
        }

        unsafe fn dots(
            rows: usize,
            acts: *const i8,
            stride: usize,
            weights: *const u8,
            out: *mut i32,
        ) {
            for (row, feature) in (0..rows).flat_map(|row| (0..PANEL).map(move |f| (row, f))) {
                // SAFETY: the caller's promise.
                unsafe {
                    let term = |i: usize| {
                        let weight = *weights.add(i / 4 * 64 + feature * 4 + i % 4);
                        i32::from(*acts.add(row * stride + i)) * i32::from(weight)
                    };
                    *out.add(row * PANEL + feature) = (0..GROUP).map(term).sum();
                }
            }
        }

        unsafe fn release() {}
    }

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

    /// One tile's product by the portable kernel or by emulated tiles.
    fn product(tile: &Tile<'_>, out: &mut [f32], emulated: bool) {
        let tile = Tile {
            out: out.as_mut_ptr(),
            rows: tile.rows.clone(),
            panels: tile.panels.clone(),
            ..*tile
        };
        // SAFETY: `out` has the tile's rows and columns; the test asked for AVX-512.
        unsafe {
            match tile.w.form() {
                _ if !emulated => gemm::compute(Isa::Portable, &tile),
                WeightFormat::W4 => avx512::w4::<Emulated>(&tile),
                WeightFormat::S4 => avx512::s4::<Emulated>(&tile),
                WeightFormat::Mx4 => avx512::mx4::<Emulated>(&tile),
                _ => avx512::w8::<Emulated>(&tile),
            }
        }
    }

    proptest! {
        #[test]
        fn tiles_have_the_bits_of_the_portable_kernel(
            form in proptest::sample::select(&INTEGER[..]),
            (m, first) in (1usize..120).prop_flat_map(|m| (Just(m), 0..m)),
            k in 1usize..330, n in 1usize..150, add in any::<bool>(), seed in any::<u64>(),
        ) {
            if !Isa::Avx512.available() {
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
            product(&tile, &mut want, false);
            product(&tile, &mut got, true);
            let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&got), bits(&want));
        }
    }
}
