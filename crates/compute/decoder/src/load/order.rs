//! The loader's order of tensors, for read-ahead.

use penstock_checkpoint::ReadAhead;

use crate::recipe::{LayerRecipes, Recipe, WeightRecipes};
use crate::shard::Shard;
use crate::spec::{DecoderSpec, FeedForward};

/// Adds this rank's tensors to `tensors`, approximately in the order in which the loader uses them.
pub(crate) fn add_in_order(
    tensors: &mut ReadAhead<'_>,
    spec: &DecoderSpec,
    weights: &WeightRecipes,
    shard: &Shard,
) {
    let WeightRecipes {
        embed,
        positions,
        final_norm,
        final_norm_bias,
        head,
        score,
        rope_factors,
        layers,
    } = weights;
    for i in shard.layers() {
        let experts = match &spec.layer(i).feed_forward {
            FeedForward::Moe(moe) => {
                let mlp = moe.expert.mlp();
                mlp.map(|mlp| shard.experts(moe.experts, mlp.intermediate).0)
            }
            _ => None,
        };
        add_layer(tensors, &layers[i], experts);
    }
    let own_head = shard.has_head().then_some(head.as_ref()).flatten();
    let tied = shard.has_head() && spec.tied_embeddings;
    let own_embed = (shard.embeds() || tied).then_some(embed);
    let end = [final_norm_bias.as_ref(), rope_factors.as_ref()];
    let all = [own_head, own_embed, positions.as_ref(), score.as_ref()];
    let all = all.into_iter().chain([Some(final_norm)]).chain(end);
    all.flatten().for_each(|recipe| add(tensors, recipe));
}

fn add(tensors: &mut ReadAhead<'_>, recipe: &Recipe) {
    // The loader reads these whole before the codes.
    if let Some(codes) = &recipe.codes {
        codes.others().for_each(|name| tensors.add(name, None));
    }
    tensors.add(&recipe.tensor, recipe.expert);
    if let Some(scales) = &recipe.scales {
        tensors.add(scales, None);
    }
}

fn add_layer(
    tensors: &mut ReadAhead<'_>,
    weights: &LayerRecipes,
    experts: Option<std::ops::Range<usize>>,
) {
    // Exhaustive destructuring, so that a new role cannot be forgotten.
    let LayerRecipes {
        mixer_norm,
        mixer_norm_bias,
        mixer_norm_after,
        q,
        k,
        v,
        o,
        q_a,
        q_a_norm,
        kv_a,
        kv_a_norm,
        kv_b,
        k_b,
        v_b,
        q_bias,
        k_bias,
        v_bias,
        o_bias,
        q_norm,
        k_norm,
        sinks,
        feed_forward_norm,
        feed_forward_norm_bias,
        feed_forward_norm_after,
        gate,
        up,
        down,
        gate_bias,
        up_bias,
        down_bias,
        router,
        router_bias,
        router_correction,
        shared_gate,
        shared_up,
        shared_down,
        shared_factor,
    } = weights;
    let norms = [
        mixer_norm_after.as_ref(),
        feed_forward_norm_after.as_ref(),
        Some(mixer_norm),
        mixer_norm_bias.as_ref(),
    ];
    let latent = [q_a, q_a_norm, kv_a, kv_a_norm, kv_b, k_b, v_b];
    let heads = [k, v, q_bias, k_bias, v_bias, q_norm, k_norm, sinks];
    let latent = latent.into_iter().map(Option::as_ref);
    let heads = heads.into_iter().map(Option::as_ref);
    let mixer = [q.as_ref()].into_iter().chain(latent).chain(heads);
    let mixer = mixer.chain([o.as_ref(), o_bias.as_ref()]);
    let between = [Some(feed_forward_norm), feed_forward_norm_bias.as_ref()];
    let before = norms.into_iter().chain(mixer).chain(between);
    before.flatten().for_each(|recipe| add(tensors, recipe));
    let matrices = [gate.as_ref(), Some(up), Some(down)];
    let biases = [gate_bias, up_bias, down_bias].map(Option::as_ref);
    let each = matrices.into_iter().chain(biases).flatten();
    match experts {
        None => each.for_each(|recipe| add(tensors, recipe)),
        Some(own) => own
            .flat_map(|expert| each.clone().map(move |one| one.clone().of_expert(expert)))
            .for_each(|recipe| add(tensors, &recipe)),
    }
    let router = [router, router_bias, router_correction];
    let shared = [shared_gate, shared_up, shared_down, shared_factor];
    let rest = router.into_iter().chain(shared).flatten();
    rest.for_each(|recipe| add(tensors, recipe));
}
