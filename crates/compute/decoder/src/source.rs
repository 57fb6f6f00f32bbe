//! Checkpoint tensors as rows to pack, read through a [`Recipe`]. Quantised codes are copied
//! exactly if the file stores them in blocks of 32, or packed in words, in a format that the
//! kernels support. Other values are read as f32.

mod codes;
mod ggml;
mod matrix;
mod words;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use penstock_checkpoint::{Arrival, DType, ReadAhead, TensorView, dequantize};
use penstock_kernels::{GROUP, GroupRow, RowSource, WeightFormat};

use crate::block_scales::{BlockScales, finite};
use crate::error::{DecoderError, not_finite, shape};
use crate::interleaved::{Interleaved, stored_row};
use crate::recipe::Recipe;
pub(crate) use matrix::MatrixRows;

use ggml::{iq4_nl, mxfp4, q4_0, q4_1, q4_k, q5_0, q8_0};

/// A range of rows and columns of a matrix in a checkpoint.
pub(crate) struct TensorRows<'a> {
    view: TensorView<'a>,
    arrival: Arrival<'a>,
    /// Scales of MXFP4 codes, if stored in a separate tensor; the shape of `view` then counts
    /// codes, not bytes.
    scales: Option<TensorView<'a>>,
    /// Scales of 8-bit floats, one per 128 x 128 block.
    blocks: Option<BlockScales>,
    /// Blocks of rows in interleaved order.
    interleaved: Option<Interleaved>,
    transposed: bool,
    /// Row of the stored tensor at which the matrix starts (after the preceding experts).
    base: usize,
    /// The first row to read, in half-split order.
    first: usize,
    /// Columns of the stored matrix to read.
    columns: Range<usize>,
    /// Lowest row read so far that has a non-finite value; [`FINITE`] if all values are finite.
    not_finite: AtomicUsize,
}

const FINITE: usize = usize::MAX;

/// The vector of `n` numbers that `recipe` describes.
///
/// # Errors
/// The tensor is missing or has the wrong shape.
pub(crate) fn vector(
    tensors: &ReadAhead<'_>,
    recipe: &Recipe,
    n: usize,
) -> Result<Vec<f32>, DecoderError> {
    let view = tensors.tensor(&recipe.tensor)?;
    if let Some(kind) = no_weight(view.dtype) {
        let problem = format!("tensor {:?}, stored as {kind},", view.name);
        return Err(DecoderError::Unsupported(problem));
    }
    let [from, to] = recipe.rows.unwrap_or([0, n]);
    let whole = view.cols();
    let fits = to <= whole && to.checked_sub(from) == Some(n);
    let dims = 1 + usize::from(recipe.expert.is_some());
    let row = recipe.expert.unwrap_or(0);
    if !fits
        || recipe.rows.is_none() && whole != n
        || view.shape.len() != dims
        || row >= view.rows()
    {
        let experts = recipe.expert.map(|e| (e + 1).max(view.rows()));
        return Err(shape(&view, experts.into_iter().chain([to]).collect()));
    }
    let mut stored = vec![0.0; whole];
    view.dequantize_row(row, &mut stored);
    if !finite(&stored) {
        return Err(not_finite(&view, row));
    }
    let item = |i| stored[stored_row(from + i, Interleaved::of(recipe))];
    Ok((0..n).map(item).collect())
}

/// What a type stores whose numbers are no weights by themselves.
fn no_weight(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::U8 => Some("bytes"),
        DType::I8 | DType::I32 | DType::I64 => Some("integers"),
        DType::F8E8M0 => Some("powers of two"),
        _ => None,
    }
}

/// The tensor of a matrix, and its MXFP4 scales if they are a separate tensor.
fn stored<'a>(
    tensors: &'a ReadAhead<'a>,
    recipe: &Recipe,
) -> Result<(TensorView<'a>, Option<TensorView<'a>>), DecoderError> {
    let mut view = tensors.checkpoint().tensor(&recipe.tensor)?;
    let Some(name) = &recipe.scales else {
        let alone = match view.dtype {
            DType::F8E4M3 => "8-bit floats without scales",
            dtype => match no_weight(dtype) {
                Some(kind) => kind,
                None => return Ok((view, None)),
            },
        };
        let problem = format!("tensor {:?}, stored as {alone},", view.name);
        return Err(DecoderError::Unsupported(problem));
    };
    // Only the scales of MXFP4 are read here. `TensorRows::open` reads those of 8-bit floats, and
    // matrices that a checkpoint does not quantise have none, even if the recipe names them.
    match view.dtype {
        DType::U8 => {}
        DType::F8E4M3 | DType::F32 | DType::F16 | DType::BF16 => return Ok((view, None)),
        dtype => {
            let problem = format!("tensor {:?} of type {dtype} with scales", view.name);
            return Err(DecoderError::Unsupported(problem));
        }
    }
    let scales = tensors.tensor(name)?;
    let block = DType::Mxfp4.block_bytes() - 1;
    if scales.dtype != DType::U8 {
        let problem = format!(
            "tensor {:?} with scales of type {}",
            view.name, scales.dtype
        );
        return Err(DecoderError::Unsupported(problem));
    }
    if view.shape.last() != Some(&block) || view.shape.len() < 3 {
        let expected = scales.shape.iter().copied().chain([block]).collect();
        return Err(shape(&view, expected));
    }
    view.shape.pop();
    if view.shape != scales.shape {
        return Err(shape(&scales, view.shape));
    }
    let groups = view.shape.pop().unwrap_or(0);
    view.shape.push(groups * GROUP);
    view.dtype = DType::Mxfp4;
    Ok((view, Some(scales)))
}

impl<'a> TensorRows<'a> {
    /// Opens the `n` x `k` matrix that `recipe` describes.
    ///
    /// # Errors
    /// The tensor is missing, has the wrong shape, or is both quantised and transposed.
    pub(crate) fn open(
        tensors: &'a ReadAhead<'a>,
        recipe: &Recipe,
        n: usize,
        k: usize,
    ) -> Result<Self, DecoderError> {
        let (view, scales) = stored(tensors, recipe)?;
        let blocks = match &recipe.scales {
            Some(name) if view.dtype == DType::F8E4M3 => {
                Some(BlockScales::read(tensors, &view, name)?)
            }
            _ => None,
        };
        let (rows, cols) = (recipe.rows.unwrap_or([0, n]), recipe.cols.unwrap_or([0, k]));
        let mut expected = vec![rows[1], cols[1]];
        if recipe.transposed {
            expected.reverse();
        }
        let outermost = view.shape.first().copied().unwrap_or(0);
        let experts = recipe.expert.map(|e| (e + 1).max(outermost));
        expected.splice(0..0, experts);
        // With `rows` or `cols`, a recipe takes only a part of its tensor, so the tensor may be
        // larger.
        let sliced = |at: usize| match (at == 0) != recipe.transposed {
            true => recipe.rows.is_some(),
            false => recipe.cols.is_some(),
        };
        let lead = expected.len() - 2;
        let fits = view.shape.len() == expected.len()
            && (0..expected.len()).all(|at| {
                let (found, needed) = (view.shape[at], expected[at]);
                found == needed || at >= lead && sliced(at - lead) && found > needed
            });
        let sizes = [(rows, n), (cols, k)];
        if !fits
            || sizes
                .iter()
                .any(|([from, to], size)| to.checked_sub(*from) != Some(*size))
        {
            return Err(shape(&view, expected));
        }
        let float = matches!(view.dtype, DType::F32 | DType::F16 | DType::BF16);
        if recipe.transposed && !float {
            let (name, dtype) = (view.name, view.dtype);
            return Err(DecoderError::Unsupported(format!(
                "tensor {name:?}, transposed and stored as {dtype:?},"
            )));
        }
        let base = recipe.expert.unwrap_or(0) * view.shape[lead];
        Ok(Self {
            interleaved: Interleaved::of(recipe),
            transposed: recipe.transposed,
            base,
            first: rows[0],
            columns: cols[0]..cols[1],
            not_finite: AtomicUsize::new(FINITE),
            arrival: tensors.arrival(&recipe.tensor, recipe.expert),
            view,
            scales,
            blocks,
        })
    }

    /// The packed form for this tensor's blocks or 8-bit floats; `None` for other floats.
    pub(crate) fn native(&self) -> Option<WeightFormat> {
        match self.view.dtype {
            DType::Mxfp4 => Some(WeightFormat::Mx4),
            DType::Q4_0 => Some(WeightFormat::S4),
            DType::Q4_1 | DType::Q4K => Some(WeightFormat::W4),
            DType::Q8_0
            | DType::Q5_0
            | DType::Q5_1
            | DType::Iq4Nl
            | DType::Q5K
            | DType::Q6K
            | DType::F8E4M3 => Some(WeightFormat::W8),
            DType::F32 | DType::F16 | DType::BF16 => None,
            // `stored` refuses these.
            DType::U8 | DType::I8 | DType::I32 | DType::I64 | DType::F8E8M0 => None,
        }
    }

    /// Skips the rows before `first`.
    pub(crate) fn skip_rows(mut self, first: usize) -> Self {
        self.first += first;
        self
    }

    /// Restricts the columns to `columns`, counted from the first current column. The range starts
    /// at a block of 32 and ends at a block or at the end of the row.
    pub(crate) fn columns(mut self, columns: &Range<usize>) -> Self {
        let start = self.columns.start;
        self.columns = start + columns.start..start + columns.end;
        self
    }

    /// Checks the rows read so far.
    ///
    /// # Errors
    /// A row could not be read, or has a non-finite value or block scale.
    pub(crate) fn check(&self) -> Result<(), DecoderError> {
        self.arrival.check()?;
        match self.not_finite.load(Ordering::Relaxed) {
            FINITE => Ok(()),
            // All MXFP4 codes are finite, so the fault is in the scales if they are separate.
            row => {
                let view = self.scales.as_ref().unwrap_or(&self.view);
                Err(not_finite(view, self.damaged(row)))
            }
        }
    }

    fn note(&self, row: usize, finite: bool) {
        if !finite {
            self.not_finite.fetch_min(row, Ordering::Relaxed);
        }
    }

    /// Waits until a row has been read. Returns false if reading failed; the row must then not be
    /// accessed.
    fn arrived(&self, row: usize) -> bool {
        let end = if self.transposed {
            usize::MAX
        } else {
            let each = self.view.data.len() / self.view.rows().max(1);
            self.view.offset + (self.stored(row) + 1) * each
        };
        self.arrival.until(end)
    }

    fn stored(&self, row: usize) -> usize {
        self.base + stored_row(self.first + row, self.interleaved)
    }

    /// The stored row whose values make row `row` non-finite.
    fn damaged(&self, row: usize) -> usize {
        if !self.transposed {
            return self.stored(row);
        }
        let mut values = vec![0.0; self.columns.len()];
        self.read_f32(row, &mut values);
        let first = values.iter().position(|value| !value.is_finite());
        self.base + self.columns.start + first.unwrap_or(0)
    }
}

impl RowSource for TensorRows<'_> {
    fn fill_f32(&self, row: usize, out: &mut [f32]) {
        if self.arrived(row) {
            self.read_f32(row, out);
            self.note(row, finite(out));
        }
    }

    fn fill_groups(&self, form: WeightFormat, row: usize, out: &mut GroupRow) -> bool {
        if !self.arrived(row) {
            return false;
        }
        let filled = self.read_groups(form, row, out);
        self.note(row, !filled || finite(&out.scales) && finite(&out.mins));
        filled
    }
}

impl TensorRows<'_> {
    /// The bytes of a row. MXFP4 codes with separate scales are converted to GGUF blocks: a byte
    /// with two adjacent codes becomes a byte with two codes that are 16 apart.
    fn row_bytes(&self, row: usize) -> Cow<'_, [u8]> {
        let row = self.stored(row);
        let Some(scales) = &self.scales else {
            return Cow::Borrowed(self.view.row_bytes(row));
        };
        let (groups, half) = (scales.cols(), GROUP / 2);
        let codes = &self.view.data[row * groups * half..(row + 1) * groups * half];
        let mut blocks = Vec::with_capacity(groups * (1 + half));
        for (scale, codes) in scales.row_bytes(row).iter().zip(codes.chunks_exact(half)) {
            let code = |i: usize| codes[i / 2] >> (4 * (i % 2)) & 15;
            blocks.push(*scale);
            blocks.extend((0..half).map(|i| code(i) | code(i + half) << 4));
        }
        Cow::Owned(blocks)
    }

    fn read_f32(&self, row: usize, out: &mut [f32]) {
        if self.transposed {
            let item = stored_row(self.first + row, self.interleaved);
            let size = self.view.dtype.block_bytes();
            for (out, column) in out.chunks_exact_mut(1).zip(self.columns.clone()) {
                let bytes = self.view.row_bytes(self.base + column);
                dequantize(self.view.dtype, &bytes[item * size..(item + 1) * size], out);
            }
            return;
        }
        if self.columns.len() == self.view.cols() {
            return self.whole_f32(row, out);
        }
        let mut whole = vec![0.0; self.view.cols()];
        self.whole_f32(row, &mut whole);
        out.copy_from_slice(&whole[self.columns.clone()]);
    }

    fn whole_f32(&self, row: usize, out: &mut [f32]) {
        dequantize(self.view.dtype, &self.row_bytes(row), out);
        if let Some(blocks) = &self.blocks {
            blocks.apply(self.stored(row), out);
        }
    }

    fn read_groups(&self, form: WeightFormat, row: usize, out: &mut GroupRow) -> bool {
        let Range { start, end } = self.columns;
        let whole = end.is_multiple_of(GROUP) || end == self.view.cols();
        if self.transposed || !start.is_multiple_of(GROUP) || !whole {
            return false;
        }
        if self.columns.len() == self.view.cols() {
            return self.whole_groups(form, row, out);
        }
        let mut whole = GroupRow::new(self.view.cols().next_multiple_of(GROUP));
        let filled = self.whole_groups(form, row, &mut whole);
        if filled {
            let first = self.columns.start / GROUP;
            let groups = first..first + out.scales.len();
            out.codes
                .copy_from_slice(&whole.codes[groups.start * GROUP..groups.end * GROUP]);
            out.scales.copy_from_slice(&whole.scales[groups.clone()]);
            out.mins.copy_from_slice(&whole.mins[groups]);
        }
        filled
    }

    /// Copies a row's codes if the file stores them in groups of 32 in the format `form`; otherwise
    /// returns `false`.
    fn whole_groups(&self, form: WeightFormat, row: usize, out: &mut GroupRow) -> bool {
        let bytes = self.row_bytes(row);
        match (form, self.view.dtype) {
            (WeightFormat::Mx4, DType::Mxfp4) => bytes
                .chunks_exact(17)
                .enumerate()
                .for_each(|(g, b)| mxfp4(b, g, out)),
            (WeightFormat::W8, DType::Q8_0) => bytes
                .chunks_exact(34)
                .enumerate()
                .for_each(|(g, b)| q8_0(b, g, out)),
            (WeightFormat::W8, DType::Q5_0) => bytes
                .chunks_exact(22)
                .enumerate()
                .for_each(|(g, b)| q5_0(b, g, out)),
            (WeightFormat::W8, DType::Iq4Nl) => bytes
                .chunks_exact(18)
                .enumerate()
                .for_each(|(g, b)| iq4_nl(b, g, out)),
            (WeightFormat::S4, DType::Q4_0) => bytes
                .chunks_exact(18)
                .enumerate()
                .for_each(|(g, b)| q4_0(b, g, out)),
            (WeightFormat::W4, DType::Q4_1) => bytes
                .chunks_exact(20)
                .enumerate()
                .for_each(|(g, b)| q4_1(b, g, out)),
            (WeightFormat::W4, DType::Q4K) => bytes
                .chunks_exact(144)
                .enumerate()
                .for_each(|(s, b)| q4_k(b, s, out)),
            _ => return false,
        }
        true
    }
}
