"""Plans and answers: shared memory for the ranks of the engine's node, lines for those of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.core import Ranks
from penstock.core.answers import Failed, decode_answer, encode_answer, is_failed
from penstock.executor.ranks import LEAST_ANSWER, Answers, Fence
from penstock.ranks import Line, SharedFiles

if TYPE_CHECKING:
    from penstock._native import RingWriter

PATIENCE = 600.0
"""Seconds that ranks may leave plans lying; there are never more plans than slots."""


class Rings:
    """`lines` are those of ranks elsewhere. For the others there are rings on `files`, which stay
    open until the ranks have opened what `jobs` names."""

    def __init__(self, ranks: Ranks, lines: Mapping[int, Line], files: SharedFiles) -> None:
        self.answers: list[Answers] = []
        self.fences: list[Fence] = []
        """Of the lines."""
        self.jobs: list[dict[str, Any]] = []
        """What each rank is told of it."""
        self._files = files
        here = [rank for rank in range(ranks.size) if rank not in lines]
        ring = self._plans(ranks, here)
        for rank in range(ranks.size):
            room = answer_bytes(ranks, rank)
            if rank in lines:
                self._add_line(lines[rank], room)
            else:
                self._add_ring({**ring, "reader": here.index(rank)}, ranks.answer_slots, room)
        self.plans = SplitPlans(self._writer, list(lines.values()))

    def _plans(self, ranks: Ranks, here: Sequence[int]) -> dict[str, Any]:
        from penstock._native import RingWriter

        self._writer: RingWriter | None = None
        if not here:
            return {}
        ring = {
            **self._files.ring(len(here), ranks.plan_slots, ranks.plan_bytes),
            "readers": len(here),
        }
        self._writer = RingWriter(**ring, patience=PATIENCE)
        return ring

    def _add_ring(self, plans: dict[str, Any], slots: int, room: int) -> None:
        from penstock._native import RingReader

        ring = self._files.ring(1, slots, room)
        self.answers.append(RingReader(**ring, reader=0, readers=1))
        self.jobs.append({"plans": plans, "answers": ring})

    def _add_line(self, line: Line, room: int) -> None:
        answers = LineAnswers(line)
        self.answers.append(answers)
        self.fences.append(answers)
        self.jobs.append({"capacity": room})


def answer_bytes(ranks: Ranks, rank: int) -> int:
    return max(ranks.result_bytes if rank == ranks.reader else 0, LEAST_ANSWER)


class SplitPlans:
    """Plans to the ranks of this node through a ring, to the others over their lines."""

    def __init__(self, ring: RingWriter | None, lines: Sequence[Line]) -> None:
        self._ring = ring
        self._lines = lines

    def send(self, message: bytes) -> None:
        for line in self._lines:
            line.send(message)
        if self._ring is not None:
            self._ring.send(message)


class LineAnswers:
    def __init__(self, line: Line) -> None:
        self._line = line
        self._reason: str | None = None
        self.ready = line.ready

    def end(self, reason: str) -> None:
        """The line itself stays open: the rank may have something to say about it."""
        self._reason = reason

    def receive(self, timeout: float) -> bytes | None:
        if self._reason is not None and not self.ready():
            raise ConnectionError(self._reason)
        message = self._line.receive(timeout)
        failed = decode_answer(message) if message and is_failed(message) else None
        if isinstance(failed, Failed):
            # Clocks of two hosts cannot be compared.
            return encode_answer(replace(failed, at=self._line.arrived))
        return message
