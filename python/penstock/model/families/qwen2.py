"""Qwen2 and Qwen2.5, dense: Llama with biases on q, k and v."""

from penstock.model import common
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.names import gguf_names, hf_names
from penstock.model.spec import DecoderSpec, WeightNames


def from_hf(config: Fields) -> tuple[DecoderSpec, WeightNames]:
    spec = common.hf_spec(config, "qwen2", qkv_bias=True, windows=common.upper_windows(config))
    return spec, hf_names(spec)


def from_gguf(header: GgufHeader) -> tuple[DecoderSpec, WeightNames]:
    spec = common.gguf_spec(header, "qwen2")
    return spec, gguf_names(spec, rope_rows_interleaved=False)
