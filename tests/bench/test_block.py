"""The printed block: vLLM's labels in vLLM's columns."""

from __future__ import annotations

import re
from typing import Any

from penstock_lab.bench import block
from penstock_lab.bench.result import Traffic, Wanted
from tests.bench.test_result import SHORT, UNSENT, made, outcome

METRICS = ("ttft", "tpot", "itl")
# vLLM 0.32 with --max-concurrency 8 --request-rate 2 --goodput ttft:250, in its order.
LABELS = [
    "Successful requests:",
    "Failed requests:",
    "Maximum request concurrency:",
    "Request rate configured (RPS):",
    "Benchmark duration (s):",
    "Total input tokens:",
    "Total generated tokens:",
    "Request throughput (req/s):",
    "Request goodput (req/s):",
    "Output token throughput (tok/s):",
    "Peak output token throughput (tok/s):",
    "Peak concurrent requests:",
    "Total token throughput (tok/s):",
    "---------------Time to First Token----------------",
    "Mean TTFT (ms):",
    "Median TTFT (ms):",
    "P99 TTFT (ms):",
    "-----Time per Output Token (excl. 1st token)------",
    "Mean TPOT (ms):",
    "Median TPOT (ms):",
    "P99 TPOT (ms):",
    "---------------Inter-token Latency----------------",
    "Mean ITL (ms):",
    "Median ITL (ms):",
    "P99 ITL (ms):",
]
INTEGERS = {*LABELS[:3], *LABELS[5:7]}


def lines(*outcomes: Any, metrics: tuple[str, ...] = METRICS, **options: Any) -> list[str]:
    return block.render(made(*outcomes, **options), metrics).splitlines()


def test_labels_and_columns_are_vllms() -> None:
    wanted = Wanted(goodput={"ttft": 0.25})
    printed = lines(outcome(), traffic=Traffic(1, 2.0, max_concurrency=8), wanted=wanted)
    assert printed[0] == "============ Serving Benchmark Result ============"
    assert printed[-1] == "=" * 50
    for line, label in zip(printed[1:], LABELS, strict=False):
        if label.startswith("-"):
            assert line == label
            continue
        number = r"\d+" if label in INTEGERS else r"\d+\.\d\d"
        assert line.startswith(f"{label:<40} ")
        assert re.fullmatch(number + " *", line[41:])
        assert len(line) >= 51
    assert printed[len(LABELS) + 1] == "---------------------Penstock---------------------"


def test_lines_that_say_nothing_are_left_out() -> None:
    printed = "\n".join(lines(outcome()))
    absent = ("Maximum request concurrency", "Request rate configured", "Request goodput")
    for label in (*absent, "Sent again"):
        assert label not in printed


def test_values_are_those_of_the_result() -> None:
    printed = lines(outcome(), outcome(due=1.25))
    assert "Successful requests:                     2         " in printed
    assert "Mean TTFT (ms):                          250.00    " in printed
    assert "Max send lateness (ms):                  250.00    " in printed


def test_sections_are_those_that_were_asked_for() -> None:
    every = tuple(block.METRICS)
    printed = "\n".join(lines(outcome(), traffic=Traffic(1, 2.0, max_concurrency=8), metrics=every))
    for title in (
        "End-to-end Latency",
        "Client-side Queueing",
        "Queue-inclusive End-to-end Latency",
    ):
        assert f"-{title}-" in printed
    assert "P99 E2EL incl. Client Queue (ms):        750.00" in printed
    assert "Inter-token Latency" not in "\n".join(lines(outcome(), metrics=("e2el",)))


def test_all_percentiles_are_printed() -> None:
    printed = "\n".join(lines(outcome(), wanted=Wanted((50.0, 90.0, 99.9))))
    for label in ("P50 TTFT", "P90 TPOT", "P99.9 ITL"):
        assert f"\n{label} (ms): " in printed


def test_our_section_names_what_went_wrong() -> None:
    odd = outcome(input_tokens=12, resent=True)
    silent = outcome(reported=False)
    printed = lines(odd, silent, SHORT, UNSENT, traffic=Traffic(9), partial=True)
    ours = "\n".join(printed[printed.index("---------------------Penstock---------------------") :])
    assert re.search(r"^Failed \(short\): +1 *$", ours, re.MULTILINE)
    assert re.search(r"^Failed \(unsent\): +1 *$", ours, re.MULTILINE)
    assert re.search(r"^Sent again, kept connection had ended: +1 *$", ours, re.MULTILINE)
    assert re.search(r"^Prompts of another length than asked: +1 *$", ours, re.MULTILINE)
    assert re.search(r"^Answers without usage: +1 *$", ours, re.MULTILINE)
    assert re.search(r"^Cached prompt tokens: +4 *$", ours, re.MULTILINE)
    assert re.search(r"^Interrupted; requests not ended: +6 *$", ours, re.MULTILINE)
    assert "  short: 2 tokens of 3" in ours


def test_with_a_limit_waiting_is_called_queueing() -> None:
    printed = "\n".join(lines(outcome(), traffic=Traffic(1, max_concurrency=1)))
    assert "Max client-side queueing (ms):" in printed
    assert "send lateness" not in printed


def test_a_trace_that_was_cut_says_so() -> None:
    printed = "\n".join(
        lines(outcome(), tags={"trace": {"shortened": 3, "dropped": 2, "total": 9}})
    )
    assert re.search(r"^Prompts cut to fit the server: +3 *$", printed, re.MULTILINE)
    assert re.search(r"^Requests too long for the server: +2 *$", printed, re.MULTILINE)
