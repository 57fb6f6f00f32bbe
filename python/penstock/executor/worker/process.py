"""One rank as a process: `python -P -m penstock.executor.worker`, started by the executors `mp` and
`nodes`.

Standard input is a pipe. Its first line is the job; end of file means that the executor has ended,
for whatever reason.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

from penstock.config import EngineConfig, configure_log
from penstock.executor.ranks import HeartbeatStream, RankTask
from penstock.executor.worker.loop import MessageChannel, Rank, serve

PATIENCE = 600.0
"""Seconds that a rank waits for the executor to read an answer."""
CONNECT = 30.0
"""Timeout in seconds to connect to an executor on another host."""
EXECUTOR_SILENCE = 10.0
"""Seconds without a heartbeat after which the executor counts as lost."""
STDIN = 0
PR_SET_PDEATHSIG = 1

log = logging.getLogger("penstock.executor.worker")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.executor.worker", description="one rank of an engine"
    )
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument(
        "--end-with-starter", action="store_true", help="killed as that thread ends"
    )
    parsed = parser.parse_args(arguments)
    rank: int = parsed.rank
    if parsed.end_with_starter:
        # The kernel kills this rank when the thread that started it ends. If that thread had
        # already ended, end of file on standard input stops the rank.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Ctrl-C and a service manager's stop send signals to whole process groups. Ranks ignore them,
    # because the executor decides when ranks end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    job = json.loads(_line(STDIN))
    configure_log(EngineConfig.from_json(job["task"]["config"]).log, f"%(name)s[{rank}]")
    threading.Thread(target=_end_with, args=(STDIN,), name="parent", daemon=True).start()
    try:
        channel = open_channel(job)
        status = 0 if serve(Rank(RankTask(**job["task"]), channel.capacity), channel) else 1
    except ConnectionError as error:
        log.info("%s", error)
        return 0
    if "stream" in job:
        # Threads of the stream wait in native code, and a normal exit of the interpreter cannot end
        # them.
        logging.shutdown()
        os._exit(status)
    return status


def open_channel(job: dict[str, Any]) -> MessageChannel:
    """Channel to the executor: rings on the same host, else a stream."""
    if "stream" not in job:
        return open_rings(job["plans"], job["answers"])
    stream = open_stream(**job["stream"])
    return MessageChannel(stream, stream, job["capacity"])


def open_stream(address: str, key: str, greeting: str, limit: int) -> HeartbeatStream:
    """Connect to the executor on another host and send the greeting. When the stream ends, this
    process ends.

    `key` is in hexadecimal; `limit` is the maximum message size in bytes.
    """
    from penstock._native import Stream

    stream = Stream.connect(address, bytes.fromhex(key), CONNECT)
    stream.send(greeting.encode())
    return HeartbeatStream(stream, limit, EXECUTOR_SILENCE, lambda _: os._exit(0))


def open_rings(plans: dict[str, Any], answers: dict[str, Any]) -> MessageChannel:
    from penstock._native import RingReader, RingWriter

    reader = RingReader(**plans)
    return MessageChannel(
        reader, RingWriter(**answers, readers=1, patience=PATIENCE), answers["capacity"]
    )


def _line(descriptor: int) -> bytes:
    """Read one line from a pipe, and not until end of file: the pipe stays open."""
    found = bytearray()
    while not found.endswith(b"\n"):
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            break
        found += piece
    return bytes(found)


def _end_with(descriptor: int) -> None:
    """Exit at once when the executor closes its end of the pipe. A normal exit would wait for other
    threads, which may be computing a step.
    """
    while os.read(descriptor, 1):
        pass
    os._exit(0)
