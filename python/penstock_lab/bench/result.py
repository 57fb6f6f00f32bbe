"""The result of a load as a dictionary and a JSON file. It has the keys of vLLM's serving
benchmark, and all other values under `penstock`.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from penstock import __version__
from penstock.core import PenstockError
from penstock_lab.bench import genai_perf, stats
from penstock_lab.bench.request import Load, Outcome

FORMAT = 1
METRICS = {
    "ttft": "ttft",
    "tpot": "tpot",
    "itl": "itl",
    "e2el": "e2el",
    "client_queue_time": "queue",
}
"""Names of latencies in the file, with the columns of `stats.Latencies` that they summarise."""
DETAILED = (
    "input_lens",
    "output_lens",
    "start_times",
    "ttfts",
    "itls",
    "generated_texts",
    "errors",
)
"""Arrays that only --save-detailed writes. `latencies` and `queue_times` are in every file, as with
vLLM.
"""
EXAMPLES = 10
DEFAULT_TAGS: Mapping[str, object] = {
    "command": "serve",
    "argv": (),
    "server": "",
    "workload": "",
    "repeat": 0,
    "seed": 0,
    "axis": None,
    "point": None,
}

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RampUp:
    """A ramp of the request rate: its start and end in requests per second, and the times at which
    the rate reached each integer between them.
    """

    strategy: str
    start_rps: int
    end_rps: int
    changes: Sequence[tuple[int, float]]
    """(requests per second, seconds after the start of the load), ascending."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The arrival process."""

    num_prompts: int
    request_rate: float = math.inf
    burstiness: float = 1.0
    max_concurrency: int | None = None
    ramp_up: RampUp | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """The server and model."""

    backend: str
    model_id: str
    tokenizer_id: str
    label: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The statistics to compute. `goodput` has limits in seconds for ttft, tpot and e2el; `window`
    is a width in seconds, None for no windows.
    """

    percentiles: Sequence[float] = (99.0,)
    goodput: Mapping[str, float] = field(default_factory=dict)
    window: float | None = None


def make(
    load: Load,
    identity: Identity,
    traffic: Traffic,
    wanted: Wanted,
    tags: Mapping[str, object],
    date: datetime,
) -> Result:
    """The complete result of a run, including arrays; `slim` removes the arrays. `tags` are fields
    of the `penstock` key: command, argv, server, workload, repeat, seed, axis, point.
    """
    pooled = stats.latencies(load.outcomes)
    return {
        **_head(identity, traffic, date),
        **_totals(load, pooled, wanted),
        **_arrays(load.outcomes),
        **_summaries(pooled, traffic, wanted),
        "penstock": _penstock(load, wanted.window, tags),
    }


def _head(identity: Identity, traffic: Traffic, date: datetime) -> Result:
    head: Result = {
        "date": date.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": identity.backend,
        "backend": identity.backend,
        "label": identity.label,
        "model_id": identity.model_id,
        "tokenizer_id": identity.tokenizer_id,
        "num_prompts": traffic.num_prompts,
        **identity.metadata,
        "request_rate": traffic.request_rate if traffic.request_rate < math.inf else "inf",
        "burstiness": traffic.burstiness if traffic.burstiness < math.inf else "inf",
        "max_concurrency": traffic.max_concurrency,
    }
    if (ramp := traffic.ramp_up) is not None:
        head |= {
            "ramp_up_strategy": ramp.strategy,
            "ramp_up_start_rps": ramp.start_rps,
            "ramp_up_end_rps": ramp.end_rps,
            "rps_change_events": [
                {"rps": rps, "timestamp": (date + timedelta(seconds=after)).isoformat()}
                for rps, after in ramp.changes
            ],
        }
    return head


def _totals(load: Load, pooled: stats.Latencies, wanted: Wanted) -> Result:
    successful = [outcome for outcome in load.outcomes if outcome.success]
    inputs = sum(outcome.input_tokens for outcome in successful)
    outputs = sum(outcome.output_tokens for outcome in successful)
    peaks = stats.peaks(successful)
    seconds = load.duration or math.inf
    return {
        "duration": load.duration,
        "completed": len(successful),
        "failed": len(load.outcomes) - len(successful),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(successful) / seconds,
        "request_goodput": stats.good_requests(pooled, wanted.goodput) / seconds
        if wanted.goodput
        else None,
        "output_throughput": outputs / seconds,
        "total_token_throughput": (inputs + outputs) / seconds,
        "max_output_tokens_per_s": peaks.output_tokens_per_s,
        "max_concurrent_requests": peaks.concurrent_requests,
        "rtfx": 0.0,
    }


def _arrays(outcomes: Sequence[Outcome]) -> Result:
    """Arrays with an item for each request; 0 for an absent value. As in vLLM, a failed request has
    no output.
    """
    return {
        "input_lens": [outcome.input_tokens for outcome in outcomes],
        "output_lens": [outcome.output_tokens if outcome.success else 0 for outcome in outcomes],
        "ttfts": [stats.ttft(outcome) for outcome in outcomes],
        "itls": [stats.gaps(outcome).tolist() for outcome in outcomes],
        "latencies": [stats.e2el(outcome) for outcome in outcomes],
        "start_times": [_known(outcome.sent) or 0.0 for outcome in outcomes],
        "queue_times": [_known(outcome.sent - outcome.due) or 0.0 for outcome in outcomes],
        "generated_texts": [outcome.text for outcome in outcomes],
        "errors": [_error(outcome) for outcome in outcomes],
    }


def _summaries(pooled: stats.Latencies, traffic: Traffic, wanted: Wanted) -> Result:
    columns = {name: getattr(pooled, column) for name, column in METRICS.items()}
    if traffic.max_concurrency is None:
        del columns["client_queue_time"]
    elif traffic.request_rate < math.inf:
        columns["e2el_including_client_queue"] = [
            latency + queue for latency, queue in zip(pooled.e2el, pooled.queue, strict=True)
        ]
    found: Result = {}
    for name, values in columns.items():
        summary = stats.summarise(values, wanted.percentiles)
        found[f"mean_{name}_ms"] = summary.mean * 1000
        found[f"median_{name}_ms"] = summary.median * 1000
        found[f"std_{name}_ms"] = summary.std * 1000
        for percent, value in zip(wanted.percentiles, summary.percentiles, strict=True):
            found[f"p{percent_word(percent)}_{name}_ms"] = value * 1000
    return found


def percent_word(percent: float) -> str:
    """A percentile as vLLM writes it, such as 99 or 99.9."""
    return str(int(percent)) if percent == int(percent) else str(percent)


def _penstock(load: Load, window: float | None, tags: Mapping[str, object]) -> Result:
    outcomes = load.outcomes
    failed = [outcome for outcome in outcomes if not outcome.success]
    reported = [outcome for outcome in outcomes if outcome.success and outcome.reported]
    return {
        "format": FORMAT,
        "version": __version__,
        **DEFAULT_TAGS,
        **tags,
        "partial": load.partial,
        "failures": dict(Counter(outcome.failure for outcome in failed)),
        "failure_examples": list(dict.fromkeys(map(_error, failed)))[:EXAMPLES],
        "resent": sum(outcome.resent for outcome in outcomes),
        "send_lateness_ms": _lateness(outcomes),
        "usage": {
            "reported": len(reported),
            "prompt_mismatch": sum(_differs(outcome) for outcome in reported),
            "cached_tokens": sum(outcome.cached_tokens for outcome in reported),
        },
        "client_cpu_s": load.client_cpu,
        "events": sum(len(outcome.events) for outcome in outcomes),
        "genai_perf": genai_perf.table(outcomes),
        **({"windows": genai_perf.windows(outcomes, window, load.duration)} if window else {}),
        "detail": {
            "due": [outcome.due for outcome in outcomes],
            "sent": [_known(outcome.sent) for outcome in outcomes],
            "ended": [_known(outcome.ended) for outcome in outcomes],
            "failure": [outcome.failure for outcome in outcomes],
            "event_counts": [len(outcome.events) for outcome in outcomes],
        },
    }


def _lateness(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Statistics of the time in milliseconds by which requests were sent late. All sent requests
    count, failed ones too.
    """
    late = [
        (outcome.sent - outcome.due) * 1000 for outcome in outcomes if not math.isnan(outcome.sent)
    ]
    summary = stats.summarise(late, (99.0, 100.0))
    p99, most = summary.percentiles
    return {"mean": summary.mean, "median": summary.median, "p99": p99, "max": most}


def _differs(outcome: Outcome) -> bool:
    """Whether the prompt token count differs from the requested one. 0 requested means unknown."""
    return outcome.asked[0] not in (0, outcome.input_tokens)


def _error(outcome: Outcome) -> str:
    return f"{outcome.failure}: {outcome.detail}" if outcome.detail else outcome.failure


def _known(moment: float) -> float | None:
    return None if math.isnan(moment) else moment


def slim(result: Result) -> Result:
    """The result without the arrays of detailed files."""
    kept = {key: value for key, value in result.items() if key not in DETAILED}
    kept["penstock"] = {key: value for key, value in result["penstock"].items() if key != "detail"}
    return kept


def file_name(result: Result) -> str:
    """vLLM's file name: {label}-{rate}qps[-concurrency{n}]-{model}-{date}.json."""
    label = result["label"] or result["backend"]
    limit = result["max_concurrency"]
    concurrency = "" if limit is None else f"-concurrency{limit}"
    rate = f"{result['request_rate']}qps"
    if "ramp_up_strategy" in result:
        start, end = result["ramp_up_start_rps"], result["ramp_up_end_rps"]
        rate = f"ramp-up-{result['ramp_up_strategy']}-{start}qps-{end}qps"
    model = Path(result["model_id"]).name
    return f"{label}-{rate}{concurrency}-{model}-{result['date']}.json"


def write(result: Result, path: Path, *, append: bool = False) -> None:
    """Write a result atomically: to a temporary file beside `path`, which is then renamed. With
    `append`, it becomes a new line after the file's content.
    """
    text = json.dumps(result, allow_nan=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if append and path.exists():
            text = f"{path.read_text()}\n{text}"
        _replace(path, text)
    except OSError as error:
        raise PenstockError(f"cannot write {path}: {error.strerror}") from error


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
