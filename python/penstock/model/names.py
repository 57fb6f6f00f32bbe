"""Tensor names of the two containers. They belong to the container: every family here uses the
same.
"""

from penstock.model.spec import DecoderSpec, FactorsScaling, WeightNames

HF_LAYER = "model.layers.{i}."
GGUF_LAYER = "blk.{i}."
GGUF_ROPE_FACTORS = "rope_freqs.weight"

_HF_MODULES = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}
_GGUF_MODULES = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
}


def hf_names(spec: DecoderSpec) -> WeightNames:
    """Names in a Hugging Face checkpoint of a `*ForCausalLM` class."""
    return WeightNames(
        embed="model.embed_tokens.weight",
        final_norm="model.norm.weight",
        head=None if spec.tied_embeddings else "lm_head.weight",
        rope_factors=None,
        layer=_layer_names(spec, HF_LAYER, _HF_MODULES),
        rope_rows_interleaved=False,
    )


def gguf_names(spec: DecoderSpec, *, rope_rows_interleaved: bool) -> WeightNames:
    """Names in a GGUF file."""
    return WeightNames(
        embed="token_embd.weight",
        final_norm="output_norm.weight",
        head=None if spec.tied_embeddings else "output.weight",
        rope_factors=GGUF_ROPE_FACTORS if isinstance(spec.rope.scaling, FactorsScaling) else None,
        layer=_layer_names(spec, GGUF_LAYER, _GGUF_MODULES),
        rope_rows_interleaved=rope_rows_interleaved,
    )


def _layer_names(spec: DecoderSpec, prefix: str, modules: dict[str, str]) -> dict[str, str]:
    weights = ["attn_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down"]
    if spec.attention.qk_norm:
        weights += ["q_norm", "k_norm"]
    biases = ["q", "k", "v"] if spec.attention.qkv_bias else []
    biases += ["o"] if spec.attention.out_bias else []
    names = {role: f"{prefix}{modules[role]}.weight" for role in weights}
    return names | {f"{role}_bias": f"{prefix}{modules[role]}.bias" for role in biases}
