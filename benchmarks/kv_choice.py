"""What a KV tier costs where it does not help: the same requests with and without a tier.

    python benchmarks/kv_choice.py [--quick] [--tiers disk redis ...] [--directory DIR]

A tier may make a request slower than computing it: a load can take longer than estimated, and
stores compete with computation. The bar is 5%. One server without tiers stays for all local or all
remote tiers; beside it runs one with the tier under test. Each turn sends a workload to both in
sequence, with alternating order. The engine's own prefix cache is off, so without a tier everything
is computed. Slow tiers are Redis behind a proxy with a limited bandwidth in MB/s, or one that
passes nothing at all for some seconds. S3 is moto's server. In production a remote store runs on
another machine, so with these the servers under test have one CPU, and stores, proxies and client
have the others. With local tiers they have all CPUs.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import facts, stores
from support.completions import Answer, complete_all
from support.servers import Server

from penstock_lab.bench.compare.processes import wait_until_quiet
from penstock_lab.bench.compare.server_under_test import first_line_with_digit

BAR = 1.05
VOCAB, OUTPUT = 49000, 8
MODEL = "smol"
SETTLE_S = 0.5
"""Pause after a batch, for work that continues after its answers."""
QUIET_WAIT_S, MAX_FOREIGN = 60.0, 0.05
MB = 1e6
STALL_S, STALL_PERIOD_S = 4.0, 12.0
REDIS_MEMORY = "3gb"
Prompt = Sequence[int]


@dataclass(frozen=True, slots=True)
class Sizes:
    long: int
    turns: int
    """In the first turn, nothing is stored yet."""


FULL, QUICK = Sizes(2000, 6), Sizes(1200, 3)


@dataclass(frozen=True, slots=True)
class Workload:
    concurrency: int
    prompts: Callable[[Sizes, random.Random, random.Random], list[Prompt]]
    """Prompts from the sizes, a generator that is the same in each turn, and one that is not."""


def tokens(numbers: random.Random, count: int) -> list[int]:
    return [numbers.randrange(100, VOCAB) for _ in range(count)]


def repeated(sizes: Sizes, same: random.Random, _: random.Random) -> list[Prompt]:
    return [tokens(same, sizes.long) for _ in range(2)]


def half_shared(sizes: Sizes, same: random.Random, new: random.Random) -> list[Prompt]:
    half = sizes.long // 2
    return [tokens(same, half) + tokens(new, half) for _ in range(2)]


def short(_: Sizes, same: random.Random, __: random.Random) -> list[Prompt]:
    return [tokens(same, 100) for _ in range(8)]


def unique(sizes: Sizes, _: random.Random, new: random.Random) -> list[Prompt]:
    return [tokens(new, sizes.long // 2) for _ in range(2)]


WORKLOADS = {
    "repeated": Workload(2, repeated),
    "half shared": Workload(1, half_shared),
    "short": Workload(2, short),
    "unique": Workload(2, unique),
}


@dataclass(frozen=True, slots=True)
class Place:
    """A tier for --kv-tier, and an action before each batch that may use it."""

    tier: str
    before: Callable[[], None] = lambda: None


Opened = AbstractContextManager[Place]


def disk(scratch: Path) -> Opened:
    return nullcontext(Place(f"disk:{scratch / 'kv'},8GiB"))


def cold_disk(scratch: Path) -> Opened:
    directory = scratch / "kv"
    return nullcontext(Place(f"disk:{directory},8GiB", lambda: stores.forget_pages(directory)))


@contextmanager
def redis(link: Callable[[int], stores.Link] | None = None) -> Iterator[Place]:
    with ExitStack() as stack:
        port = stack.enter_context(stores.redis(REDIS_MEMORY))
        if link is not None:
            port = stack.enter_context(link(port)).port
        yield Place(f"redis://127.0.0.1:{port}/0")


@contextmanager
def s3() -> Iterator[Place]:
    with stores.s3() as port:
        # As over TLS, where payloads need no signature.
        options = f"endpoint=http://127.0.0.1:{port},allow_http=true,unsigned_payload=true"
        yield Place(f"s3://{stores.BUCKET}/kv,{options}")


LOCAL: dict[str, Callable[[Path], Opened]] = {
    "ram": lambda _: nullcontext(Place("ram:2GiB")),
    "disk": disk,
    "disk-cold": cold_disk,
}
REMOTE: dict[str, Callable[[Path], Opened]] = {
    "redis": lambda _: redis(),
    "redis-20MB/s": lambda _: redis(lambda port: stores.Link(port, 20 * MB)),
    "redis-5MB/s": lambda _: redis(lambda port: stores.Link(port, 5 * MB)),
    "redis-stalling": lambda _: redis(lambda port: stores.Link(port, 1e9, STALL_S, STALL_PERIOD_S)),
    "s3": lambda _: s3(),
}
TIERS = {**LOCAL, **REMOTE}


@dataclass(slots=True)
class Batches:
    """Results of one server for one workload."""

    answers: list[list[Answer]] = field(default_factory=list)
    """Answers by turn."""
    seconds: float = 0.0

    @property
    def ttft(self) -> float:
        """Median over the turns after the first, in milliseconds."""
        return 1e3 * statistics.median(answer.ttft for turn in self.answers[1:] for answer in turn)

    @property
    def throughput(self) -> float:
        """Prompt and output tokens per second over all turns."""
        return (
            sum(answer.prompt + answer.output for turn in self.answers for answer in turn)
            / self.seconds
        )

    @property
    def cached(self) -> float:
        """Share of the prompt tokens that were not computed, after the first turn."""
        later = [answer for turn in self.answers[1:] for answer in turn]
        return sum(answer.cached for answer in later) / sum(answer.prompt for answer in later)


@dataclass(frozen=True, slots=True)
class Pair:
    tier: str
    workload: str
    without: Batches
    with_tier: Batches

    @property
    def ttft(self) -> float:
        """Ratio of TTFTs."""
        return self.with_tier.ttft / self.without.ttft

    @property
    def time(self) -> float:
        return self.without.throughput / self.with_tier.throughput

    @property
    def worst(self) -> float:
        return max(self.ttft, self.time)

    def as_data(self) -> dict[str, Any]:
        sides = {"without": self.without, "with": self.with_tier}
        said = {
            name: {
                "ttft_ms": [[round(1e3 * each.ttft, 2) for each in turn] for turn in side.answers],
                "cached": [[each.cached for each in turn] for turn in side.answers],
                "seconds": round(side.seconds, 3),
                "throughput": round(side.throughput, 1),
            }
            for name, side in sides.items()
        }
        return {
            "tier": self.tier,
            "workload": self.workload,
            "ttft": self.ttft,
            "time": self.time,
            **said,
        }


def main() -> None:
    parser = facts.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter prompts, fewer turns")
    parser.add_argument("--tiers", nargs="+", choices=tuple(TIERS), default=list(TIERS))
    parser.add_argument(
        "--turns", type=int, help="default: 6, with --quick 3; the first finds nothing"
    )
    parser.add_argument(
        "--directory", type=Path, default=Path(tempfile.gettempdir()), help="of disk tiers"
    )
    parser.add_argument("--quiet-wait", type=float, default=QUIET_WAIT_S, metavar="S")
    parsed = parser.parse_args()
    sizes = QUICK if parsed.quick else FULL
    sizes = Sizes(sizes.long, max(2, parsed.turns or sizes.turns))
    os.environ.update(stores.S3_CREDENTIALS)
    stem = facts.stem("kv-choice", parsed.results)
    about = facts.gather(parsed.peers.expanduser(), (), sys.argv)
    about["versions"]["redis"] = first_line_with_digit([stores.REDIS, "--version"]) or "none"
    found: list[Pair] = []
    everything = os.sched_getaffinity(0)
    apart = {min(everything)} if len(everything) > 1 else everything
    wait_until_quiet(parsed.quiet_wait, MAX_FOREIGN)
    for kinds, cpus in ((LOCAL, everything), (REMOTE, apart)):
        os.sched_setaffinity(0, everything - cpus or everything)
        for pairs in measured(
            [tier for tier in parsed.tiers if tier in kinds], cpus, sizes, parsed
        ):
            found += pairs
            data = [pair.as_data() for pair in found]
            facts.write(stem, lines(found, about, sizes), {**about, "measured": data})


def measured(
    tiers: Sequence[str], cpus: Collection[int], sizes: Sizes, parsed: argparse.Namespace
) -> Iterator[list[Pair]]:
    """Measure tier by tier. Servers under test run on `cpus`."""
    reasons = {tier: stores.missing(tier.partition("-")[0]) for tier in tiers}
    print(
        *(f"{tier}: skipped, {reason}\n" for tier, reason in reasons.items() if reason),
        sep="",
        end="",
    )
    there = [tier for tier in tiers if not reasons[tier]]
    if not there:
        return
    with (
        tempfile.TemporaryDirectory(dir=parsed.directory) as name,
        Server(serve_words(parsed), cpus, Path(name) / "without.log") as without,
    ):
        for tier in there:
            yield measure(tier, without, cpus, sizes, parsed)


def serve_words(parsed: argparse.Namespace) -> list[str]:
    words = ["serve", parsed.model, "--served-model-name", MODEL, "--no-enable-prefix-caching"]
    return [*words, "--kv-cache-memory-bytes", "512MiB"]


def measure(
    tier: str, without: Server, cpus: Collection[int], sizes: Sizes, parsed: argparse.Namespace
) -> list[Pair]:
    with (
        tempfile.TemporaryDirectory(dir=parsed.directory) as name,
        TIERS[tier](Path(name)) as place,
    ):
        words = [*serve_words(parsed), "--kv-tier", place.tier]
        with Server(words, cpus, Path(name) / "server.log") as server:
            pairs = [Pair(tier, workload, Batches(), Batches()) for workload in WORKLOADS]
            for each in (without, server):  # Allocate buffers and load code first.
                complete_all(each.port, MODEL, [tokens(random.Random(tier), 300)], OUTPUT, 1)
            for turn in range(sizes.turns):
                for pair in pairs:
                    take_turn(pair, turn, (without, server), sizes, place.before)
    for pair in pairs:
        print(f"{tier} {pair.workload}: {' | '.join(cells(pair))}", flush=True)
    return pairs


def take_turn(
    pair: Pair, turn: int, servers: tuple[Server, Server], sizes: Sizes, before: Callable[[], None]
) -> None:
    workload = WORKLOADS[pair.workload]
    same = random.Random(pair.workload)
    new = random.Random(f"{pair.tier} {pair.workload} {turn}")
    prompts = workload.prompts(sizes, same, new)
    sides = [(pair.without, servers[0]), (pair.with_tier, servers[1])]
    for side, server in sides if turn % 2 else sides[::-1]:
        before()
        answers, seconds = complete_all(server.port, MODEL, prompts, OUTPUT, workload.concurrency)
        side.answers.append(answers)
        side.seconds += seconds
        time.sleep(SETTLE_S)


def cells(pair: Pair) -> list[str]:
    return [
        f"{pair.without.ttft:,.1f}",
        f"{pair.with_tier.ttft:,.1f}",
        f"{pair.ttft:.2f}",
        f"{pair.without.throughput:,.0f}",
        f"{pair.with_tier.throughput:,.0f}",
        f"{pair.time:.2f}",
        f"{pair.with_tier.cached:.0%}",
        "kept" if pair.worst <= BAR else "MISSED",
    ]


def lines(found: Sequence[Pair], about: Mapping[str, Any], sizes: Sizes) -> list[str]:
    rows = sorted(found, key=lambda pair: -pair.worst)
    columns = ("", "TTFT ms", "with", "times", "tok/s", "with", "times", "cached", f"bar {BAR}")
    return [
        "# What a tier costs where it does not help",
        "",
        *facts.said(about),
        f"* long prompts of {sizes.long:,} tokens; {sizes.turns} turns, by turns with a server",
        "without tiers",
        "* of remote tiers, stores and client have CPUs of their own; the servers have one",
        f"* stalling: nothing passes for {STALL_S:.0f} of {STALL_PERIOD_S:.0f} seconds",
        "",
        "Worst first. Times to the first token are medians of the turns after the first, in which",
        "nothing was there yet; throughput is that of all turns. `times`: as long as without a",
        "tier, less is better. `unique` has nothing to find: what it shows is what storing costs.",
        "",
        *facts.table(columns, [[f"{pair.tier}, {pair.workload}", *cells(pair)] for pair in rows]),
    ]


if __name__ == "__main__":
    main()
