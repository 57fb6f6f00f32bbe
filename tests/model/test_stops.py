"""Stop tokens of published families, from files as their Hugging Face directories have them.

Ids and names are those of the published tokenizers. Which of the files lists them varies, as it
does among published directories.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.model.test_published import INDEX, ROWS, alone


@dataclass(frozen=True)
class Directory:
    """What a directory says of the ends of an answer."""

    row: str
    """Its config.json is that of the published model."""
    config: int | list[int] | None
    generation: int | list[int] | None
    named: tuple[int, str]
    """`eos_token` of tokenizer_config.json."""
    others: dict[int, str] = field(default_factory=dict)
    """More special tokens."""
    nested: bool = False
    """Whether `config` stands under `text_config`."""


DIRECTORIES = {
    # <|end|> ends one message of several.
    "gpt-oss": (
        Directory(
            "openai/gpt-oss-20b",
            200002,
            [200002, 199999, 200012],
            (200002, "<|return|>"),
            {200007: "<|end|>", 200012: "<|call|>"},
        ),
        {200002, 200012, 199999},
    ),
    # The tokenizer ends with <eos>, a turn with <end_of_turn>.
    "gemma-2": (
        Directory("google/gemma-2-2b", 1, [1, 107], (1, "<eos>"), {107: "<end_of_turn>"}),
        {1, 107},
    ),
    "gemma-3-1b": (Directory("google/gemma-3-1b-it", [1, 106], [1, 106], (1, "<eos>")), {1, 106}),
    "gemma-3-27b": (Directory("google/gemma-3-27b-it", [1, 106], None, (1, "<eos>")), {1, 106}),
    "llama-3.1": (
        Directory(
            "meta-llama/Meta-Llama-3.1-8B",
            [128001, 128008, 128009],
            [128001, 128008, 128009],
            (128009, "<|eot_id|>"),
        ),
        {128001, 128008, 128009},
    ),
    "llama-4": (
        Directory(
            "meta-llama/Llama-4-Scout-17B-16E-Instruct",
            [200001, 200007, 200008],
            None,
            (200008, "<|eot|>"),
            nested=True,
        ),
        {200001, 200007, 200008},
    ),
    "llama-4 by generation": (
        Directory(
            "meta-llama/Llama-4-Scout-17B-16E-Instruct",
            None,
            [200001, 200007, 200008],
            (200008, "<|eot|>"),
        ),
        {200001, 200007, 200008},
    ),
    "glm-4.5": (
        Directory(
            "zai-org/GLM-4.5-Air",
            [151329, 151336, 151338],
            [151329, 151336, 151338],
            (151329, "<|endoftext|>"),
            {151336: "<|user|>", 151338: "<|observation|>"},
        ),
        {151329, 151336, 151338},
    ),
    "qwen3": (
        Directory("Qwen/Qwen3-0.6B", 151645, [151645, 151643], (151645, "<|im_end|>")),
        {151643, 151645},
    ),
    "kimi-k2": (
        Directory("moonshotai/Kimi-K2-Instruct", 163585, 163586, (163585, "[EOS]")),
        {163585, 163586},
    ),
    "deepseek-v3": (
        Directory("deepseek-ai/DeepSeek-V3", 1, 1, (1, "<｜end▁of▁sentence｜>")),
        {1},
    ),
    "deepseek-v2": (
        Directory(
            "deepseek-ai/DeepSeek-V2-Lite", 100001, 100001, (100001, "<｜end▁of▁sentence｜>")
        ),
        {100001},
    ),
    "mixtral": (Directory("mistralai/Mixtral-8x7B-v0.1", 2, 2, (2, "</s>")), {2}),
    "qwen1.5-moe": (
        Directory("Qwen/Qwen1.5-MoE-A2.7B", 151643, [151645, 151643], (151645, "<|im_end|>")),
        {151643, 151645},
    ),
    "qwq": (
        Directory("Qwen/QwQ-32B", 151645, [151645, 151643], (151645, "<|im_end|>")),
        {151643, 151645},
    ),
    # The tokenizer ends with <|endoftext|>, a turn with <|end|>.
    "phi-3": (
        Directory(
            "microsoft/Phi-3-mini-4k-instruct",
            32000,
            [32000, 32001, 32007],
            (32000, "<|endoftext|>"),
            {32001: "<|assistant|>", 32007: "<|end|>"},
        ),
        {32000, 32001, 32007},
    ),
    "phi-4": (
        Directory(
            "microsoft/phi-4",
            100265,
            [100257, 100265],
            (100265, "<|im_end|>"),
            {100257: "<|endoftext|>"},
        ),
        {100257, 100265},
    ),
    "phi-4-mini": (
        Directory(
            "microsoft/Phi-4-mini-instruct",
            199999,
            [200020, 199999],
            (199999, "<|endoftext|>"),
            {200020: "<|end|>"},
        ),
        {199999, 200020},
    ),
    "gpt-2": (Directory("openai-community/gpt2", 50256, 50256, (50256, "<|endoftext|>")), {50256}),
}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_family_stops_where_it_ends_its_answers(load_hf: Any, name: str) -> None:
    directory, stops = DIRECTORIES[name]
    config = json.loads(json.dumps(alone(ROWS[directory.row]["config"])))
    holder = config["text_config"] if directory.nested else config
    holder["eos_token_id"] = directory.config
    special = directory.others | dict([directory.named])
    added = {str(id_): {"content": text, "special": True} for id_, text in special.items()}
    tokenizer = {"added_tokens_decoder": added, "eos_token": directory.named[1]}
    files: dict[str, object] = {"tokenizer_config": tokenizer}
    if directory.generation is not None:
        files["generation_config"] = {"eos_token_id": directory.generation}
    assert set(load_hf(config, **INDEX, **files).tokens.stop) == stops
