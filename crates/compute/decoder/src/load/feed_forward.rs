//! Loads feed-forwards: dense ones, and mixtures of experts with their routers.

use std::ops::Range;

use penstock_kernels::{
    ActivationFn, Expert, Experts, GroupRow, Linear, Packed, Routing, RowSource, WeightFormat,
};

use super::{Loader, Part, missing, needed};
use crate::error::DecoderError;
use crate::feed_forward::{FeedForward, Mixture, Mlp};
use crate::recipe::{LayerRecipes, Recipe};
use crate::shard::Inputs;
use crate::source::{MatrixRows, vector};
use crate::spec::{self, ExpertsSpec, MlpSpec};

/// Recipes of a dense feed-forward or of one expert, by role.
struct Roles {
    gate: Option<Recipe>,
    up: Option<Recipe>,
    down: Option<Recipe>,
    gate_bias: Option<Recipe>,
    up_bias: Option<Recipe>,
    down_bias: Option<Recipe>,
}

impl Roles {
    fn of(weights: &LayerRecipes) -> Self {
        Self {
            gate: weights.gate.clone(),
            up: Some(weights.up.clone()),
            down: Some(weights.down.clone()),
            gate_bias: weights.gate_bias.clone(),
            up_bias: weights.up_bias.clone(),
            down_bias: weights.down_bias.clone(),
        }
    }

    fn of_shared(weights: &LayerRecipes) -> Self {
        Self {
            gate: weights.shared_gate.clone(),
            up: weights.shared_up.clone(),
            down: weights.shared_down.clone(),
            gate_bias: None,
            up_bias: None,
            down_bias: None,
        }
    }

    fn of_expert(weights: &LayerRecipes, expert: usize) -> Self {
        let all = Self::of(weights);
        let one = |recipe: Option<Recipe>| recipe.map(|recipe| recipe.of_expert(expert));
        Self {
            gate: one(all.gate),
            up: one(all.up),
            down: one(all.down),
            gate_bias: one(all.gate_bias),
            up_bias: one(all.up_bias),
            down_bias: one(all.down_bias),
        }
    }
}

/// A vector as a matrix of one row.
struct OneRow(Vec<f32>);

impl RowSource for OneRow {
    fn fill_f32(&self, _: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.0);
    }

    fn fill_groups(&self, _: WeightFormat, _: usize, _: &mut GroupRow) -> bool {
        false
    }
}

impl Loader<'_> {
    pub(super) fn feed_forward(
        &self,
        kind: &spec::FeedForward,
        weights: &LayerRecipes,
    ) -> Result<FeedForward, DecoderError> {
        match kind {
            spec::FeedForward::Moe(moe) => {
                let mixture = self.mixture(moe, weights)?;
                Ok(FeedForward::Mixture(Box::new(mixture)))
            }
            spec::FeedForward::Gated(mlp) | spec::FeedForward::Plain(mlp) => {
                let own = self.shard.columns(mlp.intermediate);
                let mlp = self.mlp(kind, mlp, &Roles::of(weights), own, self.shard.rank == 0);
                Ok(FeedForward::Dense(mlp?))
            }
        }
    }

    /// Loads the inner columns `own` of a feed-forward, with the bias of the down projection if
    /// `adds_bias`.
    fn mlp<'r>(
        &self,
        kind: &spec::FeedForward,
        mlp: &MlpSpec,
        roles: &'r Roles,
        own: Range<usize>,
        adds_bias: bool,
    ) -> Result<Mlp, DecoderError> {
        let activation = kind.activation().ok_or_else(|| missing("activation"))?;
        let part = |(role, recipe): (_, &'r Option<Recipe>), (bias_role, bias)| {
            let recipe = recipe.as_ref().ok_or_else(|| missing(role))?;
            Ok::<_, DecoderError>(Part {
                recipe,
                bias: needed(mlp.bias, bias_role, bias)?,
                whole: mlp.intermediate,
                own: own.clone(),
            })
        };
        let mut inner = Vec::new();
        if activation != ActivationFn::GeluTanh {
            inner.push(part(
                ("gate", &roles.gate),
                ("gate_bias", &roles.gate_bias),
            )?);
        }
        inner.push(part(("up", &roles.up), ("up_bias", &roles.up_bias))?);
        let down = roles.down.as_ref().ok_or_else(|| missing("down"))?;
        let bias = needed(mlp.bias, "down_bias", &roles.down_bias)?;
        let inputs = Inputs::around(own, mlp.intermediate);
        Ok(Mlp {
            inner: self.outputs(&inner, self.spec.hidden)?,
            activation,
            down: self.inputs(down, bias.filter(|_| adds_bias), mlp.intermediate, &inputs)?,
            inputs,
        })
    }

    fn mixture(&self, moe: &ExpertsSpec, weights: &LayerRecipes) -> Result<Mixture, DecoderError> {
        let mlp = moe.expert.mlp().ok_or_else(|| missing("experts"))?;
        let (own, columns) = self.shard.experts(moe.experts, mlp.intermediate);
        let adds_bias = self.shard.rank == 0 || self.shard.experts.is_some();
        let load = |expert| {
            let roles = Roles::of_expert(weights, expert);
            self.mlp(&moe.expert, mlp, &roles, columns.clone(), adds_bias)
        };
        let all = own.clone().map(load).collect::<Result<Vec<_>, _>>()?;
        let activation = moe
            .expert
            .activation()
            .ok_or_else(|| missing("activation"))?;
        let inputs = Inputs::around(columns.clone(), mlp.intermediate);
        let expert = |mlp: Mlp| Expert {
            inner: mlp.inner,
            down: mlp.down,
        };
        let experts = Experts {
            experts: all.into_iter().map(expert).collect(),
            first: own.start,
            activation,
            inputs: inputs.len(),
            lead: inputs.lead,
            weighted_inputs: moe.router.weight_on_input,
        };
        if !experts.alike() {
            let name = &weights.up.tensor;
            let problem = format!("tensor {name:?}: experts stored in different types");
            return Err(DecoderError::Unsupported(problem));
        }
        let shared = moe.shared.as_deref().map(|kind| {
            let mlp = kind.mlp().ok_or_else(|| missing("shared expert"))?;
            let own = self.shard.columns(mlp.intermediate);
            self.mlp(
                kind,
                mlp,
                &Roles::of_shared(weights),
                own,
                self.shard.rank == 0,
            )
        });
        Ok(Mixture {
            router: self.router(moe, weights)?,
            routing: self.routing(moe, weights)?,
            experts,
            shared: shared.transpose()?,
        })
    }

    /// The router over all experts, replicated on every rank so that all ranks choose the same
    /// experts.
    fn router(&self, moe: &ExpertsSpec, weights: &LayerRecipes) -> Result<Linear, DecoderError> {
        let router = weights.router.as_ref().ok_or_else(|| missing("router"))?;
        let mut parts = vec![self.floats(router, moe.experts)?];
        let mut bias = match needed(moe.router.bias, "router_bias", &weights.router_bias)? {
            Some(recipe) => Some(vector(self.tensors, recipe, moe.experts)?),
            None => None,
        };
        if let Some(gate) = needed(moe.shared_gate, "shared_factor", &weights.shared_factor)? {
            let row = OneRow(vector(self.tensors, gate, self.spec.hidden)?);
            let (pool, form) = (self.cpu.threads(), WeightFormat::F32);
            parts.push(Packed::pack(pool, form, 1, row.0.len(), &row));
            bias.iter_mut().for_each(|bias| bias.push(0.0));
        }
        Ok(Linear { parts, bias })
    }

    /// A matrix of `n` x hidden size in f32.
    fn floats(&self, recipe: &Recipe, n: usize) -> Result<Packed, DecoderError> {
        let k = self.spec.hidden;
        let rows = MatrixRows::open(self.tensors, recipe, n, k)?;
        self.pack(WeightFormat::F32, n, k, &rows)
    }

    fn routing(&self, moe: &ExpertsSpec, weights: &LayerRecipes) -> Result<Routing, DecoderError> {
        let router = &moe.router;
        let correction = &weights.router_correction;
        let correction = needed(router.correction, "router_correction", correction)?;
        let correction = correction.map(|recipe| vector(self.tensors, recipe, moe.experts));
        Ok(Routing {
            experts: moe.experts,
            chosen: moe.experts_per_token,
            score: router.score.score(),
            after: router.after_choice,
            correction: correction.transpose()?,
            groups: router.groups.map(spec::GroupsSpec::groups),
            normalise: router.normalise.then(|| router.epsilon.unwrap_or(0.0)),
            scale: router.scale.unwrap_or(1.0),
        })
    }
}
