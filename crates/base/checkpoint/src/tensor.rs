//! A view of a tensor in a mapped file.

use std::path::Path;

use crate::DType;

/// Borrowed view of one stored tensor. Sizes were checked when the checkpoint was opened: `data`
/// has exactly the elements of `shape`, and every row is a whole number of blocks.
#[derive(Clone, Debug)]
pub struct TensorView<'a> {
    pub name: &'a str,
    pub dtype: DType,
    /// Outermost first, so a matrix is `[rows, cols]`; GGUF's reversed order is already undone.
    pub shape: Vec<usize>,
    /// Stored bytes, row-major, without alignment guarantee.
    pub data: &'a [u8],
    pub file: &'a Path,
    /// File offset of `data`.
    pub offset: usize,
}

impl<'a> TensorView<'a> {
    /// Product of all dimensions except the last; 1 for a vector.
    pub fn rows(&self) -> usize {
        self.shape
            .split_last()
            .map_or(1, |(_, outer)| outer.iter().product())
    }

    /// Elements per row: the last dimension; 1 for a scalar.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Bytes from the start of one row to the start of the next.
    pub fn row_stride(&self) -> usize {
        self.cols() / self.dtype.block_len() * self.dtype.block_bytes()
    }

    /// The stored bytes of row `i`.
    ///
    /// # Panics
    /// `i >= self.rows()`.
    pub fn row_bytes(&self, i: usize) -> &'a [u8] {
        let stride = self.row_stride();
        &self.data[i * stride..(i + 1) * stride]
    }

    /// File offset of row `i`.
    pub fn row_offset(&self, i: usize) -> usize {
        self.offset + i * self.row_stride()
    }

    /// Dequantises row `i` to f32.
    ///
    /// # Panics
    /// `i >= self.rows()` or `out.len() != self.cols()`.
    pub fn dequantize_row(&self, i: usize, out: &mut [f32]) {
        crate::dequantize(self.dtype, self.row_bytes(i), out);
    }
}

/// Size of a tensor in bytes, or the defect of its shape.
pub(crate) fn stored_size(dtype: DType, shape: &[usize]) -> Result<usize, String> {
    let cols = shape.last().copied().unwrap_or(1);
    if !cols.is_multiple_of(dtype.block_len()) {
        return Err(format!(
            "rows of {cols} elements are not whole {dtype} blocks of {}",
            dtype.block_len()
        ));
    }
    let elements = shape
        .iter()
        .try_fold(1usize, |product, &n| product.checked_mul(n));
    elements
        .and_then(|n| dtype.bytes_for(n))
        .ok_or_else(|| format!("shape {shape:?} is too large"))
}
