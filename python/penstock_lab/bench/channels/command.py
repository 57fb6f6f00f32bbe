"""`penstock bench channels`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from penstock.core import InvalidValueError, PenstockError
from penstock.executor.ray.cluster import Cluster
from penstock_lab.bench import flags, result, stats
from penstock_lab.bench.channels.actors import Actors, join_cluster
from penstock_lab.bench.channels.processes import WorkerLaunch, Workers
from penstock_lab.bench.compare.machine import machine
from penstock_lab.bench.table import render

CHANNELS = {
    "ring": "shared memory: mp, and Ray's ring on one host",
    "stream": "authenticated TCP: mp and Ray's ring between hosts",
    "compiled-graph": "Ray's compiled graph",
    "actor": "Ray's actor calls",
}
RAY = ("compiled-graph", "actor")
PATTERNS = ("round-trip", "scatter-gather", "chain")
SIZES = (1, 4 << 10, 256 << 10, 4_000_000, 40_000_000)
LARGEST = 1 << 30
ROUNDS = (5, 2000)
"""Minimum and maximum number of exchanges in one measurement."""
WARM_UPS = 3
MICRO = 1e6


class Exchange(Protocol):
    def exchange(self, message: bytes) -> list[bytes]: ...


Open = Callable[[str, int, bool], AbstractContextManager[Exchange]]
"""Function from a channel, the number of workers, and whether they form a chain."""


@dataclass(frozen=True, slots=True)
class Measured:
    pattern: str
    channel: str
    workers: int
    size: int
    """Bytes of each message."""
    rounds: int
    median_us: float
    p99_us: float
    bytes_per_s: float
    """Bytes over all hops, divided by the median time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("messages")
    group.add_argument(
        "--channels",
        nargs="+",
        choices=tuple(CHANNELS),
        default=list(CHANNELS),
        help="; ".join(f"{name}: {what}" for name, what in CHANNELS.items()),
    )
    group.add_argument(
        "--patterns",
        nargs="+",
        choices=PATTERNS,
        default=list(PATTERNS),
        help="to one worker and back; to all and back; through all, one after another",
    )
    group.add_argument(
        "--sizes",
        nargs="+",
        type=flags.size(1, LARGEST),
        default=list(SIZES),
        metavar="BYTES",
        help="of a message, such as 1 4KiB 40MB; default: 1 B to 40 MB",
    )
    flags.number(group, "--workers", "processes of the last two patterns", default=3)
    group.add_argument(
        "--seconds",
        type=flags.positive,
        default=1.0,
        help=f"of each measurement, which has {ROUNDS[0]} to {ROUNDS[1]} rounds (default: 1)",
    )
    group.add_argument(
        "--far",
        type=shlex.split,
        default=[],
        metavar='"WORDS"',
        help="prefix of the workers' command that runs them elsewhere, such as 'ip netns exec b' "
        "or 'ssh host'; streams only",
    )
    group.add_argument(
        "--address", default="127.0.0.1", help="address at which workers reach this process"
    )
    group.add_argument(
        "--far-address", default="127.0.0.1", help="with --far: address of the workers' host"
    )
    group.add_argument("--ray-address", help="Ray cluster for the actors; default: start one")
    group.add_argument("--output-json", type=Path, metavar="FILE", help="keep the numbers")


def run(parsed: argparse.Namespace) -> int:
    """Measure each pattern on each channel. Exit status: 0; 1 if a requested channel could not be
    measured.
    """
    if parsed.far and parsed.far_address == "127.0.0.1":
        raise InvalidValueError("--far-address", parsed.far_address, "an address beside --far")
    found: list[Measured] = []
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        opened = _opener(parsed, stack)
        for channel in dict.fromkeys(parsed.channels):
            reason = _unusable(channel, parsed)
            try:
                for pattern in dict.fromkeys(parsed.patterns) if reason is None else ():
                    found += _measure(parsed, opened, channel, pattern)
            except (OSError, ValueError, PenstockError) as error:
                reason = str(error)
            if reason is not None:
                skipped[channel] = reason
    for line in lines(found):
        print(line)
    for channel, reason in skipped.items():
        print(f"skipped: {channel}: {reason}", file=sys.stderr)
    if parsed.output_json:
        kept = {"machine": machine(), "skipped": skipped, "measured": [*map(asdict, found)]}
        result.write(json.loads(json.dumps(kept)), parsed.output_json)
    return 1 if skipped else 0


def _unusable(channel: str, parsed: argparse.Namespace) -> str | None:
    if channel in RAY and find_spec("ray") is None:
        return "Ray is not installed: pip install 'penstock[ray]'"
    if channel in RAY and parsed.far and parsed.ray_address is None:
        return "--far does not move actors: give --ray-address of a cluster with both hosts"
    if channel == "ring" and parsed.far:
        return "shared memory ends at the host"
    return None


def _measure(
    parsed: argparse.Namespace, opened: Open, channel: str, pattern: str
) -> Iterator[Measured]:
    count = 1 if pattern == "round-trip" else parsed.workers
    hops = count + 1 if pattern == "chain" else 2 * count
    with opened(channel, count, pattern == "chain") as workers:
        for size in dict.fromkeys(parsed.sizes):
            seconds = timed(workers, size, parsed.seconds)
            summary = stats.summarise(seconds, (99.0,))
            rate = size * hops / summary.median
            numbers = (summary.median * MICRO, summary.percentiles[0] * MICRO, rate)
            yield Measured(pattern, channel, count, size, len(seconds), *numbers)


def _opener(parsed: argparse.Namespace, stack: ExitStack) -> Open:
    """A function that opens workers. The first Ray workers connect to a cluster, and `stack`
    disconnects at its end.
    """
    capacity = max(parsed.sizes)
    launch = WorkerLaunch(parsed.far, parsed.address, parsed.far_address)

    @cache
    def cluster() -> Cluster:
        joined = join_cluster(parsed.ray_address, parsed.workers, capacity)
        stack.callback(joined.close)
        return joined

    def opened(channel: str, count: int, chain: bool) -> AbstractContextManager[Exchange]:
        if channel in RAY:
            return Actors(cluster(), channel, count, capacity, chain=chain)
        return Workers(channel, count, capacity, launch, chain=chain)

    return opened


def timed(workers: Exchange, size: int, seconds: float) -> list[float]:
    """Seconds of each exchange of a message, measured for about `seconds` in total. Raises
    PenstockError if the returned message differs.
    """
    message = bytes(range(256)) * (size // 256) + bytes(range(size % 256))
    for _ in range(WARM_UPS):
        if any(answer != message for answer in workers.exchange(message)):
            raise PenstockError(f"{size} bytes came back changed")
    found: list[float] = []
    least, most = ROUNDS
    end = time.perf_counter() + seconds
    while len(found) < least or (len(found) < most and time.perf_counter() < end):
        began = time.perf_counter()
        workers.exchange(message)
        found.append(time.perf_counter() - began)
    return found


def lines(found: Sequence[Measured]) -> Iterator[str]:
    """A table for each pattern, with channels of the same message size side by side."""
    for pattern in dict.fromkeys(one.pattern for one in found):
        rows = [one for one in found if one.pattern == pattern]
        calls = {one.size: one.median_us for one in rows if one.channel == "actor"}
        rows.sort(key=lambda one: one.size)
        yield f"{pattern}, {rows[0].workers} worker{'s' if rows[0].workers > 1 else ''}"
        headings = ("bytes", "median us", "P99 us", "MB/s", "rounds", "calls / this", "channel")
        yield from render(headings, [_row(one, calls.get(one.size)) for one in rows])
        yield ""


def _row(one: Measured, calls: float | None) -> list[str]:
    return [
        f"{one.size:,}",
        f"{one.median_us:,.0f}",
        f"{one.p99_us:,.0f}",
        f"{one.bytes_per_s / 1e6:,.2f}",
        str(one.rounds),
        "-" if calls is None else f"{calls / one.median_us:.1f}x",
        one.channel,
    ]
