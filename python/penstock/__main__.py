"""The entry point of `penstock` and `python -m penstock`. Ctrl-C during the imports, or a closed
output pipe, ends the process without a traceback.
"""

import os
import select
import signal
import sys
import threading
from typing import NoReturn

_OWN = signal.getsignal(signal.SIGINT)
if _OWN is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


UNREAD = 128 + signal.SIGPIPE
"""Exit status after the reader of an output pipe has ended: the same that a shell reports for
SIGPIPE.
"""


def main() -> int:
    """Run the command. Returns its exit status."""
    from penstock.cli.main import main as run

    try:
        signal.signal(signal.SIGINT, _OWN)
        try:
            status = run()
        finally:
            _flush()
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        unread = [number for number in (1, 2) if _is_unread(number)]
        if not unread:
            raise
        for number in unread:  # Otherwise the interpreter's flush at exit fails.
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        status = UNREAD
    if any(thread.daemon for thread in threading.enumerate()):
        _exit_without_finalization(status)
    return status


def _exit_without_finalization(status: int) -> NoReturn:
    """Exit without finalizing the interpreter, because daemon threads may still be running, such as
    one that loads weights.

    During finalization, CPython unwinds a daemon thread as soon as it next acquires the GIL, which
    aborts the process if the thread is in native code.
    """
    _flush()
    os._exit(status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _is_unread(number: int) -> bool:
    """True if the reading end of the pipe at descriptor `number` is closed."""
    poll = select.poll()
    poll.register(number, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


if __name__ == "__main__":
    sys.exit(main())
