"""Patterns of messages among worker processes, over rings or streams."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from penstock._native import StreamListener
from penstock.config import shared_memory_directory
from penstock.core import PenstockError
from penstock.executor.ranks import SharedFiles, join_address
from penstock_lab.bench.channels.links import (
    CELLS,
    PATIENCE,
    Link,
    RingLink,
    StreamLink,
    reader,
    writer,
)

WORKER = (sys.executable, "-P", "-m", "penstock_lab.bench.channels.worker")
END = 10.0
"""Seconds for a worker to end after SIGTERM, before it is killed."""


@dataclass(frozen=True, slots=True)
class WorkerLaunch:
    """How workers are started, and how they and this process reach each other."""

    prefix: Sequence[str] = ()
    """Words before a worker's command, such as `ip netns exec NAME` or `ssh HOST`."""
    address: str = "127.0.0.1"
    """Address at which workers reach this process."""
    worker_address: str = "127.0.0.1"
    """Address at which workers reach each other."""


class Workers:
    """`count` worker processes in sequence (`chain`) or in parallel. A context manager, which ends
    them.
    """

    def __init__(
        self, kind: str, count: int, capacity: int, launch: WorkerLaunch, *, chain: bool
    ) -> None:
        self._kind, self._count, self._capacity = kind, count, capacity
        self._launch, self._chain = launch, chain
        self._stack = ExitStack()
        self._children: list[subprocess.Popen[str]] = []
        self._first: list[Link] = []
        self._last: list[Link] = []

    def __enter__(self) -> Workers:
        with ExitStack() as stack:
            self._stack = stack
            if self._kind == "ring":
                self._open_rings()
            else:
                self._open_streams()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def exchange(self, message: bytes) -> list[bytes]:
        """Send a message to the first worker of each chain; returns the messages of the last
        workers.
        """
        try:
            for link in self._first:
                link.send(message)
            return [link.receive() for link in self._last]
        except (ConnectionError, TimeoutError) as error:
            ended = [child.returncode for child in self._children if child.poll() is not None]
            raise PenstockError(f"a worker was lost ({error}); exit statuses: {ended}") from error

    def _open_rings(self) -> None:
        files = SharedFiles(shared_memory_directory(), str(os.getpid()))
        self._stack.callback(files.close)
        lengths = [self._count] if self._chain else [1] * self._count
        chains = [
            [files.ring(1, CELLS, self._capacity) for _ in range(length + 1)] for length in lengths
        ]
        files.seal("--sizes or --workers")
        for rings in chains:
            # Both ends of the ring are opened here, before a worker can wait for them.
            self._first.append(RingLink(writer(rings[0]), None))
            self._last.append(RingLink(None, reader(rings[-1])))
            for before, after in pairwise(rings):
                self._start({"kind": "ring", "before": before, "after": after})

    def _open_streams(self) -> None:
        key = secrets.token_bytes(32)
        listener = StreamListener(join_address(self._launch.address, 0), key)
        common = {
            "kind": "stream",
            "key": key.hex(),
            "capacity": self._capacity,
            "host": self._launch.worker_address,
        }

        def accept() -> StreamLink:
            return StreamLink(listener.accept(PATIENCE), self._capacity)

        if not self._chain or self._count == 1:
            for _ in range(self._count):
                self._start({**common, "before": listener.address, "after": "same"})
                self._first.append(accept())
            self._last = self._first
            return
        before = listener.address
        for at in range(self._count):
            last = at == self._count - 1
            after = listener.address if last else "listen"
            child = self._start({**common, "before": before, "after": after})
            if at == 0:
                self._first.append(accept())
            if last:
                self._last.append(accept())
            else:
                assert child.stdout is not None
                before = child.stdout.readline().strip()

    def _start(self, job: dict[str, Any]) -> subprocess.Popen[str]:
        words = [*self._launch.prefix, *WORKER]
        pipe = subprocess.PIPE
        child = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        self._stack.callback(_end, child)
        self._children.append(child)
        assert child.stdin is not None
        child.stdin.write(json.dumps(job) + "\n")
        child.stdin.flush()
        return child


def _end(child: subprocess.Popen[str]) -> None:
    child.terminate()
    try:
        child.wait(END)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
