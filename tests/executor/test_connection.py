"""What is said of a lost connection, when the explanation is later than the end of a stream."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import pytest

from penstock.executor import WorkersLostError
from penstock.executor import connection as connection_module
from penstock.executor.connection import GRACE, RankConnection
from penstock.executor.processes import RankExit
from penstock.executor.transport import Transport

RESET = "connection reset by peer"


class Broken:
    """Plans and answers of a rank whose process has gone."""

    def send(self, message: bytes) -> None:
        raise ConnectionError(RESET)

    def receive(self, timeout: float) -> bytes | None:
        raise ConnectionError(RESET)

    def ready(self) -> bool:
        return False


class Members:
    pids: list[int] = []  # noqa: RUF012

    def all_ended(self, timeout: float) -> bool:
        return True

    def end(self, notice: float = 0.0) -> None: ...


def connection() -> RankConnection:
    transport = Transport(plans=Broken(), answers=[Broken()])
    return RankConnection(transport, Members(), ExitStack(), lambda *_: None)


@pytest.mark.parametrize("what", ["plans", "answers"])
def test_a_broken_connection_is_told_as_what_broke_it(what: str) -> None:
    """Later than ranks have to end, as on a busy machine."""
    lost = connection()
    kill = RankExit(0, "rank 0 was killed by signal 9 (SIGKILL)", time.monotonic(), killed=True)
    explained = threading.Timer(2 * GRACE, lost.transport.on_exit, [kill])
    explained.start()
    with pytest.raises(WorkersLostError, match=r"rank 0 was killed by signal 9 \(SIGKILL\)$"):
        lost.send(b"plan") if what == "plans" else lost.pump(0, 60.0)
    explained.join()


def test_without_an_explanation_the_end_of_the_connection_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "EXPLANATION", 0.01)
    with pytest.raises(WorkersLostError, match=RESET):
        connection().pump(0, 60.0)
