"""Writes a checkpoint of random numbers in the shape and layout of a published model: files of up
to 5 GB, their index, a configuration and a tokenizer.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.gpu.shapes import Shape, header_of

SHARD = 5_000_000_000
"""Maximum bytes of a file, as transformers writes them."""
NUMBERS = 1 << 25
"""How many random numbers are drawn. Tensors are taken from them at different offsets, and wrap
around at the end.
"""
STRIDE = 7_368_787
"""Distance between the starts of two consecutive tensors in the random numbers: a prime."""
SEED = 7
PIECE = 32 << 20
"""Bytes in one write to a file."""
Tensor = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Write:
    """One write: a range of the random numbers, or of ones, to a position in a file."""

    file: int
    at: int
    size: int
    start: int
    ones: bool


def size_of(shape: Shape) -> int:
    """Bytes of all tensors of a model with this shape."""
    return sum(2 * math.prod(size) for _, size in shape.tensors())


def write_random(directory: Path, shape: Shape, longest: int, drawn: int) -> None:
    """Write the checkpoint, with one thread for each CPU."""
    (directory / "config.json").write_text(json.dumps(shape.config(longest)))
    (directory / "tokenizer.json").write_text(json.dumps(_tokenizer(shape.vocabulary)))
    numbers, ones = _drawn(drawn), np.full(drawn, 0x3F80, np.uint16)
    shards = _shards(shape)
    named = "model.safetensors" if len(shards) == 1 else "model-{:05}-of-{:05}.safetensors"
    names = [named.format(at + 1, len(shards)) for at in range(len(shards))]
    if len(shards) > 1:
        own = zip(names, shards, strict=True)
        index = {"weight_map": {tensor: name for name, shard in own for tensor, _ in shard}}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    files = [os.open(directory / name, os.O_WRONLY | os.O_CREAT, 0o600) for name in names]
    try:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            writes = (each for own in zip(files, shards, strict=True) for each in _writes(*own))
            for _ in threads.map(lambda each: _write(each, numbers, ones), writes):
                pass
    finally:
        for file in files:
            os.close(file)


def _tokenizer(vocabulary: int) -> dict[str, object]:
    """A tokenizer with one word for each token. It is hardly used, because prompts are
    token ids.
    """
    words = {f"w{token}": token for token in range(vocabulary)}
    return {"version": "1.0", "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"}}


def _drawn(count: int) -> np.ndarray:
    """`count` random numbers as the bits of bfloat16."""
    drawn = np.random.default_rng(SEED).standard_normal(count, np.float32) * np.float32(0.02)
    return (drawn.view(np.uint32) >> 16).astype(np.uint16)


def _shards(shape: Shape) -> list[list[Tensor]]:
    shards: list[list[Tensor]] = [[]]
    held = 0
    for name, size in shape.tensors():
        own = 2 * math.prod(size)
        if held and held + own > SHARD:
            shards.append([])
            held = 0
        shards[-1].append((name, size))
        held += own
    return shards


def _writes(file: int, shard: list[Tensor]) -> Iterator[Write]:
    header, _ = header_of(shard)
    os.write(file, header)
    at = len(header)
    for number, (_, size) in enumerate(shard):
        left, ones = 2 * math.prod(size), len(size) == 1
        start = number * STRIDE
        while left:
            own = min(PIECE, left)
            yield Write(file, at, own, start, ones)
            at, left, start = at + own, left - own, start + own // 2


def _write(own: Write, numbers: np.ndarray, ones: np.ndarray) -> None:
    """Execute one write: the numbers from `own.start` on, wrapping around at the end."""
    bits, at, left = (ones if own.ones else numbers), own.at, own.size
    start = own.start % len(bits)
    while left:
        view = memoryview(bits[start : start + left // 2]).cast("B")
        done = os.pwrite(own.file, view, at)
        at, left = at + done, left - done
        start = (start + done // 2) % len(bits)
