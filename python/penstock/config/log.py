"""Log of a Python process, in the same format as the API server's
(`crates/server/http/src/log.rs`). A bounded queue and a writer thread keep a full or closed
standard error from delaying a step.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
import time

from penstock.config.sections import LogConfig

LOG_LEVELS = ("error", "warning", "info", "debug", "trace")
LOG_FORMATS = ("text", "json")
"""Names of log formats (and above of levels), the same as in `crates/server/http/src/log.rs`."""
TEXT = "%(asctime)s %(levelname)s {source}: %(message)s"
CYAN = "\x1b[36m"
COLORS = {logging.ERROR: "\x1b[1;31m", logging.WARNING: "\x1b[33m", logging.INFO: "\x1b[32m"}
COLORED = (
    "\x1b[2m%(asctime)s\x1b[0m %(color)s%(levelname)s\x1b[0m \x1b[2m{source}:\x1b[0m %(message)s"
)
QUEUE = 1024
FLUSH = 1.0
"""Maximum seconds at exit for writing the last lines."""
TRACE = 5
"""The level below `logging.DEBUG`."""
ERROR_FLUSH = 0.2
"""Maximum seconds to wait until an error is written, because the error may get the
process killed.
"""
STDERR = 2


def warn(text: str) -> None:
    """Print a command's warning to standard error, before the log is configured."""
    print(f"penstock: warning: {text}", file=sys.stderr)


def configure_log(
    settings: LogConfig, source: str = "%(name)s", descriptor: int = STDERR
) -> logging.Handler:
    """Log to `descriptor`. `source` is the format of the logger's name. Loggers of other packages
    are limited to warnings and errors.
    """
    handler = _Queued(descriptor)
    is_colored = settings.color and os.isatty(descriptor)
    text = _Colored(source) if is_colored else _Text(source)
    handler.setFormatter(_Json(source) if settings.format == "json" else text)
    logging.addLevelName(TRACE, "TRACE")
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("penstock").setLevel(settings.level.upper())
    return handler


class _Queued(logging.Handler):
    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[str] = queue.Queue(QUEUE)
        self._dropped = 0
        """Number of lines dropped because the queue was full, and not yet reported in the log."""
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._dropped += 1
        else:
            if record.levelno >= logging.ERROR:
                self._wait(ERROR_FLUSH)

    def flush(self) -> None:
        self._wait(FLUSH)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._lines.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.002)

    def _write_all(self) -> None:
        while True:
            line = self._lines.get()
            dropped, self._dropped = self._dropped, 0
            try:
                if dropped:
                    self._write(self._notice(dropped))
                    dropped = 0
                self._write(line)
            except OSError:
                self._dropped += dropped + 1
            self._lines.task_done()

    def _notice(self, dropped: int) -> str:
        text = f"{dropped} lines of the log could not be written"
        record = logging.LogRecord(
            "penstock.log", logging.WARNING, "", 0, text, args=None, exc_info=None
        )
        return self.format(record)

    def _write(self, line: str) -> None:
        """Write a line to the descriptor without `sys.stderr`, whose lock must be free when the
        process exits.
        """
        data = (line + "\n").encode(errors="replace")
        while data:
            data = data[os.write(self._descriptor, data) :]


class _Text(logging.Formatter):
    template = TEXT

    def __init__(self, source: str) -> None:
        super().__init__(self.template.replace("{source}", source))

    def formatTime(self, record: logging.LogRecord, _: str | None = None) -> str:  # noqa: N802
        return _utc(record)


class _Colored(_Text):
    """Formats a line for a terminal: time and source dim, the level in a color."""

    template = COLORED

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.color = COLORS.get(record.levelno, CYAN)
        return super().formatMessage(record)


class _Json(logging.Formatter):
    """One JSON object on each line. A traceback is part of the message."""

    def __init__(self, source: str) -> None:
        super().__init__("%(message)s")
        self._source = source

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {
                "time": _utc(record),
                "level": record.levelname.lower(),
                "source": self._source % {"name": record.name},
                "message": super().format(record),
            }
        )


def _utc(record: logging.LogRecord) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{at}.{int(record.msecs):03d}Z"
