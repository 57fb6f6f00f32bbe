"""A node other than 0: it calls node 0, again and again, and runs ranks for each engine that is
there.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from penstock.config import EngineConfig, split_address
from penstock.executor.nodes.messages import LIMIT, PROTOCOL_CARD, Hello, MessageError, encode
from penstock.executor.nodes.visit import Place, RefusedError, Visit
from penstock.ranks import Line, join_address

CONNECT = 5.0
"""Seconds of one call."""
FIRST_WAIT = 0.25
LONGEST_WAIT = 2.0
"""Seconds between calls; node 0 needs about as long to replace an engine."""
SAY = 30.0
"""Seconds between two mentions of the same trouble."""
SILENCE = 5.0
"""Seconds without a sign of life after which the engine counts as gone, and the ranks here end."""

log = logging.getLogger("penstock.node")


class NodeAgent:
    """`worker` names the module that is run for each rank, `card` is what must be the same on all
    nodes.
    """

    def __init__(
        self,
        worker: str,
        config: EngineConfig,
        directory: Path,
        key: bytes,
        card: Mapping[str, str],
    ) -> None:
        self._worker = worker
        self._config = config
        self._directory = directory
        self._key = key
        self._card = {**card, **PROTOCOL_CARD}
        self._stopping = threading.Event()
        self._trouble = ""
        self._said = 0.0

    def stop(self) -> None:
        """`run` returns soon, without ranks. May be called by a signal's handler."""
        self._stopping.set()

    def run(self) -> None:
        """Until `stop`; RefusedError when node 0 says that calling again is of no use."""
        wait = FIRST_WAIT
        while not self._stopping.is_set():
            wait = FIRST_WAIT if self._visit() else min(wait * 2, LONGEST_WAIT)
            self._stopping.wait(wait)

    def _visit(self) -> bool:
        """Whether node 0 was there."""
        parallel = self._config.parallel
        try:
            engine, line, host = self._call()
        except ConnectionError as error:
            name = f"node 0 at {parallel.master}"
            self._complain(f"{name} turned this node away: {error}. Is the token the same on both?")
            return False
        except (OSError, ValueError) as error:  # Of names, of sockets.
            self._complain(f"node 0 at {parallel.master} cannot be reached: {error}")
            return False
        log.info("node %d (%s) has called node 0 at %s", parallel.node_rank, host, engine)
        place = Place(self._worker, self._config, self._directory, self._key, engine, host)
        try:
            reason = Visit(line, place).serve(self._stopping.is_set)
        except RefusedError as error:
            if error.final:
                raise
            self._complain(str(error))
            return False
        except MessageError as error:
            reason = str(error)
        self._trouble = ""
        if self._stopping.is_set():
            log.info("this node was told to end; its ranks have ended")
        else:
            log.info("node 0 has gone: %s; the ranks of this node have ended", reason)
        return True

    def _call(self) -> tuple[str, Line, str]:
        """Address of the engine, a line to it on which this node has said who it is, its own
        address.
        """
        from penstock._native import Stream

        parallel = self._config.parallel
        found = socket.getaddrinfo(*split_address(parallel.master), type=socket.SOCK_STREAM)
        family, _, _, _, target = found[0]
        called = str(target[0])
        engine = join_address(called, int(target[1]))
        stream = Stream.connect(engine, self._key, CONNECT)
        host = own_address(family, target)
        stream.send(encode(Hello(parallel.node_rank, host, called, self._card)))
        return engine, Line(stream, LIMIT, SILENCE, lambda _: None), host

    def _complain(self, trouble: str) -> None:
        """Once, and again from time to time while it stays."""
        now = time.monotonic()
        if trouble != self._trouble or now - self._said >= SAY:
            log.warning("%s; calling again", trouble)
            self._trouble, self._said = trouble, now


def own_address(family: int, target: object) -> str:
    """Of this host, as packets to `target` carry it. Nothing is sent."""
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.connect(target)  # type: ignore[arg-type]
        return str(asking.getsockname()[0])
