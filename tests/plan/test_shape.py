"""Shapes read from `config.json` alone, beside published numbers and the decoder's own families.

`published.jsonl` has the number of parameters that the publishers of models in the catalogue
give: all digits where the model's page adds its tensors up, else
the figure of its card. Layers for drafting tokens and image towers are in neither.

Whole files were looked at once (24 November 2026): of the 89 config.json in PyPI's
aiconfigurator-core 0.12.0, 31 are of models that are published here. Read whole they are within
0.17% of the published numbers, 29 of them equal to what their rows here give, the two gpt-oss but
for the biases and sinks that their family knows (0.0003%). 34 others are sized; 24 are refused by
the key, 22 for shapes that cannot be sized (compressed attention, one sublayer a layer, ...), two
for a quantisation that is not known.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.model import ModelError, load_model
from penstock.model.fields import Fields
from penstock.model.sharding import plan_grid
from penstock.model.sizing import active_parameters, kv_spec, matrices, parameters
from penstock.model.spec import Attention, DecoderSpec, Experts
from penstock_ops.plan.catalogue import entries
from penstock_ops.plan.keys import COMPARED
from penstock_ops.plan.shape import read_shape, text_part
from tests.families import FAMILIES, MAPPINGS
from tests.real_ranks import TINY

COUNTED: dict[str, dict[str, Any]] = {
    row["model_type"]: row
    for row in map(json.loads, (Path(__file__).parent / "shapes.jsonl").open())
}
"""Decoders of transformers with their default sizes, weighed there (make_shapes.py)."""
PAGE = Path(__file__).parents[2] / "docs/plan.md"
PUBLISHED: dict[str, dict[str, Any]] = {
    row["model"]: {**row, "config": entries()[row["model"]].config}
    for row in map(json.loads, (Path(__file__).parent / "published.jsonl").open())
}
ACTIVE = {
    "deepseek-ai/DeepSeek-R1": 37,
    "mistralai/Mixtral-8x22B-v0.1": 39,
    "moonshotai/Kimi-K2-Instruct": 32,
    "openai/gpt-oss-120b": 5.1,
    "openai/gpt-oss-20b": 3.6,
    "Qwen/Qwen3-235B-A22B": 22,
    "Qwen/Qwen3.5-397B-A17B": 17,
}
"""Billions that a token reads, as the cards say."""
KV_KIB = {
    "deepseek-ai/DeepSeek-R1": 68.625,
    "meta-llama/Meta-Llama-3.1-405B": 504,
    "meta-llama/Meta-Llama-3.1-70B": 320,
    "Qwen/Qwen3-235B-A22B": 188,
    "mistralai/Mixtral-8x22B-v0.1": 224,
    "MiniMaxAI/MiniMax-M2.5": 248,
    "openai/gpt-oss-120b": 36,
    "Qwen/Qwen3.5-397B-A17B": 30,
}
"""KiB of a token in bf16 in the layers that see everything."""


def shape(config: dict[str, Any]) -> DecoderSpec:
    return read_shape(Fields(Path("config.json"), text_part(config)))


def test_sixty_models_of_ten_families_are_there() -> None:
    families = {text_part(row["config"])["model_type"] for row in PUBLISHED.values()}
    assert len(PUBLISHED) >= 60
    assert len(families) >= 10
    words = " ".join(PAGE.read_text().split())
    assert f"{len(PUBLISHED)} published models of {len(families)} architectures" in words


@pytest.mark.parametrize("model", PUBLISHED)
def test_parameters_are_those_published(model: str) -> None:
    row = PUBLISHED[model]
    assert parameters(shape(row["config"])) == pytest.approx(row["parameters"], rel=0.005)


@pytest.mark.parametrize("kind", COUNTED)
def test_a_decoder_is_sized_right_or_refused_by_a_key(kind: str) -> None:
    """Weights as transformers counts them; vectors and small parts may be left out."""
    row, error = COUNTED[kind], None
    try:
        found = parameters(shape(row["config"]))
    except ModelError as caught:
        found, error = row["parameters"], str(caught)
    assert found == pytest.approx(row["parameters"], rel=0.002)
    if error is not None and not error.endswith("is missing"):
        named = re.match(r"config.json: (\w+)", error)
        assert named
        assert named[1] in text_part(row["config"])


def test_most_decoders_of_transformers_are_sized() -> None:
    def is_sized(config: dict[str, Any]) -> bool:
        try:
            return bool(shape(config))
        except ModelError:
            return False

    assert sum(is_sized(row["config"]) for row in COUNTED.values()) >= 75


@pytest.mark.parametrize("model", ACTIVE)
def test_active_parameters_are_those_published(model: str) -> None:
    found = active_parameters(shape(PUBLISHED[model]["config"])) / 1e9
    assert found == pytest.approx(ACTIVE[model], rel=0.045)


@pytest.mark.parametrize("model", KV_KIB)
def test_kv_of_a_token(model: str) -> None:
    spec = shape(PUBLISHED[model]["config"])
    groups = kv_spec(spec, plan_grid(spec, 1, 1), 0, 16).groups
    growing = sum(group.block_bytes for group in groups if group.window is None)
    assert growing / 16 / 1024 == KV_KIB[model]


@pytest.mark.parametrize("family", [name for name in FAMILIES + MAPPINGS if name != "gpt2"])
def test_a_shape_has_the_matrices_of_the_family(family: str) -> None:
    """What a family's own mapping gives is what the keys alone give, but for norms and biases."""
    config = json.loads((TINY / family / "config.json").read_text())
    own, read = load_model(TINY / family).spec, shape(config)

    def large(spec: DecoderSpec) -> list[object]:
        grid = plan_grid(spec, 2, 2)
        return [
            [m for m in matrices(spec, grid, rank) if m.part != "vectors"] for rank in range(4)
        ] + [kv_spec(spec, grid, rank, 16) for rank in range(4)]

    assert large(read) == large(own)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hybrid_override_pattern", "M*E"),
        ("compress_ratios", [0]),
        ("block_configs", [{}]),
        ("mamba_d_state", 128),
        ("mamba_expand", 2),
        ("attn_layer_period", 8),
        ("expert_layer_offset", 1),
        ("attn_type_list", [1, 0]),
        ("conv_L_cache", 3),
        ("block_types", ["recurrent", "attention"]),
        ("lru_width", 2560),
        ("layer_types", ["mamba"] * 32),
        ("layer_types", ["conv", "full_attention"] * 16),
        ("moe_num_primary_experts", 64),
        ("n_groups", 8),
        ("multi_query_group_num", 2),
        ("n_head_kv", 1),
        ("multi_query", True),
        ("num_kv_shared_layers", 10),
        ("kv_channels", 128),
        ("mlp_type", "default"),
        ("hidden_act", "gelu"),
        ("hidden_act", "relu2"),
        ("sliding_window", 4096),
        ("sliding_window_pattern", "LLLX"),
        ("mlp_layer_types", ["sparse", "other"]),
        ("per_layer_config", {"2": {"head_dim": 512}}),
        ("attention_k_eq_v", True),
        ("hidden_size_per_layer_input", 256),
        ("time_step_rank", 160),
        ("future_width_of_something", 7),
        ("mlp_ratio", 3.5),
        ("ffn_hidden_ratio", 4.0),
        ("ffn_dim_multiplier", 1.3),
        ("expert_widths", [1.0, 1.5]),
        ("ffn_multipliers", [0.5, 1.0]),
        ("expansion_ratio", 4.0),
        ("feed_forward_expansion_factor", 4.0),
        ("moe_layers_enum", "3," + "9" * 6000),
    ],
)
def test_a_shape_that_would_be_sized_wrongly_is_refused(key: str, value: object) -> None:
    config = PUBLISHED["meta-llama/Meta-Llama-3.1-8B"]["config"] | {"model_type": "other"}
    if key == "sliding_window_pattern":
        config = config | {"sliding_window": 4096}
    if key in ("mlp_layer_types", "moe_layers_enum"):
        config = config | {"num_experts": 8, "num_experts_per_tok": 2}
    with pytest.raises(ModelError, match=rf"config.json: {key}\b"):
        shape({**config, key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mamba_d_state", None),
        ("num_kv_shared_layers", 0),
        ("attention_k_eq_v", False),
        ("some_loss_coef", 0.5),
        ("some_token_id", 128000),
        ("rope_scaling", {"factor": 8}),
        ("hidden_act", "silu"),
        ("attn_type_list", [1] * 32),
        ("sliding_window_pattern", "LLLG"),
    ],
)
def test_a_key_that_asks_for_nothing_changes_no_size(key: str, value: object) -> None:
    config = PUBLISHED["meta-llama/Meta-Llama-3.1-8B"]["config"]
    assert parameters(shape({**config, key: value})) == parameters(shape(config))


def test_layers_of_step_3_5() -> None:
    """Heads, windows and experts by layer, as its model code reads the keys."""
    layers = shape(PUBLISHED["stepfun-ai/Step-3.5-Flash"]["config"]).layers
    mixers = [layer.mixer for layer in layers if isinstance(layer.mixer, Attention)]
    assert [mixer.heads for mixer in mixers[:5]] == [64, 96, 96, 96, 64]
    assert {mixer.kv_heads for mixer in mixers} == {8}
    assert [mixer.window for mixer in mixers[:2]] == [None, 512]
    experts = [isinstance(layer.feed_forward, Experts) for layer in layers]
    assert experts == [False] * 3 + [True] * 42


@pytest.mark.parametrize(
    ("model", "windows"),
    [
        ("LGAI-EXAONE/EXAONE-4.0-32B", [4096, 4096, 4096, None] * 2),
        ("bigcode/starcoder2-3b", [4096] * 8),
    ],
)
def test_windows_of_layers(model: str, windows: list[int | None]) -> None:
    mixers = [layer.mixer for layer in shape(PUBLISHED[model]["config"]).layers[:8]]
    assert [mixer.window for mixer in mixers if isinstance(mixer, Attention)] == windows


def test_types_that_were_compared_with_published_sizes() -> None:
    assert {text_part(row["config"])["model_type"] for row in PUBLISHED.values()} == COMPARED


def test_the_language_model_of_a_model_with_images() -> None:
    text = PUBLISHED["Qwen/Qwen3-8B"]["config"]
    outer = {"text_config": text, "vision_config": {"hidden_size": 1}, "tie_word_embeddings": True}
    inner = {key: value for key, value in text.items() if key != "tie_word_embeddings"}
    assert shape(outer) == shape(text)
    assert shape({**outer, "text_config": inner}).tied_embeddings
