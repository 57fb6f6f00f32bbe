"""Sampling parameters as the front door encodes them (docs/wire.md), without the extension."""

from __future__ import annotations

import struct

_FORM = struct.Struct("<BfIfQIh")


def encode(
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    choice: int = 0,
    logprobs: int = -1,
) -> bytes:
    return _FORM.pack(1, temperature, top_k, top_p, seed, choice, logprobs)


def wants_logprobs(sampling: bytes) -> bool:
    return bool(_FORM.unpack(sampling)[-1] >= 0)
