"""What a rank says to the executor: that it is ready, what a step gave, or what went wrong."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass

from penstock.core.codec import CodecError, decode_result, encode_result
from penstock.core.facts import WorkerFacts
from penstock.core.plan import StepResult

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


Answer = Ready | Computed | Failed


def encode_answer(answer: Answer, capacity: int | None = None) -> bytes:
    """Bytes of an answer; texts of a failure are shortened to fit `capacity`."""
    if isinstance(answer, Computed):
        return b"C" + _STEP.pack(answer.step) + encode_result(answer.result)
    if isinstance(answer, Ready):
        fields = asdict(answer.facts)
        return b"R" + json.dumps({**fields, "fingerprint": answer.facts.fingerprint.hex()}).encode()
    fields = asdict(answer)
    if capacity is not None:
        # Six bytes of JSON for a character at most; the end of a traceback says what happened.
        room = max(capacity - 512, 0) // 12
        fields.update(message=answer.message[:room], trace=answer.trace[-room:] if room else "")
    return b"F" + json.dumps(fields).encode()


def decode_answer(data: bytes) -> Answer:
    """CodecError for bytes that are no answer."""
    kind, body = data[:1], data[1:]
    if kind == b"C" and len(body) >= _STEP.size:
        return Computed(_STEP.unpack_from(body)[0], decode_result(body[_STEP.size :]))
    if kind not in (b"R", b"F"):
        raise CodecError(f"an answer of unknown kind {kind!r}")
    try:
        fields = json.loads(body)
        if kind == b"F":
            return Failed(**fields)
        stages = tuple((str(name), float(took), str(detail)) for name, took, detail in fields["stages"])
        fields.update(fingerprint=bytes.fromhex(fields["fingerprint"]), stages=stages)
        return Ready(WorkerFacts(**fields))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CodecError(f"a malformed answer: {error}") from error
