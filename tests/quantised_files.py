"""The checkpoints in tests/fixtures/quantised, packed by quantisation tools, with the weights and
logits that they mean (`make_quantised.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

QUANTISED = Path(__file__).parent / "fixtures/quantised"
CHECKPOINTS = tuple(sorted(file.parent.name for file in QUANTISED.glob("*/reference.json")))


@dataclass(frozen=True)
class Reference:
    tokens: list[int]
    greedy: list[int]
    """What follows the tokens."""
    first: int
    """Position of the first row of `logits`."""
    logits: np.ndarray
    """float32 logits of transformers after the token at each position."""
    digests: dict[str, str]
    """SHA-256 of the float32 weights [outputs, inputs] of each quantised module."""
    weights: dict[str, np.ndarray]
    """float32 weights of some modules."""

    @property
    def logprobs(self) -> np.ndarray:
        wide = self.logits.astype(np.float64)
        wide -= wide.max(1, keepdims=True)
        logprobs: np.ndarray = wide - np.log(np.exp(wide).sum(1, keepdims=True))
        return logprobs


def reference(checkpoint: str) -> Reference:
    found = json.loads((QUANTISED / checkpoint / "reference.json").read_text())
    values = QUANTISED / "values" / found["values"]
    logits = np.fromfile(f"{values}.f32", dtype="<f4").reshape(found["shape"])
    return Reference(
        found["tokens"],
        found["greedy"],
        found["first"],
        logits,
        found["digests"],
        _weights(Path(f"{values}.safetensors")),
    )


def _weights(file: Path) -> dict[str, np.ndarray]:
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            first, end = entry["data_offsets"]
            raw = np.frombuffer(data[start + first : start + end], dtype="<f4")
            found[name.removesuffix(".weight")] = raw.reshape(entry["shape"])
    return found
