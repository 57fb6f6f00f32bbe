"""Shapes of published models, and checkpoints in these shapes that take no disk space.

Such a checkpoint is a sparse file of zeros, which the backend loads like any other. `weights.py`
writes one with random numbers instead.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    width: int
    """Inner width of a feed-forward layer, or of each expert."""
    experts: int = 0
    chosen: int = 0
    tied: bool = False
    vocabulary: int = 151936
    d: int = 128

    def config(self, longest: int) -> dict[str, Any]:
        """The content of config.json in Hugging Face's format. `longest` is the maximum length in
        tokens.
        """
        made = {
            "architectures": ["Qwen3MoeForCausalLM" if self.experts else "Qwen3ForCausalLM"],
            "model_type": "qwen3_moe" if self.experts else "qwen3",
            "head_dim": self.d,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.width,
            "max_position_embeddings": longest,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "tie_word_embeddings": self.tied,
            "vocab_size": self.vocabulary,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        if self.experts:
            made |= {
                "moe_intermediate_size": self.width,
                "num_experts": self.experts,
                "num_experts_per_tok": self.chosen,
                "norm_topk_prob": True,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
            }
        return made

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        h, d = self.hidden, self.d
        yield "model.embed_tokens.weight", (self.vocabulary, h)
        yield "model.norm.weight", (h,)
        if not self.tied:
            yield "lm_head.weight", (self.vocabulary, h)
        for layer in range(self.layers):
            base = f"model.layers.{layer}."
            yield f"{base}input_layernorm.weight", (h,)
            yield f"{base}post_attention_layernorm.weight", (h,)
            yield f"{base}self_attn.q_proj.weight", (self.heads * d, h)
            yield f"{base}self_attn.k_proj.weight", (self.kv_heads * d, h)
            yield f"{base}self_attn.v_proj.weight", (self.kv_heads * d, h)
            yield f"{base}self_attn.o_proj.weight", (h, self.heads * d)
            yield f"{base}self_attn.q_norm.weight", (d,)
            yield f"{base}self_attn.k_norm.weight", (d,)
            if self.experts:
                yield f"{base}mlp.gate.weight", (self.experts, h)
            for expert in range(self.experts) or [None]:
                own = base + ("mlp." if expert is None else f"mlp.experts.{expert}.")
                yield f"{own}gate_proj.weight", (self.width, h)
                yield f"{own}up_proj.weight", (self.width, h)
                yield f"{own}down_proj.weight", (h, self.width)

    @property
    def attention(self) -> int:
        """Number of weights in the attention projections of a layer."""
        return 2 * (self.heads + self.kv_heads) * self.d * self.hidden

    @property
    def expert(self) -> int:
        """Number of weights in a feed-forward layer, or in one expert."""
        return 3 * self.hidden * self.width

    def step_bytes(self, rows: int) -> float:
        """Minimum bytes of weights in bfloat16 that a step of `rows` rows reads: the output head
        and the layers, with the expected number of experts if routing is random.
        """
        met = 1.0
        if self.experts:
            met = self.experts * (1 - (1 - self.chosen / self.experts) ** rows)
        layer = self.attention + met * self.expert
        return 2 * (self.layers * layer + self.vocabulary * self.hidden)

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of keys and values for `tokens` tokens in all layers, in bfloat16."""
        return 2 * 2 * self.layers * self.kv_heads * self.d * tokens

    def prompt_operations(self, prompt: int) -> int:
        """Number of operations for a prompt of `prompt` tokens: matrix products of all layers, and
        attention, without the output head.
        """
        matrices = self.layers * (self.attention + self.expert * (self.chosen or 1))
        seen = prompt * (prompt + 1) // 2
        return 2 * matrices * prompt + 4 * self.layers * self.heads * self.d * seen


SHAPES = {
    "Qwen3-0.6B": Shape(28, 1024, 16, 8, 3072, tied=True),
    "Qwen3-8B": Shape(36, 4096, 32, 8, 12288),
    "Qwen3-14B": Shape(40, 5120, 40, 8, 17408),
    "Qwen3-30B-A3B": Shape(48, 2048, 32, 4, 768, 128, 8),
}
TINY = Shape(2, 32, 4, 2, 64, vocabulary=256, d=32)
TINY_EXPERTS = Shape(2, 32, 4, 2, 64, 4, 2, vocabulary=256, d=32)


def shape_of(name: str, dry: bool) -> Shape:
    """The shape of the model `name`. In a dry run a tiny shape, with experts if the model
    has some.
    """
    shape = SHAPES[name]
    if not dry:
        return shape
    return TINY_EXPERTS if shape.experts else TINY


def write_checkpoint(directory: Path, shape: Shape, longest: int) -> None:
    """Write a checkpoint directory in the published layout. All its numbers are zero and take no
    disk space.
    """
    (directory / "config.json").write_text(json.dumps(shape.config(longest)))
    header, size = header_of(shape.tensors())
    with (directory / "model.safetensors").open("wb") as file:
        file.write(header)
        file.truncate(len(header) + size)


def header_of(tensors: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[bytes, int]:
    """(header of a safetensors file with these tensors in bfloat16, bytes of the data after it)."""
    entries, at = {}, 0
    for name, size in tensors:
        end = at + 2 * math.prod(size)
        entries[name] = {"dtype": "BF16", "shape": size, "data_offsets": [at, end]}
        at = end
    written = json.dumps(entries).encode()
    written += b" " * (-len(written) % 8)
    return struct.pack("<Q", len(written)) + written, at
