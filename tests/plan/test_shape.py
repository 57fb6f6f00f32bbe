"""Shapes read from `config.json` alone, beside published numbers and the decoder's own families.

`published.jsonl` has the keys that sizes depend on, of published models, and the number of
parameters that their publishers give: all digits where the model's page adds its tensors up, else
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
from pathlib import Path
from typing import Any

import pytest
from penstock.model import ModelError, load_model
from penstock.model.fields import Fields
from penstock.model.sharding import plan_grid
from penstock.model.sizing import active_parameters, kv_spec, matrices, parameters
from penstock.model.spec import DecoderSpec
from penstock.plan.shape import read_shape, text_part

from tests.families import FAMILIES
from tests.real_ranks import TINY

PAGE = Path(__file__).parents[2] / "docs/plan.md"
PUBLISHED: dict[str, dict[str, Any]] = {
    row["model"]: row for row in map(json.loads, (Path(__file__).parent / "published.jsonl").open())
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
    families = {row["config"]["model_type"] for row in PUBLISHED.values()}
    assert len(PUBLISHED) >= 60
    assert len(families) >= 10
    words = " ".join(PAGE.read_text().split())
    assert f"{len(PUBLISHED)} published models of {len(families)} architectures" in words


@pytest.mark.parametrize("model", PUBLISHED)
def test_parameters_are_those_published(model: str) -> None:
    row = PUBLISHED[model]
    assert parameters(shape(row["config"])) == pytest.approx(row["parameters"], rel=0.005)


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


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gpt2"])
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
    [("hybrid_override_pattern", "M*E"), ("compress_ratios", [0]), ("block_configs", [{}])],
)
def test_a_shape_that_would_be_sized_wrongly_is_refused(key: str, value: object) -> None:
    config = PUBLISHED["meta-llama/Meta-Llama-3.1-8B"]["config"]
    with pytest.raises(ModelError, match=key):
        shape({**config, key: value})


def test_the_language_model_of_a_model_with_images() -> None:
    text = PUBLISHED["Qwen/Qwen3-8B"]["config"]
    outer = {"text_config": text, "vision_config": {"hidden_size": 1}, "tie_word_embeddings": True}
    inner = {key: value for key, value in text.items() if key != "tie_word_embeddings"}
    assert shape(outer) == shape(text)
    assert shape({**outer, "text_config": inner}).tied_embeddings
