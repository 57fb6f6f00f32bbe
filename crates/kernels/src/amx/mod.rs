//! The tile unit of AMX (Intel's instruction set reference, "TDPBSUD" and "TDPBF16PS").
//!
//! A tile has up to 16 rows of 64 bytes. One instruction multiplies 16 rows of activations with a
//! tile of weights, which is what `packed.rs` and `kv/layout.rs` lay out as it stands:
//!
//! ```text
//!   integers  16 rows x 32 codes  *   8 x (16 features x 4)  ->  16 rows x 16 i32
//!   halves    16 rows x 32 bf16   *  16 x (16 features x 2)  ->  16 rows x 16 f32
//! ```
//!
//! Integer dots are exact. A product of halves adds to each sum the even inputs, in ascending
//! order, plus the odd ones; so it differs in the last bits from `vdpbf16ps`, which takes pair by
//! pair. The rows of a product do not affect each other. `emulated.rs` computes both in plain Rust;
//! in the unit tests it stands for a unit that the CPU lacks.

use std::arch::asm;

use crate::packed::{GROUP, PANEL};

#[cfg(test)]
mod emulated;

#[cfg(test)]
pub(crate) use emulated::{Halves, Integers};
/// The unit that `Isa::Amx` stands for.
#[cfg(not(test))]
pub(crate) use {HalfUnit as Halves, IntegerUnit as Integers};

/// Activation rows of one product.
pub(crate) const HEIGHT: usize = 16;
/// Sums (of bf16) or dots (of integers) that are under way at once.
pub(crate) const WIDTH: usize = 4;
/// Inputs of a whole bf16 product; a half one has the half.
pub(crate) const DEPTH: usize = 32;
/// Bytes of a row of a tile.
pub(crate) const LINE: usize = 64;

/// A unit that multiplies tiles of 8-bit integers.
pub(crate) trait IntegerTiles {
    /// Fewest rows for which tiles pay.
    const FEWEST: usize;

    /// Prepares products of `rows` activation rows, up to 16.
    ///
    /// # Safety
    /// The CPU and the operating system have the unit.
    unsafe fn configure(rows: usize);

    /// For `G` groups of 32 inputs and `panels` panels, up to 4:
    /// `out[panel][group][row][feature] = sum of acts[row][group][i] *
    /// weights[panel][group][i / 4][feature][i % 4]` over the inputs of the group.
    ///
    /// # Safety
    /// The unit is configured for `rows`; each row has 32 `G` codes and is `stride` bytes after the
    /// one before; each group of weights has 512 bytes and of `out` 256 numbers.
    unsafe fn dots<const G: usize>(
        rows: usize,
        acts: (*const i8, usize),
        weights: *const i8,
        out: *mut i32,
        panels: usize,
    );

    /// Gives the unit's state back, so that no context switch saves it.
    ///
    /// # Safety
    /// The CPU has the unit.
    unsafe fn release();
}

/// No tiles: all rows go through vectors.
pub(crate) enum Absent {}

impl IntegerTiles for Absent {
    const FEWEST: usize = usize::MAX;

    unsafe fn configure(_: usize) {}
    unsafe fn dots<const G: usize>(
        _: usize,
        _: (*const i8, usize),
        _: *const i8,
        _: *mut i32,
        _: usize,
    ) {
    }
    unsafe fn release() {}
}

/// A unit that multiplies tiles of bf16 and keeps [`WIDTH`] sums of rows x 16 f32.
///
/// `stride` is the bytes between the rows of a tile.
pub(crate) trait HalfTiles: Default {
    /// Prepares products of `rows` activation rows, 1 to 16; some of them half ones if `halves`.
    /// Sums are lost, unless that is how the unit is configured already.
    ///
    /// # Safety
    /// The CPU and the operating system have the unit; no other unit of this thread is configured.
    unsafe fn configure(&mut self, rows: usize, halves: bool);

    /// Sets all sums to zero.
    ///
    /// # Safety
    /// The unit is configured.
    unsafe fn clear(&mut self);

    /// Sets the first sums to the tiles at `from`.
    ///
    /// # Safety
    /// The unit is configured; each tile has as many rows of 16 f32.
    unsafe fn load(&mut self, from: &[*const f32], stride: usize);

    /// Adds to sum `i` the product of `left` (rows x 32 inputs, 16 if `HALF`) with `right[i]`
    /// (16 pairs of inputs x 16 x 2, 8 if `HALF`), for all of `right`.
    ///
    /// # Safety
    /// The unit is configured, with halves if `HALF`; the tiles can be read.
    unsafe fn add<const HALF: bool>(
        &mut self,
        left: (*const u16, usize),
        right: &[*const u8],
        stride: usize,
    );

    /// Writes the first sums to the tiles at `out`.
    ///
    /// # Safety
    /// The unit is configured; each tile has room for as many rows of 16 f32.
    unsafe fn store(&mut self, out: &[*mut f32], stride: usize);

    /// Multiplies once for nothing: a unit that rests for half a microsecond is slow for as long.
    /// Sums are lost.
    fn keep_awake(&mut self);

    /// Gives the unit's state back, if it is configured, so that no context switch saves it.
    fn release(&mut self);
}

/// What `ldtilecfg` reads: the palette, bytes of a row and rows of each tile.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Configuration {
    /// Tiles of the given rows and bytes of a row.
    fn new(tiles: [(usize, usize); 8]) -> Self {
        let mut wanted = Self {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        for (tile, (rows, bytes)) in tiles.into_iter().enumerate() {
            (wanted.rows[tile], wanted.row_bytes[tile]) = (rows as u8, bytes as u16);
        }
        wanted
    }

    /// # Safety
    /// The CPU and the operating system have the unit.
    unsafe fn load(&self) {
        // SAFETY: the configuration is one of palette 1, which every AMX has; the compiler keeps
        // nothing in tiles.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, readonly)) }
    }
}

/// # Safety
/// The CPU has AMX.
unsafe fn release() {
    // SAFETY: the caller's promise.
    unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
}

/// AMX on integers: tiles 0 to 3 hold dots, 4 and 5 activations, 6 and 7 weights.
///
/// While a product is under way, the inputs of the next are loaded and the dots of the one before
/// are stored. Dots begin as a tile of zeros from memory: after `tilezero` a product takes three
/// times as long (measured on family 6, model 167).
pub(crate) enum IntegerUnit {}

const ACTS: usize = 4;
const WEIGHTS: usize = 6;

#[repr(align(64))]
struct Zeros([i32; HEIGHT * PANEL]);
static ZEROS: Zeros = Zeros([0; HEIGHT * PANEL]);

/// Loads the weights of product `i`, and zeros for its dots.
///
/// # Safety
/// The unit is configured for integers; a group of weights can be read.
#[inline(always)]
unsafe fn begin(i: usize, weights: *const i8) {
    let zeros = ZEROS.0.as_ptr().cast();
    // SAFETY: the caller's promise.
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

/// Product `i`, with the activations of group `g`.
///
/// # Safety
/// Its inputs were loaded.
#[inline(always)]
unsafe fn multiply(i: usize, g: usize) {
    // SAFETY: the caller's promise.
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
/// The tiles are configured with shapes that fit each other.
#[inline(always)]
unsafe fn signed<const DOTS: usize, const LEFT: usize, const RIGHT: usize>() {
    // SAFETY: the caller's promise.
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

/// Stores the dots of product `i`.
///
/// # Safety
/// It was computed; `out` has room for 256 numbers.
#[inline(always)]
unsafe fn end(i: usize, out: *mut i32) {
    // SAFETY: the caller's promise.
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
    /// [`IntegerTiles::dots`] of `P` panels: group by group, so that all panels share one load of
    /// activations.
    ///
    /// # Safety
    /// As there.
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
            // SAFETY: the caller's promises; `i` is less than `G * P`.
            unsafe {
                match (i % P, i / P % 2) {
                    (0, 0) => load::<ACTS>(acts, stride),
                    (0, _) => load::<{ ACTS + 1 }>(acts, stride),
                    _ => {}
                }
                begin(i, weights.add(tile(i) * GROUP * PANEL));
            }
        };
        // SAFETY: as above.
        let end = |i: usize| unsafe { end(i, out.add(tile(i) * HEIGHT * PANEL)) };
        begin(0);
        // Unrolled, since the names of tiles are constants.
        macro_rules! products {
            ($($i:literal)*) => {$(
                if $i < G * P {
                    if $i + 1 < G * P {
                        begin($i + 1);
                    }
                    // SAFETY: its inputs were loaded.
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
        // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise.
        unsafe { release() }
    }
}

/// AMX on bf16. Tiles 0 to 3 are the sums and 4 is the left side. 5 to 7 are right sides, so that
/// one is read while another is used; with half products 5 is, and 6 and 7 are their two sides.
///
/// Sums stay in the tiles from call to call: compiled code touches none.
#[derive(Default)]
pub(crate) struct HalfUnit {
    /// Rows and whether products are half ones, if the unit is configured.
    shape: Option<(usize, bool)>,
}

const SUMS: usize = 0;
const LEFT: usize = 4;
const RIGHT: usize = 5;
const HALF_LEFT: usize = 6;
const HALF_RIGHT: usize = 7;

/// # Safety
/// The tile is configured and can be read.
#[inline(always)]
unsafe fn load<const TILE: usize>(from: *const u8, stride: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tileloadd tmm{tile}, [{from} + {stride}]",
            tile = const TILE,
            from = in(reg) from,
            stride = in(reg) stride,
            options(nostack, readonly, preserves_flags),
        );
    }
}

/// # Safety
/// The tile is configured and can be written.
#[inline(always)]
unsafe fn store<const TILE: usize>(out: *mut f32, stride: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilestored [{out} + {stride}], tmm{tile}",
            tile = const TILE,
            out = in(reg) out,
            stride = in(reg) stride,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// The tiles are configured with shapes that fit each other; `right` can be read.
#[inline(always)]
unsafe fn product<const SUM: usize, const LEFT: usize, const RIGHT: usize>(
    right: *const u8,
    stride: usize,
) {
    // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise.
        unsafe { Configuration::new(tiles).load() }
    }

    #[inline(always)]
    unsafe fn clear(&mut self) {
        // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise.
        unsafe {
            if HALF {
                load::<HALF_LEFT>(left.cast(), ld);
            } else {
                load::<LEFT>(left.cast(), ld);
            }
            // Without a loop, since the names of tiles are constants.
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
        // SAFETY: the caller's promise.
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
            // SAFETY: the unit is configured with shapes that fit each other.
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
            // SAFETY: the CPU has the unit, because it was configured.
            unsafe { release() }
        }
    }
}

/// # Safety
/// As [`product`], in any configuration, with half products if `HALF`.
#[inline(always)]
unsafe fn one<const SUM: usize, const HALF: bool>(right: *const u8, stride: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if HALF {
            product::<SUM, HALF_LEFT, HALF_RIGHT>(right, stride);
        } else {
            product::<SUM, LEFT, RIGHT>(right, stride);
        }
    }
}
