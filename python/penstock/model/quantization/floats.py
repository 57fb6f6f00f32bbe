"""Settings of checkpoints with small floats: FP8 of transformers and FBGEMM, NVIDIA's ModelOpt,
MXFP4, and bitsandbytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from penstock.model.fields import Fields
from penstock.model.quantization.patterns import Pattern, checked, wild
from penstock.model.quantization.scheme import Scheme, block_sizes
from penstock.model.quantization.settings import LINEAR, Quantization, Rule

MIXED = "MIXED_PRECISION"
NF4_BLOCK = 64
_KEPT = (
    "ignore",
    "exclude_modules",
    "modules_to_not_convert",
    "ignored_layers",
    "llm_int8_skip_modules",
)
"""Keys with modules that are not quantised."""
_TENSOR, _ROW, _BLOCK = (None, None), (1, None), (128, 128)
_NVFP4 = Scheme("nvfp4", "float", 4, (1, 16), scale="F8_E4M3", inputs="static")
_MXFP4 = Scheme("mxfp4", "float", 4, (1, 32), scale="U8")
_ALGORITHMS = {
    "FP8": Scheme("modelopt", "float", 8, _TENSOR, scale="F32", inputs="static"),
    "FP8_PB_WO": Scheme("modelopt", "float", 8, _BLOCK, scale="F32"),
    "FP8_PER_CHANNEL_PER_TOKEN": Scheme(
        "modelopt", "float", 8, _ROW, scale="F32", inputs="dynamic"
    ),
    "MXFP8": Scheme("modelopt", "float", 8, (1, 32), scale="U8", inputs="dynamic"),
    "NVFP4": _NVFP4,
    "W4A16_NVFP4": replace(_NVFP4, inputs=""),
    "W4A8_NVFP4_FP8": _NVFP4,
    "MXFP4": replace(_MXFP4, inputs="dynamic"),
    "W4A8_MXFP4_FP8": replace(_MXFP4, inputs="dynamic"),
}
"""ModelOpt's algorithms. Source: vLLM 0.33, modelopt.py."""


def fp8(fields: Fields, _dtype: str) -> Quantization:
    """8-bit floats of transformers: a scale for each block, or for a whole matrix."""
    if fields.text("fmt", default="e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise fields.refuse("fmt", "e4m3")
    by_blocks = fields.get("weight_block_size") is not None
    activations = fields.text("activation_scheme", default="dynamic")
    if activations not in ("dynamic", "static"):
        raise fields.refuse("activation_scheme", "dynamic static")
    scheme = Scheme(
        "fp8",
        "float",
        8,
        block_sizes(fields, "weight_block_size") if by_blocks else _TENSOR,
        scale="F32",
        inputs="static" if activations == "static" else "dynamic",
    )
    return _linear("FP8", fields, scheme)


def fbgemm(fields: Fields, _dtype: str) -> Quantization:
    scheme = Scheme("fbgemm", "float", 8, _ROW, scale="F32", inputs="dynamic")
    return _linear("FBGEMM FP8", fields, scheme)


def modelopt(fields: Fields, _dtype: str) -> Quantization:
    """Settings of ModelOpt: one algorithm, or, in `quantized_layers`, one for each module."""
    algorithm = fields.text("quant_algo", default="").upper()
    layers = fields.within("quantized_layers")
    if layers is None:
        if algorithm not in _ALGORITHMS:
            raise fields.refuse("quant_algo", " ".join(_ALGORITHMS))
        return _linear("ModelOpt", fields, _ALGORITHMS[algorithm])
    rules = list(_kept(fields))
    for name in layers.names():
        layer = layers.within(name)
        own = layer.text("quant_algo", default="").upper() if layer is not None else ""
        if layer is None or own not in _ALGORITHMS:
            raise (layer or layers).refuse("quant_algo" if layer else name, " ".join(_ALGORITHMS))
        rules.append(Rule(checked(fields, wild("quantized_layers", name)), _ALGORITHMS[own]))
    # Besides their list, DeepSeek's mixed checkpoints keep 8-bit floats of transformers.
    rest = fp8(fields, "").parts if fields.get("quant_method") == "fp8" else {}
    return Quantization("ModelOpt", tuple(rules), rest)


def mxfp4(fields: Fields, _dtype: str) -> Quantization:
    return Quantization("MXFP4", tuple(_kept(fields)), {"experts": _MXFP4})


def bitsandbytes(fields: Fields, _dtype: str) -> Quantization:
    if fields.get("load_in_4bit") or fields.get("_load_in_4bit"):
        nested = fields.flag("bnb_4bit_use_double_quant", default=False)
        scheme = Scheme("nf4", "float", 4, (1, NF4_BLOCK), scale="F32", nested=nested)
    else:
        scheme = Scheme("int8", "int", 8, _ROW, scale="F32", inputs="dynamic")
    return _linear("bitsandbytes", fields, scheme)


def _linear(method: str, fields: Fields, scheme: Scheme) -> Quantization:
    """All matrices of the layers but those that are excluded, and not the output head."""
    return Quantization(method, tuple(_kept(fields)), dict.fromkeys(LINEAR, scheme))


def _kept(fields: Fields) -> Iterator[Rule]:
    for key in _KEPT:
        for text in fields.texts(key):
            yield Rule(checked(fields, _named(key, text)), None)


def _named(key: str, text: str) -> Pattern:
    expression = text.removeprefix("re:")
    return wild(key, text) if expression == text else Pattern("match", expression, key)
