"""Bytes of quantised checkpoints, compared with headers of files as the tools write them."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.model.sizing import whole
from penstock_ops.plan.subject import read_subject

HIDDEN, KV, WIDTH, LAYERS, VOCAB = 256, 128, 512, 3, 320
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "max_position_embeddings": 128,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": VOCAB,
}
LINEARS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KV, HIDDEN),
    "self_attn.v_proj": (KV, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (WIDTH, HIDDEN),
    "mlp.up_proj": (WIDTH, HIDDEN),
    "mlp.down_proj": (HIDDEN, WIDTH),
}
SIZES = {"I64": 8, "I32": 4, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I8": 1, "U8": 1}
Tensors = dict[str, tuple[str, list[int]]]
Writer = Callable[[int, int], Tensors]


def plain(n: int, k: int) -> Tensors:
    return {"weight": ("BF16", [n, k])}


def gptq(bits: int, group: int) -> Writer:
    return lambda n, k: {
        "qweight": ("I32", [k * bits // 32, n]),
        "qzeros": ("I32", [k // (group if group > 0 else k), n * bits // 32]),
        "scales": ("F16", [k // (group if group > 0 else k), n]),
        "g_idx": ("I32", [k]),
    }


def awq(n: int, k: int) -> Tensors:
    return {
        "qweight": ("I32", [k, n // 8]),
        "qzeros": ("I32", [k // 64, n // 8]),
        "scales": ("F16", [k // 64, n]),
    }


def packed(bits: int, group: int | None, *, zeros: bool) -> Writer:
    def write(n: int, k: int) -> Tensors:
        groups = k // group if group else 1
        found = {
            "weight_packed": ("I32", [n, math.ceil(k * bits / 32)]),
            "weight_scale": ("BF16", [n, groups]),
            "weight_shape": ("I64", [2]),
        }
        if zeros:
            found["weight_zero_point"] = ("I32", [math.ceil(n * bits / 32), groups])
        return found

    return write


def of_bytes(code: str, scale: Callable[[int, int], list[int]], *, static: bool = False) -> Writer:
    def write(n: int, k: int) -> Tensors:
        found = {"weight": (code, [n, k]), "weight_scale": ("BF16", scale(n, k))}
        return found | ({"input_scale": ("BF16", [1])} if static else {})

    return write


def fp8_of_transformers(n: int, k: int) -> Tensors:
    scales = ("F32", [math.ceil(n / 128), math.ceil(k / 128)])
    return {"weight": ("F8_E4M3", [n, k]), "weight_scale_inv": scales}


def fbgemm(n: int, k: int) -> Tensors:
    return {
        "weight": ("F8_E4M3", [n, k]),
        "weight_scale": ("F32", [n, 1]),
        "input_scale_ub": ("F32", [1]),
    }


def modelopt(n: int, k: int) -> Tensors:
    return {
        "weight": ("F8_E4M3", [n, k]),
        "weight_scale": ("F32", []),
        "input_scale": ("F32", []),
    }


def nvfp4(n: int, k: int) -> Tensors:
    return {
        "weight": ("U8", [n, k // 2]),
        "weight_scale": ("F8_E4M3", [n, k // 16]),
        "weight_scale_2": ("F32", []),
        "input_scale": ("F32", []),
    }


def ct(weights: dict[str, object], **more: object) -> dict[str, object]:
    """Settings of compressed-tensors with one group."""
    inputs = more.pop("inputs", None)
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    settings = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    return {**settings, "ignore": ["lm_head"], **more}


INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
DYNAMIC = {"num_bits": 8, "type": "float", "dynamic": True, "strategy": "token"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
ROUNDED = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True}
W4 = packed(4, 128, zeros=False)


def rows(n: int, _k: int) -> list[int]:
    return [n, 1]


def one(_n: int, _k: int) -> list[int]:
    return [1]


CASES: dict[str, tuple[dict[str, object], dict[str, Writer]]] = {
    "w4a16": (ct(INT4, format="pack-quantized"), {"": W4}),
    "w4a16 with zero points": (
        ct({**INT4, "symmetric": False, "group_size": 32}, format="pack-quantized"),
        {"": packed(4, 32, zeros=True)},
    ),
    "w3a16": (
        ct({**INT4, "num_bits": 3}, format="pack-quantized"),
        {"": packed(3, 128, zeros=False)},
    ),
    "w8a16 by rows": (ct(INT8, format="pack-quantized"), {"": packed(8, None, zeros=False)}),
    "w8a8": (
        ct(INT8, format="int-quantized", inputs=INT8),
        {"": of_bytes("I8", rows, static=True)},
    ),
    "fp8 dynamic": (
        ct({**FP8, "strategy": "channel"}, format="float-quantized", inputs=DYNAMIC),
        {"": of_bytes("F8_E4M3", rows)},
    ),
    "fp8 static": (
        ct({**FP8, "strategy": "tensor"}, format="float-quantized", inputs=FP8),
        {"": of_bytes("F8_E4M3", one, static=True)},
    ),
    "the head too": (ct(INT4, ignore=[]), {"": W4, "lm_head": W4}),
    "ignored by name and expression": (
        ct(INT4, ignore=["lm_head", "model.layers.1.mlp.up_proj", "re:.*layers\\.2.*o_proj"]),
        {"": W4, "1.mlp.up_proj": plain, "2.self_attn.o_proj": plain},
    ),
    "gptq": (GPTQ, {"": gptq(4, 128)}),
    "gptq of 8 bits by rows": ({**GPTQ, "bits": 8, "group_size": -1}, {"": gptq(8, -1)}),
    "gptq with changes": (
        {
            **GPTQ,
            "lm_head": True,
            "dynamic": {
                "-:.*\\.0\\..*": {},
                "+:.*k_proj": {"bits": 8, "group_size": 32},
                ".*self_attn.*": {"group_size": 64},
            },
        },
        {
            "": gptq(4, 128),
            "lm_head": gptq(4, 128),
            "self_attn": gptq(4, 64),
            "k_proj": gptq(8, 32),
            "layers.0.": plain,
        },
    ),
    "awq": (
        {
            "quant_method": "awq",
            "w_bit": 4,
            "q_group_size": 64,
            "version": "GEMM",
            "modules_to_not_convert": ["up_pr", "layers.2.self"],
        },
        {"": awq, "up_proj": plain, "layers.2.self_attn": plain},
    ),
    "auto-round": (
        {
            **ROUNDED,
            "packing_format": "auto_round:auto_gptq",
            "block_name_to_quantize": "model.layers",
            "extra_config": {
                ".*down.*": {"bits": 8},
                "model.layers.1.mlp.down_proj": {"bits": 16},
                "lm_head": {"bits": 8, "group_size": 128},
            },
        },
        {
            "": gptq(4, 32),
            "down_proj": gptq(8, 32),
            "lm_head": gptq(8, 128),
            "1.mlp.down_proj": plain,
        },
    ),
    "fp8 by blocks": (
        {"quant_method": "fp8", "weight_block_size": [128, 128], "ignored_layers": ["k_proj"]},
        {"": fp8_of_transformers, "k_proj": plain},
    ),
    "fbgemm": (
        {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["model.layers.0", "lm_head"]},
        {"": fbgemm, "layers.0.": plain},
    ),
    "modelopt fp8": (
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
        {"": modelopt},
    ),
    "modelopt mixed": (
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                f"model.layers.{i}.{name}": {"quant_algo": "NVFP4" if "mlp" in name else "FP8"}
                for i in range(LAYERS)
                for name in LINEARS
            },
            "exclude_modules": ["model.layers.2*"],
        },
        {"mlp": nvfp4, "self_attn": modelopt, "layers.2.": plain},
    ),
}

READ = (
    "w4a16",
    "w4a16 with zero points",
    "w8a16 by rows",
    "the head too",
    "ignored by name and expression",
    "gptq",
    "gptq of 8 bits by rows",
    "gptq with changes",
    "awq",
    "auto-round",
)
"""Cases that the decoders read."""


@pytest.mark.parametrize("case", CASES)
def test_bytes_are_those_of_the_file(tmp_path: Path, case: str) -> None:
    settings, writers = CASES[case]
    write(tmp_path, settings, writers)
    subject = read_subject(str(tmp_path))
    assert subject.weights.bytes(whole(subject.spec)) == subject.file_bytes
    assert subject.spec.family == "llama"
    refused = "" if case in READ else "is not supported; supported: "
    assert refused in subject.refused
    assert bool(refused) == bool(subject.refused)


def write(directory: Path, settings: dict[str, object], writers: dict[str, Writer]) -> None:
    """A config.json, and the header of a file with its tensors. The last writer whose key occurs in
    a module's name writes the module.
    """
    config = {**CONFIG, "quantization_config": settings}
    (directory / "config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for name, (dtype, shape) in every_tensor(writers):
        end = at + SIZES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


def every_tensor(writers: dict[str, Writer]) -> Iterator[tuple[str, tuple[str, list[int]]]]:
    modules = {
        f"model.layers.{i}.{name}": shape for i in range(LAYERS) for name, shape in LINEARS.items()
    }
    for module, (n, k) in {**modules, "lm_head": (VOCAB, HIDDEN)}.items():
        own = [writer for key, writer in writers.items() if key and key in module]
        usual = plain if module == "lm_head" else writers.get("", plain)
        for suffix, tensor in (own[-1] if own else usual)(n, k).items():
            yield f"{module}.{suffix}", tensor
    yield "model.embed_tokens.weight", ("BF16", [VOCAB, HIDDEN])
    for i in range(LAYERS):
        yield f"model.layers.{i}.input_layernorm.weight", ("BF16", [HIDDEN])
        yield f"model.layers.{i}.post_attention_layernorm.weight", ("BF16", [HIDDEN])
    yield "model.norm.weight", ("BF16", [HIDDEN])
