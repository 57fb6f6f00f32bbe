"""The log of Python processes has the same format as the API server's."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

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


def test_lines_have_time_level_and_source(capfd: pytest.CaptureFixture[str]) -> None:
    log = configure_log(LogConfig(), "%(name)s[3]")
    LOG.info("hello %d", 5)
    logging.getLogger("other").info("left out")
    log.flush()
    (line,) = capfd.readouterr().err.splitlines()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(time + r" INFO penstock\.test\[3\]: hello 5", line)


def test_json_lines_hold_tracebacks(capfd: pytest.CaptureFixture[str]) -> None:
    log = configure_log(LogConfig("warning", "json"))
    LOG.info("left out")
    try:
        raise ValueError("of this test")
    except ValueError as error:
        LOG.error("failed", exc_info=error)
    log.flush()
    found = json.loads(capfd.readouterr().err)
    assert (found["level"], found["source"]) == ("error", "penstock.test")
    assert found["message"].startswith("failed\nTraceback")
    assert found["time"].endswith("Z")


def test_a_log_that_is_not_read_holds_up_nothing_and_says_later_what_it_lost() -> None:
    reader, writer = os.pipe()
    log = configure_log(LogConfig(), descriptor=writer)
    for number in range(5000):
        LOG.info("%d %s", number, "x" * 100)
    with os.fdopen(reader) as lines, ThreadPoolExecutor() as pool:
        read = pool.submit(lines.read)
        log.flush()
        LOG.info("the last")
        log.flush()
        os.close(writer)
        text = read.result()
    dropped = [int(count) for count in re.findall(r"(\d+) lines of the log could not", text)]
    assert sum(dropped) + text.count("x" * 100) == 5000
    assert "the last" in text


def test_a_terminal_gets_colors_around_the_same_line() -> None:
    primary, terminal = os.openpty()
    log = configure_log(LogConfig(color=True), descriptor=terminal)
    LOG.warning("careful")
    log.flush()
    text = os.read(primary, 4096).decode()
    assert text.endswith("\x1b[0m \x1b[33mWARNING\x1b[0m \x1b[2mpenstock.test:\x1b[0m careful\r\n")
    os.close(primary)
    os.close(terminal)


def test_what_is_no_terminal_gets_no_colors(capfd: pytest.CaptureFixture[str]) -> None:
    log = configure_log(LogConfig(color=True))
    LOG.error("lost")
    log.flush()
    assert "\x1b" not in capfd.readouterr().err


def test_a_log_that_is_closed_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    log = configure_log(LogConfig(), descriptor=writer)
    LOG.info("lost")
    log.flush()
    os.close(writer)
    assert capfd.readouterr().err == ""
