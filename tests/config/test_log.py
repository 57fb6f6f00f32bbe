"""The log of Python processes has the form of the front door's."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest
from penstock.config import LogConfig, configure_log

LOG = logging.getLogger("penstock.test")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("penstock")
    handlers, level = list(root.handlers), own.level
    yield
    root.handlers[:] = handlers
    own.setLevel(level)


def test_lines_have_time_level_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    configure_log(LogConfig(), "%(name)s[3]")
    LOG.info("hello %d", 5)
    logging.getLogger("other").info("left out")
    (line,) = capsys.readouterr().err.splitlines()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(time + r" INFO penstock\.test\[3\]: hello 5", line)


def test_json_lines_hold_tracebacks(capsys: pytest.CaptureFixture[str]) -> None:
    configure_log(LogConfig("warning", "json"))
    LOG.info("left out")
    try:
        raise ValueError("of this test")
    except ValueError as error:
        LOG.error("failed", exc_info=error)
    found = json.loads(capsys.readouterr().err)
    assert (found["level"], found["source"]) == ("error", "penstock.test")
    assert found["message"].startswith("failed\nTraceback")
    assert found["time"].endswith("Z")
