//! The forward pass of one step, top-down.

use penstock_collectives::GroupError;
use penstock_kernels::{
    Activations, Aligned, Angles, AttentionPlan, Cpu, HeadColumns, KvPosition, Mode, Norm,
    Rotation, StepLease,
};
use penstock_wire::StepPlan;

use crate::buffers::{AttentionBuffers, Buffers};
use crate::collectives::Collectives;
use crate::latent::LatentPass;
use crate::model::{Attention, HeadProjections, Layer, Mixer, Model, Projected};
use crate::rows;

/// State shared by all layers of a step.
struct Step<'a> {
    cpu: &'a Cpu,
    model: &'a Model,
    rows: usize,
    /// Position of each row.
    positions: Vec<usize>,
    /// Cache location of each row's key and value, by KV group.
    places: Vec<Vec<KvPosition>>,
}

/// Computes the residual stream after this rank's last layer into `buffers.x`, one row per token of
/// the plan. The plan must have passed its checks. The first pipeline stage starts from the
/// embeddings, later stages from the previous stage's output. Every stage but the last sends its
/// output to the next. `kv` has the leased blocks of each KV group.
///
/// # Errors
/// A rank is lost.
pub(crate) fn forward(
    cpu: &Cpu,
    model: &Model,
    kv: &mut [StepLease<'_>],
    plan: &StepPlan,
    buffers: &mut Buffers,
    collectives: &mut dyn Collectives,
) -> Result<(), GroupError> {
    let (tokens, rows) = (&plan.tokens, plan.tokens.len());
    buffers.ensure(model, rows);
    let x = rows * model.spec.hidden;
    let sequences = rows::sequences(plan);
    let positions = rows::positions(&sequences);
    if embed(model, tokens, &positions, &mut buffers.x) {
        collectives.all_reduce(cpu, &mut buffers.x[..x])?;
    } else {
        collectives.receive(&mut buffers.x[..x])?;
    }
    for (rope, cos_sin) in model.ropes.iter().zip(&mut buffers.cos_sin) {
        rows::angles(&positions, rope, cos_sin);
    }
    let places = |group: &StepLease<'_>| rows::places(&sequences, group);
    let places = kv.iter().map(places).collect();
    let mut attention = AttentionPlan::new(sequences, model.heads, cpu.threads().count());
    let step = Step {
        cpu,
        model,
        rows,
        positions,
        places,
    };
    for layer in &model.layers {
        step.mix(layer, kv, &mut attention, buffers, collectives)?;
        step.feed_forward(layer, buffers, collectives)?;
    }
    match model.head() {
        Some(_) => Ok(()),
        None => collectives.send(&buffers.x[..x]),
    }
}

/// Writes the embedding of every token; returns `false` if another stage embeds.
fn embed(model: &Model, tokens: &[i32], positions: &[usize], x: &mut [f32]) -> bool {
    let rows = x.chunks_exact_mut(model.spec.hidden);
    let mut tokens = tokens.iter().zip(positions).zip(rows);
    tokens.all(|((&token, &position), out)| model.embed(token as usize, position, out))
}

impl Step<'_> {
    /// `x += mixer(norm(x))`.
    fn mix(
        &self,
        layer: &Layer,
        kv: &mut [StepLease<'_>],
        attention: &mut AttentionPlan,
        b: &mut Buffers,
        collectives: &mut dyn Collectives,
    ) -> Result<(), GroupError> {
        let (cpu, hidden) = (self.cpu, self.model.spec.hidden);
        let (norm, form) = (Some(&layer.mixer_norm), layer.mixer.activation_format());
        cpu.norm_quantize(&b.x, self.rows, hidden, norm, form, &mut b.acts);
        let out = match &layer.mixer {
            Mixer::Attention(a) => {
                let kv = &mut kv[a.kv_group];
                self.attend(a, kv, attention, &b.cos_sin, &mut b.attention, &mut b.acts);
                &a.o
            }
        };
        let (norm, acts) = (layer.mixer_after.as_ref(), &b.acts);
        self.add(norm, &mut b.x, &mut b.branch, &mut |x| {
            collectives.matmul_reduce(cpu, out, acts, x)
        })
    }

    /// `acts = attention(acts)`, converted for the output projection.
    fn attend(
        &self,
        a: &Attention,
        kv: &mut StepLease<'_>,
        attention: &mut AttentionPlan,
        cos_sin: &[Aligned<f32>],
        b: &mut AttentionBuffers,
        acts: &mut Activations,
    ) {
        let (cpu, model) = (self.cpu, self.model);
        let angles = a.rope.map(|rope| Angles {
            cos_sin: &cos_sin[rope],
            dims: model.ropes[rope].dims(),
        });
        let out = HeadColumns {
            rows: &mut b.attended,
            row: model.attended.len(),
            head: model.spec.heads().value_dim,
            first: model.attended.lead,
        };
        match &a.projected {
            Projected::Heads(heads) => {
                cpu.matmul(&heads.qkv, acts, &mut b.qkv, Mode::Store);
                self.attend_heads(a, heads, angles, kv, attention, &mut b.qkv, out);
            }
            Projected::Latent(own) => {
                let (places, layer) = (&self.places[a.kv_group], (a.kv_index, a.scoring()));
                let pass = LatentPass {
                    cpu,
                    own,
                    angles,
                    places,
                    layer,
                };
                pass.attend(kv, attention, acts, &mut b.latent, out);
            }
        }
        let (k, form) = (model.attended.len(), a.o.activation_format());
        cpu.norm_quantize(&b.attended, self.rows, k, None, form, acts);
    }

    /// `out = attention(qkv)`, grouped-query.
    #[allow(clippy::too_many_arguments)]
    fn attend_heads(
        &self,
        a: &Attention,
        heads: &HeadProjections,
        angles: Option<Angles<'_>>,
        kv: &mut StepLease<'_>,
        attention: &mut AttentionPlan,
        qkv: &mut [f32],
        out: HeadColumns<'_>,
    ) {
        let (cpu, queries, stride) = (self.cpu, self.model.heads.heads, heads.qkv.n());
        let factors = a.temperature.map(|t| {
            let positions = self.positions.iter();
            positions.map(|&p| t.factor(p)).collect::<Vec<f32>>()
        });
        let rotation = Rotation {
            norms: heads.norms(),
            angles,
            query_factors: factors.as_deref(),
        };
        let places = &self.places[a.kv_group];
        cpu.rotate_and_store(qkv, queries, &rotation, places, a.kv_index, kv);
        attention.run(cpu, kv, a.kv_index, a.scoring(), qkv, stride, out);
    }

    /// `x += norm(reduced sum)`; without a norm, `reduce` adds to `x` directly.
    fn add(
        &self,
        norm: Option<&Norm>,
        x: &mut [f32],
        branch: &mut Aligned<f32>,
        reduce: &mut dyn FnMut(&mut [f32]) -> Result<(), GroupError>,
    ) -> Result<(), GroupError> {
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
    ) -> Result<(), GroupError> {
        let (cpu, form, inner) = (self.cpu, &layer.feed_forward, &mut b.inner);
        form.prepare(cpu, &layer.feed_forward_norm, self.stream(&mut b.x), inner);
        let norm = layer.feed_forward_after.as_ref();
        self.add(norm, &mut b.x, &mut b.branch, &mut |x| {
            form.reduce(cpu, inner, collectives, x)
        })
    }

    /// The part of a buffer that this step uses: rows x hidden.
    fn stream<'x>(&self, x: &'x mut [f32]) -> &'x mut [f32] {
        &mut x[..self.rows * self.model.spec.hidden]
    }
}
