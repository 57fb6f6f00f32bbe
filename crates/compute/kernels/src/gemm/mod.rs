//! Matrix multiplication (GEMM) tiles: some rows of activations times some panels of one packed
//! matrix.
//!
//! The sequence of operations for an output element is the same for every tile shape: groups of
//! inputs in ascending order, the exact integer dot product of a group, then
//! `f += dot * (scale_w * scale_a)` and, for `W4`, `f += min_w * scaled_sum_a`, each a fused
//! multiply-add. A row's result therefore does not depend on the other rows or on the number of
//! threads, and the integer formats are bit-identical on all instruction sets.

use std::ops::Range;

use crate::activations::Activations;
#[cfg(target_arch = "x86_64")]
use crate::amx::{Absent, Halves, Integers};
use crate::isa::Isa;
use crate::packed::{PANEL, Packed, WeightFormat};

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod amx_half;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_float;
mod generic;
#[cfg(target_arch = "x86_64")]
mod panels;

/// Whether the product replaces the output or is added to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// `out = product`.
    Store,
    /// `out += product`.
    Add,
}

/// Operands and output of one tile.
pub(crate) struct Tile<'a> {
    pub(crate) w: &'a Packed,
    pub(crate) acts: &'a Activations,
    pub(crate) rows: Range<usize>,
    pub(crate) panels: Range<usize>,
    /// Pointer to element (rows.start, panels.start * 16) of the output.
    pub(crate) out: *mut f32,
    /// Row stride of the output, in elements.
    pub(crate) ld: usize,
    pub(crate) mode: Mode,
    /// Added to the product; indexed by output feature of the whole matrix.
    pub(crate) bias: Option<&'a [f32]>,
}

impl Tile<'_> {
    /// Number of features of `panel`; the last panel may be partial.
    fn features(&self, panel: usize) -> usize {
        PANEL.min(self.w.n() - panel * PANEL)
    }

    fn check(&self) {
        assert!(
            self.rows.end <= self.acts.m && self.panels.end <= self.w.panels(),
            "tile outside its matrices"
        );
        assert_eq!(
            self.acts.k_padded,
            self.w.k_padded(),
            "activations and weights differ in their inputs"
        );
        assert_eq!(
            self.acts.kind,
            crate::activations::ActivationFormat::of(self.w.form()),
            "activation form does not fit the weights"
        );
        if let Some(bias) = self.bias {
            assert_eq!(bias.len(), self.w.n(), "bias length");
        }
    }
}

/// Computes a tile.
///
/// # Safety
/// `tile.out` is valid for writes of the tile's elements (rows x existing features, row stride
/// `ld`), no other thread accesses them during the call, and the CPU has `isa`.
pub(crate) unsafe fn compute(isa: Isa, tile: &Tile<'_>) {
    tile.check();
    // SAFETY: the caller upholds this function's contract; the shapes are checked.
    unsafe {
        match (isa, tile.w.form()) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, WeightFormat::W4) => avx512::w4::<Absent>(tile),
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx, WeightFormat::W4) => avx512::w4::<Integers>(tile),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, WeightFormat::S4) => avx512::s4::<Absent>(tile),
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx, WeightFormat::S4) => avx512::s4::<Integers>(tile),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, WeightFormat::Z4) => avx512::z4::<Absent>(tile),
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx, WeightFormat::Z4) => avx512::z4::<Integers>(tile),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, WeightFormat::Mx4) => avx512::mx4::<Absent>(tile),
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx, WeightFormat::Mx4) => avx512::mx4::<Integers>(tile),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, WeightFormat::W8) => avx512::w8::<Absent>(tile),
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx, WeightFormat::W8) => avx512::w8::<Integers>(tile),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, WeightFormat::Bf16) => avx512_float::bf16(tile),
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx, WeightFormat::Bf16) => amx_half::bf16::<Halves>(tile),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 | Isa::Amx, WeightFormat::F32) => avx512_float::f32(tile),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, _) => avx2::compute(tile),
            _ => generic::compute(tile),
        }
    }
}
