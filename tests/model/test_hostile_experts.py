"""Counts of experts that cannot be: each family of mixtures names the key, in both containers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from penstock.model import ModelError, load_model
from penstock.model.gguf import native_reader
from tests.model.test_published import INDEX, ROWS, alone
from tests.real_ranks import TINY

COUNTS = {
    "mistralai/Mixtral-8x7B-v0.1": "num_local_experts",
    "Qwen/Qwen3-30B-A3B": "num_experts",
    "Qwen/Qwen1.5-MoE-A2.7B": "num_experts",
    "openai/gpt-oss-20b": "num_local_experts",
    "deepseek-ai/DeepSeek-V2-Lite": "n_routed_experts",
    "deepseek-ai/DeepSeek-V2": "n_routed_experts",
    "deepseek-ai/DeepSeek-V3": "n_routed_experts",
    "moonshotai/Kimi-K2-Instruct": "n_routed_experts",
    "zai-org/GLM-4.5": "n_routed_experts",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "num_local_experts",
}
"""The key with the number of experts, by published model."""
GROUPED = (
    "deepseek-ai/DeepSeek-V2",
    "deepseek-ai/DeepSeek-V3",
    "moonshotai/Kimi-K2-Instruct",
    "zai-org/GLM-4.5",
)
CHOSEN = "num_experts_per_tok"
GGUF = (
    "deepseek2",
    "deepseek3",
    "glm4moe",
    "gptoss",
    "llama4moe",
    "mixtral",
    "qwen2moe",
    "qwen3moe",
)


def holder(config: dict[str, Any]) -> dict[str, Any]:
    """Where the keys of the text model are."""
    found: dict[str, Any] = config.get("text_config", config)
    return found


def refusal(load_hf: Any, model: str, key: str, value: object) -> str:
    config = copy.deepcopy(alone(ROWS[model]["config"]))
    holder(config)[key] = value
    with pytest.raises(ModelError) as refused:
        load_hf(config, **INDEX)
    message = str(refused.value)
    assert "config.json: " in message
    return message


@pytest.mark.parametrize("model", COUNTS)
@pytest.mark.parametrize("count", [0, -1, 1 << 31, 1.5, "8"])
def test_a_number_of_experts_that_cannot_be(load_hf: Any, model: str, count: object) -> None:
    key = COUNTS[model]
    assert f"{key} = {count!r}" in refusal(load_hf, model, key, count)


@pytest.mark.parametrize("model", COUNTS)
def test_more_experts_for_a_token_than_there_are(load_hf: Any, model: str) -> None:
    experts = holder(ROWS[model]["config"])[COUNTS[model]]
    for chosen in (0, experts + 1, 1 << 31):
        assert f"{CHOSEN} = {chosen}" in refusal(load_hf, model, CHOSEN, chosen)


@pytest.mark.parametrize("model", GROUPED)
def test_groups_that_do_not_divide_the_experts(load_hf: Any, model: str) -> None:
    for key, count in (("n_group", 7), ("n_group", 0), ("topk_group", 9), ("topk_group", 0)):
        assert f"{key} = {count}" in refusal(load_hf, model, key, count)


def changed(name: str, key: str, value: int) -> str:
    """What loading says of a tiny GGUF file whose header has another number."""

    def reader(path: str) -> Mapping[str, object]:
        header = dict(native_reader(path))
        metadata: dict[str, Any] = dict(header["metadata"])  # type: ignore[call-overload]
        full = f"{metadata['general.architecture']}.{key}"
        assert full in metadata
        return {**header, "metadata": {**metadata, full: value}}

    with pytest.raises(ModelError) as refused:
        load_model(TINY / f"{name}.gguf", reader)
    message = str(refused.value)
    assert f"{name}.gguf: " in message
    return message


@pytest.mark.parametrize("name", GGUF)
def test_counts_of_a_gguf_file_that_cannot_be(name: str) -> None:
    pytest.importorskip("penstock._native", reason="the extension is not built")
    wrong = [("expert_count", 1 << 31), ("expert_used_count", 0), ("expert_used_count", 1 << 31)]
    # A file of Llama's architecture without experts is a dense model.
    wrong += [("expert_count", 0)] if name != "mixtral" else []
    for key, value in wrong:
        assert f"{key} = {value}" in changed(name, key, value)
