"""The ranks of a node for one engine, from its first word to the end of its line."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from penstock.config import EngineConfig
from penstock.core import PenstockError, RankTask
from penstock.executor.exits import Exit
from penstock.executor.nodes.messages import (
    Called,
    End,
    Ended,
    Gone,
    Job,
    Made,
    Make,
    Message,
    MessageError,
    Opened,
    Refused,
    Start,
    Started,
    Unable,
    decode,
    encode,
    session_key,
)
from penstock.executor.processes import Processes
from penstock.executor.ranks import Fence
from penstock.executor.wiring import keyed
from penstock.ranks import Line, LocalParts

LOOK = 0.25
"""Seconds between looks whether this node is to end."""


class RefusedError(PenstockError):
    """Node 0 will not have this node: now, or whenever it calls (`final`)."""

    def __init__(self, reason: str, final: bool) -> None:
        super().__init__(reason)
        self.final = final


@dataclass(frozen=True, slots=True)
class Place:
    """What a node brings for its ranks."""

    worker: str
    """The module that is run for each."""
    config: EngineConfig
    """Its own: path of the model, threads, tiers."""
    directory: Path
    """In memory."""
    key: bytes
    engine: str
    """Address and port of node 0."""
    host: str
    """Address of this node."""


class Visit:
    def __init__(self, line: Line, place: Place) -> None:
        self._line = line
        self._place = place
        self._session = ""
        self._parts: LocalParts | None = None
        self._processes: Processes | None = None
        self._fences: Sequence[Fence] = ()
        self._over = False

    def serve(self, stopping: Callable[[], bool]) -> str:
        """Do as the engine says until its line ends; why it did. RefusedError when it wants no such
        node.
        """
        try:
            while not stopping():
                data = self._line.receive(LOOK)
                if data is not None:
                    self._obey(data)
            self._over = True
            self._line.send(encode(Unable("this node was told to end")))
            return "this node was told to end"
        except ConnectionError as error:
            return str(error)
        finally:
            self._close(0.0)
            self._line.close("the node ended")

    def _obey(self, data: bytes) -> None:
        message = decode(data)
        try:
            answer = self._answer(message)
        except RefusedError:
            raise
        except (PenstockError, OSError) as error:
            answer = Unable(str(error))
        if answer is not None:
            self._line.send(encode(answer))

    def _answer(self, message: Message) -> Message | None:
        if isinstance(message, Make):
            self._session = message.session
            self._parts = LocalParts(self._place.directory)
            return Made(self._parts.make(message.wanted))
        if isinstance(message, Start):
            return self._start([Job(**job) for job in message.jobs])
        if isinstance(message, Opened) and self._parts is not None:
            self._parts.close()
        if isinstance(message, End):
            self._close(message.notice)
            return Ended()
        if isinstance(message, Refused):
            raise RefusedError(message.reason, message.final)
        return None

    def _start(self, jobs: list[Job]) -> Started:
        if self._parts is None:
            raise MessageError("Start came where Make was due")
        files = self._parts.files
        self._fences = files.fences()
        place = self._place
        threads = max(place.config.compute.threads // len(jobs), 1)
        config = replace(
            place.config, compute=replace(place.config.compute, threads=threads)
        ).to_json()
        texts = [self._job(job, config) for job in jobs]
        self._processes = Processes(
            place.worker,
            texts,
            files.descriptors,
            self._on_exit,
            first=jobs[0].rank,
            host=place.host,
        )
        return Started(self._processes.pids)

    def _job(self, job: Job, config: str) -> str:
        """As `penstock.worker.process` reads it."""
        wiring = keyed(job.wiring, session_key(self._place.key, self._session))
        task = RankTask(job.rank, job.reads, config, job.num_blocks, job.shard, wiring)
        line = {
            "address": self._place.engine,
            "key": self._place.key.hex(),
            "greeting": encode(Called(self._session, job.rank)).decode(),
            "limit": job.limit,
        }
        return json.dumps({"task": asdict(task), "capacity": job.capacity, "line": line})

    def _on_exit(self, gone: Exit) -> None:
        """Nobody on this node waits for a rank that is gone, and the engine hears of it."""
        for fence in self._fences:
            fence.end(gone.how)
        if not self._over:
            with suppress(ConnectionError):
                self._line.send(encode(Gone(gone.rank, gone.how, gone.killed)))

    def _close(self, notice: float) -> None:
        self._over = True
        if self._processes is not None:
            self._processes.end(notice)
            self._processes = None
        if self._parts is not None:
            self._parts.close()
            self._parts = None
        self._fences = ()
