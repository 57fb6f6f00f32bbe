"""`penstock` and `python -m penstock`. Ctrl-C while modules are read ends the process without a
traceback.
"""

import signal
import sys

_OWN = signal.getsignal(signal.SIGINT)
if _OWN is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> int:
    """Run the command; its exit status."""
    from penstock.cli.main import main as run

    try:
        signal.signal(signal.SIGINT, _OWN)
        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
