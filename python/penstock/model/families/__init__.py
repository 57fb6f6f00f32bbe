"""Families by architecture. A family maps metadata to a spec and recipes, without forward code."""

from collections.abc import Callable

from penstock.model.families import (
    gpt2,
    llama,
    mixtral,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
)
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.spec import DecoderSpec, WeightRecipes

Mapped = tuple[DecoderSpec, WeightRecipes]

HF_ARCHITECTURES: dict[str, Callable[[Fields], Mapped]] = {
    "GPT2LMHeadModel": gpt2.from_hf,
    "LlamaForCausalLM": llama.from_hf,
    "MistralForCausalLM": llama.from_hf_mistral,
    "MixtralForCausalLM": mixtral.from_hf,
    "Qwen2ForCausalLM": qwen2.from_hf,
    "Qwen2MoeForCausalLM": qwen2_moe.from_hf,
    "Qwen3ForCausalLM": qwen3.from_hf,
    "Qwen3MoeForCausalLM": qwen3_moe.from_hf,
}
"""By the entry of config.json's `architectures`."""

GGUF_ARCHITECTURES: dict[str, Callable[[GgufHeader], Mapped]] = {
    "gpt2": gpt2.from_gguf,
    "llama": llama.from_gguf,
    "qwen2": qwen2.from_gguf,
    "qwen2moe": qwen2_moe.from_gguf,
    "qwen3": qwen3.from_gguf,
    "qwen3moe": qwen3_moe.from_gguf,
}
"""By `general.architecture`."""
