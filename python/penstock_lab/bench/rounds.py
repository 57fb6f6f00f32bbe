"""`penstock bench rounds`: repeats the same prompts to measure a prefix cache.

The method: random prompts of each length, one output token, the same seed in every round, and the
mean of the later rounds compared with a server without a cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core import PenstockError
from penstock_lab.bench import flags, lists, runs
from penstock_lab.bench.result import Result
from penstock_lab.bench.runs import INTERRUPTED, Measure, cached_tokens, is_partial, measure_at
from penstock_lab.bench.table import figure, render

TTFT = "mean_ttft_ms"
THROUGHPUT = "total_token_throughput"
WARM = 0.05
"""If the server reports more than this share (0 to 1) of the first round's prompt tokens as cached,
its cache was not empty at the start.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("rounds")
    flags.number(group, "--rounds", "how often the same prompts are sent", default=10)
    group.add_argument(
        "--lengths",
        default="100,1000,10000",
        metavar="LIST",
        help=f"input lengths in tokens: {lists.FORMS} (default: %(default)s)",
    )
    flags.number(group, "--output-len", "length of an answer", default=1, metavar="TOKENS")
    flags.number(group, "--num-prompts", "of a round", default=50)
    flags.number(group, "--max-concurrency", "requests open at once", default=16)
    group.add_argument(
        "--baseline",
        metavar="DIR|URL",
        help="what to compare with, such as a server without a prefix cache: the --result-dir of "
        "an earlier run, or the address of a server that is measured first",
    )
    runs.add_arguments(parser)


def run(parsed: argparse.Namespace) -> int:
    """Run all rounds and print their table. Exit status: 0; 1 if no request of some length
    succeeded; 130 after Ctrl-C, when the table has the rounds so far.
    """
    plan = _plan(parsed)
    keeper = runs.Keeper(parsed.result_dir)
    keeper.prepare()
    baseline = _baseline(parsed, plan, keeper)
    measured: list[Result] = []
    if not keeper.interrupted:
        here = measure_at(flags.target(parsed), parsed, "rounds")
        measured = list(keeper.take(measure_rounds(plan, here)))
    summaries = summarise(measured)
    print("\n".join(lines(summaries, summarise(baseline))))
    keeper.announce()
    if keeper.interrupted:
        return INTERRUPTED
    return 0 if all(summary.steady for summary in summaries) else 1


def _plan(parsed: argparse.Namespace) -> Plan:
    return Plan(
        lists.parse_counts("--lengths", parsed.lengths),
        parsed.output_len,
        parsed.num_prompts,
        parsed.max_concurrency,
        parsed.rounds,
        parsed.seed,
    )


def _baseline(
    parsed: argparse.Namespace, plan: Plan, keeper: runs.Keeper
) -> Sequence[Mapping[str, Any]]:
    if parsed.baseline is None:
        return ()
    if "://" not in parsed.baseline:
        return read_results(Path(parsed.baseline))
    # The flags for label and model name apply to the server under test, not to this baseline.
    own = {"base_url": parsed.baseline, "label": "", "model": None, "served_model_name": None}
    other = argparse.Namespace(**{**vars(parsed), **own})
    there = measure_at(flags.target(other), other, "rounds")
    return list(keeper.take(measure_rounds(plan, there)))


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: `rounds` rounds of `prompts` requests for each of `lengths`. `lengths`
    (input) and `output` are in tokens.
    """

    lengths: Sequence[int]
    output: int
    prompts: int
    max_concurrency: int
    rounds: int
    seed: int

    def workload(self, length: int) -> str:
        return f"{length}/{self.output}"

    def words(self, length: int) -> list[str]:
        """Arguments for `bench serve`."""
        return [
            *("--dataset-name", "random"),
            *("--random-input-len", str(length)),
            *("--random-output-len", str(self.output)),
            *("--num-prompts", str(self.prompts)),
            *("--max-concurrency", str(self.max_concurrency)),
        ]


def measure_rounds(plan: Plan, measure: Measure) -> Iterator[Result]:
    """Measure all rounds of one length, then of the next. After Ctrl-C, the last result is partial.

    Every round of a length has the same seed. Different lengths have different seeds: with the same
    seed a short prompt may be a prefix of a long one, whose first round would then find a warm
    cache.
    """
    for index, length in enumerate(plan.lengths):
        for number in range(1, plan.rounds + 1):
            tags = {
                "workload": plan.workload(length),
                "axis": "round",
                "point": number,
                "repeat": 0,
            }
            result = measure(plan.words(length), seed=plan.seed + index, tags=tags)
            yield result
            if is_partial(result):
                return


@dataclass(frozen=True, slots=True)
class Figures:
    """Statistics of one or more rounds, as means over these rounds."""

    ttft_ms: float
    throughput: float
    """Input plus output tokens per second."""
    cached_share: float
    """Share (0 to 1) of prompt tokens that the server reports as cached."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of one workload."""

    workload: str
    first: Figures | None
    later: Figures | None
    """Means over the rounds after the first; None with a single round."""
    rounds: int
    failed: int
    partial: bool

    @property
    def steady(self) -> Figures | None:
        """The rounds to compare: the later ones, or the only one."""
        return self.later or self.first


def summarise(results: Iterable[Mapping[str, Any]]) -> list[Summary]:
    """A summary for each workload, in order of measurement. Only complete rounds in which a request
    succeeded count.
    """
    grouped: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for result in results:
        grouped[result["penstock"]["workload"]].append(result)
    return [_summary(workload, rounds) for workload, rounds in grouped.items()]


def _summary(workload: str, results: Sequence[Mapping[str, Any]]) -> Summary:
    whole = [
        result for result in results if result["completed"] and not result["penstock"]["partial"]
    ]
    return Summary(
        workload,
        first=_figures([result for result in whole if result["penstock"]["point"] == 1]),
        later=_figures([result for result in whole if result["penstock"]["point"] > 1]),
        rounds=len(whole),
        failed=sum(result["failed"] for result in results),
        partial=len(whole) < len(results),
    )


def _figures(results: Sequence[Mapping[str, Any]]) -> Figures | None:
    if not results:
        return None
    inputs = sum(result["total_input_tokens"] for result in results)
    return Figures(
        statistics.fmean(result[TTFT] for result in results),
        statistics.fmean(result[THROUGHPUT] for result in results),
        sum(map(cached_tokens, results)) / max(inputs, 1),
    )


def read_results(directory: Path) -> list[Mapping[str, Any]]:
    """Rounds of an earlier run, from its directory or a file. Raises PenstockError if there are
    none.
    """
    files = sorted(directory.glob("*.json")) if directory.is_dir() else [directory]
    found = [document for file in files if (document := _round(file))]
    if not found:
        raise PenstockError(f"{directory} has no results of `penstock bench rounds --result-dir`")
    return sorted(found, key=lambda result: int(result["penstock"]["point"]))


def _round(file: Path) -> Mapping[str, Any] | None:
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise PenstockError(f"cannot read {file}: {error}") from error
    tags = document.get("penstock") if isinstance(document, dict) else None
    return document if isinstance(tags, dict) and tags.get("axis") == "round" else None


def lines(summaries: Sequence[Summary], baseline: Sequence[Summary] = ()) -> list[str]:
    """Lines of the table. A ratio above 1 means that later rounds are faster than the first, or
    this server than the baseline.
    """
    known = {summary.workload: summary for summary in baseline}
    headings = [
        *("input/output", "TTFT ms, round 1", "later", "ratio"),
        *("total tok/s, round 1", "later", "ratio", "cached"),
        *(("TTFT to baseline", "tok/s to baseline") if baseline else ()),
        *("failed", ""),
    ]
    rows = []
    for summary in summaries:
        against = known.get(summary.workload)
        ratios = _ratios(against.steady if against else None, summary.steady) if baseline else []
        rows.append(
            [summary.workload, *_cells(summary), *ratios, str(summary.failed), _note(summary)]
        )
    return render(headings, rows)


def _note(summary: Summary) -> str:
    notes = [f"partial: {summary.rounds} whole rounds"] if summary.partial else []
    if summary.first and summary.first.cached_share > WARM:
        share = f"{summary.first.cached_share:.0%}"
        notes.append(
            f"round 1 met a warm cache ({share}): restart the server or take another --seed"
        )
    return ", ".join(notes)


def _cells(summary: Summary) -> list[str]:
    first, later = summary.first, summary.later
    ttft, throughput = _ratios(first, later)
    return [
        *(figure(first and first.ttft_ms), figure(later and later.ttft_ms), ttft),
        *(figure(first and first.throughput), figure(later and later.throughput), throughput),
        f"{later.cached_share:.1%}" if later else "-",
    ]


def _ratios(slower: Figures | None, faster: Figures | None) -> list[str]:
    """Factors by which `faster` is better than `slower`, as text: for TTFT and for throughput."""
    if slower is None or faster is None:
        return ["-", "-"]
    return [_times(slower.ttft_ms, faster.ttft_ms), _times(faster.throughput, slower.throughput)]


def _times(large: float, small: float) -> str:
    return f"{large / small:.2f}x" if small > 0 else "-"
