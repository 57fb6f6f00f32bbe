"""Weight recipes of the two containers for checkpoints that follow Llama's tensors."""

from collections.abc import Mapping

from penstock.model.spec import (
    Attention,
    DecoderSpec,
    FactorsScaling,
    Layer,
    Mlp,
    Recipe,
    WeightRecipes,
)

GGUF_ROPE_FACTORS = "rope_freqs.weight"

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
"""Modules of a layer of experts by role."""
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
"""Experts in a tensor each, as in files before April 2024."""
_QK_NORMS = ("q_norm", "k_norm")


Modules = Mapping[str, str]


def hf_recipes(spec: DecoderSpec, experts: Modules = QWEN_EXPERTS) -> WeightRecipes:
    """Recipes of a Hugging Face checkpoint of a `*ForCausalLM` class."""
    return WeightRecipes(
        embed=Recipe("model.embed_tokens.weight"),
        final_norm=Recipe("model.norm.weight"),
        head=None if spec.tied_embeddings else Recipe("lm_head.weight"),
        layers=tuple(
            _attention(layer, f"model.layers.{i}.", _HF_MODULES)
            | _feed_forward(layer, f"model.layers.{i}.", _HF_DENSE, experts)
            | _shared_factor(layer, f"model.layers.{i}.", experts, row=0)
            for i, layer in enumerate(spec.layers)
        ),
    )


def gguf_recipes(
    spec: DecoderSpec, *, interleaved: bool = False, separate_experts: bool = False
) -> WeightRecipes:
    """Recipes of a GGUF file. `interleaved`: q and k rows are stored for interleaved rotation."""
    rope = spec.attention.rope
    has_factors = rope is not None and isinstance(rope.scaling, FactorsScaling)
    head_dim = spec.attention.head_dim if interleaved else None
    experts = _GGUF_EXPERTS | (GGUF_SEPARATE_EXPERTS if separate_experts else {})
    return WeightRecipes(
        embed=Recipe("token_embd.weight"),
        final_norm=Recipe("output_norm.weight"),
        head=None if spec.tied_embeddings else Recipe("output.weight"),
        rope_factors=Recipe(GGUF_ROPE_FACTORS) if has_factors else None,
        layers=tuple(
            _attention(layer, f"blk.{i}.", _GGUF_MODULES, head_dim)
            | _feed_forward(layer, f"blk.{i}.", _GGUF_DENSE, experts)
            | _shared_factor(layer, f"blk.{i}.", experts, row=None)
            for i, layer in enumerate(spec.layers)
        ),
    )


def _attention(
    layer: Layer, at: str, modules: Modules, head_dim: int | None = None
) -> dict[str, Recipe]:
    mixer = layer.mixer
    assert isinstance(mixer, Attention)
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
    """A vector, or the only row of a matrix."""
    form = layer.feed_forward
    if isinstance(form, Mlp) or not form.shared_gate:
        return {}
    return {"shared_factor": Recipe(f"{at}{modules['shared_factor']}.weight", expert=row)}
