"""Writers of small model directories and GGUF stand-ins."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from penstock.model import ModelInfo, load_model

CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 96,
    "intermediate_size": 256,
    "max_position_embeddings": 2048,
    "num_attention_heads": 6,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "vocab_size": 1000,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
METADATA: dict[str, object] = {
    "general.architecture": "llama",
    "llama.block_count": 3,
    "llama.context_length": 2048,
    "llama.embedding_length": 96,
    "llama.feed_forward_length": 256,
    "llama.attention.head_count": 6,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 50000.0,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.tokens": {"len": 1000, "type": "string"},
}
SHAPES: dict[str, list[int]] = {"token_embd.weight": [1000, 96], "output.weight": [1000, 96]}

HfLoader = Callable[..., ModelInfo]
GgufLoader = Callable[..., ModelInfo]


@pytest.fixture
def load_hf(tmp_path: Path) -> HfLoader:
    """`load_hf({key: value}, file={...})`: CONFIG with keys changed (None removes), and other JSON
    files.
    """

    def load(changes: Mapping[str, object] | None = None, **files: object) -> ModelInfo:
        config = {
            key: value for key, value in {**CONFIG, **(changes or {})}.items() if value is not None
        }
        for name, contents in {"config": config, **files}.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(contents))
        (tmp_path / "model.safetensors").touch()
        return load_model(tmp_path)

    return load


@pytest.fixture
def load_gguf(tmp_path: Path) -> GgufLoader:
    """`load_gguf({key: value}, {tensor: shape})`: METADATA and SHAPES with these changed (None
    removes).
    """

    def load(
        changes: Mapping[str, object] | None = None,
        tensors: Mapping[str, list[int] | None] | None = None,
        ends: tuple[int, ...] = (),
    ) -> ModelInfo:
        metadata = {
            key: value
            for key, value in {**METADATA, **(changes or {})}.items()
            if value is not None
        }
        shapes = {
            name: shape
            for name, shape in {**SHAPES, **(tensors or {})}.items()
            if shape is not None
        }
        file = tmp_path / "model.gguf"
        file.write_bytes(b"GGUF")
        rows = [(name, "F32", shape) for name, shape in shapes.items()]
        read = {"metadata": metadata, "tensors": rows, "ends": ends}
        return load_model(file, lambda path: read)

    return load
