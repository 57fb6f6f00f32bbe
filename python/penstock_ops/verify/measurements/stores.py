"""Rates of a remote KV tier through the client that the engine uses: chunks are stored, loaded,
compared and removed.
"""

from __future__ import annotations

import json
import os
import time
from array import array
from collections.abc import Mapping
from pathlib import Path

from penstock.backends import KvMover
from penstock.backends.mover_options import tier_options
from penstock.config.sections import TierConfig
from penstock.core import PenstockError
from penstock.core.transfer import KEY_BYTES, Transfer, TransferKind, TransferResult
from penstock_ops.verify.serving import remote_tiers

BLOCKS, BLOCK_TOKENS, TILE_BYTES = 16, 16, 256 << 10
"""A chunk of 4 MiB: 256 tokens of a model with 16 KiB of KV for each."""
CHUNKS = 8
PATIENCE = 20.0
"""Seconds for one transfer."""


def store_rates(config: str, number: str) -> Mapping[str, float]:
    """GB per second of stores and of loads. PenstockError if one fails or gives other bytes."""
    return rates(remote_tiers(Path(config))[int(number)])


def rates(tier: TierConfig) -> Mapping[str, float]:
    from penstock import _native

    size = BLOCKS * TILE_BYTES
    pool = bytearray(os.urandom(size))
    content = bytes(pool)
    try:
        mover = _native.KvMover.over([(pool, BLOCKS)], json.dumps(_options(tier)))
    except ValueError as error:
        raise PenstockError(str(error)) from error
    blocks = array("i", range(BLOCKS))
    keys = [os.urandom(KEY_BYTES) for _ in range(CHUNKS)]
    seconds: dict[str, float] = {}
    try:
        for kind in (TransferKind.STORE, TransferKind.LOAD):
            begin = time.monotonic()
            for key in keys:
                _move(mover, Transfer(1, kind, 1, blocks, keys=key), tier)
            seconds[kind.name.lower()] = time.monotonic() - begin
        if bytes(pool) != content:
            raise PenstockError(f"{tier.name}: loads gave other bytes than were stored")
    finally:
        _remove(mover, keys)
    return {f"{act}_gb_per_s": CHUNKS * size / passed / 1e9 for act, passed in seconds.items()}


def _options(tier: TierConfig) -> Mapping[str, object]:
    """Options of a mover with a cache identity of its own, which no engine looks up."""
    return {
        "ram_slots": 0,
        "tiers": [tier_options(tier)],
        "chunk_tokens": BLOCKS * BLOCK_TOKENS,
        "identity": {
            "cache": os.urandom(32).hex(),
            "layers": 1,
            "kv_heads": 1,
            "block_tokens": BLOCK_TOKENS,
            "tile_bytes": TILE_BYTES,
            "dtype": "bf16",
        },
        "heads": [0],
        "layers": [[0, 1]],
    }


def _move(mover: KvMover, transfer: Transfer, tier: TierConfig) -> None:
    answer = _answer(mover, transfer)
    act = transfer.kind.name.lower()
    if answer is None:
        raise PenstockError(f"{tier.name}: no answer to a {act} within {PATIENCE:g} s")
    if not answer.done:
        raise PenstockError(f"{tier.name}: a {act} failed ({answer.fault.name.lower()})")


def _answer(mover: KvMover, transfer: Transfer) -> TransferResult | None:
    mover.submit(transfer)
    answers = mover.take(PATIENCE)
    return answers[0] if answers else None


def _remove(mover: KvMover, keys: list[bytes]) -> None:
    _answer(mover, Transfer(2, TransferKind.REMOVE, keys=b"".join(keys)))
    mover.close(1.0)
