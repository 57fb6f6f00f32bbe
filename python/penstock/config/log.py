"""The log of a Python process, in the form of the front door's (`crates/http/src/log.rs`)."""

from __future__ import annotations

import json
import logging
import sys
import time

from penstock.config.sections import LogConfig

TEXT = "%(asctime)s %(levelname)s {source}: %(message)s"


def configure_log(settings: LogConfig, source: str = "%(name)s") -> None:
    """Log to standard error. `source` stands for the name of the logger. Other packages log
    warnings and errors only.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json(source) if settings.format == "json" else _Text(source))
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("penstock").setLevel(settings.level.upper())


class _Text(logging.Formatter):
    def __init__(self, source: str) -> None:
        super().__init__(TEXT.replace("{source}", source))

    def formatTime(self, record: logging.LogRecord, _: str | None = None) -> str:  # noqa: N802
        return _utc(record)


class _Json(logging.Formatter):
    """One object for each line; a traceback is part of the message."""

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
