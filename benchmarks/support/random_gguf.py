"""A GGUF file of random weights that llama.cpp loads, too.

    python benchmarks/support/random_gguf.py FILE TOKENIZER.gguf 1b|8b

The command writes a Llama with the layers of Llama 3.2 1B or of Llama 3.1 8B, for
`benchmarks/dense.sh`. Other shapes are Q4_0 in the shape of a Qwen3-MoE or of a dense Llama, and
gpt-oss with experts in MXFP4.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Size in bytes of a metadata value in a GGUF file, by the number of its type."""
F32, Q4_0, Q8_0, MXFP4 = 0, 2, 8, 39
BLOCK = 32
BLOCK_BYTES = {Q4_0: 18, Q8_0: 34, MXFP4: 17}
ALIGNMENT = 32
SEED = 7
SCALE = 0.02
"""Scale of each quantised block, which gives numbers from -0.14 to 0.14, so that nothing
overflows.
"""
POWER = 127 - 6
"""Exponent of each MXFP4 block, which gives numbers up to 6 / 64."""
QWEN, GPT_OSS, LLAMA = "qwen3moe", "gpt-oss", "llama"


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model. A dense model has no experts. The size of the vocabulary is the
    tokenizer's.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    experts_per_token: int
    width: int
    context: int = 8192
    architecture: str = QWEN

    def attention(self) -> int:
        """Number of weights in the attention projections of a layer."""
        return 2 * (self.heads + self.kv_heads) * self.head_dim * self.hidden

    def expert(self) -> int:
        """Number of weights in one expert of a layer."""
        return 3 * self.hidden * self.width


LLAMAS = {
    "1b": Shape(16, 2048, 32, 8, 64, 0, 0, 8192, architecture=LLAMA),
    "8b": Shape(32, 4096, 32, 8, 128, 0, 0, 14336, architecture=LLAMA),
}


def write(path: Path, shape: Shape, tokenizer: Path) -> None:
    """Write the file, unless it exists. `tokenizer` is the GGUF file from which the tokenizer is
    copied.
    """
    if path.is_file():
        return
    kept, vocab = tokenizer_values(tokenizer)
    values = [*_keys(shape), *kept]
    tensors = list(_tensors(shape, vocab))
    partial = path.with_suffix(".partial")
    rng = np.random.default_rng(SEED)
    with partial.open("wb") as out:
        out.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(values)))
        out.writelines(values)
        at = 0
        for name, dims, kind in tensors:
            out.write(_text(name) + struct.pack("<I", len(dims)))
            out.write(struct.pack(f"<{len(dims)}QIQ", *reversed(dims), kind, at))
            at += _padded(_bytes(dims, kind))
        out.write(bytes(_padded(out.tell()) - out.tell()))
        for _, dims, kind in tensors:
            data = _random(rng, dims, kind)
            out.write(data)
            out.write(bytes(_padded(len(data)) - len(data)))
    partial.rename(path)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _keys(shape: Shape) -> Iterator[bytes]:
    architecture = shape.architecture
    yield _text("general.architecture") + struct.pack("<I", STRING) + _text(architecture)
    sizes = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.width * max(shape.experts_per_token, 1),
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
    }
    if shape.experts:
        sizes |= {
            "expert_feed_forward_length": shape.width,
            "expert_count": shape.experts,
            "expert_used_count": shape.experts_per_token,
        }
    if architecture == GPT_OSS:
        sizes |= {"attention.sliding_window": 128}
    for key, size in sizes.items():
        yield _text(f"{architecture}.{key}") + struct.pack("<II", 4, size)
    numbers = {"rope.freq_base": 1e6, "attention.layer_norm_rms_epsilon": 1e-6}
    for key, number in numbers.items():
        yield _text(f"{architecture}.{key}") + struct.pack("<If", 6, number)


def _tensors(shape: Shape, vocab: int) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """(name, dimensions with the outermost first, GGUF type) of each tensor."""
    hidden, width, experts = shape.hidden, shape.width, shape.experts
    gpt_oss = shape.architecture == GPT_OSS
    dense, expert = (Q8_0, MXFP4) if gpt_oss else (Q4_0, Q4_0)
    yield "token_embd.weight", (vocab, hidden), dense
    yield "output_norm.weight", (hidden,), F32
    yield "output.weight", (vocab, hidden), dense
    query, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        yield f"{at}attn_norm.weight", (hidden,), F32
        yield f"{at}attn_q.weight", (query, hidden), dense
        yield f"{at}attn_k.weight", (kv, hidden), dense
        yield f"{at}attn_v.weight", (kv, hidden), dense
        yield f"{at}attn_output.weight", (hidden, query), dense
        if not experts:
            yield f"{at}ffn_norm.weight", (hidden,), F32
            yield f"{at}ffn_gate.weight", (width, hidden), dense
            yield f"{at}ffn_up.weight", (width, hidden), dense
            yield f"{at}ffn_down.weight", (hidden, width), dense
            continue
        yield f"{at}ffn_gate_inp.weight", (experts, hidden), F32
        yield f"{at}ffn_gate_exps.weight", (experts, width, hidden), expert
        yield f"{at}ffn_up_exps.weight", (experts, width, hidden), expert
        yield f"{at}ffn_down_exps.weight", (experts, hidden, width), expert
        if gpt_oss:
            yield from _gpt_oss_vectors(shape, at)
            continue
        yield f"{at}ffn_norm.weight", (hidden,), F32
        yield f"{at}attn_q_norm.weight", (shape.head_dim,), F32
        yield f"{at}attn_k_norm.weight", (shape.head_dim,), F32


def _gpt_oss_vectors(shape: Shape, at: str) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """The tensors that only gpt-oss has in a layer: norm, sinks and biases."""
    kv = shape.kv_heads * shape.head_dim
    yield f"{at}post_attention_norm.weight", (shape.hidden,), F32
    yield f"{at}attn_sinks.weight", (shape.heads,), F32
    yield f"{at}attn_q.bias", (shape.heads * shape.head_dim,), F32
    yield f"{at}attn_k.bias", (kv,), F32
    yield f"{at}attn_v.bias", (kv,), F32
    yield f"{at}attn_output.bias", (shape.hidden,), F32
    yield f"{at}ffn_gate_inp.bias", (shape.experts,), F32
    yield f"{at}ffn_gate_exps.bias", (shape.experts, shape.width), F32
    yield f"{at}ffn_up_exps.bias", (shape.experts, shape.width), F32
    yield f"{at}ffn_down_exps.bias", (shape.experts, shape.hidden), F32


def _bytes(dims: tuple[int, ...], kind: int) -> int:
    count = int(np.prod(dims))
    return 4 * count if kind == F32 else count // BLOCK * BLOCK_BYTES[kind]


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _random(rng: np.random.Generator, dims: tuple[int, ...], kind: int) -> bytes:
    if kind == F32:
        numbers = rng.normal(0.0, 1.0, dims) if len(dims) > 1 else np.ones(dims)
        return numbers.astype("<f4").tobytes()
    size = BLOCK_BYTES[kind]
    blocks = np.frombuffer(rng.bytes(_bytes(dims, kind)), dtype=np.uint8).reshape(-1, size).copy()
    if kind == MXFP4:
        blocks[:, 0] = POWER
    else:
        scale = SCALE if kind == Q4_0 else SCALE / 16
        blocks[:, :2] = np.frombuffer(np.float16(scale).tobytes(), dtype=np.uint8)
    if kind == Q4_0:
        _centre(blocks[:, 2:])
    return blocks.tobytes()


def _centre(codes: np.ndarray) -> None:
    """Replace the codes that mean -8 by 0 in place. Otherwise weights would have a non-zero mean,
    all hidden states would have the same direction, and all rows would choose the same experts.
    """
    codes |= np.where(codes & 15 == 0, 8, 0).astype(np.uint8)
    codes |= np.where(codes >> 4 == 0, 128, 0).astype(np.uint8)


def tokenizer_values(path: Path) -> tuple[list[bytes], int]:
    """The encoded key-value pairs of the tokenizer in a GGUF file, and its number of tokens."""
    data = path.read_bytes()
    (count,) = struct.unpack_from("<Q", data, 16)
    at, kept, vocab = 24, [], 0
    for _ in range(count):
        begin = at
        key, at = _read_text(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        if key == "tokenizer.ggml.tokens":
            (vocab,) = struct.unpack_from("<Q", data, at + 8)
        at = _skip(data, at + 4, kind)
        if key.startswith("tokenizer."):
            kept.append(data[begin:at])
    return kept, vocab


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, at)
    return data[at + 8 : at + 8 + length].decode(), at + 8 + length


def _skip(data: bytes, at: int, kind: int) -> int:
    if kind == STRING:
        return _read_text(data, at)[1]
    if kind != ARRAY:
        return at + SIZES[kind]
    inner, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if inner in SIZES:
        return at + SIZES[inner] * int(count)
    for _ in range(count):
        at = _skip(data, at, inner)
    return at


if __name__ == "__main__":
    write(Path(sys.argv[1]), LLAMAS[sys.argv[3]], Path(sys.argv[2]))
