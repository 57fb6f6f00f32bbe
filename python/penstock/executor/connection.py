"""The engine's connection to all ranks: sends messages, receives answers, and stops all ranks if
one is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import NoReturn, Protocol

from penstock.executor.contract import WorkersLostError
from penstock.executor.ranks.messages import Answer, Failed, decode_answer
from penstock.executor.transport import Transport

LOOK = 0.2
"""Seconds to wait for one rank's answer before the answers of the other ranks are checked."""
GRACE = 0.5
"""Grace period in seconds after a rank has failed: the other ranks may fail in the same step, or
report why they ended.
"""

EXPLANATION = 5.0
"""After a connection has closed, maximum seconds to wait for the report of why the rank ended.
Generous, because a busy machine reports late.
"""

log = logging.getLogger("penstock.executor")


class Members(Protocol):
    """The processes or actors of all ranks."""

    @property
    def pids(self) -> list[int]: ...

    def all_ended(self, timeout: float) -> bool: ...

    def end(self, notice: float = ...) -> None: ...


class RankConnection:
    """Connection to all ranks. `on_answer` is called with the rank and each of its answers.
    `cleanup` stops the ranks and frees their communication resources.
    """

    def __init__(
        self,
        transport: Transport,
        members: Members,
        cleanup: ExitStack,
        on_answer: Callable[[int, Answer], None],
    ) -> None:
        self.transport = transport
        self.members = members
        self._cleanup = cleanup
        self._on_answer = on_answer
        self._lost: WorkersLostError | None = None

    def check(self) -> None:
        if self._lost is None and self.transport.exit is not None:
            self.lose(self.transport.exit.reason)
        if self._lost is not None:
            raise self._lost

    def send(self, message: bytes) -> None:
        """Send a message to all ranks. Raises WorkersLostError if a rank is lost."""
        self.check()
        assert self.transport.plans is not None
        try:
            self.transport.plans.send(message)
        except ConnectionError as error:
            self._lose_connection(error)

    def ready(self, rank: int) -> bool:
        return self.transport.answers[rank].ready()

    def pump(self, rank: int, timeout: float) -> bool:
        """Wait for the rank's next answer and pass it to `on_answer`; returns False if none arrives
        within `timeout` seconds.
        """
        try:
            message = self.transport.answers[rank].receive(timeout)
        except ConnectionError as error:
            self._lose_connection(error)
        if message is None:
            return False
        answer = decode_answer(message)
        if isinstance(answer, Failed) and answer.fatal:
            self.lose(answer.message, answer)
        self._on_answer(rank, answer)
        return True

    def close(self) -> None:
        self._cleanup.close()

    def _lose_connection(self, error: ConnectionError) -> NoReturn:
        """End all ranks after a connection has closed. The thread that watches the ranks reports
        the reason; wait for that first.
        """
        self.transport.await_exit(EXPLANATION)
        self.lose(str(error))

    def lose(self, reason: str, answer: Failed | None = None) -> NoReturn:
        """End all ranks, and raise WorkersLostError with the error of the rank that failed first.
        `reason` is used if neither a rank's failure nor its exit is known; `answer` is a failure
        that has already been received.
        """
        self.transport.abort(reason)
        self.members.all_ended(GRACE)
        failures = [*self._last_words(), *([answer] if answer else [])]
        causes = [failed for failed in failures if not failed.derived]
        first = min(causes, key=lambda failed: failed.at, default=None)
        gone = self.transport.exit
        # A rank's own failure always precedes its exit, even if the timestamps suggest otherwise.
        if first is not None and (gone is None or first.rank == gone.rank or first.at < gone.at):
            where = f" in step {first.step}" if first.step else ""
            if first.trace:
                log.error("rank %d failed%s:\n%s", first.rank, where, first.trace)
            reason = f"rank {first.rank} failed{where}: {first.message}"
        elif gone is not None:
            reason = gone.reason
        self.members.end(0.0)
        self._lost = WorkersLostError(reason)
        raise self._lost

    def _last_words(self) -> list[Failed]:
        """Failures among the answers that were not read yet."""
        found = []
        for answers in self.transport.answers:
            while answers.ready() and (message := answers.receive(0.0)) is not None:
                answer = decode_answer(message)
                if isinstance(answer, Failed):
                    found.append(answer)
        return found
