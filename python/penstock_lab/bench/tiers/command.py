"""`penstock bench tiers`: runs the same rounds on one server for each medium."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from penstock.core import PenstockError
from penstock_lab.bench import flags, lists, rounds, runs
from penstock_lab.bench.compare.recipe import Recipe, Values
from penstock_lab.bench.compare.server_under_test import ServerUnderTest, port_of
from penstock_lab.bench.compare.servers import Entry
from penstock_lab.bench.report import drawing
from penstock_lab.bench.result import Result
from penstock_lab.bench.runs import INTERRUPTED
from penstock_lab.bench.tiers.gains import Gain, charts, gains, lines
from penstock_lab.bench.tiers.media import Medium, media

LENGTHS = "100,1000,10000,50000,100000"
PENSTOCK = [sys.executable, "-P", "-m", "penstock"]
PATIENCE_S = 400.0
SEEDS_APART = 1 << 16
"""Distance between the seeds of two media. If both use the same store, it must not contain the
second one's prompts.
"""

Open = Callable[[Medium], AbstractContextManager[str]]
"""Function that returns a context manager: a server with this medium, as its URL."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tiers")
    group.add_argument("served", metavar="MODEL", help="as of `penstock serve`")
    group.add_argument(
        "--media",
        nargs="+",
        default=["ram:2GiB"],
        metavar="TIERS",
        help="values of --kv-tier, each for a server of its own, joined by + if it has several: "
        "ram:2GiB disk:/mnt/kv,8GiB ram:1GiB+redis://host; a server without tiers is always first",
    )
    group.add_argument(
        "--bandwidth",
        nargs="+",
        type=flags.size(1000, 2**46),
        default=[],
        metavar="BYTES",
        help="of the link to Redis in bytes per second, such as 5MB 20MB: measures redis:// media "
        "again at each",
    )
    group.add_argument(
        "--lengths",
        default=LENGTHS,
        metavar="LIST",
        help=f"of prompts in tokens: {lists.FORMS} (default: %(default)s)",
    )
    flags.number(group, "--rounds", "how often the same prompts are sent", default=10)
    flags.number(group, "--num-prompts", "of a round", default=50)
    flags.number(group, "--max-concurrency", "requests open at once", default=16)
    flags.number(group, "--output-len", "length of an answer", default=1, metavar="TOKENS")
    group.add_argument(
        "--serve-args",
        type=shlex.split,
        default=[],
        metavar='"WORDS"',
        help="added to `penstock serve` of all servers; the prefix cache of their pools is off",
    )
    runs.add_arguments(parser)


def run(parsed: argparse.Namespace) -> int:
    """Measure all media. Exit status: 0; 1 if a medium has no result; 130 after Ctrl-C, when the
    table has the results up to then.
    """
    wanted = media(parsed.media, parsed.bandwidth)
    with tempfile.TemporaryDirectory(prefix="penstock-tiers-") as logs:
        found, keeper = measure(parsed, wanted, _opener(parsed, Path(logs)))
    print("\n".join(lines(found)))
    if parsed.result_dir is not None and found:
        _draw(found, parsed.result_dir)
    keeper.announce()
    if keeper.interrupted:
        return INTERRUPTED
    return 0 if {row.medium for row in found} == set(wanted) else 1


def measure(
    parsed: argparse.Namespace, wanted: list[Medium], opened: Open
) -> tuple[list[Gain], runs.Keeper]:
    """Run the same rounds on a server of each medium, one server at a time. A medium whose server
    fails has no gain. Raises the error of the server without tiers.
    """
    lengths = lists.parse_counts("--lengths", parsed.lengths)
    sizes = (parsed.output_len, parsed.num_prompts, parsed.max_concurrency, parsed.rounds)
    keeper = runs.Keeper(parsed.result_dir)
    keeper.prepare()
    found = {}
    for index, medium in enumerate(wanted):
        plan = rounds.Plan(lengths, *sizes, parsed.seed + index * SEEDS_APART)
        if keeper.interrupted:
            break
        print(f"{medium.name}:", file=sys.stderr)
        results: list[Result] = []
        try:
            with opened(medium) as url:
                own = {"base_url": url, "label": medium.name, "model": None}
                there = argparse.Namespace(**{**vars(parsed), **own})
                target = runs.measure_at(flags.target(there), there, "rounds")
                results = list(keeper.take(rounds.measure_rounds(plan, target)))
        except (OSError, PenstockError) as error:
            if not medium.tiers:
                raise
            print(f"{medium.name}: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            keeper.interrupted = True
        summaries = {each.workload: each for each in rounds.summarise(results)}
        found[medium] = {
            length: summaries[workload]
            for length in lengths
            if (workload := plan.workload(length)) in summaries
        }
    return gains(found), keeper


def _opener(parsed: argparse.Namespace, logs: Path) -> Open:
    @contextmanager
    def opened(medium: Medium) -> Iterator[str]:
        with medium.opened() as tiers:
            words = ["{penstock}", "serve", parsed.served, "--no-enable-prefix-caching", *tiers]
            recipe = Recipe(
                "penstock",
                [*words, *parsed.serve_args, "--port", "{port}"],
                ready_path="/ready",
            )
            entry = Entry("penstock", recipe)
            cpus = sorted(os.sched_getaffinity(0))
            values = Values(port_of(entry), cpus, parsed.served, Path(), PENSTOCK, Path())
            server = ServerUnderTest(entry, values, logs)
            try:
                server.start(PATIENCE_S)
                yield server.url
            finally:
                server.end()

    return opened


def _draw(found: list[Gain], directory: Path) -> None:
    try:
        pictures = drawing.draw(charts(found))
    except drawing.MissingExtraError as error:
        print(f"no charts: {error}", file=sys.stderr)
        return
    names = drawing.write(pictures, directory / "tiers")
    print(f"charts: {', '.join(str(directory / name) for name in names.values())}")
