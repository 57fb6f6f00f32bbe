"""Plans and results as bytes (`crates/base/wire`), for ranks in other processes and hosts."""

from __future__ import annotations

from penstock.core.errors import CodecError as CodecError
from penstock.core.plan import StepPlan, StepResult

PLAN = b"P"
"""First byte of a plan among other messages to a rank."""


def encode_plan(plan: StepPlan) -> bytes:
    from penstock import _native

    return PLAN + _native.encode_plan(plan)


def is_plan(message: bytes) -> bool:
    return message.startswith(PLAN)


def decode_plan(data: bytes) -> StepPlan:
    """CodecError unless `data` is one plan, whole and with nothing after it."""
    from penstock import _native

    if not is_plan(data):
        raise CodecError(f"a plan begins with {PLAN!r}, not {data[:1]!r}")
    return _native.decode_plan(data[len(PLAN) :])


def encode_result(result: StepResult) -> bytes:
    from penstock import _native

    return _native.encode_result(result)


def decode_result(data: bytes) -> StepResult:
    """CodecError unless `data` is one result, whole and with nothing after it."""
    from penstock import _native

    return _native.decode_result(data)


def plan_bytes(sequences: int, tokens: int, groups: int, added: int, length: int) -> int:
    """Bytes of the largest plan with so many sequences, tokens, new block table entries, and tokens
    of a sequence.
    """
    from penstock import _native

    return len(PLAN) + _native.plan_bytes(sequences, tokens, groups, added, length)


def result_bytes(sequences: int, tokens: int, alternatives: int, vector: int) -> int:
    """Bytes of the largest result; `vector` numbers for each pooled sequence."""
    from penstock import _native

    return _native.result_bytes(sequences, tokens, alternatives, vector)
