//! The forward pass of one step, read downward.

use penstock_kernels::{
    ActForm, Acts, Aligned, AttentionPlan, Cpu, HeadShape, KvPool, Mode, Place, Rotation, Sequence,
};

use crate::model::{Layer, Model};
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

/// What all layers of a step share.
struct Step<'a> {
    cpu: &'a Cpu,
    model: &'a Model,
    rows: usize,
    places: Vec<Place>,
    tables: &'a [i32],
}

/// Computes `buffers.x`: the residual stream after the last layer, one row for each token of the (checked) plan.
pub(crate) fn forward(
    cpu: &Cpu,
    model: &Model,
    frequencies: &[f32],
    kv: &mut KvPool,
    plan: &StepPlan,
    buffers: &mut Buffers,
) {
    let spec = &model.spec;
    let a = &spec.attention;
    let rows = plan.tokens.len();
    buffers.x.ensure(rows * spec.hidden);
    buffers
        .qkv
        .ensure(rows * (a.heads + 2 * a.kv_heads) * a.head_dim);
    buffers.attended.ensure(rows * a.heads * a.head_dim);
    buffers.inner.ensure(rows * spec.mlp.intermediate);
    buffers.cos_sin.ensure(rows * a.head_dim);
    let sequences = sequences(plan);
    let mut places = Vec::with_capacity(rows);
    for sequence in &sequences {
        let table = &plan.blocks[sequence.table.clone()];
        for row in sequence.rows.clone() {
            let position = sequence.start + row - sequence.rows.start;
            let block = table[position / kv.layout().block_size] as usize;
            places.push(Place {
                block,
                offset: position % kv.layout().block_size,
            });
            rope::angles(
                frequencies,
                position,
                &mut buffers.cos_sin[row * a.head_dim..(row + 1) * a.head_dim],
            );
            let token = plan.tokens[row] as usize;
            model.embed.parts[0].row_f32(
                token,
                &mut buffers.x[row * spec.hidden..(row + 1) * spec.hidden],
            );
        }
    }
    let shape = HeadShape {
        heads: a.heads,
        kv_heads: a.kv_heads,
        head_dim: a.head_dim,
    };
    let mut attention = AttentionPlan::new(sequences, shape, cpu.pool().threads());
    let step = Step {
        cpu,
        model,
        rows,
        places,
        tables: &plan.blocks,
    };
    for (index, layer) in model.layers.iter().enumerate() {
        step.attend(index, layer, kv, &mut attention, buffers);
        step.feed_forward(layer, buffers);
    }
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
        kv: &mut KvPool,
        attention: &mut AttentionPlan,
        b: &mut Buffers,
    ) {
        let (cpu, spec) = (self.cpu, &self.model.spec);
        let a = &spec.attention;
        let norm = Some((layer.attn_norm.as_slice(), spec.norm_eps));
        cpu.prepare(
            &b.x,
            self.rows,
            spec.hidden,
            norm,
            layer.qkv.act_form(),
            &mut b.acts,
        );
        cpu.matmul(&layer.qkv, &b.acts, &mut b.qkv, Mode::Store);
        let norm = layer
            .qk_norm
            .as_ref()
            .map(|(q, k)| (q.as_slice(), k.as_slice(), spec.norm_eps));
        let rotation = Rotation {
            cos_sin: &b.cos_sin,
            norm,
        };
        cpu.rotate_and_store(&mut b.qkv, a.heads, &rotation, &self.places, index, kv);
        let stride = (a.heads + 2 * a.kv_heads) * a.head_dim;
        attention.run(
            cpu,
            kv,
            index,
            spec.window(index),
            self.tables,
            &b.qkv,
            stride,
            &mut b.attended,
        );
        cpu.prepare(
            &b.attended,
            self.rows,
            a.heads * a.head_dim,
            None,
            layer.o.act_form(),
            &mut b.acts,
        );
        cpu.matmul(&layer.o, &b.acts, &mut b.x, Mode::Add);
    }

    /// `x += down(silu(gate(norm(x))) * up(norm(x)))`.
    fn feed_forward(&self, layer: &Layer, b: &mut Buffers) {
        let (cpu, spec) = (self.cpu, &self.model.spec);
        let norm = Some((layer.mlp_norm.as_slice(), spec.norm_eps));
        cpu.prepare(
            &b.x,
            self.rows,
            spec.hidden,
            norm,
            ActForm::of(layer.gate.form()),
            &mut b.acts,
        );
        cpu.swiglu(&layer.gate, &layer.up, &b.acts, &mut b.inner);
        cpu.prepare(
            &b.inner,
            self.rows,
            spec.mlp.intermediate,
            None,
            layer.down.act_form(),
            &mut b.acts,
        );
        cpu.matmul(&layer.down, &b.acts, &mut b.x, Mode::Add);
    }
}
