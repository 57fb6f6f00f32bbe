"""A checkpoint of random weights in a given shape, for speeds that do not depend on the weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

HIDDEN, LAYERS, HEADS, KV_HEADS, MLP, VOCAB = 576, 30, 9, 3, 1536, 49152
"""Shape of SmolLM2-135M."""
SEED = 7
SIDE_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)


def long_context(directory: Path, tokenizer: Path, positions: int) -> Path:
    """Write a Hugging Face directory with bfloat16 weights, unless it exists. `tokenizer` is a
    directory with the same vocabulary, from which tokenizer and template files are copied.
    """
    if (directory / "model.safetensors").is_file():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    for name in SIDE_FILES:
        if (tokenizer / name).is_file():
            shutil.copy(tokenizer / name, directory / name)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "intermediate_size": MLP,
        "vocab_size": VOCAB,
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    partial = directory / "model.partial"
    _write(partial, dict(_shapes()))
    partial.rename(directory / "model.safetensors")
    return directory


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    kv = HIDDEN // HEADS * KV_HEADS
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        yield f"{name}.input_layernorm.weight", (HIDDEN,)
        yield f"{name}.self_attn.q_proj.weight", (HIDDEN, HIDDEN)
        yield f"{name}.self_attn.k_proj.weight", (kv, HIDDEN)
        yield f"{name}.self_attn.v_proj.weight", (kv, HIDDEN)
        yield f"{name}.self_attn.o_proj.weight", (HIDDEN, HIDDEN)
        yield f"{name}.post_attention_layernorm.weight", (HIDDEN,)
        yield f"{name}.mlp.gate_proj.weight", (MLP, HIDDEN)
        yield f"{name}.mlp.up_proj.weight", (MLP, HIDDEN)
        yield f"{name}.mlp.down_proj.weight", (HIDDEN, MLP)
    yield "model.norm.weight", (HIDDEN,)


def _write(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Write the safetensors format: the length of a JSON header, the header, the tensors."""
    header: dict[str, object] = {}
    at = 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(SEED)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            if len(shape) == 1:
                values = np.ones(shape, np.float32)
            else:
                values = random.standard_normal(shape, np.float32) * np.float32(0.02)
            (values.view(np.uint32) >> 16).astype(np.uint16).tofile(file)
