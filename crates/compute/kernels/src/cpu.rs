//! The parallel operations of a decoder.

use std::cell::RefCell;
use std::ops::Range;

use crate::activations::{ActivationFormat, Activations};
use crate::buffer::{Aligned, Columns, SharedColumns, SharedSlice};
use crate::gemm::{self, Mode, Tile};
use crate::isa::Isa;
use crate::ops;
use crate::packed::{GROUP, PANEL, Packed};
use crate::tasks::{self, Block, Task};
use crate::threads::ThreadPool;

/// Largest row-wise operation, in numbers (rows x width), that runs on the calling thread alone.
const INLINE: usize = 16 * 1024;

thread_local! {
    /// Each thread's scratch memory: a task's tiles before the activation, or a row after its norm.
    static INNER: RefCell<Aligned<f32>> = RefCell::new(Aligned::zeroed(0));
}

/// An instruction set and a thread pool.
pub struct Cpu {
    isa: Isa,
    threads: ThreadPool,
}

/// A linear layer: matrices with the same inputs, whose outputs are side by side.
pub struct Linear {
    /// The matrices.
    pub parts: Vec<Packed>,
    /// Bias of each output feature of all parts.
    pub bias: Option<Vec<f32>>,
}

impl Linear {
    /// Number of output features of all parts.
    pub fn n(&self) -> usize {
        self.parts.iter().map(Packed::n).sum()
    }

    /// Activation format of all parts.
    pub fn activation_format(&self) -> ActivationFormat {
        ActivationFormat::of(self.parts[0].form())
    }
}

/// Activation between the inner matrices of a feed-forward and its output projection. Part 0 is the
/// output of the gate projection, or of the up projection if there is no gate. Part 1 is the output
/// of the up projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ActivationFn {
    /// `silu(part 0) * part 1` (SwiGLU, Shazeer 2020).
    SiluGated,
    /// `gelu(part 0)` by the tanh approximation (Hendrycks and Gimpel 2016).
    GeluTanh,
    /// `gelu(part 0) * part 1`, with the same approximation (GEGLU, Shazeer 2020).
    GeluTanhGated,
    /// `(part 1 + offset) * part 0 * sigmoid(alpha * part 0)`, clamped first (gpt-oss).
    Clamped(Clamp),
}

/// Bounds and constants of a clamped SwiGLU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clamp {
    /// Upper bound of part 0 (the gate), and bound of the magnitude of part 1.
    pub limit: f32,
    /// Factor of the gate in its sigmoid.
    pub alpha: f32,
    /// Added to part 1 after its magnitude is bounded.
    pub offset: f32,
}

impl ActivationFn {
    /// Number of matrices before the activation.
    fn parts(self) -> usize {
        match self {
            Self::SiluGated | Self::GeluTanhGated | Self::Clamped(_) => 2,
            Self::GeluTanh => 1,
        }
    }
}

/// A norm of rows: `normalised(x) * weight + bias`.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Norm {
    pub kind: NormKind,
    pub weight: Vec<f32>,
    pub bias: Option<Vec<f32>>,
    /// Added to the mean square or variance.
    pub eps: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Root mean square (Zhang and Sennrich 2019).
    Rms,
    /// Mean and standard deviation (Ba et al. 2016).
    Layer,
}

impl Norm {
    fn apply(&self, isa: Isa, x: &[f32], out: &mut [f32]) {
        match self.kind {
            NormKind::Rms => ops::rms_norm(isa, x, &self.weight, self.eps, out),
            NormKind::Layer => ops::layer_norm(isa, x, &self.weight, self.eps, out),
        }
        if let Some(bias) = &self.bias {
            ops::add(isa, out, bias);
        }
    }
}

impl Cpu {
    /// Creates a pool of `threads` threads, the calling thread included.
    ///
    /// # Errors
    /// The operating system refused a thread.
    ///
    /// # Panics
    /// The CPU lacks `isa`.
    pub fn new(isa: Isa, threads: usize) -> std::io::Result<Self> {
        ops::assert_available(isa);
        Ok(Self {
            isa,
            threads: ThreadPool::new(threads)?,
        })
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }

    pub fn threads(&self) -> &ThreadPool {
        &self.threads
    }

    /// Runs `body(row)` for each row, of `width` numbers. Runs in parallel unless the work is
    /// small.
    pub(crate) fn rows(&self, rows: usize, width: usize, body: &(dyn Fn(usize) + Sync)) {
        if rows * width <= INLINE {
            (0..rows).for_each(body);
            return;
        }
        let chunk = rows.div_ceil(4 * self.threads.count()).max(1);
        self.threads.run(rows.div_ceil(chunk), &|i| {
            (i * chunk..rows.min((i + 1) * chunk)).for_each(body)
        });
    }

    /// Writes the normalised row `x` to `out`.
    ///
    /// # Panics
    /// The row, the norm and `out` differ in length.
    pub fn norm(&self, x: &[f32], norm: &Norm, out: &mut [f32]) {
        assert!(
            x.len() == out.len() && x.len() == norm.weight.len(),
            "a row and its norm differ in length"
        );
        norm.apply(self.isa, x, out);
    }

    /// Applies `norm`, if any, to `m` rows of `k` numbers and converts them for multiplication.
    pub fn norm_quantize(
        &self,
        x: &[f32],
        m: usize,
        k: usize,
        norm: Option<&Norm>,
        form: ActivationFormat,
        acts: &mut Activations,
    ) {
        self.norm_quantize_rows((x, k), m, k, norm, form, acts);
    }

    /// Like [`Self::norm_quantize`], for rows with a stride of `ld`.
    pub fn norm_quantize_rows(
        &self,
        (x, ld): (&[f32], usize),
        m: usize,
        k: usize,
        norm: Option<&Norm>,
        form: ActivationFormat,
        acts: &mut Activations,
    ) {
        assert!(
            k <= ld && x.len() + ld >= m * ld + k,
            "activations too short"
        );
        acts.reset(form, m, k);
        let padded = acts.k_padded;
        let groups = padded / GROUP;
        let (codes, halves, floats) = (
            SharedSlice::new(&mut acts.codes),
            SharedSlice::new(&mut acts.halves),
            SharedSlice::new(&mut acts.floats),
        );
        let (scales, sums, offsets) = (
            SharedSlice::new(&mut acts.scales),
            SharedSlice::new(&mut acts.scaled_sums),
            SharedSlice::new(&mut acts.offsets),
        );
        self.rows(m, k, &|row| {
            let mut normed = Vec::new();
            let mut x = &x[row * ld..row * ld + k];
            if let Some(norm) = norm {
                normed.resize(k, 0.0);
                norm.apply(self.isa, x, &mut normed);
                x = &normed;
            }
            // SAFETY: every task converts its own rows.
            unsafe {
                match form {
                    ActivationFormat::Int8 => ops::quantize(
                        self.isa,
                        x,
                        codes.slice(row * padded, padded),
                        scales.slice(row * groups, groups),
                        sums.slice(row * groups, groups),
                        offsets.slice(row * groups, groups),
                    ),
                    ActivationFormat::Bf16 => {
                        ops::to_bf16(self.isa, x, halves.slice(row * padded, padded))
                    }
                    ActivationFormat::F32 => {
                        let out = floats.slice(row * padded, padded);
                        out[..k].copy_from_slice(x);
                        out[k..].fill(0.0);
                    }
                }
            }
        });
    }

    /// `out[row] = linear(acts[row])`, or `out[row] += linear(acts[row])`, depending on `mode`. The
    /// row stride of `out` is `linear.n()`.
    pub fn matmul(&self, linear: &Linear, acts: &Activations, out: &mut [f32], mode: Mode) {
        let ld = linear.n();
        assert!(out.len() >= acts.m * ld, "output too short");
        let out = SharedSlice::new(out);
        let firsts: Vec<usize> = linear
            .parts
            .iter()
            .scan(0, |n, p| Some(std::mem::replace(n, *n + p.n())))
            .collect();
        let blocks = chunked(&linear.parts, acts.m);
        tasks::run(&self.threads, &blocks, &|task| {
            let (part, first) = (&linear.parts[task.part], firsts[task.part]);
            let bias = linear.bias.as_ref().map(|b| &b[first..first + part.n()]);
            let out = (&out, ld, first);
            self.product_tile((part, bias), acts, task, out, mode);
        });
    }

    /// Computes one tile of the product of `part` and `acts`, into the columns of `out` from
    /// `first` on, with a row stride of `ld`.
    pub(crate) fn product_tile(
        &self,
        (part, bias): (&Packed, Option<&[f32]>),
        acts: &Activations,
        task: Task,
        (out, ld, first): (&SharedSlice<'_, f32>, usize, usize),
        mode: Mode,
    ) {
        let column = first + task.panels.start * PANEL;
        let columns = (task.panels.end * PANEL).min(part.n()) - task.panels.start * PANEL;
        let pointer = out.at(
            task.rows.start * ld + column,
            (task.rows.len() - 1) * ld + columns,
        );
        let tile = Tile {
            w: part,
            acts,
            rows: task.rows,
            panels: task.panels,
            out: pointer,
            ld,
            mode,
            bias,
        };
        // SAFETY: tasks write disjoint rows x columns of `out`; the range was checked by `at`; the
        // instruction set is available.
        unsafe { gemm::compute(self.isa, &tile) }
    }

    /// `out[row] = activation(linear(acts[row]))`; all parts have the same width. Sets the other
    /// columns of `out` to zero.
    pub fn activate(
        &self,
        linear: &Linear,
        activation: ActivationFn,
        acts: &Activations,
        mut out: Columns<'_>,
    ) {
        let n = linear.parts[0].n();
        assert!(out.first + n <= out.ld, "output too narrow");
        out.clear_beside(acts.m, n);
        let out = out.share();
        let blocks = chunked(&linear.parts[..1], acts.m);
        tasks::run(&self.threads, &blocks, &|task| {
            self.activated_tile(linear, activation, acts, task, &out);
        });
    }

    /// Computes one tile of [`Cpu::activate`].
    pub(crate) fn activated_tile(
        &self,
        linear: &Linear,
        activation: ActivationFn,
        acts: &Activations,
        task: Task,
        out: &SharedColumns<'_>,
    ) {
        let (parts, n) = (&linear.parts, linear.parts[0].n());
        assert!(
            parts.len() == activation.parts() && parts.iter().all(|p| p.n() == n),
            "matrices do not fit their activation"
        );
        let columns = (task.panels.end * PANEL).min(n) - task.panels.start * PANEL;
        let size = task.rows.len() * columns;
        INNER.with_borrow_mut(|buffer| {
            buffer.ensure(2 * size);
            let tiles = buffer.chunks_exact_mut(size).zip(parts).enumerate();
            for (i, (tile, w)) in tiles {
                let tile = Tile {
                    w,
                    acts,
                    rows: task.rows.clone(),
                    panels: task.panels.clone(),
                    out: tile.as_mut_ptr(),
                    ld: columns,
                    mode: Mode::Store,
                    bias: linear.bias.as_ref().map(|b| &b[i * n..(i + 1) * n]),
                };
                // SAFETY: the buffer has rows x columns items for each part; the instruction set is
                // available.
                unsafe { gemm::compute(self.isa, &tile) }
            }
            let (inner, up) = buffer.split_at_mut(size);
            match activation {
                ActivationFn::SiluGated => ops::silu_mul(self.isa, inner, &up[..size]),
                ActivationFn::GeluTanh => ops::gelu_tanh(self.isa, inner),
                ActivationFn::GeluTanhGated => ops::gelu_mul(self.isa, inner, &up[..size]),
                ActivationFn::Clamped(c) => {
                    ops::clamped_mul(self.isa, inner, &up[..size], c.limit, c.alpha, c.offset)
                }
            }
            for (row, values) in task.rows.zip(inner.chunks_exact(columns)) {
                let at = row * out.ld + out.first + task.panels.start * PANEL;
                // SAFETY: tasks write disjoint rows x columns.
                let out = unsafe { out.rows.slice(at, columns) };
                out.copy_from_slice(values);
            }
        });
    }

    /// `x[i] += part[i]` for each of `parts`, in order.
    pub fn add(&self, parts: &[&[f32]], x: &mut [f32]) {
        let chunk = x.len().div_ceil(self.threads.count()).max(INLINE);
        let (len, x) = (x.len(), SharedSlice::new(x));
        self.threads.run(len.div_ceil(chunk), &|i| {
            let range = i * chunk..len.min((i + 1) * chunk);
            // SAFETY: tasks have disjoint ranges.
            let x = unsafe { x.slice(range.start, range.len()) };
            for part in parts {
                ops::add(self.isa, x, &part[range.clone()]);
            }
        });
    }

    /// `x += norm(y)` for each row.
    ///
    /// # Panics
    /// `x` and `y` differ in length.
    pub fn add_normed(&self, y: &[f32], norm: &Norm, x: &mut [f32]) {
        assert_eq!(x.len(), y.len(), "rows differ in length");
        let (k, x) = (norm.weight.len(), SharedSlice::new(x));
        self.rows(y.len() / k, k, &|row| {
            INNER.with_borrow_mut(|normed| {
                normed.ensure(k);
                norm.apply(self.isa, &y[row * k..(row + 1) * k], &mut normed[..k]);
                // SAFETY: every task has its own rows.
                let x = unsafe { x.slice(row * k, k) };
                ops::add(self.isa, x, &normed[..k]);
            });
        });
    }

    /// `x = cap * tanh(x / cap)`.
    pub fn softcap(&self, x: &mut [f32], cap: f32) {
        let (len, x) = (x.len(), SharedSlice::new(x));
        self.rows(len.div_ceil(INLINE), INLINE, &|i| {
            let range = i * INLINE..len.min((i + 1) * INLINE);
            // SAFETY: tasks have disjoint ranges.
            ops::softcap(
                self.isa,
                unsafe { x.slice(range.start, range.len()) },
                1.0,
                cap,
            );
        });
    }
}

/// Work blocks for the products of `rows` rows with the matrices `parts`, ordered by chunk of rows.
fn chunked(parts: &[Packed], rows: usize) -> Vec<Block> {
    let parts = || parts.iter().map(Packed::panels).enumerate();
    let chunk = |rows: Range<usize>| {
        parts().map(move |(part, panels)| Block {
            part,
            panels,
            rows: rows.clone(),
        })
    };
    tasks::chunks(0..rows).flat_map(chunk).collect()
}
