//! Matrices stored as integer codes in words of 32 bits: GPTQ, AWQ, and packed integers of
//! compressed-tensors. A weight is `(code - zero point) * scale`.

use std::ops::Range;

use half::f16;
use penstock_checkpoint::{Arrival, DType, ReadAhead, TensorView};
use penstock_kernels::{GROUP, GroupRow, RowSource, WeightFormat};

use super::words::{AWQ_PLACES, integers, spread, word_at};
use crate::error::{DecoderError, contradiction, not_finite, shape};
use crate::interleaved::{Interleaved, stored_row};
use crate::recipe::{CodeLayout, Codes, Recipe};

/// Relative error of an f16 scale up to which codes keep their own form: rounding of normal
/// numbers.
const ROUNDING: f32 = 1.0 / 2048.0;

/// A range of rows and columns of a matrix of codes.
pub(crate) struct CodeRows<'a> {
    codes: TensorView<'a>,
    arrival: Arrival<'a>,
    layout: CodeLayout,
    bits: usize,
    scales: Scales<'a>,
    /// The weight format that holds these codes unchanged; `None` if there is none.
    native: Option<WeightFormat>,
    interleaved: Option<Interleaved>,
    /// The first row to read, in half-split order.
    first: usize,
    /// Inputs to read.
    columns: Range<usize>,
}

/// Scales and zero points of a matrix, by output and group of inputs.
struct Scales<'a> {
    layout: CodeLayout,
    bits: usize,
    scales: TensorView<'a>,
    /// `None`: half of the codes' range everywhere.
    zeros: Option<TensorView<'a>>,
    /// Outputs that share a scale.
    rows: usize,
    /// Inputs of a group.
    size: usize,
    groups: usize,
    /// The group of each input; `None` if groups are neighbours.
    order: Option<Vec<usize>>,
}

/// Unpacked codes of consecutive rows. Tensors whose words run across rows are read fast only in
/// such slabs.
struct Slab<'s> {
    source: &'s CodeRows<'s>,
    first: usize,
    codes: Vec<u8>,
}

impl<'a> CodeRows<'a> {
    /// Opens the `n` x `k` matrix that `recipe` describes.
    ///
    /// # Errors
    /// A tensor is missing or has the wrong type or shape, or a scale or group index is invalid.
    pub(crate) fn open(
        tensors: &'a ReadAhead<'a>,
        recipe: &Recipe,
        codes: &Codes,
        n: usize,
        k: usize,
    ) -> Result<Self, DecoderError> {
        supported(recipe, codes)?;
        let view = tensors.checkpoint().tensor(&recipe.tensor)?;
        needs(&view, &[DType::I32])?;
        let [from, to] = recipe.rows.unwrap_or([0, n]);
        let per = 32 / codes.bits;
        let outputs = match (recipe.rows, codes.layout, &view.shape[..]) {
            (None, _, _) => n,
            (_, CodeLayout::Packed, [outputs, _]) => *outputs,
            (_, CodeLayout::Awq, [_, words]) => words * per,
            (_, _, [_, outputs]) => *outputs,
            _ => to,
        };
        let expected = match codes.layout {
            CodeLayout::Packed => vec![outputs, k.div_ceil(per)],
            CodeLayout::Awq => vec![k, outputs.div_ceil(per)],
            _ => vec![k.div_ceil(per), outputs],
        };
        if view.shape != expected || to > outputs || to.checked_sub(from) != Some(n) {
            return Err(shape(&view, expected));
        }
        if let Some(name) = &codes.shape {
            let stored = tensors.tensor(name)?;
            needs(&stored, &[DType::I64, DType::I32])?;
            let stated = integers(&stored);
            if stated != [outputs as i64, k as i64] {
                let problem = format!("states the shape {stated:?}, not [{outputs}, {k}]");
                return Err(contradiction(&stored, 0, problem));
            }
        }
        let scales = Scales::open(tensors, &view, codes, outputs, k)?;
        Ok(Self {
            native: scales.native(),
            scales,
            layout: codes.layout,
            bits: codes.bits,
            arrival: tensors.arrival(&recipe.tensor, None),
            interleaved: Interleaved::of(recipe),
            first: from,
            columns: 0..k,
            codes: view,
        })
    }

    /// The weight format that holds these codes unchanged, if there is one.
    pub(crate) fn native(&self) -> Option<WeightFormat> {
        self.native
    }

    pub(crate) fn skip_rows(mut self, first: usize) -> Self {
        self.first += first;
        self
    }

    /// Restricts the columns, counted from the first current one. The range starts at a multiple
    /// of 32.
    pub(crate) fn columns(mut self, columns: &Range<usize>) -> Self {
        let start = self.columns.start;
        self.columns = start + columns.start..start + columns.end;
        self
    }

    /// # Errors
    /// A row could not be read.
    pub(crate) fn check(&self) -> Result<(), DecoderError> {
        Ok(self.arrival.check()?)
    }

    fn stored(&self, row: usize) -> usize {
        stored_row(self.first + row, self.interleaved)
    }

    /// Waits until rows have been read. Returns false if reading failed; they must then not be
    /// accessed.
    fn arrived(&self, rows: &Range<usize>) -> bool {
        let end = match self.layout {
            CodeLayout::Packed => {
                let last = rows.clone().map(|row| self.stored(row)).max();
                self.codes.row_offset(last.unwrap_or(0) + 1)
            }
            _ => usize::MAX,
        };
        self.arrival.until(end)
    }

    fn unpacked(&self, rows: Range<usize>) -> Slab<'_> {
        let (k, per) = (self.columns.len(), 32 / self.bits);
        // Whole words, of which the last may be partly used.
        let padded = k.next_multiple_of(per);
        let mut codes = vec![0; rows.len() * padded];
        if self.arrived(&rows) && padded > 0 {
            let stored: Vec<usize> = rows.clone().map(|row| self.stored(row)).collect();
            match self.layout {
                CodeLayout::Packed => self.along_rows(&stored, padded, &mut codes),
                CodeLayout::Awq => self.across_awq(&stored, padded, &mut codes),
                CodeLayout::Gptq | CodeLayout::GptqV2 => {
                    self.across_rows(&stored, padded, &mut codes);
                }
            }
        }
        Slab {
            source: self,
            first: rows.start,
            codes,
        }
    }

    /// Words hold neighbouring inputs of one row, and a row's words are neighbours.
    fn along_rows(&self, rows: &[usize], padded: usize, out: &mut [u8]) {
        let per = 32 / self.bits;
        let first = self.columns.start / per;
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(padded)) {
            let words = self.codes.row_bytes(row)[4 * first..].chunks_exact(4);
            let each = words.zip(out.chunks_exact_mut(per));
            each.for_each(|(word, out)| spread(word_at(word, 0), self.bits, out));
        }
    }

    /// Words hold neighbouring inputs of one row, and words of different rows are neighbours.
    fn across_rows(&self, rows: &[usize], padded: usize, out: &mut [u8]) {
        let per = 32 / self.bits;
        let first = self.columns.start / per;
        for word in 0..padded / per {
            let words = self.codes.row_bytes(first + word);
            for (&row, out) in rows.iter().zip(out.chunks_exact_mut(padded)) {
                let out = &mut out[word * per..(word + 1) * per];
                spread(word_at(words, row), self.bits, out);
            }
        }
    }

    /// Words hold eight rows of one input, in AWQ's order.
    fn across_awq(&self, rows: &[usize], padded: usize, out: &mut [u8]) {
        let place = |&row: &usize| (row / 8, 4 * AWQ_PLACES[row % 8]);
        let places: Vec<(usize, usize)> = rows.iter().map(place).collect();
        for (i, input) in self.columns.clone().enumerate() {
            let words = self.codes.row_bytes(input);
            for (lane, &(word, shift)) in places.iter().enumerate() {
                out[lane * padded + i] = (word_at(words, word) >> shift) as u8 & 15;
            }
        }
    }
}

impl RowSource for CodeRows<'_> {
    fn fill_f32(&self, row: usize, out: &mut [f32]) {
        self.unpacked(row..row + 1).fill_f32(row, out);
    }

    fn fill_groups(&self, form: WeightFormat, row: usize, out: &mut GroupRow) -> bool {
        self.native == Some(form) && self.unpacked(row..row + 1).fill_groups(form, row, out)
    }

    fn slab(&self, rows: Range<usize>) -> Option<Box<dyn RowSource + '_>> {
        Some(Box::new(self.unpacked(rows)))
    }
}

impl Slab<'_> {
    fn codes(&self, row: usize) -> &[u8] {
        let (k, per) = (self.source.columns.len(), 32 / self.source.bits);
        let at = (row - self.first) * k.next_multiple_of(per);
        &self.codes[at..at + k]
    }
}

impl RowSource for Slab<'_> {
    fn fill_f32(&self, row: usize, out: &mut [f32]) {
        let (source, scales) = (self.source, &self.source.scales);
        let output = source.stored(row);
        let of = |group| (scales.scale(output, group), scales.zero(output, group));
        let groups: Vec<(f32, i32)> = (0..scales.groups).map(of).collect();
        let each = out.iter_mut().zip(self.codes(row));
        for ((out, code), input) in each.zip(source.columns.clone()) {
            let (scale, zero) = groups[scales.group(input)];
            *out = (i32::from(*code) - zero) as f32 * scale;
        }
    }

    fn fill_groups(&self, form: WeightFormat, row: usize, out: &mut GroupRow) -> bool {
        let (source, scales) = (self.source, &self.source.scales);
        if source.native != Some(form) {
            return false;
        }
        let codes = self.codes(row);
        out.codes[..codes.len()].copy_from_slice(codes);
        let output = source.stored(row);
        for (at, scale) in out.scales.iter_mut().enumerate() {
            *scale = scales.scale(output, scales.group(source.columns.start + at * GROUP));
        }
        true
    }
}

impl<'a> Scales<'a> {
    fn open(
        tensors: &'a ReadAhead<'a>,
        view: &TensorView<'_>,
        codes: &Codes,
        outputs: usize,
        k: usize,
    ) -> Result<Self, DecoderError> {
        let (rows, size) = (codes.rows.unwrap_or(outputs), codes.cols.unwrap_or(k));
        if rows == 0 || size == 0 || !k.is_multiple_of(size) {
            let problem = format!("has {k} inputs, which groups of {size} do not divide");
            return Err(contradiction(view, 0, problem));
        }
        let (groups, per) = (k / size, 32 / codes.bits);
        let along = outputs.div_ceil(rows);
        let packed = codes.layout == CodeLayout::Packed;
        let turned = |outputs| match packed {
            true => vec![outputs, groups],
            false => vec![groups, outputs],
        };
        let scales = tensors.tensor(&codes.scales)?;
        needs(&scales, &[DType::F16, DType::BF16, DType::F32])?;
        fits(&scales, turned(along))?;
        let zeros = match &codes.zeros {
            None => None,
            Some(name) => {
                let zeros = tensors.tensor(name)?;
                needs(&zeros, &[DType::I32])?;
                fits(&zeros, turned(along.div_ceil(per)))?;
                (!is_half(&zeros, codes)).then_some(zeros)
            }
        };
        let found = Self {
            layout: codes.layout,
            bits: codes.bits,
            order: order(tensors, codes, k, size)?,
            scales,
            zeros,
            rows,
            size,
            groups,
        };
        found.check()?;
        Ok(found)
    }

    /// # Errors
    /// A scale is not finite, or so large that a weight is not.
    fn check(&self) -> Result<(), DecoderError> {
        let mut row = vec![0.0; self.scales.cols()];
        for at in 0..self.scales.rows() {
            self.scales.dequantize_row(at, &mut row);
            if row.iter().any(|scale| !(scale * 256.0).is_finite()) {
                return Err(not_finite(&self.scales, at));
            }
        }
        Ok(())
    }

    fn native(&self) -> Option<WeightFormat> {
        let whole = self.size.is_multiple_of(GROUP) || self.groups == 1;
        if self.zeros.is_some() || self.order.is_some() || !whole || !self.fit_f16() {
            return None;
        }
        Some(match self.bits {
            4 => WeightFormat::S4,
            _ => WeightFormat::W8,
        })
    }

    /// Whether all scales are f16 numbers, or are rounded to some without a loss of magnitude.
    fn fit_f16(&self) -> bool {
        let mut row = vec![0.0; self.scales.cols()];
        self.scales.dtype == DType::F16
            || (0..self.scales.rows()).all(|at| {
                self.scales.dequantize_row(at, &mut row);
                row.iter().all(|&scale: &f32| {
                    (f16::from_f32(scale).to_f32() - scale).abs() <= scale.abs() * ROUNDING
                })
            })
    }

    fn group(&self, input: usize) -> usize {
        match &self.order {
            Some(order) => order[input],
            None => input / self.size,
        }
    }

    fn scale(&self, output: usize, group: usize) -> f32 {
        let (row, column) = self.place(output, group);
        let bytes = self.scales.dtype.block_bytes();
        let at = (row * self.scales.cols() + column) * bytes;
        let mut scale = [0.0];
        let bytes = &self.scales.data[at..at + bytes];
        penstock_checkpoint::dequantize(self.scales.dtype, bytes, &mut scale);
        scale[0]
    }

    /// Place of a scale: row and column of its tensor.
    fn place(&self, output: usize, group: usize) -> (usize, usize) {
        match self.layout {
            CodeLayout::Packed => (output / self.rows, group),
            _ => (group, output / self.rows),
        }
    }

    fn zero(&self, output: usize, group: usize) -> i32 {
        let Some(zeros) = &self.zeros else {
            return 1 << (self.bits - 1);
        };
        let (row, column) = self.place(output, group);
        let per = 32 / self.bits;
        let (word, place) = match self.layout {
            CodeLayout::Packed => (row / per * zeros.cols() + column, row % per),
            CodeLayout::Awq => (row * zeros.cols() + column / per, AWQ_PLACES[column % per]),
            _ => (row * zeros.cols() + column / per, column % per),
        };
        let word = word_at(zeros.data, word).wrapping_add(less(self.layout, self.bits));
        (word >> (place * self.bits)) as i32 & ((1 << self.bits) - 1)
    }
}

/// What GPTQ's first format subtracts from the words of zero points: 1 from each. The sum over the
/// whole word undoes a borrow, too, as in gptqmodel 7.7.
fn less(layout: CodeLayout, bits: usize) -> u32 {
    match layout {
        CodeLayout::Gptq => u32::MAX / ((1 << bits) - 1),
        _ => 0,
    }
}

/// Whether all zero points are half of the codes' range, as in symmetric files.
fn is_half(zeros: &TensorView<'_>, codes: &Codes) -> bool {
    let ones = u32::MAX / ((1 << codes.bits) - 1);
    let half = (ones << (codes.bits - 1)).wrapping_sub(less(codes.layout, codes.bits));
    let mut words = zeros.data.chunks_exact(4);
    words.all(|word| word_at(word, 0) == half)
}

/// The group of each input, unless groups are neighbours.
fn order(
    tensors: &ReadAhead<'_>,
    codes: &Codes,
    k: usize,
    size: usize,
) -> Result<Option<Vec<usize>>, DecoderError> {
    let Some(name) = &codes.groups else {
        return Ok(None);
    };
    let view = tensors.tensor(name)?;
    needs(&view, &[DType::I32, DType::I64])?;
    fits(&view, vec![k])?;
    let groups = k / size;
    let stored = integers(&view);
    let outside = |group: &i64| !usize::try_from(*group).is_ok_and(|group| group < groups);
    if let Some(at) = stored.iter().position(outside) {
        let problem = format!("puts input {at} in group {} of {groups}", stored[at]);
        return Err(contradiction(&view, at, problem));
    }
    let order: Vec<usize> = stored.into_iter().map(|group| group as usize).collect();
    let plain = order
        .iter()
        .enumerate()
        .all(|(at, &group)| group == at / size);
    Ok((!plain).then_some(order))
}

/// # Errors
/// Codes are not read in this way.
fn supported(recipe: &Recipe, codes: &Codes) -> Result<(), DecoderError> {
    let bits: &[usize] = match codes.layout {
        CodeLayout::Awq => &[4],
        _ => &[4, 8],
    };
    let whole = recipe.cols.is_none() && recipe.expert.is_none() && !recipe.transposed;
    if !bits.contains(&codes.bits) || !whole || recipe.scales.is_some() {
        return Err(DecoderError::Unsupported(format!(
            "tensor {:?}, codes of {} bits in layout {:?},",
            recipe.tensor, codes.bits, codes.layout
        )));
    }
    Ok(())
}

fn needs(view: &TensorView<'_>, types: &[DType]) -> Result<(), DecoderError> {
    match types.contains(&view.dtype) {
        true => Ok(()),
        false => Err(DecoderError::Unsupported(format!(
            "tensor {:?} of type {}",
            view.name, view.dtype
        ))),
    }
}

fn fits(view: &TensorView<'_>, expected: Vec<usize>) -> Result<(), DecoderError> {
    match view.shape == expected {
        true => Ok(()),
        false => Err(shape(view, expected)),
    }
}
