"""Reads the quantisation settings of a checkpoint, which each tool writes in its own format."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.model.errors import ModelError
from penstock.model.fields import Fields
from penstock.model.quantization import compressed_tensors, floats, integers
from penstock.model.quantization.settings import Quantization

KEYS = ("quantization_config", "compression_config")
"""Keys of config.json with quantisation settings; older compressed-tensors used the second."""
MODELOPT = "hf_quant_config.json"
"""File that NVIDIA's ModelOpt writes next to a config.json that lacks the format of the weights."""

SUPPORTED = (
    "unquantised safetensors; integers of 4 or 8 bits of GPTQ, AutoRound and compressed-tensors "
    "(pack-quantized), and of 4 bits of AWQ; FP8 with blocks of 128 x 128 (Qwen3, DeepSeek); "
    "MXFP4 (gpt-oss); quantised GGUF files"
)

Reader = Callable[[Fields, str], Quantization]
_METHODS: dict[str, Reader] = {
    "compressed-tensors": compressed_tensors.read,
    "gptq": integers.gptq,
    "gptq_marlin": integers.gptq,
    "awq": integers.awq,
    "awq_marlin": integers.awq,
    "auto-round": integers.auto_round,
    "intel/auto-round": integers.auto_round,
    "fp8": floats.fp8,
    "fbgemm_fp8": floats.fbgemm,
    "modelopt": floats.modelopt,
    "modelopt_fp4": floats.modelopt,
    "mxfp4": floats.mxfp4,
    "bitsandbytes": floats.bitsandbytes,
}


def quantization(
    config: Fields, modelopt: Mapping[str, object] | None = None
) -> Quantization | None:
    """The quantisation that config.json states, or the file MODELOPT with the content `modelopt`,
    see `settings`; None without either.

    Raises ModelError with the key of a setting that is unknown, or has a wrong type or value.
    """
    found = settings(config, modelopt or {})
    if found is None:
        return None
    return _reader(found)(found, number_type(config))


def number_type(config: Fields) -> str:
    """The type of weights that are not quantised, by PyTorch's name."""
    return str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")


def settings(config: Fields, modelopt: Mapping[str, object]) -> Fields | None:
    """The settings of quantised weights; None without any. The file MODELOPT takes precedence if it
    states an algorithm.
    """
    beside = modelopt_settings(config, modelopt)
    if beside is not None and beside.get("quant_algo") is not None:
        return beside
    return next((found for key in KEYS if (found := config.within(key)) is not None), None)


def modelopt_settings(config: Fields, modelopt: Mapping[str, object]) -> Fields | None:
    """The settings in the file MODELOPT; None without any. They may quantise the KV alone."""
    whole = Fields(config.file.with_name(MODELOPT), modelopt)
    return whole.within("quantization") or (whole if "quant_algo" in modelopt else None)


def _reader(found: Fields) -> Reader:
    method = found.text("quant_method", default="").lower()
    if found.get("quantized_layers") is not None or (not method and found.get("quant_algo")):
        return floats.modelopt
    if not method and found.get("config_groups") is not None:
        return compressed_tensors.read
    if method not in _METHODS:
        raise found.refuse("quant_method", " ".join(_METHODS))
    return _METHODS[method]


def refusal(config: Fields, modelopt: Mapping[str, object] | None = None) -> ModelError:
    """The error for a checkpoint with a quantisation that no backend reads, which it names. Raises
    ModelError as `quantization` does.
    """
    found, stated = quantization(config, modelopt), settings(config, modelopt or {})
    if found is None or stated is None:
        return ModelError(config.file, "the checkpoint states no quantisation")
    key = "quantization_config" if stated.file == config.file else "quantization"
    problem = f"{key}: {found.describe()} is not supported; supported: {SUPPORTED}"
    return ModelError(stated.file, problem)
