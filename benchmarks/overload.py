"""Latency of accepted requests at ten times the capacity of a server.

    python benchmarks/overload.py [--seconds 40] [--times 10] [--waits 0 10 2] [--model smollm2]

One server for each bound of `--max-queue-wait`. Its capacity is the throughput of a closed loop
with as many clients as it runs requests. Two open loops follow: at 0.9 of the capacity, and at ten
times the capacity. Reports TTFT and TPOT of accepted requests, how and when the others were
refused, and the resident memory of both processes before and after.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support import facts, watching
from support.servers import HERE, Server

from penstock_lab.bench.report import drawing
from penstock_lab.bench.report.charts import Axis, Plot, Point, Series

RUNNING = 16
"""Number of requests that the engine runs at once. With more, two cores would not be faster."""
INPUT, OUTPUT = 64, 32
SHARE = 0.9
"""Rate of the sustainable open loop, relative to the capacity."""
KEPT = 1.5
"""Maximum TPOT of accepted requests under overload, relative to the closed loop."""


def bench(server: Server, result: Path, seed: int, *flags: object) -> dict[str, Any]:
    """Run `penstock bench serve` once; returns its detailed result."""
    words = ["bench", "serve", "--port", server.port, "--seed", seed, "--disable-tqdm"]
    words += ["--random-input-len", INPUT, "--random-output-len", OUTPUT, "--prompt-ids"]
    words += ["--percentile-metrics", "ttft,tpot,e2el", "--metric-percentiles", "50,99"]
    words += ["--save-result", "--save-detailed", "--result-dir", result.parent]
    command = [*HERE, *words, "--result-filename", result.name, *flags]
    subprocess.run(
        [str(word) for word in command], check=True, stdout=subprocess.DEVNULL, timeout=600
    )
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def sizes(server: Server) -> list[float]:
    """Resident memory in MiB of the API server and of the engine."""
    return [watching.resident_mib(pid) for pid in server.tree.pids()]


def refusals(result: Mapping[str, Any]) -> dict[str, Any]:
    """For the requests that were not served: their HTTP statuses, examples of errors, and the
    seconds until the client got them.
    """
    detail = result["penstock"]["detail"]
    rows = zip(detail["failure"], detail["sent"], detail["ended"], strict=True)
    after = [ended - sent for failure, sent, ended in rows if failure and sent and ended]
    said = (re.search(r"\b[45]\d\d\b", error) for error in result["errors"] if error)
    return {
        "statuses": dict(Counter(found[0] if found else "no status" for found in said)),
        "examples": result["penstock"]["failure_examples"][:3],
        "median_s": statistics.median(after) if after else None,
        "max_s": max(after, default=None),
    }


def measured(
    wait: float, model: str, given_capacity: float | None, seconds: float, times: float
) -> dict[str, Any]:
    """Start a server with this bound on the queue time, and run all loads on it."""
    with TemporaryDirectory(prefix="overload-") as name:
        directory = Path(name)
        words = ["serve", model, f"--max-num-seqs={RUNNING}", f"--max-queue-wait={wait:g}"]
        with Server(words, (), directory / "server.log") as server:
            closed = bench(
                server,
                directory / "closed.json",
                1,
                *("--max-concurrency", RUNNING, "--num-prompts", 15 * RUNNING),
            )
            capacity = given_capacity or closed["request_throughput"]
            begun = sizes(server)
            loads = {"closed loop": closed}
            for seed, (load, rate) in enumerate(
                {f"at {SHARE:g}": SHARE * capacity, "overload": times * capacity}.items()
            ):
                flags = ("--request-rate", rate, "--num-prompts", round(rate * seconds))
                loads[load] = bench(server, directory / f"{seed}.json", 2 + seed, *flags)
            time.sleep(2)
            ended = sizes(server)
    return {"capacity": capacity, "loads": loads, "begun_mib": begun, "ended_mib": ended}


def row(wait: float, load: str, found: Mapping[str, Any]) -> list[str]:
    """One row of the table: one server with one load."""
    result = found["loads"][load]
    refused = refusals(result)
    counted = sorted(refused["statuses"].items())
    statuses = ", ".join(f"{count} with {status}" for status, count in counted)
    latencies = (
        f"{result[f'{percent}_{name}_ms']:,.0f}"
        for name in ("ttft", "tpot")
        for percent in ("median", "p99")
    )
    after = "" if refused["median_s"] is None else f"{refused['max_s']:.2f}"
    return [
        f"{wait:g} s, {load}" if wait else f"none, {load}",
        f"{result['request_rate']:.1f}" if result["max_concurrency"] is None else "",
        str(result["completed"]),
        *latencies,
        statuses or "0",
        after,
    ]


def lines(
    measurements: Mapping[float, Mapping[str, Any]], known: Mapping[str, Any], times: float
) -> list[str]:
    columns = ("bound of the wait, load", "requests/s", "accepted")
    columns += ("TTFT p50 ms", "TTFT p99", "TPOT p50 ms", "TPOT p99", "refused", "latest, s")
    rows = [
        row(wait, load, found) for wait, found in measurements.items() for load in found["loads"]
    ]
    memory = [
        (f"{wait:g} s" if wait else "none", *map(round, found["begun_mib"] + found["ended_mib"]))
        for wait, found in measurements.items()
    ]
    return [
        f"# {times:g} times more requests than the server can serve",
        "",
        *facts.fact_lines(known),
        "",
        f"Prompts of {INPUT} tokens, answers of {OUTPUT}; {RUNNING} requests run at once. The",
        "closed loop has as many clients: the server at its capacity. The open loops have",
        f"{SHARE:g} of its throughput and {times:g} times it. Load generator and server share the",
        "processors. `refused` are requests that got no stream, `latest` is the time after which",
        "the last of them knew.",
        "",
        *facts.table(columns, rows),
        "",
        "Resident memory, MiB: API server and engine before the open loops and after them.",
        "",
        *facts.table(("bound", "before", "engine", "after", "engine"), memory),
    ]


def chart(measurements: Mapping[float, Mapping[str, Any]], times: float) -> Plot:
    """Chart of the TTFT of accepted requests by send time, under overload."""
    series = []
    for style, (wait, found) in enumerate(measurements.items()):
        result = found["loads"]["overload"]
        rows = zip(
            result["penstock"]["detail"]["sent"],
            result["ttfts"],
            result["penstock"]["detail"]["failure"],
            strict=True,
        )
        points = tuple(Point(sent, ttft) for sent, ttft, failure in rows if not failure)
        name = f"--max-queue-wait {wait:g}" if wait else "no bound of the wait"
        series.append(Series(name, style, points, line=False))
    return Plot(
        key="ttft",
        title=f"TTFT of accepted requests at {times:g} times the capacity",
        description="Time to first token over the time of the request, for each bound of the wait.",
        x=Axis("sent", "s", log=False),
        y=Axis("TTFT", "s", log=False, zero=True),
        series=tuple(series),
    )


def main() -> int:
    parser = facts.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=40, help="of each load")
    parser.add_argument("--times", type=float, default=10)
    parser.add_argument("--waits", type=float, nargs="+", default=[0, 10, 2])
    given = parser.parse_args()
    measurements: dict[float, dict[str, Any]] = {}
    capacity = None
    for wait in given.waits:
        found = measured(wait, given.model, capacity, given.seconds, given.times)
        measurements[wait], capacity = found, found["capacity"]
        print(*(row(wait, load, found) for load in found["loads"]), sep="\n", flush=True)
    known = facts.gather(given.peers, (), sys.argv)
    stem = facts.stem("overload", given.results)
    text = lines(measurements, known, given.times)
    drawing.write(drawing.draw([chart(measurements, given.times)]), stem)
    text += ["", f"![TTFT over time]({stem.name}-ttft.png)"]
    facts.write(stem, text, {"facts": known, "measurements": slim(measurements)})
    print("\n".join(text))
    bounded = [found for wait, found in measurements.items() if wait]
    return 0 if all(map(kept, bounded)) else 1


def kept(found: Mapping[str, Any]) -> bool:
    """Whether accepted requests under overload were about as fast as in the closed loop, and all
    others were rejected with 503 or 429.
    """
    closed, overload = found["loads"]["closed loop"], found["loads"]["overload"]
    only = set(refusals(overload)["statuses"]) <= {"503", "429"}
    return only and overload["median_tpot_ms"] <= KEPT * closed["median_tpot_ms"]


def slim(measurements: Mapping[float, Mapping[str, Any]]) -> dict[str, Any]:
    """The measurements without the arrays of single requests."""

    def short(result: Mapping[str, Any]) -> dict[str, Any]:
        scalars: Sequence[type] = (int, float, str)
        told = {
            name: value
            for name, value in result.items()
            # Omit names of models and tokenizers, because they are local paths.
            if isinstance(value, tuple(scalars)) and not name.endswith("_id")
        }
        return {**told, "refused": refusals(result)}

    return {
        f"{wait:g}": {
            **found,
            "loads": {load: short(result) for load, result in found["loads"].items()},
        }
        for wait, found in measurements.items()
    }


if __name__ == "__main__":
    sys.exit(main())
