"""Weight recipes of the two containers for checkpoints that follow Llama's tensors."""

from collections.abc import Iterable, Mapping

from penstock.model.spec import DecoderSpec, FactorsScaling, Layer, Recipe, WeightRecipes

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


def hf_recipes(spec: DecoderSpec) -> WeightRecipes:
    """Of a Hugging Face checkpoint of a `*ForCausalLM` class."""
    return WeightRecipes(
        embed=Recipe("model.embed_tokens.weight"),
        final_norm=Recipe("model.norm.weight"),
        head=None if spec.tied_embeddings else Recipe("lm_head.weight"),
        layers=tuple(
            _layer(layer, f"model.layers.{i}.", _HF_MODULES) for i, layer in enumerate(spec.layers)
        ),
    )


def gguf_recipes(spec: DecoderSpec, *, interleaved: bool = False) -> WeightRecipes:
    """Of a GGUF file. `interleaved`: q and k rows are stored for interleaved rotation."""
    rope = spec.attention.rope
    has_factors = rope is not None and isinstance(rope.scaling, FactorsScaling)
    head_dim = spec.attention.head_dim if interleaved else None
    return WeightRecipes(
        embed=Recipe("token_embd.weight"),
        final_norm=Recipe("output_norm.weight"),
        head=None if spec.tied_embeddings else Recipe("output.weight"),
        rope_factors=Recipe(GGUF_ROPE_FACTORS) if has_factors else None,
        layers=tuple(
            _layer(layer, f"blk.{i}.", _GGUF_MODULES, head_dim)
            for i, layer in enumerate(spec.layers)
        ),
    )


def _layer(
    layer: Layer, prefix: str, modules: Mapping[str, str], interleaved: int | None = None
) -> dict[str, Recipe]:
    def tensors(roles: Iterable[str], suffix: str, name: str) -> dict[str, Recipe]:
        return {
            role + suffix: Recipe(
                f"{prefix}{modules[role]}.{name}", interleaved=interleaved if role in "qk" else None
            )
            for role in roles
        }

    weights = ["mixer_norm", "q", "k", "v", "o", "feed_forward_norm", "gate", "up", "down"]
    biases = []
    if getattr(layer.mixer, "qk_norm", None):
        weights += ["q_norm", "k_norm"]
    if getattr(layer.mixer, "qkv_bias", False):
        biases += ["q", "k", "v"]
    if getattr(layer.mixer, "out_bias", False):
        biases += ["o"]
    if getattr(layer.feed_forward, "bias", False):
        biases += ["gate", "up", "down"]
    return tensors(weights, "", "weight") | tensors(biases, "_bias", "bias")
