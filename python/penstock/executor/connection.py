"""Connection to all ranks: sends messages, receives answers, and ends all ranks if one is lost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import NoReturn, Protocol

from penstock.executor.contract import WorkersLostError
from penstock.executor.ranks.messages import Answer, Failed, decode_answer
from penstock.executor.transport import Transport

LOOK = 0.2
"""Seconds of waiting for one rank before the answers of the others are checked."""
GRACE = 0.5
"""Seconds that other ranks get to fail in the same step, or to send the reason of their end."""

EXPLANATION = 5.0
"""Maximum seconds to wait for the reason of a closed connection; long, for busy machines."""

log = logging.getLogger("penstock.executor")


class Members(Protocol):
    """Processes or actors of the ranks."""

    @property
    def pids(self) -> list[int]: ...

    def all_ended(self, timeout: float) -> bool: ...

    def end(self, notice: float = ...) -> None: ...


class RankConnection:
    """Connection to all ranks. `on_answer` is called with each answer and its rank. `cleanup` ends
    the ranks and frees their communication resources.
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
        """Send to all ranks."""
        self.check()
        assert self.transport.plans is not None
        try:
            self.transport.plans.send(message)
        except ConnectionError as error:
            self._lose_connection(error)

    def ready(self, rank: int) -> bool:
        return self.transport.answers[rank].ready()

    def pump(self, rank: int, timeout: float) -> bool:
        """Pass the rank's next answer to `on_answer`; returns False if none arrived in time."""
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
        """Raise the reason of the loss, which the thread that watches the ranks reports."""
        self.transport.await_exit(EXPLANATION)
        self.lose(str(error))

    def lose(self, reason: str, answer: Failed | None = None) -> NoReturn:
        """End all ranks and raise the error of the rank that failed first."""
        self.transport.abort(reason)
        self.members.all_ended(GRACE)
        failures = [*self._last_words(), *([answer] if answer else [])]
        causes = [failed for failed in failures if not failed.derived]
        first = min(causes, key=lambda failed: failed.at, default=None)
        gone = self.transport.exit
        # A rank's failure precedes its exit, whatever the clocks show.
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
        """Failures among the unread answers."""
        found = []
        for answers in self.transport.answers:
            while answers.ready() and (message := answers.receive(0.0)) is not None:
                answer = decode_answer(message)
                if isinstance(answer, Failed):
                    found.append(answer)
        return found
