"""Llama (SmolLM2, Llama 3.x with its rope scaling), and Mistral, which is Llama with a sliding
window.
"""

from penstock.model import common
from penstock.model.families import mixtral
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.recipes import gguf_recipes, hf_recipes
from penstock.model.spec import DecoderSpec, WeightRecipes


def from_hf(config: Fields) -> tuple[DecoderSpec, WeightRecipes]:
    bias = config.flag("attention_bias", default=False)
    mlp_bias = config.flag("mlp_bias", default=False)
    spec = common.hf_spec(config, "llama", qkv_bias=bias, out_bias=bias, mlp_bias=mlp_bias)
    return spec, hf_recipes(spec)


def from_hf_mistral(config: Fields) -> tuple[DecoderSpec, WeightRecipes]:
    spec = common.hf_spec(config, "llama", windows=common.uniform_windows(config))
    return spec, hf_recipes(spec)


def from_gguf(header: GgufHeader) -> tuple[DecoderSpec, WeightRecipes]:
    """GGUF files name both families "llama", and store q and k rows permuted for interleaved rope
    pairs. A file with experts is a Mixtral.
    """
    if header.fields("llama.").get("expert_count"):
        return mixtral.from_gguf(header)
    spec = common.gguf_spec(header, "llama")
    return spec, gguf_recipes(spec, interleaved=True)
