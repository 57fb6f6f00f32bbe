//! A matrix of a checkpoint in any form.

use std::ops::Range;

use penstock_checkpoint::ReadAhead;
use penstock_kernels::{GroupRow, RowSource, WeightFormat};

use super::TensorRows;
use super::codes::CodeRows;
use crate::error::DecoderError;
use crate::recipe::Recipe;

/// A range of rows and columns of a matrix in a checkpoint.
pub(crate) enum MatrixRows<'a> {
    Tensor(TensorRows<'a>),
    Codes(CodeRows<'a>),
}

impl<'a> MatrixRows<'a> {
    /// Opens the `n` x `k` matrix that `recipe` describes.
    ///
    /// # Errors
    /// A tensor is missing, damaged, or has the wrong type or shape.
    pub(crate) fn open(
        tensors: &'a ReadAhead<'a>,
        recipe: &Recipe,
        n: usize,
        k: usize,
    ) -> Result<Self, DecoderError> {
        Ok(match &recipe.codes {
            Some(codes) => Self::Codes(CodeRows::open(tensors, recipe, codes, n, k)?),
            None => Self::Tensor(TensorRows::open(tensors, recipe, n, k)?),
        })
    }

    /// The packed form for quantised numbers as they are stored; `None` for floats, and for codes
    /// that no form has.
    pub(crate) fn native(&self) -> Option<WeightFormat> {
        match self {
            Self::Tensor(rows) => rows.native(),
            Self::Codes(rows) => rows.native(),
        }
    }

    /// Whether the numbers are quantised in the file.
    pub(crate) fn is_quantised(&self) -> bool {
        matches!(self, Self::Codes(_)) || self.native().is_some()
    }

    /// Skips the rows before `first`.
    pub(crate) fn skip_rows(self, first: usize) -> Self {
        match self {
            Self::Tensor(rows) => Self::Tensor(rows.skip_rows(first)),
            Self::Codes(rows) => Self::Codes(rows.skip_rows(first)),
        }
    }

    /// Restricts the columns to `columns`, counted from the first current column. The range starts
    /// at a block of 32 and ends at a block or at the end of the row.
    pub(crate) fn columns(self, columns: &Range<usize>) -> Self {
        match self {
            Self::Tensor(rows) => Self::Tensor(rows.columns(columns)),
            Self::Codes(rows) => Self::Codes(rows.columns(columns)),
        }
    }

    /// Checks the rows read so far.
    ///
    /// # Errors
    /// A row could not be read, or has a non-finite value or block scale.
    pub(crate) fn check(&self) -> Result<(), DecoderError> {
        match self {
            Self::Tensor(rows) => rows.check(),
            Self::Codes(rows) => rows.check(),
        }
    }

    fn source(&self) -> &dyn RowSource {
        match self {
            Self::Tensor(rows) => rows,
            Self::Codes(rows) => rows,
        }
    }
}

impl RowSource for MatrixRows<'_> {
    fn fill_f32(&self, row: usize, out: &mut [f32]) {
        self.source().fill_f32(row, out);
    }

    fn fill_groups(&self, form: WeightFormat, row: usize, out: &mut GroupRow) -> bool {
        self.source().fill_groups(form, row, out)
    }

    fn slab(&self, rows: Range<usize>) -> Option<Box<dyn RowSource + '_>> {
        self.source().slab(rows)
    }
}
