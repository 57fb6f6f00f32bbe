//! Mixtures of experts: rows that go through the same expert are computed together.
//!
//! A (row, choice) pair is a row of its own from the gathering of the activations to the sum: pairs
//! stand in the order of experts, and of rows within an expert. One set of tasks computes the inner
//! numbers of all experts touched, a second one their outputs; each weight is read once, by one
//! thread. A row's result is the sum over its own choices in their order, so that it does not
//! depend on the rows beside it.

mod route;

use std::ops::Range;

use crate::activations::{ActivationFormat, Activations};
use crate::buffer::{Aligned, Columns, Shared};
use crate::cpu::{ActivationFn, Cpu, Linear};
use crate::gemm::Mode;
use crate::ops;
use crate::packed::PANEL;
use crate::tasks::{self, Block};

pub use route::{Choice, Groups, Routing, Score};

/// Pairs that are computed at once: what a step holds for them stays small, and an expert still has
/// enough rows to make good use of its weights.
const PAIRS: usize = 8192;
/// Work (in numbers) of choosing one row's experts, for each expert.
const CHOOSING: usize = 16;

/// A gated or plain feed-forward of a mixture.
pub struct Expert {
    /// Matrices before the activation.
    pub inner: Linear,
    /// The output projection.
    pub down: Linear,
}

/// The experts of a layer that this rank has; all have the same shapes.
pub struct Experts {
    /// The experts.
    pub experts: Vec<Expert>,
    /// Index of the first one among the experts of the layer.
    pub first: usize,
    /// What follows the inner matrices.
    pub activation: ActivationFn,
    /// Inputs of the output projections, and the first that the inner matrices give; the others are
    /// zero.
    pub inputs: usize,
    pub lead: usize,
    /// A choice's weight multiplies the expert's input, not its output.
    pub weighted_inputs: bool,
}

impl Experts {
    /// The activation form of the experts' inputs; any where this rank has no experts.
    pub fn form(&self) -> ActivationFormat {
        let first = self.experts.first();
        first.map_or(ActivationFormat::F32, |e| e.inner.activation_format())
    }

    /// Whether the experts take the same activation forms, as [`Cpu::mix`] needs.
    pub fn alike(&self) -> bool {
        let forms = |e: &Expert| (e.inner.activation_format(), e.down.activation_format());
        let first = self.experts.first().map(forms);
        self.experts.iter().all(|e| Some(forms(e)) == first)
    }
}

/// What is added beside the experts: a row for each token, with a factor if there are any.
pub struct Beside<'a> {
    /// Rows like the output's.
    pub rows: &'a [f32],
    /// The logit of each row's factor, a sigmoid, and their distance.
    pub gates: Option<(&'a [f32], usize)>,
}

/// Buffers of a mixture's product; they grow to the largest step seen.
pub struct ExpertBuffers {
    gathered: Activations,
    inner: Aligned<f32>,
    inner_acts: Activations,
    outputs: Aligned<f32>,
    dispatch: Dispatch,
    read: u64,
}

impl ExpertBuffers {
    /// Experts whose weights products with these buffers have read, one for each time.
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

/// The pairs of some rows, sorted by expert.
#[derive(Default)]
struct Dispatch {
    /// The row of each pair, and the factor of its input.
    rows: Vec<(usize, f32)>,
    /// The pair of each choice of each row; [`ELSEWHERE`] where another rank has the expert.
    pairs: Vec<usize>,
    /// The experts touched, with their pairs.
    spans: Vec<(usize, Range<usize>)>,
}

const ELSEWHERE: usize = usize::MAX;

impl Dispatch {
    /// Sorts the choices of rows by expert (a counting sort).
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

    /// The product of each touched expert's pairs with matrices of so many panels.
    fn blocks(&self, panels: usize) -> Vec<Block> {
        let block = |(part, pairs): &(usize, Range<usize>)| {
            let part = *part;
            tasks::chunks(pairs.clone()).map(move |rows| Block { part, panels, rows })
        };
        self.spans.iter().flat_map(block).collect()
    }
}

impl Cpu {
    /// Chooses the experts of each row; logits of rows are `stride` apart, choices
    /// `routing.chosen`. The logits become scores.
    ///
    /// # Panics
    /// A row is shorter than the routing's experts.
    pub fn choose(
        &self,
        routing: &Routing,
        logits: &mut [f32],
        stride: usize,
        choices: &mut [Choice],
    ) {
        let (rows, chosen) = (choices.len() / routing.chosen, routing.chosen);
        let (logits, choices) = (Shared::new(logits), Shared::new(choices));
        self.rows(rows, CHOOSING * routing.experts, &|row| {
            // SAFETY: every task has rows of its own.
            let (logits, choices) = unsafe {
                (
                    logits.slice(row * stride, routing.experts),
                    choices.slice(row * chosen, chosen),
                )
            };
            routing.choose(logits, choices);
        });
    }

    /// `out[row] = sum of weight * expert(acts[row])`, or of `expert(weight * acts[row])`, over
    /// this rank's part of the row's choices, then `beside`; or added to `out`. Rows of `out` are
    /// `width` apart.
    ///
    /// # Panics
    /// Choices are not as many for each row, or shapes differ.
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

    /// The output of each pair, whose rows count from `first`.
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
        let (outputs, acts) = (Shared::new(&mut b.outputs), &b.inner_acts);
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

    /// Copies rows of activations, counted from `first`, one for each pair, times its factor if
    /// `weighted`.
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
            // SAFETY: every task writes pairs of its own.
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
        let (rows, out) = (out.len() / width, Shared::new(out));
        self.rows(rows, each * width, &|row| {
            // SAFETY: every task writes rows of its own.
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

/// What [`Cpu::mix`] sums for some rows.
struct Sums<'a> {
    choices: &'a [Choice],
    each: usize,
    /// Outputs are multiplied by the choices' weights.
    weighted: bool,
    /// The first row, counted over the step.
    first: usize,
    beside: Option<&'a Beside<'a>>,
}
