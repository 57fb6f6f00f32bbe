"""Runs one job of a request (rendering a chat template, or compiling a grammar) in a separate
process: the job is read from standard input, and the result is written to standard output.

The process exists because nothing else limits such a job: a template can double a string forty
times, and a repetition count in a grammar sets its number of states. Resource limits end this
process instead of the server.
"""

from __future__ import annotations

import os
import resource
import sys

MEMORY = 1 << 30
"""Maximum bytes of the process's address space, including Python's own. Exceeding it ends the
process.
"""
SECONDS = {"template": 20, "grammar": 3}
"""Maximum seconds of CPU time. An ordinary template or grammar takes milliseconds."""

NICENESS = {"template": 19, "grammar": 0}
"""Templates run at low priority: they may loop for seconds, and must not slow the engine."""


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
