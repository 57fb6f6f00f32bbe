"""Runs the chat template of one request: the job on standard input, its outcome on standard output.

The server starts this module as a process of its own, because nothing else bounds the values that a
template builds: a string doubled forty times would fill the memory of the server.
"""

from __future__ import annotations

import os
import resource
import sys

MEMORY = 1 << 30
"""Bytes of addresses, Python's own among them; more are refused, which ends the process."""
SECONDS = 20
"""Seconds of processor time. An ordinary template takes milliseconds."""
NICENESS = 19
"""The server and its engine come first."""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    from penstock._native import run_template

    sys.stdout.write(run_template(sys.stdin.read()))


if __name__ == "__main__":
    main()
