//! Feed-forwards, dense or mixtures of experts: their weights and the pass through one layer.

use penstock_collectives::GroupError;
use penstock_kernels::{
    ActivationFn, ActivationFormat, Activations, Aligned, Beside, Choice, Columns, Cpu,
    ExpertBuffers, Experts, Linear, Mode, Norm, Packed, Routing,
};

use crate::collectives::Collectives;
use crate::shard::Inputs;

/// The feed-forward of a layer.
pub(crate) enum FeedForward {
    Dense(Mlp),
    Mixture(Box<Mixture>),
}

/// A dense feed-forward.
pub(crate) struct Mlp {
    /// Gate and up projections side by side, or the up projection only.
    pub(crate) inner: Linear,
    pub(crate) activation: ActivationFn,
    pub(crate) down: Linear,
    /// Input columns of the down projection on this rank.
    pub(crate) inputs: Inputs,
}

/// A mixture of experts.
pub(crate) struct Mixture {
    /// Projection to the logits of all experts, and of the shared expert's gate if there is one.
    /// Its weights are f32, because a small error could change the choice of experts.
    pub(crate) router: Linear,
    pub(crate) routing: Routing,
    pub(crate) experts: Experts,
    pub(crate) shared: Option<Mlp>,
}

/// Buffers of the feed-forwards; they grow to the largest step.
pub(crate) struct InnerBuffers {
    acts: Activations,
    inner: Aligned<f32>,
    router_acts: Activations,
    logits: Aligned<f32>,
    choices: Vec<Choice>,
    shared: Aligned<f32>,
    experts: ExpertBuffers,
}

impl Default for InnerBuffers {
    fn default() -> Self {
        let empty = || Aligned::zeroed(0);
        Self {
            acts: Activations::default(),
            inner: empty(),
            router_acts: Activations::default(),
            logits: empty(),
            choices: Vec::new(),
            shared: empty(),
            experts: ExpertBuffers::default(),
        }
    }
}

impl InnerBuffers {
    /// Number of expert weight reads, summed over all layers and steps.
    pub(crate) fn experts_read(&self) -> u64 {
        self.experts.read()
    }
}

impl FeedForward {
    /// All packed matrices except the router's.
    pub(crate) fn linears(&self) -> Vec<&Linear> {
        match self {
            Self::Dense(mlp) => vec![&mlp.inner, &mlp.down],
            Self::Mixture(mixture) => {
                let experts = mixture.experts.experts.iter();
                let shared = mixture.shared.iter();
                let experts = experts.flat_map(|expert| [&expert.inner, &expert.down]);
                experts
                    .chain(shared.flat_map(|mlp| [&mlp.inner, &mlp.down]))
                    .collect()
            }
        }
    }

    /// The router's matrices; empty for a dense feed-forward.
    pub(crate) fn router(&self) -> &[Packed] {
        match self {
            Self::Dense(_) => &[],
            Self::Mixture(mixture) => &mixture.router.parts,
        }
    }

    /// Computes `norm(x)` and everything up to the products that [`Self::reduce`] sums over the
    /// ranks.
    pub(crate) fn prepare(&self, cpu: &Cpu, norm: &Norm, x: &[f32], b: &mut InnerBuffers) {
        match self {
            Self::Dense(mlp) => {
                let form = mlp.inner.activation_format();
                quantize(cpu, norm, x, form, &mut b.acts);
                mlp.activate(cpu, &mut b.acts, &mut b.inner);
            }
            Self::Mixture(mixture) => mixture.prepare(cpu, norm, x, b),
        }
    }

    /// Adds the feed-forward's output, summed over the ranks, to `x`. `b` must come from
    /// [`Self::prepare`].
    ///
    /// # Errors
    /// A rank is lost.
    pub(crate) fn reduce(
        &self,
        cpu: &Cpu,
        b: &mut InnerBuffers,
        collectives: &mut dyn Collectives,
        x: &mut [f32],
    ) -> Result<(), GroupError> {
        match self {
            Self::Dense(mlp) => collectives.matmul_reduce(cpu, &mlp.down, &b.acts, x),
            Self::Mixture(mixture) => mixture.reduce(cpu, b, collectives, x),
        }
    }
}

/// `acts = norm(x)`, quantised to the format `form`.
fn quantize(cpu: &Cpu, norm: &Norm, x: &[f32], form: ActivationFormat, acts: &mut Activations) {
    let hidden = norm.weight.len();
    cpu.norm_quantize(x, x.len() / hidden, hidden, Some(norm), form, acts);
}

impl Mlp {
    /// `acts = activation(inner(acts))`.
    fn activate(&self, cpu: &Cpu, acts: &mut Activations, inner: &mut Aligned<f32>) {
        let (rows, k) = (acts.rows(), self.inputs.len());
        inner.ensure(rows * k);
        let out = Columns {
            rows: inner,
            ld: k,
            first: self.inputs.lead,
        };
        cpu.activate(&self.inner, self.activation, acts, out);
        let form = self.down.activation_format();
        cpu.norm_quantize(inner, rows, k, None, form, acts);
    }
}

impl Mixture {
    /// Chooses the experts of each row, computes the shared expert, and quantises the rows for the
    /// routed experts.
    fn prepare(&self, cpu: &Cpu, norm: &Norm, x: &[f32], b: &mut InnerBuffers) {
        let rows = x.len() / norm.weight.len();
        quantize(cpu, norm, x, ActivationFormat::F32, &mut b.router_acts);
        let stride = self.router.n();
        b.logits.ensure(rows * stride);
        cpu.matmul(&self.router, &b.router_acts, &mut b.logits, Mode::Store);
        let chosen = rows * self.routing.chosen;
        b.choices.resize(chosen, Choice::default());
        cpu.choose(&self.routing, &mut b.logits, stride, &mut b.choices);
        if let Some(mlp) = &self.shared {
            let form = mlp.inner.activation_format();
            quantize(cpu, norm, x, form, &mut b.acts);
            mlp.activate(cpu, &mut b.acts, &mut b.inner);
            b.shared.ensure(x.len());
            cpu.matmul(&mlp.down, &b.acts, &mut b.shared, Mode::Store);
        }
        quantize(cpu, norm, x, self.experts.form(), &mut b.acts);
    }

    fn reduce(
        &self,
        cpu: &Cpu,
        b: &mut InnerBuffers,
        collectives: &mut dyn Collectives,
        x: &mut [f32],
    ) -> Result<(), GroupError> {
        let (stride, experts) = (self.router.n(), self.routing.experts);
        let (shared, logits) = (&b.shared, &b.logits);
        let beside = self.shared.as_ref().map(|_| Beside {
            rows: shared,
            gates: (stride > experts).then(|| (&logits[experts..], stride)),
        });
        let (choices, acts, buffers) = (&b.choices, &b.acts, &mut b.experts);
        collectives.reduce(cpu, x, &mut |out, mode| {
            let beside = beside.as_ref();
            cpu.mix(&self.experts, choices, acts, beside, buffers, out, mode);
        })
    }
}
