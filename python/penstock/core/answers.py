"""What a rank says to the executor: that it is ready, what a step gave, what was moved, what went
wrong.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from penstock.core.codec import CodecError, decode_result, encode_result
from penstock.core.facts import WorkerFacts
from penstock.core.plan import StepResult
from penstock.core.transfer import Moved
from penstock.core.transfer_codec import decode_moved, encode_moved

_STEP = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Ready:
    """The rank has its part of the model and awaits plans."""

    facts: WorkerFacts


@dataclass(frozen=True, slots=True)
class Computed:
    step: int
    result: StepResult


@dataclass(frozen=True, slots=True)
class Failed:
    """A step that could not be computed, or a rank that cannot go on."""

    rank: int
    step: int
    """0: not in a step."""
    message: str
    trace: str
    """The traceback; empty where the message says it all."""
    fatal: bool
    """Whether the rank ends: its decoder is unusable."""
    derived: bool
    """Whether another rank was lost first, which this one waited for."""
    at: float
    """Monotonic time of the rank's host."""


@dataclass(frozen=True, slots=True)
class MoverReport:
    """What the rank's mover says about its tiers: first that they are open, then when something is
    new.
    """

    report: str
    """JSON."""


@dataclass(frozen=True, slots=True)
class MoverClosed:
    """What was to be stored is, or had no time to be."""


@dataclass(frozen=True, slots=True)
class Movements:
    """Transfers that are over on this rank. `encode_movements` spreads them over several messages."""

    moved: tuple[Moved, ...]


Single = Ready | Computed | Failed | MoverReport | MoverClosed
Answer = Single | Movements


def encode_answer(answer: Single, capacity: int | None = None) -> bytes:
    """Bytes of an answer; texts of a failure are shortened to fit `capacity`."""
    if isinstance(answer, Computed):
        return b"C" + _STEP.pack(answer.step) + encode_result(answer.result)
    if isinstance(answer, Ready):
        fields = asdict(answer.facts)
        return b"R" + json.dumps({**fields, "fingerprint": answer.facts.fingerprint.hex()}).encode()
    if isinstance(answer, MoverReport):
        return b"K" + answer.report.encode()
    if isinstance(answer, MoverClosed):
        return b"E"
    fields = asdict(answer)
    if capacity is not None:
        # Six bytes of JSON for a character at most; the end of a traceback says what happened.
        room = max(capacity - 512, 0) // 12
        fields.update(message=answer.message[:room], trace=answer.trace[-room:] if room else "")
    return b"F" + json.dumps(fields).encode()


def encode_movements(moved: Iterable[Moved], capacity: int) -> Iterator[bytes]:
    """Answers of at most `capacity` bytes; none when nothing was moved."""
    return (b"M" + batch for batch in encode_moved(moved, capacity - 1))


def is_failed(data: bytes) -> bool:
    """Whether an answer is a `Failed`, without a look at the rest of it."""
    return data[:1] == b"F"


def decode_answer(data: bytes) -> Answer:
    """CodecError for bytes that are no answer."""
    kind, body = data[:1], data[1:]
    if kind == b"C" and len(body) >= _STEP.size:
        return Computed(_STEP.unpack_from(body)[0], decode_result(body[_STEP.size :]))
    if kind == b"M":
        return Movements(decode_moved(body))
    if kind == b"E" and not body:
        return MoverClosed()
    try:
        return _decode_text(kind, body.decode())
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CodecError(f"a malformed answer: {error}") from error


def _decode_text(kind: bytes, text: str) -> Answer:
    if kind == b"K":
        return MoverReport(text)
    if kind == b"F":
        return Failed(**json.loads(text))
    if kind != b"R":
        raise CodecError(f"an answer of unknown kind {kind!r}")
    fields = json.loads(text)
    stages = tuple((str(name), float(took), str(detail)) for name, took, detail in fields["stages"])
    fields.update(fingerprint=bytes.fromhex(fields["fingerprint"]), stages=stages)
    return Ready(WorkerFacts(**fields))
