"""Encodes and decodes plans and results (by `crates/base/wire`), for ranks in other processes and
on other hosts.
"""

from __future__ import annotations

from penstock.core.errors import CodecError as CodecError
from penstock.core.plan import StepPlan, StepResult

PLAN = b"P"
"""First byte of an encoded plan, which distinguishes it from other messages to a rank."""


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
    """Maximum size in bytes of an encoded plan of `sequences` sequences with `tokens` tokens in
    total, in `groups` KV groups. `added` is the number of new block table entries, `length` the
    maximum number of tokens of a sequence.
    """
    from penstock import _native

    return len(PLAN) + _native.plan_bytes(sequences, tokens, groups, added, length)


def result_bytes(sequences: int, tokens: int, alternatives: int, vector: int) -> int:
    """Maximum size in bytes of an encoded result. `alternatives`: number of log-probabilities per
    token; `vector`: number of values of a pooled vector.
    """
    from penstock import _native

    return _native.result_bytes(sequences, tokens, alternatives, vector)
