"""Weight recipes of the two containers for checkpoints that follow Llama's tensors."""

from collections.abc import Mapping

from penstock.model.spec import DecoderSpec, FactorsScaling, Recipe, WeightRecipes

GGUF_ROPE_FACTORS = "rope_freqs.weight"

_HF_MODULES = {
    "mixer_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}
_GGUF_MODULES = {
    "mixer_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "feed_forward_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
}
_QK_NORMS = ("q_norm", "k_norm")


def hf_recipes(spec: DecoderSpec) -> WeightRecipes:
    """Recipes of a Hugging Face checkpoint of a `*ForCausalLM` class."""
    return WeightRecipes(
        embed=Recipe("model.embed_tokens.weight"),
        final_norm=Recipe("model.norm.weight"),
        head=None if spec.tied_embeddings else Recipe("lm_head.weight"),
        layers=_layers(spec, "model.layers.{}.", _HF_MODULES),
    )


def gguf_recipes(spec: DecoderSpec, *, interleaved: bool = False) -> WeightRecipes:
    """Recipes of a GGUF file. `interleaved`: q and k rows are stored for interleaved rotation."""
    rope = spec.attention.rope
    has_factors = rope is not None and isinstance(rope.scaling, FactorsScaling)
    head_dim = spec.attention.head_dim if interleaved else None
    return WeightRecipes(
        embed=Recipe("token_embd.weight"),
        final_norm=Recipe("output_norm.weight"),
        head=None if spec.tied_embeddings else Recipe("output.weight"),
        rope_factors=Recipe(GGUF_ROPE_FACTORS) if has_factors else None,
        layers=_layers(spec, "blk.{}.", _GGUF_MODULES, head_dim),
    )


def _layers(
    spec: DecoderSpec, prefix: str, modules: Mapping[str, str], head_dim: int | None = None
) -> tuple[dict[str, Recipe], ...]:
    weights = [role for role in modules if spec.attention.qk_norm or role not in _QK_NORMS]
    biases = ["q", "k", "v"] if spec.attention.qkv_bias else []
    biases += ["o"] if spec.attention.out_bias else []
    biases += ["gate", "up", "down"] if spec.mlp.bias else []

    def layer(i: int) -> dict[str, Recipe]:
        at = prefix.format(i)
        order = dict.fromkeys("qk", head_dim)
        tensors = [(role, role, "weight") for role in weights]
        tensors += [(f"{role}_bias", role, "bias") for role in biases]
        return {
            name: Recipe(f"{at}{modules[role]}.{kind}", interleaved=order.get(role))
            for name, role, kind in tensors
        }

    return tuple(layer(i) for i in range(len(spec.layers)))
