"""Bounds between nodes. Without a figure of the plan or of the network cards, a pair is compared
with the others: nodes of a deployment are alike.
"""

from __future__ import annotations

from collections.abc import Collection
from statistics import median

from penstock_ops.verify.between.measurements import Measurements
from penstock_ops.verify.between.probes import Transfer
from penstock_ops.verify.finding import Bound, Status

ALIKE = 0.5
"""A pair with less than this share of the median is slow: shares of cores and of buffers differ by
less between nodes that are alike.
"""
FAULT = 0.1
"""A pair with less than this share of the median has a fault, such as a port at 1 Gb/s in place of
10.
"""
LINE_RATE = 0.5
MOST_LINE_RATE = 1.25
"""GB/s. One TCP stream of a probe reaches half of a network card's rate up to 10 Gb/s; faster cards
need several streams or RDMA, and perftest measures them.
"""
SLOWER, SLOWER_US = 4.0, 200.0
"""A round trip above this multiple of the median, plus microseconds, is slow. The constant is what
a busy processor adds.
"""
LOST_SHARE = 0.02
"""Share of segments that are sent again. At this share and a round trip of 1 ms, a stream keeps
about 100 Mb/s (Mathis et al., "The macroscopic behavior of the TCP congestion avoidance algorithm",
1997).
"""
STOPPED = 10
"""Packets, the window that TCP begins with (RFC 6928): if no more arrive, none of full size does.
"""
CLOCK_SECONDS = 0.1
"""Clocks that differ by more make tokens and certificates fail, and traces unreadable."""
NAME_SECONDS = 1.0
"""Longer means that the resolver tries domains or servers that do not answer."""


def bandwidth_bound(found: Measurements) -> Bound:
    """GB/s from one node to another, by one TCP stream."""
    rates = [value.gb_per_s for value in found.transfers.values()]
    middle = median(rates) if rates else 0.0
    relative = f"{ALIKE:g} and {FAULT:g} of the median of {len(rates)} pairs"
    needed, expected, formula = middle * FAULT, middle * ALIKE, relative
    if found.line_rate:
        line = LINE_RATE * min(found.line_rate, MOST_LINE_RATE)
        if line > expected:
            expected, formula = line, f"{LINE_RATE:g} of the network card's rate"
    return Bound(needed, max(expected, needed), "GB/s", formula=formula)


def is_slow(value: Transfer, bound: Bound) -> bool:
    return bound.status(value.gb_per_s) is not Status.PASS


def has_stopped(value: Transfer | None) -> bool:
    """Whether a transfer stopped after its first packets."""
    return value is not None and not value.has_ended and value.bytes < STOPPED * value.path_mtu


def latency_bound(values: Collection[float]) -> Bound:
    """Microseconds of a round trip of a small message."""
    limit = SLOWER * median(values) + SLOWER_US if values else None
    formula = f"{SLOWER:g} x the median of {len(values)} pairs + {SLOWER_US:g} us"
    return Bound(None, limit, "us", is_ceiling=True, formula=formula)


def is_lossy(value: Transfer, idle_resent: int) -> bool:
    """Whether a pair loses packets, under load and also while no queue can be full."""
    share = value.resent / value.segments if value.segments else 0.0
    return share > LOST_SHARE and idle_resent > 0
