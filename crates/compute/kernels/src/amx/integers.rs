//! 8-bit integer matrix products on AMX.

use std::arch::asm;

use super::{Configuration, HEIGHT, IntegerTiles, LINE, ZEROS, load, release, store};
use crate::packed::{GROUP, PANEL};

/// The CPU's integer tiles: tiles 0 to 3 hold dot products, 4 and 5 activations, 6 and 7 weights.
///
/// Software pipeline: during a product, the next product's operands are loaded and the previous
/// product's results are stored.
pub(crate) enum IntegerUnit {}

const ACTS: usize = 4;
const WEIGHTS: usize = 6;

/// Loads the weights of product `i` and zeroes its dot products.
///
/// # Safety
/// The unit is configured for integers; one group of weights is readable.
#[inline(always)]
unsafe fn begin(i: usize, weights: *const i8) {
    let zeros = ZEROS.0.as_ptr().cast();
    // SAFETY: the caller guarantees that the unit is configured for integers and that one group of
    // weights is readable; `ZEROS` fills a tile.
    unsafe {
        match i % 4 {
            0 => load::<0>(zeros, LINE),
            1 => load::<1>(zeros, LINE),
            2 => load::<2>(zeros, LINE),
            _ => load::<3>(zeros, LINE),
        }
        match i % 2 {
            0 => load::<WEIGHTS>(weights.cast(), LINE),
            _ => load::<{ WEIGHTS + 1 }>(weights.cast(), LINE),
        }
    }
}

/// Computes product `i` with the activations of group `g`.
///
/// # Safety
/// The operands of the product are loaded.
#[inline(always)]
unsafe fn multiply(i: usize, g: usize) {
    // SAFETY: the caller guarantees that the operands are loaded, so the tiles are configured.
    unsafe {
        match (i % 4, g % 2) {
            (0, 0) => signed::<0, ACTS, WEIGHTS>(),
            (1, 0) => signed::<1, ACTS, { WEIGHTS + 1 }>(),
            (2, 0) => signed::<2, ACTS, WEIGHTS>(),
            (_, 0) => signed::<3, ACTS, { WEIGHTS + 1 }>(),
            (0, _) => signed::<0, { ACTS + 1 }, WEIGHTS>(),
            (1, _) => signed::<1, { ACTS + 1 }, { WEIGHTS + 1 }>(),
            (2, _) => signed::<2, { ACTS + 1 }, WEIGHTS>(),
            _ => signed::<3, { ACTS + 1 }, { WEIGHTS + 1 }>(),
        }
    }
}

/// # Safety
/// The tiles are configured with compatible shapes.
#[inline(always)]
unsafe fn signed<const DOTS: usize, const LEFT: usize, const RIGHT: usize>() {
    // SAFETY: the caller guarantees that the tiles are configured with compatible shapes.
    unsafe {
        asm!(
            "tdpbssd tmm{dots}, tmm{left}, tmm{right}",
            dots = const DOTS,
            left = const LEFT,
            right = const RIGHT,
            options(nostack, nomem, preserves_flags),
        );
    }
}

/// Stores the dot products of product `i`.
///
/// # Safety
/// Product `i` has been computed; `out` has space for 256 numbers.
#[inline(always)]
unsafe fn end(i: usize, out: *mut i32) {
    // SAFETY: the caller guarantees that the product has been computed and that `out` has space for
    // 256 numbers.
    unsafe {
        match i % 4 {
            0 => store::<0>(out.cast(), LINE),
            1 => store::<1>(out.cast(), LINE),
            2 => store::<2>(out.cast(), LINE),
            _ => store::<3>(out.cast(), LINE),
        }
    }
}

impl IntegerUnit {
    /// [`IntegerTiles::dots`] for `P` panels. The group is the outer loop, so that all panels share
    /// one load of activations.
    ///
    /// # Safety
    /// Same as for [`IntegerTiles::dots`].
    #[inline(always)]
    unsafe fn products<const G: usize, const P: usize>(
        (acts, stride): (*const i8, usize),
        weights: *const i8,
        out: *mut i32,
    ) {
        const { assert!(G * P <= 12) };
        let tile = |i: usize| i % P * G + i / P;
        let begin = |i: usize| {
            let acts = acts.wrapping_add(i / P * GROUP).cast();
            // SAFETY: `i` is less than `G * P`, so the activations and weights exist by the
            // contract of `dots`.
            unsafe {
                match (i % P, i / P % 2) {
                    (0, 0) => load::<ACTS>(acts, stride),
                    (0, _) => load::<{ ACTS + 1 }>(acts, stride),
                    _ => {}
                }
                begin(i, weights.add(tile(i) * GROUP * PANEL));
            }
        };
        // SAFETY: `i` is less than `G * P`, so `out` has space for the product by the contract of
        // `dots`.
        let end = |i: usize| unsafe { end(i, out.add(tile(i) * HEIGHT * PANEL)) };
        begin(0);
        // Unrolled, because tile numbers are constants.
        macro_rules! products {
            ($($i:literal)*) => {$(
                if $i < G * P {
                    if $i + 1 < G * P {
                        begin($i + 1);
                    }
                    // SAFETY: the operands are loaded.
                    unsafe { multiply($i, $i / P) };
                    if $i != 0 {
                        end($i - 1);
                    }
                }
            )*};
        }
        products!(0usize 1 2 3 4 5 6 7 8 9 10 11);
        end(G * P - 1);
    }
}

impl IntegerTiles for IntegerUnit {
    const FEWEST: usize = 8;

    unsafe fn configure(rows: usize) {
        let (dots, acts, weights) = ((rows, LINE), (rows, GROUP), (GROUP / 4, LINE));
        let tiles = [dots, dots, dots, dots, acts, acts, weights, weights];
        // SAFETY: the caller guarantees that the CPU and the operating system have the unit.
        unsafe { Configuration::new(tiles).load() }
    }

    #[inline(never)]
    unsafe fn dots<const G: usize>(
        _: usize,
        acts: (*const i8, usize),
        weights: *const i8,
        out: *mut i32,
        panels: usize,
    ) {
        // SAFETY: the caller upholds the contract of `dots`; there are 1 to 4 panels.
        unsafe {
            match panels {
                1 => Self::products::<G, 1>(acts, weights, out),
                2 => Self::products::<G, 2>(acts, weights, out),
                3 => Self::products::<G, 3>(acts, weights, out),
                _ => Self::products::<G, 4>(acts, weights, out),
            }
        }
    }

    unsafe fn release() {
        // SAFETY: the caller guarantees that the CPU has the unit.
        unsafe { release() }
    }
}
