//! The pass through one layer of latent attention, top-down.
//!
//! Both decode and prefill use the absorbed form: each query head is projected into the latent
//! space, attends over the cached latents, and the weighted sum is projected to a value. A row's
//! arithmetic is therefore the same in every prefill chunk and in decode.

use penstock_kernels::{
    ActivationFormat, Activations, Aligned, Angles, AttentionPlan, Cpu, HeadColumns, KvPosition,
    LatentRows, Mode, Packed, Scoring, StepLease,
};

use crate::model::LatentProjections;

/// Buffers of latent attention; they grow to the largest step.
pub(crate) struct LatentBuffers {
    /// Output of the down projection, rows x outputs.
    down: Aligned<f32>,
    /// Queries from a low-rank query projection, rows x heads x (plain + rope).
    queries: Aligned<f32>,
    /// Query parts without rotation, heads x rows x plain.
    plain: Aligned<f32>,
    /// Absorbed queries (in the latent space), rows x heads x (rank + rope).
    absorbed: Aligned<f32>,
    /// Weighted sums of latents, heads x rows x rank.
    context: Aligned<f32>,
}

impl Default for LatentBuffers {
    fn default() -> Self {
        let empty = || Aligned::zeroed(0);
        Self {
            down: empty(),
            queries: empty(),
            plain: empty(),
            absorbed: empty(),
            context: empty(),
        }
    }
}

/// Inputs of the pass through one layer.
pub(crate) struct LatentPass<'a> {
    pub(crate) cpu: &'a Cpu,
    pub(crate) own: &'a LatentProjections,
    pub(crate) angles: Option<Angles<'a>>,
    pub(crate) places: &'a [KvPosition],
    /// Index of the layer in its KV group, and the layer's attention scoring.
    pub(crate) layer: (usize, Scoring<'a>),
}

impl LatentPass<'_> {
    /// `out = attention(acts)`. Overwrites `acts`.
    pub(crate) fn attend(
        &self,
        kv: &mut StepLease<'_>,
        attention: &mut AttentionPlan,
        acts: &mut Activations,
        b: &mut LatentBuffers,
        out: HeadColumns<'_>,
    ) {
        let (cpu, own, s, rows) = (self.cpu, self.own, &self.own.shape, self.places.len());
        self.project(acts, b);
        let (ld, before) = (own.down.n(), own.before_latent());
        let queries = match &own.q_b {
            Some((_, q_b)) => (&b.queries[..], q_b.n()),
            None => (&b.down[..], ld),
        };
        let from = LatentRows {
            queries,
            latents: (&b.down[before..], ld),
        };
        let key = s.rank + s.rope;
        b.plain.ensure(s.heads * rows * s.plain);
        b.absorbed.ensure(rows * s.heads * key);
        let (layer, scoring) = self.layer;
        let (norm, plain, absorbed) = (&own.norm, &mut b.plain, &mut b.absorbed);
        cpu.part_latent(
            s,
            from,
            norm,
            self.angles,
            self.places,
            layer,
            kv,
            plain,
            absorbed,
        );
        let absorbed = HeadColumns {
            rows: &mut b.absorbed,
            row: s.heads * key,
            head: key,
            first: 0,
        };
        self.of_heads(&own.k_b, &b.plain, s.plain, acts, absorbed);
        b.context.ensure(s.heads * rows * s.rank);
        let context = HeadColumns {
            rows: &mut b.context,
            row: s.rank,
            head: rows * s.rank,
            first: 0,
        };
        attention.run(cpu, kv, layer, scoring, &b.absorbed, s.heads * key, context);
        self.of_heads(&own.v_b, &b.context, s.rank, acts, out);
    }

    /// Projects queries, latents and rope keys.
    fn project(&self, acts: &mut Activations, b: &mut LatentBuffers) {
        let (cpu, own, rows) = (self.cpu, self.own, self.places.len());
        let ld = own.down.n();
        b.down.ensure(rows * ld);
        cpu.matmul(&own.down, acts, &mut b.down, Mode::Store);
        if let Some((norm, q_b)) = &own.q_b {
            let (rank, form) = (norm.weight.len(), q_b.activation_format());
            cpu.norm_quantize_rows((&b.down, ld), rows, rank, Some(norm), form, acts);
            b.queries.ensure(rows * q_b.n());
            cpu.matmul(q_b, acts, &mut b.queries, Mode::Store);
        }
    }

    /// Multiplies each head's rows of `k` numbers by that head's matrix.
    fn of_heads(
        &self,
        heads: &[Packed],
        x: &[f32],
        k: usize,
        acts: &mut Activations,
        out: HeadColumns<'_>,
    ) {
        let form = ActivationFormat::of(heads[0].form());
        let rows = heads.len() * self.places.len();
        self.cpu.norm_quantize(x, rows, k, None, form, acts);
        self.cpu.head_products(heads, acts, out);
    }
}
