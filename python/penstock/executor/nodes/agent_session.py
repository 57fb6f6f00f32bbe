"""An agent's session with one engine: runs the node's ranks from the engine's first message until
the engine closes its stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from penstock.config import EngineConfig
from penstock.core import PenstockError
from penstock.executor.nodes.messages import (
    Called,
    End,
    Ended,
    Job,
    Made,
    Make,
    Message,
    MessageError,
    Opened,
    RankLoss,
    Refused,
    Start,
    Started,
    Unable,
    decode,
    encode,
    session_key,
)
from penstock.executor.processes import Processes, RankExit
from penstock.executor.ranks import HeartbeatStream, LocalResources, RankTask, keyed
from penstock.executor.transport import AbortHandle

LOOK = 0.25
"""Seconds between checks of the stop flag."""


class RefusedError(PenstockError):
    """Node 0 refuses this node. If `final`, a retry is useless."""

    def __init__(self, reason: str, final: bool) -> None:
        super().__init__(reason)
        self.final = final


@dataclass(frozen=True, slots=True)
class NodeSettings:
    config: EngineConfig
    """Configuration that is local to this node: model path, threads and tiers."""
    directory: Path
    """A directory in memory (tmpfs) for shared files."""
    key: bytes
    engine: str
    """Address and port of node 0, where the engine listens."""
    host: str
    """Address of this node."""


class AgentSession:
    def __init__(self, stream: HeartbeatStream, settings: NodeSettings) -> None:
        self._stream = stream
        self._settings = settings
        self._session = ""
        self._local: LocalResources | None = None
        self._processes: Processes | None = None
        self._abort_handles: Sequence[AbortHandle] = ()
        self._over = False

    def serve(self, stopping: Callable[[], bool]) -> str:
        """Handle the engine's messages until its stream ends; returns the reason of the end. Raises
        RefusedError if the engine refuses this node.
        """
        try:
            while not stopping():
                data = self._stream.receive(LOOK)
                if data is not None:
                    self._handle(data)
            self._over = True
            self._stream.send(encode(Unable("this node was told to end")))
            return "this node was told to end"
        except ConnectionError as error:
            return str(error)
        finally:
            self._close(0.0)
            self._stream.close("the node ended")

    def _handle(self, data: bytes) -> None:
        message = decode(data)
        try:
            answer = self._answer(message)
        except RefusedError:
            raise
        except (PenstockError, OSError) as error:
            answer = Unable(str(error))
        if answer is not None:
            self._stream.send(encode(answer))

    def _answer(self, message: Message) -> Message | None:
        if isinstance(message, Make):
            self._session = message.session
            self._local = LocalResources(self._settings.directory)
            made = self._local.make(message.requests)
            self._local.files.seal()
            return Made(made)
        if isinstance(message, Start):
            return self._start([Job(**job) for job in message.jobs])
        if isinstance(message, Opened) and self._local is not None:
            self._local.close()
        if isinstance(message, End):
            self._close(message.notice)
            return Ended()
        if isinstance(message, Refused):
            raise RefusedError(message.reason, message.final)
        return None

    def _start(self, jobs: list[Job]) -> Started:
        if self._local is None:
            raise MessageError("Start came where Make was due")
        files = self._local.files
        self._abort_handles = files.abort_handles()
        config = self._settings.config
        threads = max(config.compute.threads // len(jobs), 1)
        each = replace(config, compute=replace(config.compute, threads=threads)).to_json()
        self._processes = Processes(
            [self._job(job, each) for job in jobs],
            files.descriptors,
            self._on_exit,
            first=jobs[0].rank,
            host=self._settings.host,
        )
        return Started(self._processes.pids)

    def _job(self, job: Job, config: str) -> str:
        """The rank's job as JSON, in the format that `penstock.executor.worker.process` reads."""
        wiring = keyed(job.wiring, session_key(self._settings.key, self._session))
        task = RankTask(job.rank, job.reads, config, job.shard, wiring)
        stream = {
            "address": self._settings.engine,
            "key": self._settings.key.hex(),
            "greeting": encode(Called(self._session, job.rank)).decode(),
            "limit": job.limit,
        }
        return json.dumps({"task": asdict(task), "capacity": job.capacity, "stream": stream})

    def _on_exit(self, gone: RankExit) -> None:
        """Abort all waits on this node and report the rank's exit to the engine."""
        for handle in self._abort_handles:
            handle.end(gone.reason)
        if not self._over:
            with suppress(ConnectionError):
                self._stream.send(encode(RankLoss(gone.rank, gone.reason, gone.killed)))

    def _close(self, notice: float) -> None:
        self._over = True
        if self._processes is not None:
            self._processes.end(notice)
            self._processes = None
        if self._local is not None:
            self._local.close()
            self._local = None
        self._abort_handles = ()
