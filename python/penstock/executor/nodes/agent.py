"""Agent of a node other than 0: connects to node 0, reconnects after each engine, and runs this
node's ranks for that engine, until it is stopped.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from penstock.config import EngineConfig, split_address
from penstock.executor.nodes.agent_session import AgentSession, NodeSettings, RefusedError
from penstock.executor.nodes.heartbeat import Heartbeat
from penstock.executor.nodes.messages import LIMIT, PROTOCOL, Hello, MessageError, encode
from penstock.executor.ranks import HeartbeatStream, join_address

CONNECT = 5.0
"""Timeout in seconds of one attempt to connect to node 0."""
FIRST_WAIT = 0.25
LONGEST_WAIT = 2.0
"""Maximum seconds between two attempts to connect to node 0: about the time in which node 0
replaces a failed engine.
"""
SAY = 30.0
"""Minimum seconds between two log lines about the same problem."""
SILENCE = 5.0
"""Seconds without a heartbeat after which the engine counts as lost and this node's ranks are
ended.
"""

log = logging.getLogger("penstock.node")


class NodeAgent:
    """Agent of one node. `key` authenticates its streams. `fingerprint` has the settings that all
    nodes must share. `heartbeats` is the directory for the node's heartbeat file.
    """

    def __init__(
        self,
        config: EngineConfig,
        directory: Path,
        key: bytes,
        fingerprint: Mapping[str, str],
        heartbeats: Path,
    ) -> None:
        self._config = config
        self._directory = directory
        self._heartbeats = heartbeats
        self._key = key
        self._fingerprint = {**fingerprint, **PROTOCOL}
        self._stopping = threading.Event()
        self._heartbeat: Heartbeat | None = None
        self._trouble = ""
        self._said = 0.0

    def stop(self) -> None:
        """End this node's ranks and make `run` return. Safe to call from a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Run until `stop`. Raises RefusedError if node 0 refuses this node permanently."""
        wait = FIRST_WAIT
        self._heartbeat = Heartbeat(self._heartbeats, self._config.parallel.node_rank)
        try:
            while not self._is_stopping():
                wait = FIRST_WAIT if self._serve_engine() else min(wait * 2, LONGEST_WAIT)
                self._stopping.wait(wait)
        finally:
            self._heartbeat.close()

    def _is_stopping(self) -> bool:
        """Whether `stop` was called. Also updates the heartbeat file, because every loop of the
        agent calls this.
        """
        if self._heartbeat is not None:
            self._heartbeat.beat()
        return self._stopping.is_set()

    def _serve_engine(self) -> bool:
        """Connect to node 0 and serve its engine until the connection ends. Returns False if node 0
        was not reached, or refuses this node for now.
        """
        parallel = self._config.parallel
        try:
            engine, stream, host = self._call()
        except ConnectionError as error:
            name = f"node 0 at {parallel.master}"
            self._complain(f"{name} turned this node away: {error}. Is the token the same on both?")
            return False
        except (OSError, ValueError) as error:  # Raised by name resolution or by sockets.
            self._complain(f"node 0 at {parallel.master} cannot be reached: {error}")
            return False
        log.info("node %d (%s) has called node 0 at %s", parallel.node_rank, host, engine)
        settings = NodeSettings(self._config, self._directory, self._key, engine, host)
        try:
            reason = AgentSession(stream, settings).serve(self._is_stopping)
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

    def _call(self) -> tuple[str, HeartbeatStream, str]:
        """Connect to node 0 and send `Hello`. Returns node 0's address, the stream, and this node's
        own address.
        """
        from penstock._native import Stream

        parallel = self._config.parallel
        found = socket.getaddrinfo(*split_address(parallel.master), type=socket.SOCK_STREAM)
        family, _, _, _, target = found[0]
        called = str(target[0])
        engine = join_address(called, int(target[1]))
        stream = Stream.connect(engine, self._key, CONNECT)
        host = own_address(family, target)
        stream.send(encode(Hello(parallel.node_rank, host, called, self._fingerprint)))
        return engine, HeartbeatStream(stream, LIMIT, SILENCE, lambda _: None), host

    def _complain(self, trouble: str) -> None:
        """Log a new problem at once, then again every `SAY` seconds while it lasts."""
        now = time.monotonic()
        if trouble != self._trouble or now - self._said >= SAY:
            log.warning("%s; calling again", trouble)
            self._trouble, self._said = trouble, now


def own_address(family: int, target: object) -> str:
    """The local address from which packets to `target` would be sent. Sends nothing."""
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.connect(target)  # type: ignore[arg-type]
        return str(asking.getsockname()[0])
