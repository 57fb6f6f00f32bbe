//! Gated short convolution: causal and depthwise, over the last few tokens of a sequence.
//!
//! A task computes a range of channels for all rows of one sequence, in order. No other task of the
//! sequence accesses the state of these channels. Products of inputs and taps are accumulated from
//! the oldest token to the newest by fused multiply-adds, and inputs before the sequence are zeros.
//! Results therefore have the same bits on every instruction set and for any division into steps,
//! batches and threads.

use std::cell::RefCell;
use std::ops::Range;

use crate::buffer::{Aligned, Columns, SharedColumns};
use crate::cpu::Cpu;
use crate::isa::Isa;
use crate::ops::for_each_isa;
use crate::state::{StateLayout, StateLease};

/// Maximum channels per task: the inputs of a strip of rows stay in the L1 cache.
const WIDTH: usize = 64;
/// Rows per strip: a task buffers the inputs of one strip at a time.
const STRIP: usize = 16;

thread_local! {
    /// Each thread's buffer of `b * x` for the channels of a task: the `kernel - 1` rows before a
    /// strip, then the rows of the strip.
    static INPUTS: RefCell<Aligned<f32>> = RefCell::new(Aligned::zeroed(0));
}

/// One rank's channels of a short convolution.
#[derive(Clone, Copy, Debug)]
pub struct ShortConvolution<'a> {
    /// Number of tokens that an output depends on, including its own.
    pub kernel: usize,
    /// Taps, kernel x channels, oldest token first.
    pub taps: &'a [f32],
    /// Bias of each channel.
    pub bias: Option<&'a [f32]>,
}

for_each_isa! {
    /// `out = b * x`.
    fn product(b: &[f32], x: &[f32], out: &mut [f32]) = product_row;
}
for_each_isa! {
    /// `out = gate * (bias + sum of taps * inputs)`. `inputs`: kernel x channels; `taps`: the same,
    /// with a row stride of `ld`.
    fn convolve(
        inputs: &[f32], taps: &[f32], ld: usize, bias: Option<&[f32]>, gate: &[f32],
        out: &mut [f32],
    ) = convolve_row;
}

#[inline(always)]
fn product_row(b: &[f32], x: &[f32], out: &mut [f32]) {
    let factors = b.iter().zip(x);
    out.iter_mut()
        .zip(factors)
        .for_each(|(out, (b, x))| *out = b * x);
}

#[inline(always)]
fn convolve_row(
    inputs: &[f32],
    taps: &[f32],
    ld: usize,
    bias: Option<&[f32]>,
    gate: &[f32],
    out: &mut [f32],
) {
    match bias {
        Some(bias) => out.copy_from_slice(bias),
        None => out.fill(0.0),
    }
    for (inputs, taps) in inputs.chunks_exact(out.len()).zip(taps.chunks(ld)) {
        let factors = inputs.iter().zip(taps);
        out.iter_mut()
            .zip(factors)
            .for_each(|(out, (input, tap))| *out = tap.mul_add(*input, *out));
    }
    out.iter_mut().zip(gate).for_each(|(out, c)| *out *= c);
}

impl Cpu {
    /// `out = c * convolution(b * x)` for each row. A row has `b`, `c` and `x` side by side, each
    /// with one number per channel. The rows of each sequence of `states` are contiguous, in the
    /// order of the sequences. Also writes the states. The state of a unit consists of the last
    /// `kernel - 1` values of `b * x` of all its channels, oldest token first. Sets the other
    /// columns of `out` to zero.
    ///
    /// `layer`: index of the layer among those with a state.
    ///
    /// # Panics
    /// Shapes differ, or `kernel` is less than 2.
    pub fn short_convolution(
        &self,
        convolution: &ShortConvolution<'_>,
        rows: &[f32],
        layer: usize,
        states: &mut StateLease<'_>,
        mut out: Columns<'_>,
    ) {
        let (kernel, layout) = (convolution.kernel, *states.layout());
        assert!(kernel >= 2, "a convolution over one token has no state");
        let width = layout.numbers / (kernel - 1);
        let channels = layout.units * width;
        let sequences = states.sequences();
        let count: usize = sequences.iter().map(|s| s.rows).sum();
        assert!(
            width * (kernel - 1) == layout.numbers
                && convolution.taps.len() == kernel * channels
                && convolution.bias.is_none_or(|bias| bias.len() == channels)
                && rows.len() >= 3 * count * channels
                && out.rows.len() >= count * out.ld
                && out.first + channels <= out.ld,
            "shapes of a short convolution differ"
        );
        out.clear_beside(count, channels);
        let first_row = |row: &mut usize, rows: usize| Some(std::mem::replace(row, *row + rows));
        let first_rows = sequences.iter().map(|s| s.rows).scan(0, first_row);
        let first_rows: Vec<usize> = first_rows.collect();
        let pass = Pass {
            isa: self.isa(),
            convolution,
            rows,
            channels,
            layer,
            states,
            out: out.share(),
        };
        let (parts, n) = (Channels::all(&layout, width), first_rows.len());
        // Consecutive tasks have different sequences, so a long one is spread over the threads.
        let mean = (count * channels).div_ceil((parts.len() * n).max(1));
        self.rows(parts.len() * n, mean, &|task| {
            pass.run(task % n, first_rows[task % n], &parts[task / n]);
        });
    }
}

/// The channels of a task, all in one unit.
struct Channels {
    unit: usize,
    /// Number of channels per unit.
    width: usize,
    /// Range in the unit.
    own: Range<usize>,
    /// Index of the first channel in the rank.
    first: usize,
}

impl Channels {
    /// Divides all channels into tasks.
    fn all(layout: &StateLayout, width: usize) -> Vec<Self> {
        let of_unit = |unit: usize| {
            let firsts = (0..width).step_by(WIDTH);
            firsts.map(move |first| Self {
                unit,
                width,
                own: first..width.min(first + WIDTH),
                first: unit * width + first,
            })
        };
        (0..layout.units).flat_map(of_unit).collect()
    }
}

/// The pass through one layer.
struct Pass<'a> {
    isa: Isa,
    convolution: &'a ShortConvolution<'a>,
    /// Rows of `b`, `c` and `x`, of `channels` numbers each.
    rows: &'a [f32],
    channels: usize,
    layer: usize,
    states: &'a StateLease<'a>,
    out: SharedColumns<'a>,
}

impl Pass<'_> {
    /// Computes the channels for all rows of a sequence. Its first row is row `first` of the batch.
    fn run(&self, sequence: usize, first: usize, channels: &Channels) {
        let (before, n) = (self.convolution.kernel - 1, channels.own.len());
        let states = &self.states.sequences()[sequence];
        let mut outputs = states.outputs().peekable();
        INPUTS.with_borrow_mut(|inputs| {
            inputs.ensure((before + STRIP) * n);
            self.read_state(sequence, channels, &mut inputs[..before * n]);
            for start in (0..states.rows).step_by(STRIP) {
                let rows = STRIP.min(states.rows - start);
                for row in 0..rows {
                    self.row(first + start + row, channels, &mut inputs[row * n..]);
                }
                while let Some((after, slot)) = outputs.next_if(|&(after, _)| after <= start + rows)
                {
                    let state = &inputs[(after - start) * n..][..before * n];
                    self.write_state(slot, channels, state);
                }
                inputs.copy_within(rows * n..(rows + before) * n, 0);
            }
        });
    }

    /// Computes the channels for one row. `inputs` starts with `b * x` of the `kernel - 1`
    /// preceding rows; the row's own `b * x` is stored behind them.
    fn row(&self, row: usize, channels: &Channels, inputs: &mut [f32]) {
        let (first, n) = (channels.first, channels.own.len());
        let part = |i: usize| &self.rows[(3 * row + i) * self.channels + first..][..n];
        let ShortConvolution { kernel, taps, bias } = *self.convolution;
        let inputs = &mut inputs[..kernel * n];
        product(self.isa, part(0), part(2), &mut inputs[(kernel - 1) * n..]);
        // SAFETY: every task has its own rows x channels.
        let out = unsafe {
            self.out
                .rows
                .slice(row * self.out.ld + self.out.first + first, n)
        };
        let (taps, bias) = (&taps[first..], bias.map(|bias| &bias[first..][..n]));
        convolve(self.isa, inputs, taps, self.channels, bias, part(1), out);
    }

    fn read_state(&self, sequence: usize, channels: &Channels, state: &mut [f32]) {
        let place = (channels.unit, self.layer);
        for (i, inputs) in state.chunks_exact_mut(channels.own.len()).enumerate() {
            let first = i * channels.width + channels.own.start;
            // SAFETY: tasks of other channels access other numbers. No other sequence writes the
            // slot that this one reads (`StateLease`), and this task writes it after the read.
            unsafe { self.states.read(sequence, place, first, inputs) };
        }
    }

    fn write_state(&self, slot: usize, channels: &Channels, state: &[f32]) {
        let place = (channels.unit, self.layer);
        for (i, inputs) in state.chunks_exact(channels.own.len()).enumerate() {
            let first = i * channels.width + channels.own.start;
            // SAFETY: tasks of other channels access other numbers. No other sequence accesses a
            // slot that this one writes (`StateLease`).
            unsafe { self.states.write(slot, place, first, inputs) };
        }
    }
}
