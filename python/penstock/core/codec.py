"""Plans and results as bytes, for ranks in other processes and on other hosts (little-endian, all
of them).

No pickle: bytes from a peer become columns of numbers or a CodecError, and nothing else.
"""

from __future__ import annotations

import struct
from array import array
from typing import Any, cast

from penstock.core.errors import CodecError as CodecError
from penstock.core.plan import LogprobRow, SlotParams, StepPlan, StepResult

_PLAN = struct.Struct("<4sQ5I")
"""Magic, step, then how many registrations, sequences, tokens, targets and blocks follow."""
_SLOT = struct.Struct("<ididQIii")
"""The fields of SlotParams in their order."""
_RESULT = struct.Struct("<4s4I")
"""Magic, then how many counts, tokens, rows of log-probabilities and rows of prompts follow."""
_ROWS = struct.Struct("<2I")
"""Index of a sequence, number of its rows."""
_ROW = struct.Struct("<dIH")
_PAIR = struct.Struct("<Id")
PLAN_MAGIC = b"PLN1"
RESULT_MAGIC = b"RES1"


def encode_plan(plan: StepPlan) -> bytes:
    head = _PLAN.pack(
        PLAN_MAGIC,
        plan.step,
        len(plan.registrations),
        len(plan.slots),
        len(plan.tokens),
        len(plan.targets),
        len(plan.blocks),
    )
    slots = [
        _SLOT.pack(
            p.slot, p.temperature, p.top_k, p.top_p, p.seed, p.choice, p.logprobs, p.prompt_logprobs
        )
        for p in plan.registrations
    ]
    columns = (plan.slots, plan.starts, plan.lengths, plan.block_offsets, plan.tokens, plan.targets)
    return b"".join(
        [
            head,
            *slots,
            *(column.tobytes() for column in columns),
            plan.blocks.tobytes(),
            plan.sample.tobytes(),
        ]
    )


def is_plan(message: bytes) -> bool:
    """Whether a message to a rank is a plan, without a look at the rest of it."""
    return message[:1] == PLAN_MAGIC[:1]


def decode_plan(data: bytes) -> StepPlan:
    """CodecError unless `data` is one plan, whole and with nothing after it."""
    reader = Reader(data)
    magic, step, registrations, sequences, tokens, targets, blocks = reader.take(_PLAN)
    if magic != PLAN_MAGIC:
        raise CodecError(f"a plan begins with {PLAN_MAGIC!r}, not {magic!r}")
    plan = StepPlan(step)
    reader.expect(registrations * _SLOT.size)
    plan.registrations = [SlotParams(*reader.take(_SLOT)) for _ in range(registrations)]
    plan.slots = reader.column("i", sequences)
    plan.starts = reader.column("i", sequences)
    plan.lengths = reader.column("i", sequences)
    plan.block_offsets = reader.column("i", sequences + 1)
    plan.tokens = reader.column("i", tokens)
    plan.targets = reader.column("i", targets)
    plan.blocks = reader.column("i", blocks)
    plan.sample = reader.column("b", sequences)
    reader.end()
    return plan


def encode_result(result: StepResult) -> bytes:
    head = _RESULT.pack(
        RESULT_MAGIC,
        len(result.counts),
        len(result.tokens),
        len(result.logprobs),
        len(result.prompt_logprobs),
    )
    parts = [head, result.counts.tobytes(), result.tokens.tobytes()]
    for table in (result.logprobs, result.prompt_logprobs):
        for index, rows in table.items():
            parts.append(_ROWS.pack(index, len(rows)))
            for logprob, rank, pairs in rows:
                parts.append(_ROW.pack(logprob, rank, len(pairs)))
                parts += [_PAIR.pack(*pair) for pair in pairs]
    return b"".join(parts)


def decode_result(data: bytes) -> StepResult:
    """CodecError unless `data` is one result, whole and with nothing after it."""
    reader = Reader(data)
    magic, counts, tokens, logprobs, prompts = reader.take(_RESULT)
    if magic != RESULT_MAGIC:
        raise CodecError(f"a result begins with {RESULT_MAGIC!r}, not {magic!r}")
    result = StepResult(reader.column("i", counts), reader.column("i", tokens))
    result.logprobs = _rows(reader, logprobs)
    result.prompt_logprobs = _rows(reader, prompts)
    reader.end()
    return result


def _rows(reader: Reader, sequences: int) -> dict[int, list[LogprobRow]]:
    table: dict[int, list[LogprobRow]] = {}
    for _ in range(sequences):
        index, count = reader.take(_ROWS)
        reader.expect(count * _ROW.size)
        table[index] = [_row(reader) for _ in range(count)]
    if len(table) != sequences:
        raise CodecError("a sequence has two sets of log-probabilities")
    return table


def _row(reader: Reader) -> LogprobRow:
    logprob, rank, count = reader.take(_ROW)
    reader.expect(count * _PAIR.size)
    return logprob, rank, [cast(tuple[int, float], reader.take(_PAIR)) for _ in range(count)]


def plan_bytes(sequences: int, tokens: int, blocks: int) -> int:
    """The largest plan of so many sequences, tokens and entries of block tables."""
    return _PLAN.size + sequences * (_SLOT.size + 17) + 4 + 8 * tokens + 4 * blocks


def result_bytes(sequences: int, tokens: int, alternatives: int) -> int:
    """The largest result: one token for each sequence and a row for each token of a prompt."""
    row = _ROW.size + (1 + alternatives) * _PAIR.size
    return _RESULT.size + sequences * (8 + 2 * _ROWS.size + row) + tokens * row


class Reader:
    """Of one message, from its start; CodecError where it is too short."""

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
