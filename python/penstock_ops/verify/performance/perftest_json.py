"""JSON of perftest's --out_json: of one size, since each size of `-a` truncates the file.

It names no unit of rates. The rate of messages beside them tells which one it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock_ops.verify.error import ParseError
from penstock_ops.verify.performance.documents import document, member, number_of
from penstock_ops.verify.performance.perftest import MEBI_BITS, Bandwidth, Latency, check_rate


def parse_bandwidth(text: str) -> list[Bandwidth]:
    """The one row of a test of bandwidth."""
    results = _results(text)
    size, average = _size(results), number_of(results, "BW_average")
    messages, peak = number_of(results, "MsgRate"), number_of(results, "BW_peak")
    if peak and average > peak:
        raise ParseError(1, f"BW_average {average:g}", f"at most BW_peak, {peak:g}")
    try:
        check_rate(size, average, messages, 1)
    except ParseError:
        average *= MEBI_BITS
        check_rate(size, average, messages, 1)
    return [Bandwidth(size, average)]


def parse_latency(text: str) -> list[Latency]:
    """The one row of a test of latency."""
    results = _results(text)
    value = number_of(results, "t_typical")
    least, most = number_of(results, "t_min"), number_of(results, "t_max")
    if not 0.0 < least <= value <= most:
        raise ParseError(1, f"t_typical {value:g}", f"between {least:g} and {most:g}")
    return [Latency(_size(results), value)]


def _results(text: str) -> Mapping[str, Any]:
    results = member(document(text), "results")
    if not isinstance(results, dict):
        raise ParseError(1, "results", "an object")
    return results


def _size(results: Mapping[str, Any]) -> int:
    size = number_of(results, "MsgSize")
    if size < 1 or size != int(size):
        raise ParseError(1, f"MsgSize {size:g}", "a whole number of bytes")
    return int(size)
