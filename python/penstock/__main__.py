"""`penstock` and `python -m penstock`. Ctrl-C while modules are read ends the process without a
traceback.
"""

import os
import signal
import sys
import threading
from typing import NoReturn

_OWN = signal.getsignal(signal.SIGINT)
if _OWN is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> int:
    """Run the command; its exit status."""
    from penstock.cli.main import main as run

    try:
        signal.signal(signal.SIGINT, _OWN)
        status = run()
    except KeyboardInterrupt:
        status = 130
    if any(thread.daemon for thread in threading.enumerate()):
        _exit_without_finalization(status)
    return status


def _exit_without_finalization(status: int) -> NoReturn:
    """End the process while daemon threads run, such as an engine that loads weights.

    CPython finalizes by unwinding a daemon thread where it next takes the GIL, which aborts the
    process when that thread's frames are native.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
