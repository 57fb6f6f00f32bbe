//! The parallel operations a decoder is made of.

use std::cell::RefCell;

use crate::acts::{ActForm, Acts};
use crate::buffer::{Aligned, Columns, Shared};
use crate::gemm::{self, Mode, Tile};
use crate::isa::Isa;
use crate::lend::KvClaim;
use crate::ops;
use crate::packed::{GROUP, PANEL, Packed};
use crate::pool::Pool;
use crate::tasks;

/// Work (in numbers) under which a row-wise operation is not worth a fork.
const INLINE: usize = 16 * 1024;

thread_local! {
    /// A task's gate and up tiles, before they are joined.
    static GATE_AND_UP: RefCell<Aligned<f32>> = RefCell::new(Aligned::zeroed(0));
}

/// An instruction set and the threads to run it on.
pub struct Cpu {
    isa: Isa,
    pool: Pool,
}

/// A linear layer: matrices over the same inputs, whose outputs stand side by side.
pub struct Linear {
    /// The matrices.
    pub parts: Vec<Packed>,
    /// One bias for each output feature of all parts, or none.
    pub bias: Option<Vec<f32>>,
}

impl Linear {
    /// Output features of all parts.
    pub fn n(&self) -> usize {
        self.parts.iter().map(Packed::n).sum()
    }

    /// The activation form all parts take.
    pub fn act_form(&self) -> ActForm {
        ActForm::of(self.parts[0].form())
    }
}

/// Where a row's key and value go.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Block of the pool.
    pub block: usize,
    /// Token in the block.
    pub offset: usize,
}

/// What happens to query and key heads before they are used.
pub struct Rotation<'a> {
    /// For each row, `head_dim / 2` cosines and as many sines.
    pub cos_sin: &'a [f32],
    /// Per-head RMS norm weights of queries and keys (Qwen3), and epsilon.
    pub norm: Option<(&'a [f32], &'a [f32], f32)>,
}

impl Cpu {
    /// `threads` threads, the calling one included.
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
            pool: Pool::new(threads)?,
        })
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The threads.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Runs `body` for chunks of rows: on this thread when the work is small.
    fn rows(&self, rows: usize, width: usize, body: &(dyn Fn(usize) + Sync)) {
        if rows * width <= INLINE {
            (0..rows).for_each(body);
            return;
        }
        let chunk = rows.div_ceil(4 * self.pool.threads()).max(1);
        self.pool.run(rows.div_ceil(chunk), &|i| {
            (i * chunk..rows.min((i + 1) * chunk)).for_each(body)
        });
    }

    /// Converts `m` rows of `k` numbers for multiplication; with `norm` (weight, epsilon), their
    /// RMS norm.
    pub fn prepare(
        &self,
        x: &[f32],
        m: usize,
        k: usize,
        norm: Option<(&[f32], f32)>,
        form: ActForm,
        acts: &mut Acts,
    ) {
        assert!(x.len() >= m * k, "activations too short");
        acts.reset(form, m, k);
        let padded = acts.k_padded;
        let groups = padded / GROUP;
        let (codes, halves, floats) = (
            Shared::new(&mut acts.codes),
            Shared::new(&mut acts.halves),
            Shared::new(&mut acts.floats),
        );
        let (scales, sums, offsets) = (
            Shared::new(&mut acts.scales),
            Shared::new(&mut acts.scaled_sums),
            Shared::new(&mut acts.offsets),
        );
        self.rows(m, k, &|row| {
            let mut normed = Vec::new();
            let mut x = &x[row * k..(row + 1) * k];
            if let Some((weight, eps)) = norm {
                normed.resize(k, 0.0);
                ops::rms_norm(self.isa, x, weight, eps, &mut normed);
                x = &normed;
            }
            // SAFETY: every task converts rows of its own.
            unsafe {
                match form {
                    ActForm::Int8 => ops::quantize(
                        self.isa,
                        x,
                        codes.slice(row * padded, padded),
                        scales.slice(row * groups, groups),
                        sums.slice(row * groups, groups),
                        offsets.slice(row * groups, groups),
                    ),
                    ActForm::Bf16 => ops::to_bf16(self.isa, x, halves.slice(row * padded, padded)),
                    ActForm::F32 => {
                        let out = floats.slice(row * padded, padded);
                        out[..k].copy_from_slice(x);
                        out[k..].fill(0.0);
                    }
                }
            }
        });
    }

    /// `out[row] = linear(acts[row])`, or added to `out`; rows are `linear.n()` apart.
    pub fn matmul(&self, linear: &Linear, acts: &Acts, out: &mut [f32], mode: Mode) {
        let ld = linear.n();
        assert!(out.len() >= acts.m * ld, "output too short");
        let out = Shared::new(out);
        let panels: Vec<usize> = linear.parts.iter().map(Packed::panels).collect();
        let firsts: Vec<usize> = linear
            .parts
            .iter()
            .scan(0, |n, p| Some(std::mem::replace(n, *n + p.n())))
            .collect();
        tasks::run(&self.pool, &panels, acts.m, &|task| {
            let (part, first) = (&linear.parts[task.part], firsts[task.part]);
            let column = first + task.panels.start * PANEL;
            let columns = (task.panels.end * PANEL).min(part.n()) - task.panels.start * PANEL;
            let bias = linear.bias.as_ref().map(|b| &b[first..first + part.n()]);
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
            // SAFETY: tasks write disjoint rows x columns of `out`; the range was checked by `at`;
            // the instruction set is available.
            unsafe { gemm::compute(self.isa, &tile) }
        });
    }

    /// `out[row] = silu(gate(acts[row])) * up(acts[row])`.
    pub fn swiglu(&self, gate: &Packed, up: &Packed, acts: &Acts, out: Columns<'_>) {
        let ld = gate.n();
        assert!(
            up.n() == ld && out.first + ld <= out.ld,
            "gate, up and output differ in width"
        );
        let out = out.share();
        tasks::run(&self.pool, &[gate.panels()], acts.m, &|task| {
            let columns = (task.panels.end * PANEL).min(ld) - task.panels.start * PANEL;
            let size = task.rows.len() * columns;
            GATE_AND_UP.with_borrow_mut(|buffer| {
                buffer.ensure(2 * size);
                let (gate_out, up_out) = buffer.split_at_mut(size);
                for (w, part) in [(gate, &mut *gate_out), (up, &mut *up_out)] {
                    let (out, rows, panels) =
                        (part.as_mut_ptr(), task.rows.clone(), task.panels.clone());
                    let tile = Tile {
                        w,
                        acts,
                        rows,
                        panels,
                        out,
                        ld: columns,
                        mode: Mode::Store,
                        bias: None,
                    };
                    // SAFETY: the buffer has rows x columns items; the instruction set is
                    // available.
                    unsafe { gemm::compute(self.isa, &tile) }
                }
                ops::silu_mul(self.isa, gate_out, &up_out[..size]);
                for (row, values) in task.rows.zip(gate_out.chunks_exact(columns)) {
                    let at = row * out.ld + out.first + task.panels.start * PANEL;
                    // SAFETY: tasks write disjoint rows x columns.
                    let out = unsafe { out.rows.slice(at, columns) };
                    out.copy_from_slice(values);
                }
            });
        });
    }

    /// `x[i] += ` the numbers i of all `parts`, in their order.
    pub fn add(&self, parts: &[&[f32]], x: &mut [f32]) {
        let chunk = x.len().div_ceil(self.pool.threads()).max(INLINE);
        let (len, x) = (x.len(), Shared::new(x));
        self.pool.run(len.div_ceil(chunk), &|i| {
            let range = i * chunk..len.min((i + 1) * chunk);
            // SAFETY: tasks have disjoint ranges.
            let x = unsafe { x.slice(range.start, range.len()) };
            for part in parts {
                ops::add(self.isa, x, &part[range.clone()]);
            }
        });
    }

    /// Normalises and rotates the query and key heads of each row of `qkv` (queries, keys, values
    /// side by side) in place, and stores keys and values at `places`.
    #[allow(clippy::too_many_arguments)]
    pub fn rotate_and_store(
        &self,
        qkv: &mut [f32],
        heads: usize,
        rotation: &Rotation<'_>,
        places: &[Place],
        layer: usize,
        kv: &mut KvClaim<'_>,
    ) {
        let layout = *kv.layout();
        let (d, width) = (
            layout.head_dim,
            (heads + 2 * layout.kv_heads) * layout.head_dim,
        );
        assert!(
            qkv.len() >= places.len() * width && rotation.cos_sin.len() >= places.len() * d,
            "rows too short"
        );
        let (qkv, writer) = (Shared::new(qkv), kv.writer());
        let fresh: Vec<usize> = places
            .iter()
            .filter(|p| p.offset == 0)
            .map(|p| p.block)
            .collect();
        // SAFETY: sequences own the blocks they write, so the fresh ones differ.
        self.rows(
            fresh.len(),
            layout.block_size * layout.kv_heads * d,
            &|i| unsafe { writer.clear(fresh[i], layer) },
        );
        self.rows(places.len(), width, &|row| {
            // SAFETY: every task has rows of its own, and rows have places of their own.
            let (qkv, angles) = unsafe {
                (
                    qkv.slice(row * width, width),
                    &rotation.cos_sin[row * d..(row + 1) * d],
                )
            };
            let (rotated, v) = qkv.split_at_mut((heads + layout.kv_heads) * d);
            if let Some((q_weight, k_weight, eps)) = rotation.norm {
                for (i, head) in rotated.chunks_exact_mut(d).enumerate() {
                    ops::rms_norm_in_place(
                        self.isa,
                        head,
                        if i < heads { q_weight } else { k_weight },
                        eps,
                    );
                }
            }
            ops::rotate(self.isa, rotated, angles);
            let k = &rotated[heads * d..];
            for (head, (k, v)) in k.chunks_exact(d).zip(v.chunks_exact(d)).enumerate() {
                // SAFETY: every row has a place of its own, and blocks were cleared before.
                unsafe { writer.store((places[row].block, places[row].offset), layer, head, k, v) };
            }
        });
    }
}
