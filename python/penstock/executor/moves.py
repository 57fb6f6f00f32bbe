"""Transfers under way on several ranks, each over when all have answered it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.core import PenstockError
from penstock.core.transfer import Moved


class Moves:
    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._open: dict[int, dict[int, Moved]] = {}
        self._over: list[Moved] = []

    def begin(self, transfer_id: int) -> None:
        self._open[transfer_id] = {}

    def add(self, rank: int, batch: Iterable[Moved]) -> None:
        """What a rank says. PenstockError when nobody asked it for that."""
        for moved in batch:
            answers = self._open.get(moved.id)
            if answers is None or rank in answers:
                raise PenstockError(
                    f"rank {rank} answered transfer {moved.id}, which it was not asked for"
                )
            answers[rank] = moved
            if len(answers) == self._ranks:
                del self._open[moved.id]
                self._over.append(join([answers[each] for each in range(self._ranks)]))

    def take(self) -> list[Moved]:
        over, self._over = self._over, []
        return over


def join(ranks: Sequence[Moved]) -> Moved:
    """The answer of all ranks together. One that could not look has found nothing."""
    chunks = max(len(moved.found) for moved in ranks)
    found = [moved.found.ljust(chunks, b"\0") for moved in ranks]
    return Moved(
        id=ranks[0].id,
        done=all(moved.done for moved in ranks),
        found=bytes(map(min, zip(*found, strict=True))),
        bytes=sum(moved.bytes for moved in ranks),
        seconds=max(moved.seconds for moved in ranks),
        waited=max(moved.waited for moved in ranks),
        error=next((moved.error for moved in ranks if moved.error), ""),
        full=any(moved.full for moved in ranks),
    )
