"""Summary printed after a run: the lines of `vllm bench serve`, then lines of this tool alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock_lab.bench import genai_perf

WIDTH = 50
METRICS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
    "client_queue_time": ("Client Queue Time", "Client-side Queueing"),
    "e2el_including_client_queue": (
        "E2EL incl. Client Queue",
        "Queue-inclusive End-to-end Latency",
    ),
}
"""Metric names of --percentile-metrics, and their titles in the summary."""

TRACE = {
    "shortened": "Prompts cut to fit the server:",
    "dropped": "Requests too long for the server:",
}
"""Counts of a trace replay that get a line in the summary, with the text of the line."""

Result = Mapping[str, Any]


def render(result: Result, metrics: Sequence[str]) -> str:
    """The summary of `result`, with a section for each of `metrics` that it contains."""
    return "\n".join(_lines(result, metrics))


def _lines(result: Result, metrics: Sequence[str]) -> Iterator[str]:
    yield _title("Serving Benchmark Result", "=")
    yield from _totals(result)
    for name in METRICS:
        if name in metrics and f"mean_{name}_ms" in result:
            yield from _section(result, name)
    yield from _penstock(result)
    yield from _genai_perf(result["penstock"].get("genai_perf", {}))
    yield from _windows(result["penstock"].get("windows", ()))
    yield "=" * WIDTH


def _title(text: str, fill: str) -> str:
    # Only the first title is surrounded by spaces.
    return f"{f' {text} ' if fill == '=' else text:{fill}^{WIDTH}}"


def _number(label: str, value: int) -> str:
    return f"{label:<40} {value:<10}"


def _decimal(label: str, value: float) -> str:
    return f"{label:<40} {value:<10.2f}"


def _totals(result: Result) -> Iterator[str]:
    yield _number("Successful requests:", result["completed"])
    yield _number("Failed requests:", result["failed"])
    if result["max_concurrency"] is not None:
        yield _number("Maximum request concurrency:", result["max_concurrency"])
    if result["request_rate"] != "inf":
        yield _decimal("Request rate configured (RPS):", result["request_rate"])
    yield _decimal("Benchmark duration (s):", result["duration"])
    yield _number("Total input tokens:", result["total_input_tokens"])
    yield _number("Total generated tokens:", result["total_output_tokens"])
    yield _decimal("Request throughput (req/s):", result["request_throughput"])
    if result["request_goodput"] is not None:
        yield _decimal("Request goodput (req/s):", result["request_goodput"])
    yield _decimal("Output token throughput (tok/s):", result["output_throughput"])
    yield _decimal("Peak output token throughput (tok/s):", result["max_output_tokens_per_s"])
    yield _decimal("Peak concurrent requests:", result["max_concurrent_requests"])
    yield _decimal("Total token throughput (tok/s):", result["total_token_throughput"])


def _section(result: Result, name: str) -> Iterator[str]:
    short, title = METRICS[name]
    yield _title(title, "-")
    yield _decimal(f"Mean {short} (ms):", result[f"mean_{name}_ms"])
    yield _decimal(f"Median {short} (ms):", result[f"median_{name}_ms"])
    for key, value in result.items():
        if key.startswith("p") and key.endswith(f"_{name}_ms") and key[1].isdigit():
            percent = key[1 : -len(f"_{name}_ms")]
            yield _decimal(f"P{percent} {short} (ms):", value)


def _penstock(result: Result) -> Iterator[str]:
    ours = result["penstock"]
    yield _title("Penstock", "-")
    for kind, count in sorted(ours["failures"].items()):
        yield _number(f"Failed ({kind}):", count)
    # With a concurrency limit, a request waits in the client for a free connection. Without one, it
    # is sent when due.
    waited = "send lateness" if result["max_concurrency"] is None else "client-side queueing"
    for statistic in ("mean", "p99", "max"):
        yield _decimal(
            f"{statistic.capitalize()} {waited} (ms):", ours["send_lateness_ms"][statistic]
        )
    if ours.get("resent"):
        yield _number("Sent again, kept connection had ended:", ours["resent"])
    usage = ours["usage"]
    if usage["reported"] < result["completed"]:
        yield _number("Answers without usage:", result["completed"] - usage["reported"])
    yield _number("Prompts of another length than asked:", usage["prompt_mismatch"])
    yield _number("Cached prompt tokens:", usage["cached_tokens"])
    for what, label in TRACE.items():
        if ours.get("trace", {}).get(what):
            yield _number(label, ours["trace"][what])
    if ours["partial"]:
        yield _number("Interrupted; requests not ended:", _not_ended(result))
    yield from (f"  {example}" for example in ours["failure_examples"])


def _not_ended(result: Result) -> int:
    kinds: Mapping[str, int] = result["penstock"]["failures"]
    ended: int = (
        result["completed"]
        + result["failed"]
        - kinds.get("interrupted", 0)
        - kinds.get("unsent", 0)
    )
    expected: int = result["num_prompts"]
    return expected - ended


def _genai_perf(table: Result) -> Iterator[str]:
    """GenAI-Perf's table."""
    if not table:
        return
    yield _title("Metrics of GenAI-Perf", "-")
    yield f"{'':26}" + "".join(f"{column:>11}" for column in genai_perf.COLUMNS)
    for name, (title, _) in genai_perf.METRICS.items():
        if name in table:
            yield f"{title:<26}" + "".join(
                f"{table[name][each]:>11,.2f}" for each in genai_perf.COLUMNS
            )


def _windows(windows: Sequence[Result]) -> Iterator[str]:
    if not windows:
        return
    yield _title("Windows", "-")
    titles = ("seconds", "ended", "req/s", "out tok/s", "TTFT ms", "TTST ms", "tok/s/user")
    yield "".join(f"{title:>12}" for title in titles)
    names = (
        "time_to_first_token_ms",
        "time_to_second_token_ms",
        "output_token_throughput_per_user",
    )
    for window in windows:
        means = (window["metrics"].get(name, {}).get("avg") for name in names)
        span = f"{window['start_s']:.0f}-{window['end_s']:.0f}"
        rates = (window["request_throughput"], window["output_throughput"])
        numbers = [*(f"{rate:.2f}" for rate in rates), *map(_or_dash, means)]
        yield "".join(f"{each:>12}" for each in (span, str(window["completed"]), *numbers))


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
