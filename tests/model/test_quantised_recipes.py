"""Recipes of integer codes: settings and tensors of a checkpoint together decide."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from penstock.model import ModelError, load_model, quantised_recipes
from penstock.model.spec import Codes, Recipe, WeightRecipes
from tests.real_ranks import TINY

AT = "model.layers.1.mlp.up_proj"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32}
W4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}


def packed(weights: dict[str, object], *ignore: str) -> dict[str, object]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    method = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    return {**method, "config_groups": groups, "ignore": ["lm_head", *ignore]}


Load = Callable[..., WeightRecipes]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """`load(family, settings, tensors)`: the recipes of a checkpoint whose header lists these."""

    def read(family: str, settings: object, tensors: Iterable[str] = ()) -> WeightRecipes:
        config = json.loads((TINY / family / "config.json").read_text())
        config["quantization_config"] = settings
        (tmp_path / "config.json").write_text(json.dumps(config))
        header = {name: {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for name in tensors}
        text = json.dumps(header).encode()
        weights = tmp_path / "model.safetensors"
        weights.unlink(missing_ok=True)
        if header:
            weights.write_bytes(len(text).to_bytes(8, "little") + text)
        return load_model(tmp_path, dummy=not header).weights

    return read


def codes(module: str, *names: str) -> list[str]:
    return [f"{module}.{name}" for name in names]


def test_gptq(load: Load) -> None:
    weights = load("llama", GPTQ, codes(AT, "qweight", "qzeros", "scales", "g_idx"))
    found = Codes("gptq", 4, f"{AT}.scales", 1, 32, zeros=f"{AT}.qzeros", groups=f"{AT}.g_idx")
    assert weights.layers[1]["up"] == Recipe(f"{AT}.qweight", codes=found)
    assert weights.layers[1]["up"].module == AT
    written = json.loads(weights.to_json())["layers"][1]["up"]
    assert written == {
        "tensor": f"{AT}.qweight",
        "codes": {
            "layout": "gptq",
            "bits": 4,
            "scales": f"{AT}.scales",
            "rows": 1,
            "cols": 32,
            "zeros": f"{AT}.qzeros",
            "groups": f"{AT}.g_idx",
        },
    }
    # The tensors decide: this matrix is plain.
    assert weights.layers[1]["down"] == Recipe("model.layers.1.mlp.down_proj.weight")
    second = load("llama", GPTQ | {"checkpoint_format": "gptq_v2", "bits": 8})
    form = second.layers[1]["up"].codes
    assert form is not None
    assert (form.layout, form.bits, form.zeros, form.groups) == ("gptq_v2", 8, None, None)


def test_awq(load: Load) -> None:
    tensors = codes(AT, "qweight", "qzeros", "scales")
    for zero_point in (True, False):
        recipe = load("llama", AWQ | {"zero_point": zero_point}, tensors).layers[1]["up"]
        expected = Codes("awq", 4, f"{AT}.scales", 1, 32, zeros=f"{AT}.qzeros")
        assert recipe == Recipe(f"{AT}.qweight", codes=expected)


@pytest.mark.parametrize(
    ("settings", "zeros"),
    [
        (AWQ | {"zero_point": False}, None),
        (GPTQ, None),
        # The decoder then names the missing tensor.
        (AWQ, f"{AT}.qzeros"),
        (GPTQ | {"sym": False}, f"{AT}.qzeros"),
    ],
)
def test_only_symmetric_codes_may_lack_zero_points(
    load: Load, settings: object, zeros: str | None
) -> None:
    found = load("llama", settings, codes(AT, "qweight", "scales")).layers[1]["up"].codes
    assert found is not None
    assert found.zeros == zeros


def test_compressed_tensors(load: Load) -> None:
    names = ("weight_packed", "weight_scale", "weight_shape")
    recipe = load("llama", packed(W4), codes(AT, *names)).layers[1]["up"]
    shape, scales = f"{AT}.weight_shape", f"{AT}.weight_scale"
    assert recipe == Recipe(
        f"{AT}.weight_packed", codes=Codes("packed", 4, scales, 1, 32, shape=shape)
    )
    by_row = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False}
    form = load("llama", packed(by_row)).layers[1]["up"].codes
    assert form is not None
    assert (form.bits, form.rows, form.cols) == (8, 1, None)
    assert form.zeros == f"{AT}.weight_zero_point"
    ordered = W4 | {"actorder": "group"}
    form = load("llama", packed(ordered), codes(AT, *names, "weight_g_idx")).layers[1]["up"].codes
    assert form is not None
    assert form.groups == f"{AT}.weight_g_idx"


def test_fused_rows_and_experts(load: Load) -> None:
    fused = load("phi3", GPTQ).layers[0]
    assert fused["q"].tensor == fused["v"].tensor == "model.layers.0.self_attn.qkv_proj.qweight"
    assert fused["q"].rows != fused["v"].rows
    weights = load("qwen3moe", packed(W4)).layers[0]
    at = "model.layers.0.mlp.experts.{e}.down_proj"
    assert weights["down"].tensor == f"{at}.weight_packed"
    assert weights["down"].codes is not None
    assert weights["down"].codes.scales == f"{at}.weight_scale"
    assert weights["router"] == Recipe("model.layers.0.mlp.gate.weight")


@pytest.mark.parametrize(
    ("family", "settings", "tensors", "fault"),
    [
        (
            "llama",
            packed(W4, AT),
            codes(AT, "weight_packed"),
            rf"excludes {AT}, but the checkpoint has the tensor {AT}\.weight_packed",
        ),
        (
            "qwen3moe",
            packed(W4, "re:.*experts.3.up_proj"),
            (),
            r"experts model\.layers\.0\.mlp\.experts\.\{e\}\.up_proj have different settings",
        ),
        ("gptoss", GPTQ, (), r"GPTQ \(4-bit integers, .*\) of the stack .*gate_up_proj"),
        ("llama", packed(W4 | {"num_bits": 3}), (), "3-bit integers, .* is not supported"),
        ("llama", GPTQ | {"pack_dtype": "int16"}, (), "pack_dtype = 'int16'"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    load: Load, family: str, settings: object, tensors: Iterable[str], fault: str
) -> None:
    with pytest.raises(ModelError, match=fault):
        load(family, settings, tensors)


def test_patterns_that_take_long_are_refused(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised_recipes, "PATIENCE", 0.0)
    with pytest.raises(ModelError, match="its patterns take more than 0 seconds"):
        load("llama", packed(W4, "re:.*.*.*.*x"))
