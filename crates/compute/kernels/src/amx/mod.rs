//! The AMX tile unit (Intel's instruction set reference, "TDPBSUD" and "TDPBF16PS").
//!
//! A tile has up to 16 rows of 64 bytes. One instruction multiplies 16 rows of activations by a
//! tile of weights. `packed.rs` and `kv/layout.rs` store operands in exactly the tile layout:
//!
//! ```text
//!   integers  16 rows x 32 codes  *   8 x (16 features x 4)  ->  16 rows x 16 i32
//!   halves    16 rows x 32 bf16   *  16 x (16 features x 2)  ->  16 rows x 16 f32
//! ```
//!
//! Integer dot products are exact. A bf16 product adds to each sum the even inputs, in ascending
//! order, and then the odd inputs. `vdpbf16ps` adds pair by pair, so its results differ in the last
//! bits. The rows of a product do not affect each other. `emulated.rs` computes the same results in
//! plain Rust; the unit tests use it on a CPU without AMX.

use std::arch::asm;

use crate::packed::PANEL;

#[cfg(test)]
mod emulated;
mod halves;
mod integers;

#[cfg(test)]
pub(crate) use emulated::{Halves, Integers};
/// The unit that `Isa::Amx` selects.
#[cfg(not(test))]
pub(crate) use {halves::HalfUnit as Halves, integers::IntegerUnit as Integers};

/// Maximum activation rows of one product.
pub(crate) const HEIGHT: usize = 16;
/// Number of sum tiles (bf16) or dot-product tiles (integers) in use at once.
pub(crate) const WIDTH: usize = 4;
/// Inputs (inner dimension) of a full bf16 product; a half product has 16.
pub(crate) const DEPTH: usize = 32;
/// Bytes per tile row.
pub(crate) const LINE: usize = 64;

/// A unit that multiplies tiles of 8-bit integers.
pub(crate) trait IntegerTiles {
    /// Minimum number of rows for which AMX tiles are faster than vector instructions.
    const FEWEST: usize;

    /// Prepares products of `rows` activation rows, up to 16.
    ///
    /// # Safety
    /// The CPU and the operating system have the unit.
    unsafe fn configure(rows: usize);

    /// For `G` groups of 32 inputs and `panels` panels, up to 4, computes
    /// `out[panel][group][row][feature] = sum of acts[row][group][i] * weights[panel][group][i /
    /// 4][feature][i % 4]` over the inputs of the group.
    ///
    /// # Safety
    /// The unit is configured for `rows`. Each row has 32 `G` codes; rows are `stride` bytes apart.
    /// Each group has 512 bytes of weights and 256 numbers of `out`.
    unsafe fn dots<const G: usize>(
        rows: usize,
        acts: (*const i8, usize),
        weights: *const i8,
        out: *mut i32,
        panels: usize,
    );

    /// Releases the tile state, so that context switches need not save it.
    ///
    /// # Safety
    /// The CPU has the unit.
    unsafe fn release();
}

/// Stand-in for CPUs without a tile unit: all rows use vector instructions.
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

/// A unit that multiplies bf16 tiles and keeps [`WIDTH`] sums of rows x 16 f32.
///
/// `stride` is the distance of tile rows in bytes.
pub(crate) trait HalfTiles: Default {
    /// Prepares products of `rows` activation rows, 1 to 16, and half products if `halves`. Sums
    /// are lost unless the unit already has this configuration.
    ///
    /// # Safety
    /// The CPU and the operating system have the unit; no other unit of this thread is configured.
    unsafe fn configure(&mut self, rows: usize, halves: bool);

    /// Sets all sums to zero.
    ///
    /// # Safety
    /// The unit is configured.
    unsafe fn clear(&mut self);

    /// Loads the first `from.len()` sums from the tiles at `from`.
    ///
    /// # Safety
    /// The unit is configured; each tile has the configured number of rows of 16 f32.
    unsafe fn load(&mut self, from: &[*const f32], stride: usize);

    /// Adds to sum `i` the product of `left` (rows x 32 inputs, 16 if `HALF`) and `right[i]` (16
    /// pairs of inputs x 16 x 2, 8 pairs if `HALF`), for all of `right`.
    ///
    /// # Safety
    /// The unit is configured, with halves if `HALF`; the tiles are readable.
    unsafe fn add<const HALF: bool>(
        &mut self,
        left: (*const u16, usize),
        right: &[*const u8],
        stride: usize,
    );

    /// Stores the first `out.len()` sums to the tiles at `out`.
    ///
    /// # Safety
    /// The unit is configured; each tile has space for the configured number of rows of 16 f32.
    unsafe fn store(&mut self, out: &[*mut f32], stride: usize);

    /// Executes one product and discards its result, so that the unit stays at full speed: after
    /// half a microsecond without a product, the unit is slow for another half microsecond. Sums
    /// are lost.
    fn keep_awake(&mut self);

    /// Releases the tile state if the unit is configured, so that context switches need not save
    /// it.
    fn release(&mut self);
}

/// Operand of `ldtilecfg`: the palette, and the row bytes and rows of each tile.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Configuration {
    /// Configuration from (rows, bytes per row) of each tile.
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
        // SAFETY: the configuration uses palette 1, which every AMX has; the compiler keeps nothing
        // in tiles.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, readonly)) }
    }
}

/// # Safety
/// The CPU has AMX.
unsafe fn release() {
    // SAFETY: the caller guarantees that the CPU has AMX.
    unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
}

/// Zeros from which sums and dot products are initialised by a load. After `tilezero`, the next
/// product takes three times as long (measured on family 6, model 167).
#[repr(align(64))]
struct Zeros([i32; HEIGHT * PANEL]);
static ZEROS: Zeros = Zeros([0; HEIGHT * PANEL]);

/// # Safety
/// The tile is configured; `from` is readable.
#[inline(always)]
unsafe fn load<const TILE: usize>(from: *const u8, stride: usize) {
    // SAFETY: the caller guarantees that the tile is configured and that `from` is readable.
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
/// The tile is configured; `out` is writable.
#[inline(always)]
unsafe fn store<const TILE: usize>(out: *mut f32, stride: usize) {
    // SAFETY: the caller guarantees that the tile is configured and that `out` is writable.
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
