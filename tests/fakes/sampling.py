"""Sampling parameters as the API server encodes them (docs/wire.md), without the extension."""

from __future__ import annotations

import struct

_FORM = struct.Struct("<BfIffQIhfffI")
_LOGPROBS_AT = 7
_NO_LISTS = bytes(4 * 4)


def encode(
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    choice: int = 0,
    logprobs: int = -1,
) -> bytes:
    """Without changes of the logits."""
    head = (2, temperature, top_k, top_p, 0.0, seed, choice, logprobs, 1.0, 0.0, 0.0, 0)
    return _FORM.pack(*head) + _NO_LISTS


def wants_logprobs(sampling: bytes) -> bool:
    return bool(_FORM.unpack_from(sampling)[_LOGPROBS_AT] >= 0)
