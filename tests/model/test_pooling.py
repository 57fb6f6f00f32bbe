"""How checkpoints pool: modules.json, GGUF keys, bare models and classification heads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.core import Pooler, PoolerOutput, Pooling
from penstock.model import ModelError, ModelInfo, load_model

ROOT = "sentence_transformers.models."


@pytest.fixture
def load(repository: Path, tmp_path: Path) -> Callable[..., ModelInfo]:
    """Loads the tiny `family` with changed config.json, tensor names and further files."""

    def loaded(
        family: str = "qwen3",
        *,
        config: dict[str, Any] | None = None,
        rename: Callable[[str], str | None] = lambda name: name,
        **files: object,
    ) -> ModelInfo:
        source, directory = repository / "tests/fixtures/tiny" / family, tmp_path / family
        directory.mkdir()
        values = json.loads((source / "config.json").read_text()) | (config or {})
        (directory / "config.json").write_text(json.dumps(values))
        stored = (source / "model.safetensors").read_bytes()
        size = int.from_bytes(stored[:8], "little")
        header = json.loads(stored[8 : 8 + size])
        names = {name: rename(name) for name in header}
        header = {new: header[old] for old, new in names.items() if new is not None}
        text = json.dumps(header).encode()
        (directory / "model.safetensors").write_bytes(
            len(text).to_bytes(8, "little") + text + stored[8 + size :]
        )
        for name, value in files.items():
            file = directory / name.replace("__", "/").replace("_json", ".json")
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(value))
        return load_model(directory)

    return loaded


def modules(*kinds: str) -> list[dict[str, object]]:
    return [
        {"idx": at, "name": str(at), "path": f"{at}_{kind}" if at else "", "type": ROOT + kind}
        for at, kind in enumerate(kinds)
    ]


def test_without_modules_the_last_state_has_length_one(load: Callable[..., ModelInfo]) -> None:
    info = load()
    assert info.pooling is Pooling.LAST
    assert info.pooler == Pooler(PoolerOutput.UNIT_EMBEDDING, info.spec.hidden)


@pytest.mark.parametrize(
    ("kinds", "settings", "output", "pooling"),
    [
        (
            ("Transformer", "Pooling", "Normalize"),
            {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False},
            PoolerOutput.UNIT_EMBEDDING,
            Pooling.LAST,
        ),
        (
            ("Transformer", "Pooling"),
            {"pooling_mode_mean_tokens": True, "include_prompt": True},
            PoolerOutput.EMBEDDING,
            Pooling.MEAN,
        ),
        (
            ("Transformer", "Pooling"),
            {"pooling_mode": "mean", "word_embedding_dimension": 64},
            PoolerOutput.EMBEDDING,
            Pooling.MEAN,
        ),
    ],
)
def test_modules_say_how(
    load: Callable[..., ModelInfo],
    kinds: tuple[str, ...],
    settings: dict[str, object],
    output: PoolerOutput,
    pooling: Pooling,
) -> None:
    files = {"modules_json": modules(*kinds), "1_Pooling__config_json": settings}
    info = load(**files)
    assert (info.pooler.output, info.pooling) == (output, pooling)


@pytest.mark.parametrize(
    ("kinds", "settings", "message"),
    [
        (("Transformer", "Pooling"), {"pooling_mode_cls_token": True}, "pooling_mode_cls_token"),
        (
            ("Transformer", "Pooling"),
            {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": True},
            "supported: lasttoken, or mean",
        ),
        (("Transformer", "Pooling"), {}, "pooling by none"),
        (("Transformer", "Pooling", "Dense"), {"pooling_mode": "mean"}, "Dense is not built"),
    ],
)
def test_what_is_not_built_is_refused_by_name(
    load: Callable[..., ModelInfo],
    kinds: tuple[str, ...],
    settings: dict[str, object],
    message: str,
) -> None:
    files = {"modules_json": modules(*kinds), "1_Pooling__config_json": settings}
    with pytest.raises(ModelError, match=message):
        load(**files)


@pytest.mark.parametrize("wrong", [5, [5], [{"type": 1}], {"a": 1}])
def test_a_list_of_modules_that_is_none_is_refused(
    load: Callable[..., ModelInfo], wrong: object
) -> None:
    with pytest.raises(ModelError, match="no list of modules"):
        load(modules_json=wrong)


def test_a_bare_model_has_no_prefix_and_no_head(load: Callable[..., ModelInfo]) -> None:
    """As Qwen3-Embedding is published."""
    untied = {"tie_word_embeddings": False}
    info = load(
        config=untied,
        rename=lambda name: None if name == "lm_head.weight" else name.removeprefix("model."),
    )
    assert info.pooler.only
    assert info.weights.embed.tensor == "embed_tokens.weight"
    assert info.weights.layers[0]["q"].tensor == "layers.0.self_attn.q_proj.weight"
    assert info.spec.tied_embeddings


def test_a_classification_head_has_labels(load: Callable[..., ModelInfo]) -> None:
    config = {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "relevant"}}
    info = load(config=config)
    assert info.pooler == Pooler(PoolerOutput.LABELS, 1, only=True)
    assert info.weights.score is not None
    assert info.weights.score.tensor == "score.weight"
