"""Quantisation settings, resolved by module as the tools' own libraries do."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import PenstockError
from penstock.model.errors import ModelError
from penstock.model.fields import Fields
from penstock.model.quantization import Pattern, Quantization, Rule, quantization, tensors
from penstock.model.sizing import Part

FILE = Path("config.json")
AT = "model.layers.3."
W4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64}
W8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}
MIXED = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}


def read(settings: object) -> Quantization:
    found = quantization(Fields(FILE, {"quantization_config": settings}))
    assert found is not None
    return found


def bits(settings: object, module: str, part: Part = "dense") -> int:
    """Bits of a module's weights; 16 if it is not quantised."""
    scheme = read(settings).scheme(module, part)
    return 16 if scheme is None else scheme.bits


def ct(targets: dict[str, dict[str, object]], *ignore: str, **more: object) -> dict[str, object]:
    groups = {
        f"group_{i}": {"targets": [target], "weights": weights}
        for i, (target, weights) in enumerate(targets.items())
    }
    method = {"quant_method": "compressed-tensors", "ignore": list(ignore)}
    return {**method, "config_groups": groups, **more}


@pytest.mark.parametrize(
    ("settings", "module", "expected"),
    [
        # compressed-tensors: names before expressions before classes, in any order of groups, and
        # expressions by the alphabet;
        # expressions from the start of the name; a container's name excludes nothing in it.
        (ct({"Linear": W4, "re:.*up_proj": W8}), "mlp.up_proj", 8),
        (ct({"re:.*up_proj": W8, f"{AT}mlp.up_proj": W4}), "mlp.up_proj", 4),
        (ct({"Linear": W4, "re:mlp": W8}), "mlp.up_proj", 4),
        (ct({"re:model.*up_proj": W4, "re:.*mlp.*": W8}), "mlp.up_proj", 8),
        (ct({"Linear": W4}, f"{AT}mlp"), "mlp.up_proj", 4),
        (ct({"Linear": W4}, f"{AT}mlp.up_proj"), "mlp.up_proj", 16),
        (ct({"Linear": W4}, f"re:^(?!{AT}mlp).*"), "mlp.up_proj", 4),
        (ct({"re:.*self_attn.*": W4}), "mlp.up_proj", 16),
        # GPTQ: the first entry that matches, from the start of the name.
        (GPTQ | {"dynamic": {".*up": {"bits": 8}, "-:.*mlp": {}}}, "mlp.up_proj", 8),
        (GPTQ | {"dynamic": {"-:.*mlp": {}, "+:.*up": {"bits": 8}}}, "mlp.up_proj", 16),
        (GPTQ | {"dynamic": {"+:up": {"bits": 8}}}, "mlp.up_proj", 4),
        (GPTQ | {"modules_in_block_to_quantize": [["self_attn.o_proj"]]}, "mlp.up_proj", 16),
        (GPTQ | {"modules_in_block_to_quantize": ["mlp.up_proj"]}, "mlp.up_proj", 4),
        # AWQ: any part of the name.
        (AWQ | {"modules_to_not_convert": ["p.up"]}, "mlp.up_proj", 16),
        (AWQ | {"modules_to_not_convert": ["gate"]}, "mlp.up_proj", 4),
        # AutoRound: names before expressions, which are searched for.
        (ROUND | {"extra_config": {"up": {"bits": 8}}}, "mlp.up_proj", 8),
        (
            ROUND | {"extra_config": {".*up": {"bits": 8}, f"{AT}mlp.up_proj": {"bits": 16}}},
            "mlp.up_proj",
            16,
        ),
        (ROUND | {"block_name_to_quantize": "model.visual.blocks"}, "mlp.up_proj", 16),
        (ROUND | {"block_name_to_quantize": "model.layers,model.other"}, "mlp.up_proj", 4),
        # 8-bit floats of transformers: whole components of names.
        ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.3"]}, "mlp.up_proj", 16),
        ({"quant_method": "fp8", "modules_to_not_convert": ["up_proj"]}, "mlp.up_proj", 16),
        ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers"]}, "mlp.up_proj", 16),
        ({"quant_method": "fp8", "ignored_layers": ["model.layers.33", "up"]}, "mlp.up_proj", 8),
        # ModelOpt: wildcards, which match what lies below, too.
        (MIXED | {"quant_algo": "NVFP4", "ignore": ["model.layers.3.mlp*"]}, "mlp.up_proj", 16),
        (MIXED | {"quant_algo": "NVFP4", "ignore": ["*.layers.?"]}, "mlp.up_proj", 16),
        (MIXED | {"quant_algo": "FP8", "ignore": ["layers*"]}, "mlp.up_proj", 8),
        (
            MIXED | {"quantized_layers": {f"{AT}mlp.up_proj": {"quant_algo": "NVFP4"}}},
            "mlp.up_proj",
            4,
        ),
    ],
)
def test_settings_resolve_as_in_the_library(
    settings: dict[str, object], module: str, expected: int
) -> None:
    assert bits(settings, AT + module) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (ct({"Linear": W4}), 4),
        (ct({"Linear": W4}, "lm_head"), 16),
        (GPTQ, 16),
        (GPTQ | {"lm_head": True}, 4),
        (GPTQ | {"dynamic": {".*": {"bits": 8}}}, 16),
        (GPTQ | {"lm_head": True, "dynamic": {"lm_head": {"bits": 8}}}, 8),
        (AWQ, 16),
        (ROUND, 16),
        (ROUND | {"extra_config": {"lm_head": {"bits": 8}}}, 8),
        ({"quant_method": "fp8"}, 16),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 16),
    ],
)
def test_the_output_head(settings: dict[str, object], expected: int) -> None:
    assert bits(settings, "lm_head", "head") == expected


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "quantization_config.quant_method = None"),
        ({"quant_method": 4}, "quantization_config.quant_method"),
        ({"quant_method": "planar"}, "quantization_config.quant_method = 'planar'"),
        ([], "quantization_config = .* an object"),
        (GPTQ | {"bits": "4"}, "quantization_config.bits = '4'"),
        (GPTQ | {"bits": True}, "quantization_config.bits = True"),
        (GPTQ | {"bits": 2**31}, "quantization_config.bits"),
        (GPTQ | {"group_size": 0}, "quantization_config.group_size = 0"),
        (GPTQ | {"group_size": -2}, "quantization_config.group_size = -2"),
        (GPTQ | {"sym": "yes"}, "quantization_config.sym = 'yes'"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format = 'marlin'.*gptq gptq_v2"),
        (GPTQ | {"dynamic": []}, "quantization_config.dynamic"),
        (GPTQ | {"dynamic": {"+:(": {}}}, r"\+:\(: '\(' is not a supported regular expression"),
        (GPTQ | {"dynamic": {"a": {"bits": 9}}}, "quantization_config.bits = 9"),
        (GPTQ | {"modules_in_block_to_quantize": [3]}, "modules_in_block_to_quantize"),
        (AWQ | {"bits": 5}, "quantization_config.bits = 5"),
        (AWQ | {"version": "gemv"}, "quantization_config.version = 'gemv'"),
        (AWQ | {"modules_to_not_convert": "gate"}, "modules_to_not_convert.*list of strings"),
        (ROUND | {"packing_format": "auto_round:mlx"}, "packing_format = 'auto_round:mlx'"),
        (ROUND | {"data_type": "nv_fp"}, "data_type = 'nv_fp'"),
        (ct({}), "quantization_config.config_groups"),
        (ct({"Linear": W4}, config_groups=[]), "quantization_config.config_groups"),
        (ct({"LlamaAttention": W4}), "Linear Embedding .*not LlamaAttention"),
        (ct({"Linear": W4}, "Linear"), "quantization_config.ignore"),
        (ct({"Linear": W4}, "re:(.*.*)*x"), "ignore: .* is not a supported regular expression"),
        (ct({"Linear": W4 | {"group_size": 0}}), "group_0.weights.group_size = 0"),
        (ct({"Linear": W4 | {"strategy": "token"}}), "group_0.weights.strategy = 'token'"),
        (ct({"Linear": W4 | {"type": "bool"}}), "group_0.weights.type = 'bool'"),
        (ct({"Linear": W4 | {"type": "float", "num_bits": 6}}), "group_0.weights.num_bits = 6"),
        (ct({"Linear": W4 | {"actorder": "random"}}), "group_0.weights.actorder"),
        (ct({"Linear": W4}, format="marlin-24"), "quantization_config.format = 'marlin-24'"),
        (ct({"Linear": W4}, sparsity_config={"format": "2:4"}), "sparsity_config.format = '2:4'"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size = .128."),
        ({"quant_method": "fp8", "weight_block_size": [0, 1]}, "weight_block_size"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt = 'e5m2'"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo = 'W4A8_AWQ'"),
        (MIXED | {"quantized_layers": {"a": {"quant_algo": "INT4"}}}, "quant_algo = 'INT4'"),
    ],
)
def test_settings_that_are_not_known_are_refused_by_name(settings: object, named: str) -> None:
    with pytest.raises(ModelError, match=named):
        read(settings)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
_VALID: list[dict[str, Any]] = [
    ct({"Linear": W4, "re:.*up": W8}, "lm_head", format="pack-quantized"),
    GPTQ | {"dynamic": {"-:a": {}, "b": {"bits": 8}}},
    AWQ | {"modules_to_not_convert": ["a"]},
    ROUND | {"extra_config": {"b": {"bits": 8}}},
    {"quant_method": "fp8", "weight_block_size": [128, 128], "ignored_layers": ["a"]},
    MIXED | {"quantized_layers": {"a": {"quant_algo": "FP8"}}},
]


@given(st.sampled_from(_VALID), st.integers(0, 2**32), _VALUES)
def test_any_value_is_read_or_refused(settings: dict[str, Any], seed: int, value: object) -> None:
    """Settings with one value replaced, at any depth."""
    changed = _replaced(settings, random.Random(seed), value)
    try:
        found = read(changed)
    except PenstockError:
        return
    for scheme in found.schemes:
        assert scheme.describe()
        assert all(size >= 1 for each in tensors(scheme, 48, 96) for size in each.shape)


def _replaced(settings: dict[str, Any], chance: random.Random, value: object) -> dict[str, Any]:
    key = chance.choice(list(settings))
    inner = settings[key]
    deeper = isinstance(inner, dict) and inner and chance.random() < 0.7
    return {**settings, key: _replaced(inner, chance, value) if deeper else value}


@pytest.mark.parametrize(
    ("packing", "layout"),
    [
        ("auto_round", "gptq_v2"),
        ("auto_round:gptqmodel", "gptq_v2"),
        ("auto_round:auto_gptq", "gptq"),
        ("auto_round:auto_awq", "awq"),
    ],
)
def test_auto_round_stores_zero_points_as_its_packing_says(packing: str, layout: str) -> None:
    found = read(ROUND | {"packing_format": packing})
    assert [scheme.layout for scheme in found.schemes] == [layout]


def test_the_first_rule_decides_between_names_and_expressions() -> None:
    chance = random.Random(38)
    modules = [f"{AT}mlp.{role}_proj" for role in ("gate", "up", "down")]
    schemes = [None, *read(GPTQ).schemes, *read(AWQ).schemes]
    kinds = ("name", "contains", "path", "match", "search", "glob")
    texts = (*modules, "mlp", "up_proj", "model.layers")
    for _ in range(300):
        patterns = [Pattern(chance.choice(kinds), chance.choice(texts), "ignore") for _ in range(6)]
        rules = tuple(Rule(pattern, chance.choice(schemes)) for pattern in patterns)
        found = Quantization("any", rules, read(ROUND).parts)
        for module in modules:
            first = next((rule for rule in rules if rule.pattern.matches(module)), None)
            expected = first.scheme if first else found.parts["dense"]
            assert found.scheme(module, "dense") == expected


@pytest.mark.parametrize(
    ("kind", "text", "names"),
    [
        ("name", "a.b", {"a.b"}),
        ("contains", "a.b", {"a.b", "a.b.c", "xa.bc"}),
        ("path", "a.b", {"a.b", "a.b.c"}),
    ],
)
def test_plain_text_is_no_expression(kind: Any, text: str, names: set[str]) -> None:
    tried = ("a.b", "a.b.c", "xa.bc", "acb", "a", "b")
    assert {name for name in tried if Pattern(kind, text, "").matches(name)} == names


def test_older_keys_and_files() -> None:
    older = quantization(Fields(FILE, {"compression_config": ct({"Linear": W4})}))
    assert older is not None
    assert older.method == "compressed-tensors"
    beside = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    found = quantization(Fields(FILE, {"quantization_config": GPTQ}), beside)
    assert found is not None
    assert found.method == "ModelOpt"
    assert quantization(Fields(FILE, {})) is None


@pytest.mark.parametrize(
    "beside",
    [
        {"producer": {"name": "modelopt"}},
        {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}},
    ],
)
def test_a_file_beside_that_leaves_weights_alone_changes_nothing(
    beside: dict[str, object],
) -> None:
    config = Fields(FILE, {"quantization_config": GPTQ})
    assert quantization(config, beside) == quantization(config)
    assert quantization(Fields(FILE, {}), beside) is None


def test_schemes_in_words() -> None:
    settings = GPTQ | {"desc_act": True, "sym": False, "group_size": 32}
    assert read(settings).describe() == (
        "GPTQ (4-bit integers, a scale for 32 inputs, zero points, groups in the order of "
        "activations)"
    )
    assert read({"quant_method": "fp8", "weight_block_size": [128, 64]}).describe() == (
        "FP8 (8-bit floats, a scale for 128 x 64, inputs quantised with dynamic scales)"
    )
