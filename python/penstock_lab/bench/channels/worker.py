"""A worker process: passes each message from the preceding link to the following one.

Its job is a line of JSON on standard input. If the following link is a stream to another worker,
the worker prints the address at which it listens on standard output.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

from penstock._native import Stream, StreamListener
from penstock.executor.ranks import join_address
from penstock_lab.bench.channels.links import (
    PATIENCE,
    Link,
    RingLink,
    StreamLink,
    reader,
    writer,
)


def relay(before: Link, after: Link) -> NoReturn:
    """Pass on messages until a link breaks or the process is ended."""
    while True:
        after.send(before.receive())


def ring_links(job: dict[str, Any]) -> tuple[Link, Link]:
    return RingLink(None, reader(job["before"])), RingLink(writer(job["after"]), None)


def stream_links(job: dict[str, Any]) -> tuple[Link, Link]:
    key, limit = bytes.fromhex(job["key"]), job["capacity"]

    def connect(address: str) -> StreamLink:
        return StreamLink(Stream.connect(address, key, PATIENCE), limit)

    before = connect(job["before"])
    if job["after"] == "same":
        return before, before
    if job["after"] != "listen":
        return before, connect(job["after"])
    listener = StreamListener(join_address(job["host"], 0), key)
    print(listener.address, flush=True)
    return before, StreamLink(listener.accept(PATIENCE), limit)


def main() -> NoReturn:
    job = json.loads(sys.stdin.readline())
    links = ring_links if job["kind"] == "ring" else stream_links
    relay(*links(job))


if __name__ == "__main__":
    main()
