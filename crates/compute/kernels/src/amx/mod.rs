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

use crate::packed::PANEL;

#[cfg(test)]
mod emulated;
mod halves;
mod integers;

#[cfg(test)]
pub(crate) use emulated::{Halves, Integers};
/// The unit that `Isa::Amx` stands for.
#[cfg(not(test))]
pub(crate) use {halves::HalfUnit as Halves, integers::IntegerUnit as Integers};

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

/// What sums and dots begin with: after `tilezero` a product takes three times as long (measured on
/// family 6, model 167).
#[repr(align(64))]
struct Zeros([i32; HEIGHT * PANEL]);
static ZEROS: Zeros = Zeros([0; HEIGHT * PANEL]);

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
