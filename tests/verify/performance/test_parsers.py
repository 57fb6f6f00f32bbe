"""Parsers of perftest and nccl-tests: published tables, and forms that differ by version."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock_ops.verify.error import ParseError
from penstock_ops.verify.performance import nccl_tests, perftest
from tests.verify.mutations import MUTATIONS
from tests.verify.performance.texts import (
    BANDWIDTH,
    GPU,
    HOST,
    LATENCY,
    MEBI,
    NODE,
    TWO_NODES,
)

SEED, COUNT = 37, 2_000


@pytest.mark.parametrize(("text", "at_16_kib"), [(HOST, 390.76), (GPU, 392.49)])
def test_published_rates_of_rdma(text: str, at_16_kib: float) -> None:
    rows = {row.bytes: row.gbit_per_s for row in perftest.parse_bandwidth(text)}
    assert len(rows) == 23
    assert (rows[16384], rows[8388608]) == (at_16_kib, 396.5)


def test_without_report_gbits_rates_are_mebibytes() -> None:
    """47,259 MiB/s x 2^20 x 8 = 396.44 Gb/s; older versions call the unit MB/sec."""
    for text in (MEBI, MEBI.replace("MiB/sec", "MB/sec")):
        [row] = perftest.parse_bandwidth(text)
        assert row.gbit_per_s == pytest.approx(396.44, abs=0.01)


def test_a_run_of_a_fixed_duration_has_no_peak() -> None:
    for text in (
        BANDWIDTH.replace("396.45", "0.00"),
        BANDWIDTH.replace("BW peak[Gb/sec]", "").replace("396.45", ""),
    ):
        assert perftest.parse_bandwidth(text) == [perftest.Bandwidth(1 << 20, 396.44)]


def test_the_typical_latency_counts() -> None:
    assert perftest.parse_latency(LATENCY) == [perftest.Latency(8, 3.56)]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("396.44 ", "49.55 ", "line 10.*396.4 Gb/s"),  # GB/s under a header of Gb/sec
        ("BW average[Gb/sec]", "BW average[GB/sec]", "BW average in one of"),
        ("396.44 ", "nan ", "line 10.*a decimal number"),
        ("               0.047259", "", "line 10.*5 columns"),
        ("396.45", "396.40", "line 10.*at most the peak"),
        (" 1048576", "~1048576", "line 10.*a row of numbers"),
        (" 1048576    5000 ", "", "line 10.*5 columns"),
    ],
)
def test_a_row_of_perftest_that_is_wrong_is_named(old: str, new: str, message: str) -> None:
    assert old in BANDWIDTH
    with pytest.raises(ParseError, match=message):
        perftest.parse_bandwidth(BANDWIDTH.replace(old, new))


def test_published_all_reduces() -> None:
    node, two = nccl_tests.parse(NODE), nccl_tests.parse(TWO_NODES)
    assert (node.ranks, two.ranks) == (8, 16)
    assert (node.wrong, two.wrong, node.is_checked) == (0, 0, True)
    assert node.rows[-1].out_of_place.bus_gb_per_s == 483.08
    assert (node.rows[-1].bus_gb_per_s, node.rows[-1].microseconds) == (482.5, 62311)
    assert two.rows[-1].bus_gb_per_s == 469.58


def test_wrong_values_and_values_that_were_not_checked() -> None:
    failed = NODE.replace("values : 0 OK", "values : 3 FAILED")
    assert nccl_tests.parse(failed).wrong == 3
    assert nccl_tests.parse(NODE.replace("483.08      0", "483.08      7")).wrong == 7
    unchecked = nccl_tests.parse(NODE.replace("483.08      0", "483.08    N/A"))
    assert (unchecked.wrong, unchecked.is_checked) == (0, False)


def test_large_times_with_an_exponent() -> None:
    slow = NODE.replace("62235  276.05  483.08", "1.2e+05  138.03  241.55")
    assert nccl_tests.parse(slow).rows[-1].out_of_place.microseconds == 120_000


def test_columns_that_options_add_are_read_by_name() -> None:
    lines = []
    for line in NODE.split("\n"):
        if line.startswith("#       size"):
            line = line.replace("#wrong     time", "#wrong  i_max     time") + "  i_max"
        elif line.strip()[:1].isdigit():
            words = line.split()
            line = " ".join([*words[:9], "9.9", *words[9:], "9.9"])
        lines.append(line)
    assert nccl_tests.parse("\n".join(lines)) == nccl_tests.parse(NODE)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "-1    62235",
            "-1pt01:77:80 [0] NCCL INFO comm 0x5 rank 0\n    62235",
            "line 27.*13 columns",
        ),
        ("483.08", "966.16", "line 27.*busbw 483.1, of 8 ranks"),
        ("276.05", "552.10", "line 27.*algbw 276, from 17179869184 bytes"),
        ("483.08", "nan", "line 27.*a number"),
        ("# Out of bounds values : 0 OK\n", "", "one count of out of bounds"),
        ("   (us)  (GB/s)  (GB/s)      ", "   (ms)  (GB/s)  (GB/s)      ", "line 15"),
        ("#  Rank  3", "#  Rank  9", "a line for each"),
    ],
)
def test_a_text_of_nccl_tests_that_is_wrong_is_named(old: str, new: str, message: str) -> None:
    assert old in NODE
    with pytest.raises(ParseError, match=message):
        nccl_tests.parse(NODE.replace(old, new))


def test_whole_lines_of_nccl_are_passed_over() -> None:
    log = "1host:77:80 [0] NCCL INFO Channel 00/24 : 0 1 2 3\n"
    lines = NODE.splitlines(keepends=True)
    lines.insert(20, log)
    assert nccl_tests.parse("".join(lines)) == nccl_tests.parse(NODE)


Parser = Callable[[str], Any]
CASES: Sequence[tuple[Parser, str]] = (
    (perftest.parse_bandwidth, BANDWIDTH),
    (perftest.parse_bandwidth, GPU),
    (perftest.parse_latency, LATENCY),
    (nccl_tests.parse, NODE),
    (nccl_tests.parse, NODE.replace("values : 0 OK", "values : 3 FAILED")),
    (nccl_tests.parse, TWO_NODES),
)
SLACK = 1.07
"""A mutation of a digit within what rounding allows is not seen."""


def is_better(before: Any, after: Any) -> bool:
    """Whether one reading would be judged better than another, at a size that both have."""
    if isinstance(before, nccl_tests.Reductions):
        if before.wrong and not after.wrong:
            return True
        rows = {row.bytes: row for row in before.rows}
        return any(
            row.bus_gb_per_s > SLACK * rows[row.bytes].bus_gb_per_s + 0.1
            or row.microseconds * SLACK < rows[row.bytes].microseconds
            for row in after.rows
            if row.bytes in rows
        )
    sizes = {row.bytes: row for row in before}
    pairs = [(sizes[row.bytes], row) for row in after if row.bytes in sizes]
    if isinstance(before[0], perftest.Latency):
        return any(new.microseconds * SLACK < old.microseconds for old, new in pairs)
    return any(new.gbit_per_s > SLACK * old.gbit_per_s + 0.02 for old, new in pairs)


def test_no_mutation_reads_as_better_or_raises_another_error() -> None:
    chance = random.Random(SEED)
    read = refused = 0
    for number in range(COUNT):
        parser, text = CASES[number % len(CASES)]
        name = chance.choice(list(MUTATIONS))
        mutated = MUTATIONS[name](chance, text)
        try:
            after = parser(mutated)
        except ParseError:
            refused += 1
            continue
        read += 1
        assert not is_better(parser(text), after), f"{name}, number {number}"
    assert read > 200 < refused
