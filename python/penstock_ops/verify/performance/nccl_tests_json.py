"""JSON of nccl-tests' `-J FILE`. It has a copy of the environment with its secrets: not kept."""

from __future__ import annotations

from typing import Any

from penstock_ops.verify.error import ParseError
from penstock_ops.verify.performance.documents import document, member, number_of
from penstock_ops.verify.performance.nccl_tests import (
    NOT_CHECKED,
    Reductions,
    Row,
    Timing,
    check_timing,
    reductions,
)


def parse(text: str) -> Reductions:
    """All sizes of a run. ParseError as for the text, and for rates that are "nan"."""
    found = document(text)
    ranks = len(_list(member(member(found, "config"), "devices"), "devices"))
    if ranks < 2:
        raise ParseError(1, f"{ranks} devices", "two or more ranks")
    rows = [_row(each, ranks) for each in _list(member(found, "results"), "results")]
    return reductions(ranks, rows, _out_of_bounds(member(found, "out_of_bounds")), 1)


def _list(value: object, name: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ParseError(1, name, "a list that is not empty")
    return value


def _row(value: object, ranks: int) -> Row:
    size = int(number_of(value, "size"))
    return Row(
        size,
        _timing(member(value, "out_of_place"), size, ranks),
        _timing(member(value, "in_place"), size, ranks),
    )


def _timing(value: object, size: int, ranks: int) -> Timing:
    time, algorithm, bus = (number_of(value, name) for name in ("time", "alg_bw", "bus_bw"))
    if problem := check_timing(size, ranks, time, algorithm, bus):
        raise ParseError(1, f"time {time:g}, alg_bw {algorithm:g}, bus_bw {bus:g}", problem)
    is_checked = member(value, "nwrong") != NOT_CHECKED
    return Timing(time, bus, int(number_of(value, "nwrong")) if is_checked else None)


def _out_of_bounds(value: object) -> int:
    """`okay` is a text in some versions, a truth value in others."""
    okay = member(value, "okay")
    if okay not in (True, False, "true", "false"):
        raise ParseError(1, f"okay {okay!r}", "true or false")
    return max(int(number_of(value, "count")), okay in (False, "false"))
