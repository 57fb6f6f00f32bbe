"""Qwen3, dense: RMS norms on each query and key head, head_dim independent of the hidden size."""

from penstock.model import common
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.names import gguf_names, hf_names
from penstock.model.spec import DecoderSpec, WeightNames

DEFAULT_HEAD_DIM = 128


def from_hf(config: Fields) -> tuple[DecoderSpec, WeightNames]:
    bias = config.flag("attention_bias", default=False)
    spec = common.hf_spec(
        config,
        "qwen3",
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
        windows=common.upper_windows(config),
        default_head_dim=DEFAULT_HEAD_DIM,
    )
    return spec, hf_names(spec)


def from_gguf(header: GgufHeader) -> tuple[DecoderSpec, WeightNames]:
    spec = common.gguf_spec(header, "qwen3", qk_norm=True)
    return spec, gguf_names(spec, rope_rows_interleaved=False)
