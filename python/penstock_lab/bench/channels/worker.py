"""A worker process: passes each message from the preceding link to the following one.

Its job is a line of JSON on standard input. If the preceding link is a stream, the worker prints
the address to connect to on standard output. An empty message ends the worker.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from penstock._native import Stream, StreamListener
from penstock_lab.bench.channels.links import (
    PATIENCE,
    Link,
    RingLink,
    StreamLink,
    reader,
    writer,
)


def relay(before: Link, after: Link) -> None:
    """Pass on all messages up to and including the empty message, which ends the loop."""
    while message := before.receive():
        after.send(message)
    after.send(b"")


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
    listener = StreamListener(f"{job['host']}:0", key)
    print(listener.address, flush=True)
    return before, StreamLink(listener.accept(PATIENCE), limit)


def main() -> int:
    job = json.loads(sys.stdin.readline())
    links = ring_links if job["kind"] == "ring" else stream_links
    relay(*links(job))
    return 0


if __name__ == "__main__":
    sys.exit(main())
