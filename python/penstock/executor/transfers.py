"""KV transfers on several ranks. A transfer is complete once all ranks have answered."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from penstock.core import PenstockError
from penstock.core.transfer import OpenTiers, Transfer, TransferKind, TransferResult
from penstock.executor.connection import GRACE, LOOK, RankConnection
from penstock.executor.contract import WorkersLostError
from penstock.executor.ranks.messages import Answer, MoverClosed, MoverReport, TransferResults
from penstock.executor.ranks.transfers import END, encode_open, encode_transfer


class RankTransfers:
    """Implementation of `TransferExecutor` (`contract.py`) for several ranks."""

    def __init__(self, ranks: int, connection: RankConnection) -> None:
        self._ranks = range(ranks)
        self._connection = connection
        self._tracker = TransferTracker(ranks)
        self._reports: dict[int, str] = {}
        self._closed: set[int] = set()
        self._flush_s = 0.0
        self.known_steps = 0
        """Number of steps since the tiers were opened whose results the engine has received. A rank
        starts a transfer only after it has computed that number of steps.
        """

    def open_tiers(self, tiers: OpenTiers) -> None:
        self._connection.send(encode_open(tiers))
        for rank in self._ranks:
            # A failing rank sends its error before it ends, and that error ends this wait.
            while rank not in self._reports:
                self._connection.pump(rank, LOOK)
        self._flush_s, self.known_steps = tiers.flush_s, 0

    def transfer(self, transfer: Transfer) -> None:
        if transfer.kind != TransferKind.CANCEL:
            self._tracker.begin(transfer.id)
        self._connection.send(encode_transfer(transfer, self.known_steps))

    def moved(self) -> list[TransferResult]:
        self._connection.check()
        for rank in self._ranks:
            while self._connection.ready(rank) and self._connection.pump(rank, 0.0):
                pass
        return self._tracker.take()

    def mover_reports(self) -> tuple[str, ...]:
        return tuple(self._reports[rank] for rank in sorted(self._reports))

    def on_answer(self, rank: int, answer: Answer) -> None:
        if isinstance(answer, TransferResults):
            self._tracker.add(rank, answer.results)
        elif isinstance(answer, MoverReport):
            self._reports[rank] = answer.report
        elif isinstance(answer, MoverClosed):
            self._closed.add(rank)

    def close(self) -> None:
        """Wait until all ranks have written pending stores or the flush deadline has passed."""
        if not self._reports:
            return
        deadline = time.monotonic() + self._flush_s + GRACE
        with suppress(WorkersLostError):  # After a loss there is nothing to write.
            self._connection.send(END)
            while len(self._closed) < len(self._ranks) and time.monotonic() < deadline:
                for rank in set(self._ranks) - self._closed:
                    self._connection.pump(rank, LOOK)
        self._reports.clear()


class TransferTracker:
    """Collects the results of transfers in flight on `ranks` ranks."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._open: dict[int, dict[int, TransferResult]] = {}
        self._over: list[TransferResult] = []

    def begin(self, transfer_id: int) -> None:
        self._open[transfer_id] = {}

    def add(self, rank: int, batch: Iterable[TransferResult]) -> None:
        """Add a rank's results. Raises PenstockError if the rank answers a transfer that is not in
        flight, or answers a transfer twice.
        """
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

    def take(self) -> list[TransferResult]:
        over, self._over = self._over, []
        return over


def join(ranks: Sequence[TransferResult]) -> TransferResult:
    """Combine the results of all ranks for one transfer (see `TransferExecutor.moved`). A rank
    whose lookup failed counts as not having the chunk.
    """
    chunks = max(len(moved.found) for moved in ranks)
    found = [moved.found.ljust(chunks, b"\0") for moved in ranks]
    return TransferResult(
        id=ranks[0].id,
        done=all(moved.done for moved in ranks),
        found=bytes(map(min, zip(*found, strict=True))),
        bytes=sum(moved.bytes for moved in ranks),
        seconds=max(moved.seconds for moved in ranks),
        waited=max(moved.waited for moved in ranks),
        error=next((moved.error for moved in ranks if moved.error), ""),
        fault=max(moved.fault for moved in ranks),
        left=b"".join(moved.left for moved in ranks),
    )
