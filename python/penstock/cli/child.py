"""`python -m penstock.cli.child PARENT COMMAND ...`: runs a command that is killed when its parent
ends, more precisely when the thread of process PARENT that started it ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from penstock.cli.main import main

PR_SET_PDEATHSIG = 1


def run(parent: int, arguments: list[str]) -> int:
    """Run the command and return its exit status; 1 if the parent has already ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return main(arguments) if os.getppid() == parent else 1


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]))
