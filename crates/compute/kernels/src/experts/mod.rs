//! Mixture of experts: rows that share an expert are computed together.
//!
//! From the gather of the activations to the final sum, each (row, choice) pair is a separate row.
//! Pairs are sorted by expert, then by row. One job computes the inner activations of all chosen
//! experts, and a second job computes their outputs. Each weight is read once, by one thread. A
//! row's result is the sum over its choices in their order, so it does not depend on the other
//! rows.

mod route;

use std::ops::Range;

use crate::activations::{ActivationFormat, Activations};
use crate::buffer::{Aligned, Columns, SharedSlice};
use crate::cpu::{ActivationFn, Cpu, Linear};
use crate::gemm::Mode;
use crate::ops;
use crate::packed::PANEL;
use crate::tasks::{self, Block};

pub use route::{Choice, Groups, Routing, Score};

/// Maximum (row, choice) pairs computed at once. Bounds the buffers but leaves enough rows per
/// expert to reuse its weights.
const PAIRS: usize = 8192;
/// Cost estimate for the choice of a row's experts, in numbers per expert. Passed to [`Cpu::rows`].
const CHOOSING: usize = 16;

/// Feed-forward of one expert, gated or not.
pub struct Expert {
    /// Matrices before the activation.
    pub inner: Linear,
    /// The output projection.
    pub down: Linear,
}

/// A layer's experts on this rank; all have the same shapes.
pub struct Experts {
    pub experts: Vec<Expert>,
    /// Index of this rank's first expert among all experts of the layer.
    pub first: usize,
    /// Activation after the inner matrices.
    pub activation: ActivationFn,
    /// Number of inputs of the output projections.
    pub inputs: usize,
    /// Index, among the inputs of the output projections, of the first one that the inner matrices
    /// produce. Inputs outside the width of the inner matrices are zero.
    pub lead: usize,
    /// Multiply the expert's input by the choice's weight, instead of its output.
    pub weighted_inputs: bool,
}

impl Experts {
    /// Activation format of the experts' inputs; arbitrary if this rank has no experts.
    pub fn form(&self) -> ActivationFormat {
        let first = self.experts.first();
        first.map_or(ActivationFormat::F32, |e| e.inner.activation_format())
    }

    /// Whether all experts have the same activation formats, as [`Cpu::mix`] requires.
    pub fn alike(&self) -> bool {
        let forms = |e: &Expert| (e.inner.activation_format(), e.down.activation_format());
        let first = self.experts.first().map(forms);
        self.experts.iter().all(|e| Some(forms(e)) == first)
    }
}

/// Addend to the experts' sum, such as the shared expert's output: one row per token, with an
/// optional factor.
pub struct Beside<'a> {
    /// Rows in the shape of the output.
    pub rows: &'a [f32],
    /// Logits, one per row, and their stride; the sigmoid of a logit is the factor of its row.
    pub gates: Option<(&'a [f32], usize)>,
}

/// Buffers of a mixture's product; they grow to the largest step.
pub struct ExpertBuffers {
    gathered: Activations,
    inner: Aligned<f32>,
    inner_acts: Activations,
    outputs: Aligned<f32>,
    dispatch: Dispatch,
    read: u64,
}

impl ExpertBuffers {
    /// Number of expert weight reads by products with these buffers.
    pub fn read(&self) -> u64 {
        self.read
    }
}

impl Default for ExpertBuffers {
    fn default() -> Self {
        Self {
            gathered: Activations::default(),
            inner: Aligned::zeroed(0),
            inner_acts: Activations::default(),
            outputs: Aligned::zeroed(0),
            dispatch: Dispatch::default(),
            read: 0,
        }
    }
}

/// The (row, choice) pairs of some rows, sorted by expert.
#[derive(Default)]
struct Dispatch {
    /// Row of each pair, and the weight of its choice.
    rows: Vec<(usize, f32)>,
    /// Index of the pair for each choice of each row; [`ELSEWHERE`] if the expert is on another
    /// rank.
    pairs: Vec<usize>,
    /// Each chosen expert and the range of its pairs.
    spans: Vec<(usize, Range<usize>)>,
}

const ELSEWHERE: usize = usize::MAX;

impl Dispatch {
    /// Sorts the rows' choices by expert (counting sort).
    fn sort(&mut self, choices: &[Choice], each: usize, own: Range<usize>) {
        let mut ends = vec![0; own.len() + 1];
        let local = |choice: &Choice| {
            let expert = choice.expert as usize;
            own.contains(&expert).then(|| expert - own.start)
        };
        for expert in choices.iter().filter_map(local) {
            ends[expert + 1] += 1;
        }
        for expert in 0..own.len() {
            ends[expert + 1] += ends[expert];
        }
        let touched = |e: usize| (ends[e] < ends[e + 1]).then(|| (e, ends[e]..ends[e + 1]));
        self.spans.clear();
        self.spans.extend((0..own.len()).filter_map(touched));
        self.rows.clear();
        self.rows.resize(ends[own.len()], (0, 0.0));
        self.pairs.clear();
        for (at, choice) in choices.iter().enumerate() {
            let pair = local(choice).map_or(ELSEWHERE, |expert| {
                ends[expert] += 1;
                self.rows[ends[expert] - 1] = (at / each, choice.weight);
                ends[expert] - 1
            });
            self.pairs.push(pair);
        }
    }

    /// Blocks of each chosen expert's pairs with matrices of `panels` panels.
    fn blocks(&self, panels: usize) -> Vec<Block> {
        let block = |(part, pairs): &(usize, Range<usize>)| {
            let part = *part;
            tasks::chunks(pairs.clone()).map(move |rows| Block { part, panels, rows })
        };
        self.spans.iter().flat_map(block).collect()
    }
}

impl Cpu {
    /// Chooses the experts of each row: `routing.chosen` choices per row. The logits, with a row
    /// stride of `stride`, become scores.
    ///
    /// # Panics
    /// A row is shorter than the routing's number of experts.
    pub fn choose(
        &self,
        routing: &Routing,
        logits: &mut [f32],
        stride: usize,
        choices: &mut [Choice],
    ) {
        let (rows, chosen) = (choices.len() / routing.chosen, routing.chosen);
        let (logits, choices) = (SharedSlice::new(logits), SharedSlice::new(choices));
        self.rows(rows, CHOOSING * routing.experts, &|row| {
            // SAFETY: every task has its own rows.
            let (logits, choices) = unsafe {
                (
                    logits.slice(row * stride, routing.experts),
                    choices.slice(row * chosen, chosen),
                )
            };
            routing.choose(logits, choices);
        });
    }

    /// `out[row] = sum of weight * expert(acts[row])`, or of `expert(weight * acts[row])`, over the
    /// row's choices that are on this rank, plus `beside`. With [`Mode::Add`], `out[row] +=` that
    /// sum.
    ///
    /// # Panics
    /// The rows have different numbers of choices, or shapes differ.
    #[allow(clippy::too_many_arguments)]
    pub fn mix(
        &self,
        experts: &Experts,
        choices: &[Choice],
        acts: &Activations,
        beside: Option<&Beside<'_>>,
        buffers: &mut ExpertBuffers,
        out: &mut [f32],
        mode: Mode,
    ) {
        let rows = acts.rows();
        assert!(
            rows > 0 && choices.len().is_multiple_of(rows),
            "each row has as many choices"
        );
        let (each, width) = (choices.len() / rows, out.len() / rows);
        let slice = (PAIRS / each).max(1);
        for first in (0..rows).step_by(slice) {
            let rows = first..rows.min(first + slice);
            let own = experts.first..experts.first + experts.experts.len();
            let choices = &choices[rows.start * each..rows.end * each];
            buffers.dispatch.sort(choices, each, own);
            buffers.read += buffers.dispatch.spans.len() as u64;
            self.expert_outputs(experts, acts, first, width, buffers);
            let sums = Sums {
                choices,
                each,
                weighted: !experts.weighted_inputs,
                first,
                beside,
            };
            let out = &mut out[rows.start * width..rows.end * width];
            self.sum_choices(&sums, buffers, width, out, mode);
        }
    }

    /// Computes the output of each pair. The pairs' row indices count from row `first` of `acts`.
    fn expert_outputs(
        &self,
        experts: &Experts,
        acts: &Activations,
        first: usize,
        width: usize,
        b: &mut ExpertBuffers,
    ) {
        let Some(any) = experts.experts.first() else {
            return;
        };
        let pairs = b.dispatch.rows.len();
        let weighted = experts.weighted_inputs;
        self.gather(acts, first, &b.dispatch.rows, weighted, &mut b.gathered);
        b.inner.ensure(pairs * experts.inputs);
        let own = any.inner.parts[0].n();
        let blocks = b.dispatch.blocks(own.div_ceil(PANEL));
        let mut inner = Columns {
            rows: &mut b.inner,
            ld: experts.inputs,
            first: experts.lead,
        };
        inner.clear_beside(pairs, own);
        let (inner, acts) = (inner.share(), &b.gathered);
        tasks::run(self.threads(), &blocks, &|task| {
            let linear = &experts.experts[task.part].inner;
            self.activated_tile(linear, experts.activation, acts, task, &inner);
        });
        let (k, form) = (experts.inputs, any.down.activation_format());
        self.norm_quantize(&b.inner, pairs, k, None, form, &mut b.inner_acts);
        b.outputs.ensure(pairs * width);
        let blocks = b.dispatch.blocks(width.div_ceil(PANEL));
        let (outputs, acts) = (SharedSlice::new(&mut b.outputs), &b.inner_acts);
        tasks::run(self.threads(), &blocks, &|task| {
            let down = &experts.experts[task.part].down;
            assert_eq!(down.n(), width, "experts of another width");
            self.product_tile(
                (&down.parts[0], down.bias.as_deref()),
                acts,
                task,
                (&outputs, width, 0),
                Mode::Store,
            );
        });
    }

    /// Copies a row of activations for each pair, times the pair's factor if `weighted`. The pairs'
    /// row indices count from row `first` of `acts`.
    fn gather(
        &self,
        acts: &Activations,
        first: usize,
        rows: &[(usize, f32)],
        weighted: bool,
        out: &mut Activations,
    ) {
        out.reset(acts.kind, rows.len(), acts.k_padded);
        let shared = out.share();
        self.rows(rows.len(), acts.k_padded / 4, &|pair| {
            let (row, factor) = rows[pair];
            // SAFETY: every task writes its own pairs.
            unsafe {
                shared.copy_row(pair, acts, first + row);
                if weighted {
                    shared.scale_row(pair, acts.kind, factor);
                }
            }
        });
    }

    fn sum_choices(
        &self,
        sums: &Sums<'_>,
        b: &ExpertBuffers,
        width: usize,
        out: &mut [f32],
        mode: Mode,
    ) {
        let each = sums.each;
        let (rows, out) = (out.len() / width, SharedSlice::new(out));
        self.rows(rows, each * width, &|row| {
            // SAFETY: every task writes its own rows.
            let out = unsafe { out.slice(row * width, width) };
            if mode == Mode::Store {
                out.fill(0.0);
            }
            let choices = sums.choices[row * each..(row + 1) * each].iter();
            for (choice, &pair) in choices.zip(&b.dispatch.pairs[row * each..]) {
                if pair != ELSEWHERE {
                    let output = &b.outputs[pair * width..(pair + 1) * width];
                    let weight = if sums.weighted { choice.weight } else { 1.0 };
                    ops::add_scaled(self.isa(), out, output, weight);
                }
            }
            if let Some(beside) = sums.beside {
                let row = sums.first + row;
                let gate = |(gates, stride): (&[f32], usize)| route::sigmoid(gates[row * stride]);
                let factor = beside.gates.map_or(1.0, gate);
                let beside = &beside.rows[row * width..(row + 1) * width];
                ops::add_scaled(self.isa(), out, beside, factor);
            }
        });
    }
}

/// Operands of the final sum of [`Cpu::mix`] for some rows.
struct Sums<'a> {
    choices: &'a [Choice],
    each: usize,
    /// Outputs are multiplied by the choices' weights.
    weighted: bool,
    /// Index of the first of these rows among all rows of the step.
    first: usize,
    beside: Option<&'a Beside<'a>>,
}
