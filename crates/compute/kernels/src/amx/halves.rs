//! bf16 matrix products on AMX.

use std::arch::asm;

use super::{Configuration, DEPTH, HalfTiles, LINE, ZEROS, load, release, store};

/// The CPU's bf16 tiles. Tiles 0 to 3 are the sums, tile 4 is the left operand. Tiles 5 to 7 are
/// right operands: several of them, so that loads overlap with products. If half products are
/// configured, tile 5 is the only right operand, and tiles 6 and 7 are the operands of half
/// products.
///
/// The sums stay in the tiles between calls. That is safe because the compiler never uses tiles.
#[derive(Default)]
pub(crate) struct HalfUnit {
    /// Number of rows and whether half products are enabled; `None` if the unit is not configured.
    shape: Option<(usize, bool)>,
}

const SUMS: usize = 0;
const LEFT: usize = 4;
const RIGHT: usize = 5;
const HALF_LEFT: usize = 6;
const HALF_RIGHT: usize = 7;

/// # Safety
/// The tiles are configured with compatible shapes; `right` is readable.
#[inline(always)]
unsafe fn product<const SUM: usize, const LEFT: usize, const RIGHT: usize>(
    right: *const u8,
    stride: usize,
) {
    // SAFETY: the caller guarantees that the tiles are configured with compatible shapes and that
    // `right` is readable.
    unsafe {
        load::<RIGHT>(right, stride);
        asm!(
            "tdpbf16ps tmm{sum}, tmm{left}, tmm{right}",
            sum = const SUM,
            left = const LEFT,
            right = const RIGHT,
            options(nostack, nomem, preserves_flags),
        );
    }
}

impl HalfTiles for HalfUnit {
    #[inline]
    unsafe fn configure(&mut self, rows: usize, halves: bool) {
        if self.shape == Some((rows, halves)) {
            return;
        }
        self.shape = Some((rows, halves));
        let (sums, right) = ((rows, LINE), (DEPTH / 2, LINE));
        let last = if halves {
            [(rows, DEPTH), (DEPTH / 4, LINE)]
        } else {
            [right; 2]
        };
        let tiles = [sums, sums, sums, sums, sums, right, last[0], last[1]];
        // SAFETY: the caller guarantees that the CPU and the operating system have the unit.
        unsafe { Configuration::new(tiles).load() }
    }

    #[inline(always)]
    unsafe fn clear(&mut self) {
        // SAFETY: the caller guarantees that the unit is configured; `ZEROS` fills a tile.
        unsafe {
            let zeros = ZEROS.0.as_ptr().cast();
            load::<SUMS>(zeros, LINE);
            load::<{ SUMS + 1 }>(zeros, LINE);
            load::<{ SUMS + 2 }>(zeros, LINE);
            load::<{ SUMS + 3 }>(zeros, LINE);
        }
    }

    #[inline(always)]
    unsafe fn load(&mut self, from: &[*const f32], stride: usize) {
        // SAFETY: the caller guarantees that the unit is configured and that the tiles are
        // readable.
        unsafe {
            for (i, &from) in from.iter().enumerate() {
                match i {
                    0 => load::<SUMS>(from.cast(), stride),
                    1 => load::<{ SUMS + 1 }>(from.cast(), stride),
                    2 => load::<{ SUMS + 2 }>(from.cast(), stride),
                    _ => load::<{ SUMS + 3 }>(from.cast(), stride),
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn add<const HALF: bool>(
        &mut self,
        (left, ld): (*const u16, usize),
        right: &[*const u8],
        stride: usize,
    ) {
        let halves = self.shape.is_some_and(|(_, halves)| halves);
        // SAFETY: the caller guarantees that the unit is configured, with halves if `HALF`, and
        // that the tiles are readable.
        unsafe {
            if HALF {
                load::<HALF_LEFT>(left.cast(), ld);
            } else {
                load::<LEFT>(left.cast(), ld);
            }
            // No loop, because tile numbers are constants.
            if let (&[a, b, c, d], false) = (right, HALF || halves) {
                product::<SUMS, LEFT, RIGHT>(a, stride);
                product::<{ SUMS + 1 }, LEFT, { RIGHT + 1 }>(b, stride);
                product::<{ SUMS + 2 }, LEFT, { RIGHT + 2 }>(c, stride);
                product::<{ SUMS + 3 }, LEFT, RIGHT>(d, stride);
                return;
            }
            for (i, &right) in right.iter().enumerate() {
                match i {
                    0 => one::<SUMS, HALF>(right, stride),
                    1 => one::<{ SUMS + 1 }, HALF>(right, stride),
                    2 => one::<{ SUMS + 2 }, HALF>(right, stride),
                    _ => one::<{ SUMS + 3 }, HALF>(right, stride),
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store(&mut self, out: &[*mut f32], stride: usize) {
        // SAFETY: the caller guarantees that the unit is configured and that the tiles are
        // writable.
        unsafe {
            if let &[a, b, c, d] = out {
                store::<SUMS>(a, stride);
                store::<{ SUMS + 1 }>(b, stride);
                store::<{ SUMS + 2 }>(c, stride);
                store::<{ SUMS + 3 }>(d, stride);
                return;
            }
            for (i, &out) in out.iter().enumerate() {
                match i {
                    0 => store::<SUMS>(out, stride),
                    1 => store::<{ SUMS + 1 }>(out, stride),
                    2 => store::<{ SUMS + 2 }>(out, stride),
                    _ => store::<{ SUMS + 3 }>(out, stride),
                }
            }
        }
    }

    #[inline]
    fn keep_awake(&mut self) {
        if self.shape.is_some() {
            // SAFETY: the unit is configured with compatible shapes.
            unsafe {
                asm!(
                    "tdpbf16ps tmm0, tmm4, tmm5",
                    options(nostack, nomem, preserves_flags)
                );
            }
        }
    }

    fn release(&mut self) {
        if self.shape.take().is_some() {
            // SAFETY: the CPU has the unit, because it is configured.
            unsafe { release() }
        }
    }
}

/// # Safety
/// Same as for [`product`], with the tiles of a half product if `HALF`.
#[inline(always)]
unsafe fn one<const SUM: usize, const HALF: bool>(right: *const u8, stride: usize) {
    // SAFETY: the caller upholds the contract of `product` for these tiles.
    unsafe {
        if HALF {
            product::<SUM, HALF_LEFT, HALF_RIGHT>(right, stride);
        } else {
            product::<SUM, LEFT, RIGHT>(right, stride);
        }
    }
}
