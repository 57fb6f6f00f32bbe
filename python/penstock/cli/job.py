"""Runs one job that a request brought, as a process of its own: the job on standard input, its
outcome on standard output.

Nothing else bounds what such a job takes: a template doubles a string forty times, a grammar has as
many states as a number in it. The limits end this process, and with it the work.
"""

from __future__ import annotations

import os
import resource
import sys

MEMORY = 1 << 30
"""Bytes of addresses, Python's own among them; more are refused, which ends the process."""
SECONDS = {"template": 20, "grammar": 3}
"""Seconds of processor time. An ordinary template takes milliseconds, and so does a grammar."""

NICENESS = {"template": 19, "grammar": 0}
"""The server and its engine come before templates of requests, which may loop for seconds."""


def main() -> None:
    (kind,) = sys.argv[1:]
    seconds = SECONDS[kind]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS[kind])
    from penstock import _native

    run = {"template": _native.run_template, "grammar": _native.try_grammar}[kind]
    sys.stdout.write(run(sys.stdin.read()))


if __name__ == "__main__":
    main()
