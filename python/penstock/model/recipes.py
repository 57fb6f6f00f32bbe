"""Weight recipes (where each matrix is in a checkpoint) for GGUF and Hugging Face checkpoints with
Llama's tensor names.
"""

from collections.abc import Mapping
from dataclasses import replace

from penstock.model.spec import (
    Attention,
    DecoderSpec,
    FactorsScaling,
    LatentAttention,
    Layer,
    Mlp,
    Recipe,
    WeightRecipes,
)

GGUF_ROPE_FACTORS = "rope_freqs.weight"
_PREFIX = "model."

_HF_MODULES = {
    "mixer_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}
_HF_LATENT = {
    "mixer_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "q_a": "self_attn.q_a_proj",
    "q_a_norm": "self_attn.q_a_layernorm",
    "q_b": "self_attn.q_b_proj",
    "kv_a": "self_attn.kv_a_proj_with_mqa",
    "kv_a_norm": "self_attn.kv_a_layernorm",
    "kv_b": "self_attn.kv_b_proj",
    "o": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
}
_HF_DENSE = {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
QWEN_EXPERTS = {
    "router": "mlp.gate",
    "gate": "mlp.experts.{e}.gate_proj",
    "up": "mlp.experts.{e}.up_proj",
    "down": "mlp.experts.{e}.down_proj",
    "shared_gate": "mlp.shared_expert.gate_proj",
    "shared_up": "mlp.shared_expert.up_proj",
    "shared_down": "mlp.shared_expert.down_proj",
    "shared_factor": "mlp.shared_expert_gate",
}
"""Names of an expert layer's modules in Qwen's checkpoints, by role."""
_GGUF_MODULES = {
    "mixer_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "feed_forward_norm": "ffn_norm",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
}
_GGUF_LATENT = {
    "mixer_norm": "attn_norm",
    "q": "attn_q",
    "q_a": "attn_q_a",
    "q_a_norm": "attn_q_a_norm",
    "q_b": "attn_q_b",
    "kv_a": "attn_kv_a_mqa",
    "kv_a_norm": "attn_kv_a_norm",
    "kv_b": "attn_kv_b",
    "k_b": "attn_k_b",
    "v_b": "attn_v_b",
    "o": "attn_output",
    "feed_forward_norm": "ffn_norm",
}
_GGUF_DENSE = {"gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
_GGUF_EXPERTS = {
    "router": "ffn_gate_inp",
    "gate": "ffn_gate_exps",
    "up": "ffn_up_exps",
    "down": "ffn_down_exps",
    "shared_gate": "ffn_gate_shexp",
    "shared_up": "ffn_up_shexp",
    "shared_down": "ffn_down_shexp",
    "shared_factor": "ffn_gate_inp_shexp",
}
GGUF_SEPARATE_EXPERTS = {role: f"ffn_{role}.{{e}}" for role in ("gate", "up", "down")}
"""Names of expert tensors by role in GGUF files from before April 2024, which have one tensor per
expert (`e`).
"""
_QK_NORMS = ("q_norm", "k_norm")

_SHARED = ("shared_gate", "shared_up", "shared_down")
_BLOCKED = ("q", "k", "v", "q_a", "kv_a", "kv_b", "o", "gate", "up", "down", *_SHARED)
"""Roles whose matrices have a tensor of scales in checkpoints with FP8 weights."""


Modules = Mapping[str, str]


def hf_recipes(
    spec: DecoderSpec,
    experts: Modules = QWEN_EXPERTS,
    *,
    interleaved: bool = False,
    block_scales: bool = False,
) -> WeightRecipes:
    """Recipes for a Hugging Face checkpoint of a `*ForCausalLM` class. `interleaved`: q and k rows
    (in latent attention, rope rows) are stored for interleaved rotation. `block_scales`: matrices
    of the layers are 8-bit floats, each with a tensor of scales.
    """

    def stored(role: str, recipe: Recipe) -> Recipe:
        scales = f"{recipe.tensor}_scale_inv"
        return replace(recipe, scales=scales) if block_scales and role in _BLOCKED else recipe

    def layer_recipes(i: int, layer: Layer) -> dict[str, Recipe]:
        at = f"model.layers.{i}."
        own = (
            _mixer(layer, at, _HF_MODULES, _HF_LATENT, interleaved)
            | _feed_forward(layer, at, _HF_DENSE, experts)
            | _shared_factor(layer, at, experts, row=0)
        )
        return {role: stored(role, recipe) for role, recipe in own.items()}

    return WeightRecipes(
        embed=Recipe("model.embed_tokens.weight"),
        final_norm=Recipe("model.norm.weight"),
        head=None if spec.tied_embeddings else Recipe("lm_head.weight"),
        layers=tuple(layer_recipes(i, layer) for i, layer in enumerate(spec.layers)),
    )


def with_prefix(weights: WeightRecipes, prefix: str, head: str = "lm_head.weight") -> WeightRecipes:
    """Recipes of `hf_recipes` for a model within a larger one, whose tensors have `prefix` in place
    of `model.`. `head`: name of the output head's tensor.
    """

    def moved(recipe: Recipe) -> Recipe:
        scales = recipe.scales and prefix + recipe.scales.removeprefix(_PREFIX)
        return replace(recipe, tensor=prefix + recipe.tensor.removeprefix(_PREFIX), scales=scales)

    return replace(
        weights,
        embed=moved(weights.embed),
        final_norm=moved(weights.final_norm),
        head=weights.head and replace(weights.head, tensor=head),
        layers=tuple(
            {role: moved(recipe) for role, recipe in layer.items()} for layer in weights.layers
        ),
    )


def with_roles(weights: WeightRecipes, roles: Mapping[str, str | None]) -> WeightRecipes:
    """The recipes with the weights of other modules for some roles: `{}` in a module's name is the
    layer's number, None removes a role.
    """

    def layer(i: int, own: dict[str, Recipe]) -> dict[str, Recipe]:
        changed = {role: Recipe(f"{name.format(i)}.weight") for role, name in roles.items() if name}
        return {role: each for role, each in own.items() if role not in roles} | changed

    return replace(weights, layers=tuple(layer(i, own) for i, own in enumerate(weights.layers)))


def gguf_recipes(
    spec: DecoderSpec,
    *,
    interleaved: bool = False,
    separate_experts: bool = False,
    split_latent: bool = False,
) -> WeightRecipes:
    """Recipes for a GGUF file. `interleaved`: q and k rows (in latent attention, rope rows) are
    stored for interleaved rotation. `split_latent`: the projection from the latent is stored as one
    stack for keys and one for values.
    """
    mixer = spec.first_attention
    rope = mixer.rope if isinstance(mixer, Attention) else None
    has_factors = rope is not None and isinstance(rope.scaling, FactorsScaling)
    experts = _GGUF_EXPERTS | (GGUF_SEPARATE_EXPERTS if separate_experts else {})
    return WeightRecipes(
        embed=Recipe("token_embd.weight"),
        final_norm=Recipe("output_norm.weight"),
        head=None if spec.tied_embeddings else Recipe("output.weight"),
        rope_factors=Recipe(GGUF_ROPE_FACTORS) if has_factors else None,
        layers=tuple(
            _mixer(layer, f"blk.{i}.", _GGUF_MODULES, _GGUF_LATENT, interleaved, split_latent)
            | _feed_forward(layer, f"blk.{i}.", _GGUF_DENSE, experts)
            | _shared_factor(layer, f"blk.{i}.", experts, row=None)
            for i, layer in enumerate(spec.layers)
        ),
    )


def _mixer(
    layer: Layer,
    at: str,
    modules: Modules,
    latent: Modules,
    interleaved: bool,
    split_latent: bool = False,
) -> dict[str, Recipe]:
    if isinstance(layer.mixer, LatentAttention):
        return _latent(layer.mixer, at, latent, interleaved, split_latent)
    assert isinstance(layer.mixer, Attention)
    return _attention(layer.mixer, at, modules, layer.mixer.head_dim if interleaved else None)


def _latent(
    mixer: LatentAttention, at: str, modules: Modules, interleaved: bool, split: bool
) -> dict[str, Recipe]:
    def recipe(module: str, plain: int | None = None) -> Recipe:
        name = f"{at}{modules[module]}.weight"
        if plain is None or not interleaved:
            return Recipe(name)
        return Recipe(name, interleaved=plain + mixer.rope_dim, unrotated=plain)

    roles = ["mixer_norm", "kv_a_norm", "o", "feed_forward_norm"]
    roles += ["k_b", "v_b"] if split else ["kv_b"]
    roles += [] if mixer.query_rank is None else ["q_a", "q_a_norm"]
    query = "q" if mixer.query_rank is None else "q_b"
    rotated = {"q": recipe(query, mixer.plain_dim), "kv_a": recipe("kv_a", mixer.kv_rank)}
    return {role: recipe(role) for role in roles} | rotated


def _attention(
    mixer: Attention, at: str, modules: Modules, head_dim: int | None
) -> dict[str, Recipe]:
    weights = [role for role in modules if mixer.qk_norm or role not in _QK_NORMS]
    biases = ["q", "k", "v"] if mixer.qkv_bias else []
    biases += ["o"] if mixer.out_bias else []
    order = dict.fromkeys("qk", head_dim)

    def recipe(role: str, kind: str) -> Recipe:
        return Recipe(f"{at}{modules[role]}.{kind}", interleaved=order.get(role))

    recipes = {role: recipe(role, "weight") for role in weights}
    return recipes | {f"{role}_bias": recipe(role, "bias") for role in biases}


def _feed_forward(layer: Layer, at: str, dense: Modules, experts: Modules) -> dict[str, Recipe]:
    form, roles = layer.feed_forward, ["gate", "up", "down"]
    if isinstance(form, Mlp):
        modules, biases = dense, roles if form.bias else []
    else:
        modules, biases = experts, roles if form.expert.bias else []
        biases = [*biases, "router"] if form.router.bias else biases
        roles = [*roles, "router"]
        roles += ["shared_gate", "shared_up", "shared_down"] if form.shared else []
    recipes = {role: Recipe(f"{at}{modules[role]}.weight") for role in roles}
    return recipes | {f"{role}_bias": Recipe(f"{at}{modules[role]}.bias") for role in biases}


def _shared_factor(layer: Layer, at: str, modules: Modules, row: int | None) -> dict[str, Recipe]:
    """The shared expert's gate, stored as a vector or as the only row of a matrix."""
    form = layer.feed_forward
    if isinstance(form, Mlp) or not form.shared_gate:
        return {}
    return {"shared_factor": Recipe(f"{at}{modules['shared_factor']}.weight", expert=row)}
