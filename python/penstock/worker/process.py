"""One rank as a process: `python -P -m penstock.worker`, started by the executors `mp` and `nodes`.

Its standard input is a pipe that the executor holds open: first comes a line with its job, later
its end, which is the executor's end and so this process's too, however the executor died.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from penstock.config import EngineConfig
from penstock.core import RankTask, WorkerFacts
from penstock.core.answers import Ready, encode_answer
from penstock.model import load_model
from penstock.ranks import Line
from penstock.worker.decoder import Worker as DecoderWorker
from penstock.worker.decoder import create
from penstock.worker.failing import failure
from penstock.worker.loop import MessageChannel, Worker, serve
from penstock.worker.moving import Channel

PATIENCE = 600.0
"""Seconds that the executor may take to read an answer."""
CONNECT = 30.0
"""Seconds in which an executor on another host answers a call."""
EXECUTOR_SILENCE = 10.0
"""Seconds without a sign of life after which it is taken for gone. It may be slow: nobody waits."""
STDIN = 0
PR_SET_PDEATHSIG = 1

log = logging.getLogger("penstock.worker")


class LoadedWorker(Worker, Protocol):
    @property
    def facts(self) -> WorkerFacts: ...


Load = Callable[[RankTask], LoadedWorker]
T = TypeVar("T", bound=LoadedWorker)


def main(arguments: Sequence[str] | None = None, load: Load | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.worker", description="one rank of an engine"
    )
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument(
        "--end-with-starter", action="store_true", help="killed as that thread ends"
    )
    parsed = parser.parse_args(arguments)
    rank: int = parsed.rank
    if parsed.end_with_starter:
        # A starter that is gone already shows at the end of standard input.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Ctrl-C and the end of a service reach whole groups of processes; the executor decides when
    # ranks end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(format=f"%(name)s[{rank}]: %(message)s", stream=sys.stderr)
    job = json.loads(_line(STDIN))
    threading.Thread(target=_end_with, args=(STDIN,), name="parent", daemon=True).start()
    try:
        return _live(job, load or load_rank)
    except ConnectionError as error:
        log.info("%s", error)
        return 0


def load_rank(task: RankTask) -> DecoderWorker:
    config = EngineConfig.from_json(task.config)
    rank = (task.shard, task.wiring)
    return create(config, load_model(Path(config.model.path)), task.num_blocks, rank)


def _live(job: dict[str, Any], load: Load) -> int:
    status = live(RankTask(**job["task"]), open_channel(job), load)
    if "line" in job:
        # Its threads wait for the stream, which an exit of the interpreter cannot end.
        os._exit(status)
    return status


def live(task: RankTask, channel: Channel, load: Load) -> int:
    """Load, say so, and compute until there are no more plans; an exit status."""
    worker, answer = prepare(task, load, channel.capacity)
    channel.answer(answer)
    return 0 if worker is not None and serve(channel, worker, task.rank, task.reads) else 1


def prepare(task: RankTask, load: Callable[[RankTask], T], capacity: int) -> tuple[T | None, bytes]:
    """The loaded worker with what the engine is told about it, or about why there is none."""
    try:
        worker = load(task)
    except Exception as error:  # noqa: BLE001 - whatever it was, the engine hears of it
        return None, encode_answer(failure(task.rank, 0, error), capacity)
    # What is loaded stays, and steps leave no cycles: the collector has nothing to do here.
    gc.collect()
    gc.freeze()
    gc.disable()
    return worker, encode_answer(Ready(worker.facts))


def open_channel(job: dict[str, Any]) -> MessageChannel:
    """To the executor: rings on its own host, a line from another one."""
    if "line" not in job:
        return open_rings(job["plans"], job["answers"])
    line = open_line(**job["line"])
    return MessageChannel(line, line, job["capacity"])


def open_line(address: str, key: str, greeting: str, limit: int) -> Line:
    """Call the executor on another host and say who this is. This process ends with the line.

    `key` is in hexadecimal, `limit` the bytes of a message at most.
    """
    from penstock._native import Stream

    stream = Stream.connect(address, bytes.fromhex(key), CONNECT)
    stream.send(greeting.encode())
    return Line(stream, limit, EXECUTOR_SILENCE, lambda _: os._exit(0))


def open_rings(plans: dict[str, Any], answers: dict[str, Any]) -> MessageChannel:
    from penstock._native import RingReader, RingWriter

    reader = RingReader(**plans)
    return MessageChannel(
        reader, RingWriter(**answers, readers=1, patience=PATIENCE), answers["capacity"]
    )


def _line(descriptor: int) -> bytes:
    """The one line that the executor writes; nothing follows it but the pipe's end."""
    found = bytearray()
    while not found.endswith(b"\n"):
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            break
        found += piece
    return bytes(found)


def _end_with(descriptor: int) -> None:
    """The executor is gone when its end of the pipe is; `os._exit` because other threads may be in
    a step.
    """
    while os.read(descriptor, 1):
        pass
    os._exit(0)
