//! bf16 GEMM tiles on AMX.
//!
//! Even products of one row use AMX. A row's bits must not depend on the other rows, and results of
//! `vdpbf16ps` differ in the last bits. The loop multiplies all rows by a few groups of inputs at a
//! time. The weights of these groups fit the L1 cache, and the f32 sums are in the L2 cache.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::Tile;
use super::panels::{PANELS, store};
use crate::amx::{DEPTH, HEIGHT, HalfTiles, LINE, WIDTH};
use crate::packed::PANEL;
use crate::tasks;

/// Stripes of [`HEIGHT`] rows per pass: the maximum of a task.
const STRIPES: usize = tasks::ROWS / HEIGHT;
/// Groups of inputs per iteration.
const GROUPS: usize = 8;

/// Numbers per sum tile.
const TILE: usize = HEIGHT * PANEL;

const _: () = assert!(PANELS == WIDTH && DEPTH == crate::packed::GROUP);

/// Sums by stripe and panel of the block.
#[repr(align(64))]
struct Sums(MaybeUninit<[f32; STRIPES * PANELS * TILE]>);

/// # Safety
/// Same as for `gemm::compute`; the CPU has AVX-512 and `U`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")]
pub(super) unsafe fn bf16<U: HalfTiles>(tile: &Tile<'_>) {
    if tile.rows.is_empty() {
        return;
    }
    let height = HEIGHT.min(tile.rows.len());
    let mut sums = Sums(MaybeUninit::uninit());
    // SAFETY: the caller upholds this function's contract; rows and panels lie in the tile, which
    // has at least `height` rows.
    unsafe {
        let mut unit = U::default();
        unit.configure(height, false);
        for first in tile.rows.clone().step_by(STRIPES * HEIGHT) {
            for panel in tile.panels.clone().step_by(PANELS) {
                let part = Part {
                    tile,
                    height,
                    rows: first..tile.rows.end.min(first + STRIPES * HEIGHT),
                    panel,
                    panels: PANELS.min(tile.panels.end - panel),
                };
                part.multiply(&mut unit, &mut sums);
                part.write(&sums);
            }
        }
        unit.release();
    }
}

/// Some rows of a tile and a block of panels.
struct Part<'a> {
    tile: &'a Tile<'a>,
    /// Rows per product; the tile has at least this many, a part may have fewer.
    height: usize,
    rows: std::ops::Range<usize>,
    panel: usize,
    panels: usize,
}

impl Part<'_> {
    /// The first row of each stripe and the first row of its product. The last product overlaps the
    /// previous one, so that it does not extend past the end of the tile.
    fn stripes(&self) -> impl Iterator<Item = (usize, usize)> {
        let last = self.tile.rows.end - self.height;
        let starts = self.rows.clone().step_by(HEIGHT);
        starts.map(move |row| (row, row.min(last)))
    }

    /// Computes the sums of all stripes.
    ///
    /// # Safety
    /// The unit is configured for `height` rows.
    unsafe fn multiply<U: HalfTiles>(&self, unit: &mut U, sums: &mut Sums) {
        let (acts, k) = (self.tile.acts.halves.as_ptr(), self.tile.acts.k_padded);
        let groups = self.tile.w.groups();
        // With a single stripe no weight is reused, so one pass takes all groups.
        let taken = if self.rows.len() <= HEIGHT {
            groups
        } else {
            GROUPS
        };
        for first in (0..groups).step_by(taken.max(1)) {
            for (stripe, (_, top)) in self.stripes().enumerate() {
                let sums: [*mut f32; PANELS] = std::array::from_fn(|n| sums.at(stripe, n));
                let sums = &sums[..self.panels];
                // SAFETY: each row of activations has `k` numbers and each panel `k / 2` lines; the
                // sums of all earlier groups are stored.
                unsafe {
                    if first == 0 {
                        unit.clear();
                    } else {
                        let sums: [*const f32; PANELS] =
                            std::array::from_fn(|n| sums[n.min(sums.len() - 1)].cast_const());
                        unit.load(&sums[..self.panels], LINE);
                    }
                    for g in first..groups.min(first + taken) {
                        let left = (acts.add(top * k + g * DEPTH), k * 2);
                        let weights = self.weights(g);
                        unit.add::<false>(left, &weights[..self.panels], LINE);
                    }
                    unit.store(sums, LINE);
                }
            }
        }
    }

    /// Group `g` of each panel.
    #[inline(always)]
    fn weights(&self, g: usize) -> [*const u8; PANELS] {
        let w = self.tile.w;
        let (codes, bytes) = (w.panel(self.panel).as_ptr(), w.panel(self.panel).len());
        std::array::from_fn(|n| codes.wrapping_add(n * bytes + g * DEPTH / 2 * LINE))
    }

    /// Writes the rows' sums to the output.
    ///
    /// # Safety
    /// Same as for `gemm::compute`; the sums are computed.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")]
    unsafe fn write(&self, sums: &Sums) {
        for (stripe, (start, top)) in self.stripes().enumerate() {
            for row in start..self.rows.end.min(start + HEIGHT) {
                for n in 0..self.panels {
                    // SAFETY: the caller upholds the contract of `gemm::compute` and guarantees
                    // that the sums are computed.
                    unsafe {
                        let sum = sums.read(stripe, n).add((row - top) * PANEL);
                        let sum = _mm512_load_ps(sum);
                        store(self.tile, self.panel + n, row, &[[sum]]);
                    }
                }
            }
        }
    }
}

impl Sums {
    fn at(&mut self, stripe: usize, panel: usize) -> *mut f32 {
        let first = self.0.as_mut_ptr().cast::<f32>();
        first.wrapping_add((stripe * PANELS + panel) * TILE)
    }

    fn read(&self, stripe: usize, panel: usize) -> *const f32 {
        let first = self.0.as_ptr().cast::<f32>();
        first.wrapping_add((stripe * PANELS + panel) * TILE)
    }
}
