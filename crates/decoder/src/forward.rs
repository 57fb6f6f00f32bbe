//! The forward pass of one step, read downward.

use penstock_comm::Lost;
use penstock_kernels::{
    Activations, Aligned, Angles, AttentionPlan, Columns, Cpu, Mode, Norm, Place, Rotation,
    Sequence, StepLease,
};
use penstock_wire::StepPlan;

use crate::collectives::Collectives;
use crate::feed_forward::InnerBuffers;
use crate::model::{Layer, Model};
use crate::rope::Rope;

/// Buffers of the forward pass; they grow to the largest step seen.
pub(crate) struct Buffers {
    /// Residual stream, rows x hidden.
    pub(crate) x: Aligned<f32>,
    qkv: Aligned<f32>,
    attended: Aligned<f32>,
    inner: InnerBuffers,
    /// What a sublayer adds to the residual stream, before its norm; rows x hidden.
    branch: Aligned<f32>,
    /// For each rotation of the model, rows x the numbers that it rotates.
    cos_sin: Vec<Aligned<f32>>,
    pub(crate) acts: Activations,
}

impl Default for Buffers {
    fn default() -> Self {
        let empty = || Aligned::zeroed(0);
        Self {
            x: empty(),
            qkv: empty(),
            attended: empty(),
            inner: InnerBuffers::default(),
            branch: empty(),
            cos_sin: Vec::new(),
            acts: Activations::default(),
        }
    }
}

impl Buffers {
    /// Room for `rows` rows. What belongs to other ranks in `attended` is zero from the start and
    /// never written.
    fn ensure(&mut self, model: &Model, rows: usize) {
        let (dim, heads) = (model.heads.head_dim, &model.heads);
        self.x.ensure(rows * model.spec.hidden);
        self.qkv
            .ensure(rows * (heads.heads + 2 * heads.kv_heads()) * dim);
        self.attended.ensure(rows * model.attended.len());
        let ropes = model.ropes.len();
        self.cos_sin.resize_with(ropes, || Aligned::zeroed(0));
        for (cos_sin, rope) in self.cos_sin.iter_mut().zip(&model.ropes) {
            cos_sin.ensure(rows * rope.dims());
        }
    }
}

/// What all layers of a step share.
struct Step<'a> {
    cpu: &'a Cpu,
    model: &'a Model,
    rows: usize,
    /// The position of each row.
    positions: Vec<usize>,
    /// Where each row's key and value go, by KV group.
    places: Vec<Vec<Place>>,
}

/// Computes `buffers.x`: the residual stream after this rank's last layer, one row for each token
/// of the (checked) plan. A stage that is not the first begins with what the one before sent; one
/// that is not the last sends on what it has. `kv` has the leased blocks of
/// every KV group of the model.
///
/// # Errors
/// A rank is gone.
pub(crate) fn forward(
    cpu: &Cpu,
    model: &Model,
    kv: &mut [StepLease<'_>],
    plan: &StepPlan,
    buffers: &mut Buffers,
    collectives: &mut dyn Collectives,
) -> Result<(), Lost> {
    let (spec, rows) = (&model.spec, plan.tokens.len());
    buffers.ensure(model, rows);
    let x = rows * spec.hidden;
    let sequences = sequences(plan);
    if embed(model, plan, &sequences, &mut buffers.x) {
        collectives.all_reduce(cpu, &mut buffers.x[..x])?;
    } else {
        collectives.receive(&mut buffers.x[..x])?;
    }
    let positions = sequences
        .iter()
        .flat_map(|s| s.start..s.start + s.rows.len());
    let positions: Vec<usize> = positions.collect();
    for (rope, cos_sin) in model.ropes.iter().zip(&mut buffers.cos_sin) {
        angles(&positions, rope, cos_sin);
    }
    let places = kv.iter().map(|group| places(&sequences, group)).collect();
    let mut attention = AttentionPlan::new(sequences, model.heads, cpu.threads().count());
    let step = Step {
        cpu,
        model,
        rows,
        positions,
        places,
    };
    for layer in &model.layers {
        let kv = &mut kv[layer.attention.kv_group];
        step.attend(layer, kv, &mut attention, buffers, collectives)?;
        step.feed_forward(layer, buffers, collectives)?;
    }
    match model.head() {
        Some(_) => Ok(()),
        None => collectives.send(&buffers.x[..x]),
    }
}

/// Writes the embedding of every token; `false` where another stage embeds.
fn embed(model: &Model, plan: &StepPlan, sequences: &[Sequence], x: &mut [f32]) -> bool {
    let mut rows = x.chunks_exact_mut(model.spec.hidden).zip(&plan.tokens);
    sequences.iter().all(|s| {
        let positions = s.start..s.start + s.rows.len();
        positions
            .zip(rows.by_ref())
            .all(|(position, (out, &token))| model.embed(token as usize, position, out))
    })
}

/// Cosines and sines of every row's position.
fn angles(positions: &[usize], rope: &Rope, cos_sin: &mut [f32]) {
    for (&position, angles) in positions.iter().zip(cos_sin.chunks_exact_mut(rope.dims())) {
        rope.angles(position, angles);
    }
}

/// Where each row's key and value go in one KV group.
fn places(sequences: &[Sequence], kv: &StepLease<'_>) -> Vec<Place> {
    let size = kv.layout().block_size;
    let of_sequence = |(i, s): (usize, &Sequence)| {
        let positions = s.start..s.start + s.rows.len();
        positions.map(move |position| Place {
            block: kv.block(i, position / size),
            offset: position % size,
        })
    };
    sequences.iter().enumerate().flat_map(of_sequence).collect()
}

fn sequences(plan: &StepPlan) -> Vec<Sequence> {
    let mut row = 0;
    let columns = plan.starts.iter().zip(&plan.lengths);
    let sequence = |(&start, &length): (&i32, &i32)| {
        row += length as usize;
        Sequence {
            start: start as usize,
            rows: row - length as usize..row,
        }
    };
    columns.map(sequence).collect()
}

impl Step<'_> {
    /// `x += o(attention(norm(x)))`.
    fn attend(
        &self,
        layer: &Layer,
        kv: &mut StepLease<'_>,
        attention: &mut AttentionPlan,
        b: &mut Buffers,
        collectives: &mut dyn Collectives,
    ) -> Result<(), Lost> {
        let (cpu, model, a) = (self.cpu, self.model, &layer.attention);
        let heads = &model.heads;
        let (norm, form) = (Some(&layer.attention_norm), a.qkv.activation_format());
        cpu.norm_quantize(&b.x, self.rows, model.spec.hidden, norm, form, &mut b.acts);
        cpu.matmul(&a.qkv, &b.acts, &mut b.qkv, Mode::Store);
        let factors = a.temperature.map(|t| {
            let positions = self.positions.iter();
            positions.map(|&p| t.factor(p)).collect::<Vec<f32>>()
        });
        let rotation = Rotation {
            norms: a.norms(),
            angles: a.rope.map(|rope| Angles {
                cos_sin: &b.cos_sin[rope],
                dims: model.ropes[rope].dims(),
            }),
            query_factors: factors.as_deref(),
        };
        let places = &self.places[a.kv_group];
        cpu.rotate_and_store(&mut b.qkv, heads.heads, &rotation, places, a.kv_index, kv);
        let stride = (heads.heads + 2 * heads.kv_heads()) * heads.head_dim;
        let inputs = &model.attended;
        let out = Columns {
            rows: &mut b.attended,
            ld: inputs.len(),
            first: inputs.lead,
        };
        attention.run(cpu, kv, a.kv_index, a.scoring(), &b.qkv, stride, out);
        let (k, form) = (inputs.len(), a.o.activation_format());
        cpu.norm_quantize(&b.attended, self.rows, k, None, form, &mut b.acts);
        let (norm, acts) = (layer.attention_after.as_ref(), &b.acts);
        self.add(norm, &mut b.x, &mut b.branch, &mut |x| {
            collectives.matmul_reduce(cpu, &a.o, acts, x)
        })
    }

    /// `x += norm(what reduce adds to zeroes)`, or without a norm what it adds to `x`.
    fn add(
        &self,
        norm: Option<&Norm>,
        x: &mut [f32],
        branch: &mut Aligned<f32>,
        reduce: &mut dyn FnMut(&mut [f32]) -> Result<(), Lost>,
    ) -> Result<(), Lost> {
        let x = self.stream(x);
        let Some(norm) = norm else {
            return reduce(x);
        };
        branch.ensure(x.len());
        let branch = self.stream(branch);
        branch.fill(0.0);
        reduce(branch)?;
        self.cpu.add_normed(branch, norm, x);
        Ok(())
    }

    /// `x += feed_forward(norm(x))`.
    fn feed_forward(
        &self,
        layer: &Layer,
        b: &mut Buffers,
        collectives: &mut dyn Collectives,
    ) -> Result<(), Lost> {
        let (cpu, form, inner) = (self.cpu, &layer.feed_forward, &mut b.inner);
        form.prepare(cpu, &layer.feed_forward_norm, self.stream(&mut b.x), inner);
        let norm = layer.feed_forward_after.as_ref();
        self.add(norm, &mut b.x, &mut b.branch, &mut |x| {
            form.reduce(cpu, inner, collectives, x)
        })
    }

    /// The rows of this step.
    fn stream<'x>(&self, x: &'x mut [f32]) -> &'x mut [f32] {
        &mut x[..self.rows * self.model.spec.hidden]
    }
}
