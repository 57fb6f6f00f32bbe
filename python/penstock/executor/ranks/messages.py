"""Messages between an executor and its ranks. The first byte of a message is its kind.

To a rank: `P` a plan, `T` a transfer (`core.codec`, `ranks.transfers`), `A` allocate, `O` open the
tiers, `E` close them. From a rank: the answers below.
"""

from __future__ import annotations

import json
import struct
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from penstock.core import (
    Allocation,
    KvGroup,
    KvSpec,
    Loaded,
    Numerics,
    PenstockError,
    StateSpec,
    StepResult,
    WorkerFacts,
)
from penstock.core.codec import CodecError, decode_result, encode_result
from penstock.core.progress import ProgressLine
from penstock.core.transfer import TransferResult
from penstock.executor.ranks.transfers import decode_moved, encode_moved

ALLOCATE = b"A"
_STEP = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """Progress of a rank that loads its weights."""

    share: float
    line: str

    @classmethod
    def of(cls, line: str) -> LoadStatus:
        return cls(line.share if isinstance(line, ProgressLine) else 0.0, line)


@dataclass(frozen=True, slots=True)
class Ready:
    """The pools are allocated; the rank waits for plans."""


@dataclass(frozen=True, slots=True)
class Computed:
    step: int
    result: StepResult


@dataclass(frozen=True, slots=True)
class Failed:
    """A step failed, or the rank cannot continue."""

    rank: int
    step: int
    """Step number; 0 if the error occurred outside a step."""
    message: str
    trace: str
    """Traceback; empty if the error's message suffices."""
    fatal: bool
    """Whether the rank ends because its backend is unusable."""
    derived: bool
    """Whether the failure is only a consequence of the loss of another rank."""
    at: float
    """Monotonic time of the rank's host, in seconds."""

    @classmethod
    def of(cls, rank: int, step: int, error: Exception) -> Failed:
        """The failure for an error. The failure is fatal, except for a ValueError in a step: such
        an error means that only the plan was invalid.
        """
        known = isinstance(error, PenstockError)
        return cls(
            rank=rank,
            step=step,
            message=str(error) if known else f"{type(error).__name__}: {error}",
            trace="" if known else "".join(traceback.format_exception(error)),
            fatal=step == 0 or not isinstance(error, ValueError),
            derived=isinstance(error, ConnectionError),
            at=time.monotonic(),
        )


@dataclass(frozen=True, slots=True)
class MoverReport:
    """State of the rank's tiers, sent once the tiers are open and then after each change."""

    report: str
    """JSON of `KvMover.report`."""


@dataclass(frozen=True, slots=True)
class MoverClosed:
    """Pending stores are written, or the deadline for writing them has passed."""


@dataclass(frozen=True, slots=True)
class TransferResults:
    """Transfers that ended on this rank. `encode_results` splits them into messages."""

    results: tuple[TransferResult, ...]


Single = LoadStatus | Loaded | Ready | Computed | Failed | MoverReport | MoverClosed
Answer = Single | TransferResults


def encode_allocate(allocation: Allocation) -> bytes:
    """The message that makes a rank allocate its pools."""
    return ALLOCATE + json.dumps(asdict(allocation)).encode()


def decode_allocate(data: bytes) -> Allocation:
    try:
        fields = json.loads(data[len(ALLOCATE) :])
        return Allocation(tuple(map(int, fields["blocks"])), int(fields["states"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CodecError(f"malformed sizes of the pools: {error}") from error


def encode_answer(answer: Single, capacity: int | None = None) -> bytes:
    """Encode an answer. The texts of a failure are truncated to fit `capacity` bytes."""
    if isinstance(answer, Computed):
        return b"C" + _STEP.pack(answer.step) + encode_result(answer.result)
    if isinstance(answer, Ready):
        return b"R"
    if isinstance(answer, LoadStatus):
        return b"B" + json.dumps([answer.share, answer.line]).encode()
    if isinstance(answer, Loaded):
        return b"L" + json.dumps(asdict(answer), default=bytes.hex).encode()
    if isinstance(answer, MoverReport):
        return b"K" + answer.report.encode()
    if isinstance(answer, MoverClosed):
        return b"E"
    fields = asdict(answer)
    if capacity is not None:
        # JSON takes up to six bytes for a character, and two texts share the capacity. Of a
        # traceback the end is kept, because it names the error.
        room = max(capacity - 512, 0) // 12
        fields.update(message=answer.message[:room], trace=answer.trace[-room:] if room else "")
    return b"F" + json.dumps(fields).encode()


def encode_results(results: Iterable[TransferResult], capacity: int) -> Iterator[bytes]:
    """Encode the results of transfers as messages of at most `capacity` bytes each; no message if
    there are no results.
    """
    return (b"M" + batch for batch in encode_moved(results, capacity - 1))


def is_failed(data: bytes) -> bool:
    """Whether an answer is a `Failed`, by its first byte."""
    return data[:1] == b"F"


def decode_answer(data: bytes) -> Answer:
    """Decode an answer; raises CodecError for malformed bytes."""
    kind, body = data[:1], data[1:]
    if kind == b"C" and len(body) >= _STEP.size:
        return Computed(_STEP.unpack_from(body)[0], decode_result(body[_STEP.size :]))
    if kind == b"M":
        return TransferResults(decode_moved(body))
    if not body and kind in (b"R", b"E"):
        return Ready() if kind == b"R" else MoverClosed()
    try:
        return _decode_text(kind, body.decode())
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CodecError(f"a malformed answer: {error}") from error


def _decode_text(kind: bytes, text: str) -> Answer:
    if kind == b"K":
        return MoverReport(text)
    if kind == b"B":
        share, line = json.loads(text)
        return LoadStatus(float(share), str(line))
    if kind == b"F":
        return Failed(**json.loads(text))
    if kind == b"L":
        return _loaded(**json.loads(text))
    raise CodecError(f"an answer of unknown kind {kind!r}")


def _loaded(facts: dict[str, Any], kv_spec: dict[str, Any], free_memory: int) -> Loaded:
    facts["fingerprint"] = bytes.fromhex(facts["fingerprint"])
    numerics = facts["numerics"]
    facts["numerics"] = Numerics(**{**numerics, "weights": tuple(numerics["weights"])})
    facts["stages"] = tuple((str(n), float(took), str(what)) for n, took, what in facts["stages"])
    groups = [KvGroup(**{**each, "layers": tuple(each["layers"])}) for each in kv_spec["groups"]]
    state = kv_spec["state"]
    if state is not None:
        state = StateSpec(**{**state, "layers": tuple(state["layers"])})
    spec = KvSpec(kv_spec["block_size"], tuple(groups), state)
    return Loaded(WorkerFacts(**facts), spec, free_memory)
