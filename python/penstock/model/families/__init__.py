"""The supported families of models, by architecture. A family maps a checkpoint's metadata to a
DecoderSpec and weight recipes; it has no forward code.
"""

from collections.abc import Callable

from penstock.model.families import (
    deepseek,
    ernie4_5,
    gemma,
    glm4_moe,
    glm4_moe_lite,
    gpt2,
    gpt_oss,
    lfm2,
    llama,
    llama4,
    mixtral,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    qwen3_vl,
    seed_oss,
    smollm3,
)
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.spec import DecoderSpec, WeightRecipes

Mapped = tuple[DecoderSpec, WeightRecipes]

HF_ARCHITECTURES: dict[str, Callable[[Fields], Mapped]] = {
    "DeepseekV2ForCausalLM": deepseek.from_hf_2,
    "DeepseekV3ForCausalLM": deepseek.from_hf_3,
    "Ernie4_5ForCausalLM": ernie4_5.from_hf,
    "Ernie4_5_ForCausalLM": ernie4_5.from_hf,
    "Ernie4_5_MoeForCausalLM": ernie4_5.from_hf_moe,
    "GPT2LMHeadModel": gpt2.from_hf,
    "GptOssForCausalLM": gpt_oss.from_hf,
    "Gemma2ForCausalLM": gemma.from_hf_2,
    "Gemma3ForCausalLM": gemma.from_hf_3,
    "Gemma3ForConditionalGeneration": gemma.from_hf_3_text,
    "Glm4MoeForCausalLM": glm4_moe.from_hf,
    "Glm4MoeLiteForCausalLM": glm4_moe_lite.from_hf,
    "Lfm2ForCausalLM": lfm2.from_hf,
    "Lfm2MoeForCausalLM": lfm2.from_hf_moe,
    "Llama4ForCausalLM": llama4.from_hf,
    "Llama4ForConditionalGeneration": llama4.from_hf_text,
    "LlamaForCausalLM": llama.from_hf,
    "MistralForCausalLM": llama.from_hf_mistral,
    "MixtralForCausalLM": mixtral.from_hf,
    "Phi3ForCausalLM": phi3.from_hf,
    "Qwen2ForCausalLM": qwen2.from_hf,
    "Qwen2MoeForCausalLM": qwen2_moe.from_hf,
    "Qwen3ForCausalLM": qwen3.from_hf,
    "Qwen3MoeForCausalLM": qwen3_moe.from_hf,
    "Qwen3VLForConditionalGeneration": qwen3_vl.from_hf,
    "Qwen3VLMoeForConditionalGeneration": qwen3_vl.from_hf_moe,
    "SeedOssForCausalLM": seed_oss.from_hf,
    "SmolLM3ForCausalLM": smollm3.from_hf,
}
"""Families of Hugging Face checkpoints, keyed by an entry of `architectures` in config.json."""

GGUF_ARCHITECTURES: dict[str, Callable[[GgufHeader], Mapped]] = {
    "deepseek2": deepseek.from_gguf,
    "ernie4_5": ernie4_5.from_gguf,
    "ernie4_5-moe": ernie4_5.from_gguf_moe,
    "gemma2": gemma.from_gguf_2,
    "gemma3": gemma.from_gguf_3,
    "glm4moe": glm4_moe.from_gguf,
    "gpt2": gpt2.from_gguf,
    "gpt-oss": gpt_oss.from_gguf,
    "lfm2": lfm2.from_gguf,
    "lfm2moe": lfm2.from_gguf_moe,
    "llama": llama.from_gguf,
    "llama4": llama4.from_gguf,
    "phi3": phi3.from_gguf,
    "qwen2": qwen2.from_gguf,
    "qwen2moe": qwen2_moe.from_gguf,
    "qwen3": qwen3.from_gguf,
    "qwen3moe": qwen3_moe.from_gguf,
    "qwen3vl": qwen3_vl.from_gguf,
    "qwen3vlmoe": qwen3_vl.from_gguf_moe,
    "seed_oss": seed_oss.from_gguf,
    "smollm3": smollm3.from_gguf,
}
"""Families of GGUF files, keyed by their value of `general.architecture`."""
