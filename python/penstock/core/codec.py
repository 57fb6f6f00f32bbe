"""Plans and results as bytes, for ranks in other processes and on other hosts (`crates/wire`)."""

from __future__ import annotations

import struct
from array import array
from typing import Any

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


def plan_bytes(sequences: int, tokens: int, groups: int, added: int) -> int:
    """Bytes of the largest plan with so many sequences, tokens and new block table entries."""
    from penstock import _native

    return len(PLAN) + _native.plan_bytes(sequences, tokens, groups, added)


def result_bytes(sequences: int, tokens: int, alternatives: int) -> int:
    """Bytes of the largest result."""
    from penstock import _native

    return _native.result_bytes(sequences, tokens, alternatives)


class Reader:
    """Reads one message from its start; CodecError when it is too short."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def expect(self, size: int) -> None:
        """Checked before anything is made of so many bytes."""
        if size > len(self._data) - self._at:
            raise CodecError(
                f"{size} bytes expected at {self._at}, the message has {len(self._data)}"
            )

    def take(self, form: struct.Struct) -> tuple[Any, ...]:
        self.expect(form.size)
        values = form.unpack_from(self._data, self._at)
        self._at += form.size
        return values

    def column(self, typecode: str, count: int) -> array[int]:
        column = array(typecode)
        size = count * column.itemsize
        column.frombytes(self.raw(size))
        return column

    def raw(self, size: int) -> bytes:
        self.expect(size)
        self._at += size
        return self._data[self._at - size : self._at]

    def left(self) -> int:
        return len(self._data) - self._at

    def end(self) -> None:
        if self._at != len(self._data):
            raise CodecError(f"{len(self._data) - self._at} bytes too many")
