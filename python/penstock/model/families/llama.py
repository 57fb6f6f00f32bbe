"""Llama (SmolLM2, Llama 3.x with its rope scaling) and Mistral, which is Llama with a sliding
window.
"""

from penstock.model import common
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.names import gguf_names, hf_names
from penstock.model.spec import DecoderSpec, WeightNames


def from_hf(config: Fields) -> tuple[DecoderSpec, WeightNames]:
    if config.flag("mlp_bias", default=False):
        raise config.refuse("mlp_bias", "false")
    bias = config.flag("attention_bias", default=False)
    spec = common.hf_spec(config, "llama", qkv_bias=bias, out_bias=bias)
    return spec, hf_names(spec)


def from_hf_mistral(config: Fields) -> tuple[DecoderSpec, WeightNames]:
    spec = common.hf_spec(config, "llama", windows=common.uniform_windows(config))
    return spec, hf_names(spec)


def from_gguf(header: GgufHeader) -> tuple[DecoderSpec, WeightNames]:
    """GGUF files call both families "llama" and store q and k rows permuted for interleaved rope
    pairs.
    """
    spec = common.gguf_spec(header, "llama")
    return spec, gguf_names(spec, rope_rows_interleaved=True)
