//! The forward pass of one step, read downward.

use penstock_comm::Lost;
use penstock_kernels::{
    ActForm, Acts, Aligned, AttentionPlan, Columns, Cpu, KvClaim, Mode, Place, Rotation, Sequence,
};

use crate::model::{Layer, Model};
use crate::peers::Peers;
use crate::rope;
use crate::step::StepPlan;

/// Buffers of the forward pass; they grow to the largest step seen.
pub(crate) struct Buffers {
    /// Residual stream, rows x hidden.
    pub(crate) x: Aligned<f32>,
    qkv: Aligned<f32>,
    attended: Aligned<f32>,
    inner: Aligned<f32>,
    cos_sin: Aligned<f32>,
    pub(crate) acts: Acts,
}

impl Default for Buffers {
    fn default() -> Self {
        let empty = || Aligned::zeroed(0);
        Self {
            x: empty(),
            qkv: empty(),
            attended: empty(),
            inner: empty(),
            cos_sin: empty(),
            acts: Acts::default(),
        }
    }
}

impl Buffers {
    /// Room for `rows` rows. What belongs to other ranks in `attended` and `inner` is zero from the
    /// start and never written.
    fn ensure(&mut self, model: &Model, rows: usize) {
        let (a, heads) = (&model.spec.attention, &model.heads);
        self.x.ensure(rows * model.spec.hidden);
        self.qkv
            .ensure(rows * (heads.heads + 2 * heads.kv_heads()) * a.head_dim);
        self.attended.ensure(rows * model.attended.len());
        self.inner.ensure(rows * model.inner.len());
        self.cos_sin.ensure(rows * a.head_dim);
    }
}

/// What all layers of a step share.
struct Step<'a> {
    cpu: &'a Cpu,
    model: &'a Model,
    rows: usize,
    places: Vec<Place>,
    tables: &'a [i32],
}

/// Computes `buffers.x`: the residual stream after this rank's last layer, one row for each token
/// of the (checked) plan. A stage that is not the first begins with what the one before sent; one
/// that is not the last sends on what it has.
///
/// # Errors
/// A peer is gone.
pub(crate) fn forward(
    cpu: &Cpu,
    model: &Model,
    frequencies: &[f32],
    kv: &mut KvClaim<'_>,
    plan: &StepPlan,
    buffers: &mut Buffers,
    peers: &mut dyn Peers,
) -> Result<(), Lost> {
    let (spec, rows) = (&model.spec, plan.tokens.len());
    buffers.ensure(model, rows);
    let x = rows * spec.hidden;
    let embeds = plan.tokens.iter().enumerate().all(|(row, &token)| {
        let out = &mut buffers.x[row * spec.hidden..(row + 1) * spec.hidden];
        model.embed(token as usize, out)
    });
    if embeds {
        peers.total(cpu, &mut buffers.x[..x])?;
    } else {
        peers.receive(&mut buffers.x[..x])?;
    }
    let sequences = sequences(plan);
    let places = places(&sequences, plan, frequencies, kv, &mut buffers.cos_sin);
    let mut attention = AttentionPlan::new(sequences, model.heads, cpu.pool().threads());
    let step = Step {
        cpu,
        model,
        rows,
        places,
        tables: &plan.blocks,
    };
    for (index, layer) in model.layers.iter().enumerate() {
        step.attend(index, layer, kv, &mut attention, buffers, peers)?;
        step.feed_forward(layer, buffers, peers)?;
    }
    match model.head() {
        Some(_) => Ok(()),
        None => peers.send(&buffers.x[..x]),
    }
}

/// Where each row's key and value go, and its angles.
fn places(
    sequences: &[Sequence],
    plan: &StepPlan,
    frequencies: &[f32],
    kv: &KvClaim<'_>,
    cos_sin: &mut [f32],
) -> Vec<Place> {
    let (block_size, dim) = (kv.layout().block_size, 2 * frequencies.len());
    let mut places = Vec::with_capacity(plan.tokens.len());
    for sequence in sequences {
        let table = &plan.blocks[sequence.table.clone()];
        for row in sequence.rows.clone() {
            let position = sequence.start + row - sequence.rows.start;
            places.push(Place {
                block: table[position / block_size] as usize,
                offset: position % block_size,
            });
            let angles = &mut cos_sin[row * dim..(row + 1) * dim];
            rope::angles(frequencies, position, angles);
        }
    }
    places
}

fn sequences(plan: &StepPlan) -> Vec<Sequence> {
    let mut row = 0;
    (0..plan.sequences())
        .map(|i| {
            let rows = row..row + plan.lengths[i] as usize;
            row = rows.end;
            let table = plan.block_offsets[i] as usize..plan.block_offsets[i + 1] as usize;
            Sequence {
                start: plan.starts[i] as usize,
                rows,
                table,
            }
        })
        .collect()
}

impl Step<'_> {
    /// `x += o(attention(norm(x)))`.
    fn attend(
        &self,
        index: usize,
        layer: &Layer,
        kv: &mut KvClaim<'_>,
        attention: &mut AttentionPlan,
        b: &mut Buffers,
        peers: &mut dyn Peers,
    ) -> Result<(), Lost> {
        let (cpu, model, spec) = (self.cpu, self.model, &self.model.spec);
        let (heads, dim) = (&model.heads, spec.attention.head_dim);
        let norm = Some((layer.attn_norm.as_slice(), spec.norm_eps));
        let form = layer.qkv.act_form();
        cpu.prepare(&b.x, self.rows, spec.hidden, norm, form, &mut b.acts);
        cpu.matmul(&layer.qkv, &b.acts, &mut b.qkv, Mode::Store);
        let norm = layer
            .qk_norm
            .as_ref()
            .map(|(q, k)| (q.as_slice(), k.as_slice(), spec.norm_eps));
        let rotation = Rotation {
            cos_sin: &b.cos_sin,
            norm,
        };
        cpu.rotate_and_store(&mut b.qkv, heads.heads, &rotation, &self.places, index, kv);
        let stride = (heads.heads + 2 * heads.kv_heads()) * dim;
        let window = spec.window(model.shard.layers().start + index);
        let inputs = &model.attended;
        let attended = Columns {
            rows: &mut b.attended,
            ld: inputs.len(),
            first: inputs.lead,
        };
        attention.run(
            cpu,
            kv,
            index,
            window,
            self.tables,
            &b.qkv,
            stride,
            attended,
        );
        let form = layer.o.act_form();
        cpu.prepare(
            &b.attended,
            self.rows,
            inputs.len(),
            None,
            form,
            &mut b.acts,
        );
        peers.add(cpu, &layer.o, &b.acts, self.stream(&mut b.x))
    }

    /// `x += down(silu(gate(norm(x))) * up(norm(x)))`.
    fn feed_forward(
        &self,
        layer: &Layer,
        b: &mut Buffers,
        peers: &mut dyn Peers,
    ) -> Result<(), Lost> {
        let (cpu, spec, inputs) = (self.cpu, &self.model.spec, &self.model.inner);
        let norm = Some((layer.mlp_norm.as_slice(), spec.norm_eps));
        let form = ActForm::of(layer.gate.form());
        cpu.prepare(&b.x, self.rows, spec.hidden, norm, form, &mut b.acts);
        let inner = Columns {
            rows: &mut b.inner,
            ld: inputs.len(),
            first: inputs.lead,
        };
        cpu.swiglu(&layer.gate, &layer.up, &b.acts, inner);
        let form = layer.down.act_form();
        cpu.prepare(&b.inner, self.rows, inputs.len(), None, form, &mut b.acts);
        peers.add(cpu, &layer.down, &b.acts, self.stream(&mut b.x))
    }

    /// The rows of this step.
    fn stream<'x>(&self, x: &'x mut [f32]) -> &'x mut [f32] {
        &mut x[..self.rows * self.model.spec.hidden]
    }
}
