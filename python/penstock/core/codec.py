"""Codec of plans and results (`crates/base/wire`), for ranks in other processes and hosts."""

from __future__ import annotations

from penstock.core.errors import CodecError as CodecError
from penstock.core.plan import StepPlan, StepResult

PLAN = b"P"
"""First byte of a plan, which tells it from other messages to a rank."""


def encode_plan(plan: StepPlan) -> bytes:
    from penstock import _native

    return PLAN + _native.encode_plan(plan)


def is_plan(message: bytes) -> bool:
    return message.startswith(PLAN)


def decode_plan(data: bytes) -> StepPlan:
    """Decode exactly one plan; raises CodecError for truncated or trailing bytes."""
    from penstock import _native

    if not is_plan(data):
        raise CodecError(f"a plan begins with {PLAN!r}, not {data[:1]!r}")
    return _native.decode_plan(data[len(PLAN) :])


def encode_result(result: StepResult) -> bytes:
    from penstock import _native

    return _native.encode_result(result)


def decode_result(data: bytes) -> StepResult:
    """Decode exactly one result; raises CodecError for truncated or trailing bytes."""
    from penstock import _native

    return _native.decode_result(data)


def plan_bytes(sequences: int, tokens: int, groups: int, added: int, length: int) -> int:
    """Maximum encoded size of a plan in bytes. `added` is the number of new block table entries,
    `length` the maximum number of tokens of a sequence.
    """
    from penstock import _native

    return len(PLAN) + _native.plan_bytes(sequences, tokens, groups, added, length)


def result_bytes(sequences: int, tokens: int, alternatives: int, vector: int) -> int:
    """Maximum encoded bytes of a result; `vector` is the number of values of a vector."""
    from penstock import _native

    return _native.result_bytes(sequences, tokens, alternatives, vector)
