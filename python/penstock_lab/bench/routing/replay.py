"""Replays a workload on simulated replicas: writes the setup for `crates/lab/sim`, and summarises
its report.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.config import read_document
from penstock.core import PenstockError
from penstock_lab.bench.routing.workloads import Workload
from penstock_lab.bench.stats import summarise

Spec = Mapping[str, object] | str
"""A routing policy or an engine profile in the JSON format of `crates/lab/sim`."""


def _weighted(**weights: float) -> Spec:
    scorers = [
        {"name": name.replace("_", "-"), "weight": weight} for name, weight in weights.items()
    ]
    return {"profile": {"scorers": scorers}}


POLICIES: Mapping[str, Spec] = {
    "default": {"profile": {}},
    "round-robin": {"profile": {"picker": "round-robin", "scorers": []}},
    "least-load": _weighted(running=1),
    "llm-d": _weighted(queue=2, kv_use=2, prefix=3),
    "cache-aware": "cache-aware",
    "oracle": "oracle",
}
"""Policies by name: Penstock's default, baselines, the defaults of llm-d and of SMG's command line,
and an oracle that has exact queues, caches and output lengths (crates/lab/sim/src/fleet).
"""


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    spec: Spec


@dataclass(frozen=True, slots=True)
class Fleet:
    engines: tuple[Spec, ...]
    """Simulated engine of each replica: a preset's name, or a profile."""
    poll: float = 0.05
    """Seconds between two scrapes of a replica's metrics."""
    reservations: bool = True
    """Whether a gateway counts a request as load as soon as it has sent it, before the replica's
    metrics show it.
    """
    gateways: int = 1
    """Number of gateways. Each request goes to a random one; gateways exchange no state."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of one replay. Latencies are in milliseconds."""

    policy: str
    requests: int
    failed: int
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    tpot_mean: float
    tpot_p99: float
    tokens_per_s: float
    """Output tokens per second of simulated time, from the first arrival to the end of the last
    request.
    """
    cached: float
    """Share (0 to 1) of prompt tokens that the replicas found in their caches."""
    expected: float
    """Share (0 to 1) of prompt tokens that the gateway expected to be cached."""
    unevenness: float
    """Coefficient of variation of KV cache use over the replicas, averaged over time samples."""
    kv_use: float
    preemptions: int


def policy(named: str) -> Policy:
    """The policy `named` in POLICIES, or the routing profile in the YAML or JSON file `named`."""
    if named in POLICIES:
        return Policy(named, POLICIES[named])
    path = Path(named)
    if not path.exists():
        raise PenstockError(f"--profile {named}: no file, and not one of {', '.join(POLICIES)}")
    return Policy(path.stem, {"profile": read_document(path)})


def replay(
    workload: Workload,
    chosen: Policy,
    fleet: Fleet,
    progress: Callable[[int, int], object] | None = None,
) -> Summary:
    """Replay a workload with one policy. `progress` is called with the number of requests that have
    arrived, and the total.
    """
    from penstock._native import fleet_replay

    try:
        report = json.loads(fleet_replay(setup(workload, chosen, fleet), progress))
    except ValueError as error:
        raise PenstockError(f"{chosen.name}: {error}") from error
    return summary(chosen.name, report)


def setup(workload: Workload, chosen: Policy, fleet: Fleet) -> str:
    """The setup for `fleet_replay`, as JSON."""
    arrivals = [
        {
            "at": one.at,
            "input_tokens": one.input_tokens,
            "output_tokens": one.output_tokens,
            "blocks": one.hash_ids,
        }
        for one in workload.arrivals
    ]
    return json.dumps(
        {
            "engines": fleet.engines,
            "policy": chosen.spec,
            "poll_s": fleet.poll,
            "reservations": fleet.reservations,
            "gateways": fleet.gateways,
            "block_tokens": workload.block_tokens,
            "seed": fleet.seed,
            "arrivals": arrivals,
        }
    )


def summary(name: str, report: Mapping[str, Any]) -> Summary:
    """Summary of a report of `crates/lab/sim/src/fleet/report.rs`."""
    ttft = summarise(_known(report["ttft"]), (99,))
    tpot = summarise(_known(report["tpot"]), (99,))
    ends = _known(report["end"])
    prompts = max(1, sum(report["prompt_tokens"]))
    used = [sample for sample in report["kv_use"] if any(sample)]
    return Summary(
        policy=name,
        requests=len(report["sent"]),
        failed=report["failed"],
        ttft_mean=1e3 * ttft.mean,
        ttft_p50=1e3 * ttft.median,
        ttft_p99=1e3 * ttft.percentiles[0],
        tpot_mean=1e3 * tpot.mean,
        tpot_p99=1e3 * tpot.percentiles[0],
        tokens_per_s=sum(report["output_tokens"]) / max(ends, default=1.0),
        cached=sum(report["cached"]) / prompts,
        expected=sum(report["expected"]) / prompts,
        unevenness=unevenness(used),
        kv_use=statistics.fmean([statistics.fmean(sample) for sample in used]) if used else 0.0,
        preemptions=report["preemptions"],
    )


def unevenness(kv_use: Sequence[Sequence[float]]) -> float:
    """Coefficient of variation of KV use over the replicas, averaged over the samples in which a
    replica uses any; 0 without such samples.
    """
    used = [sample for sample in kv_use if any(sample)]
    if not used:
        return 0.0
    return statistics.fmean(statistics.pstdev(one) / statistics.fmean(one) for one in used)


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]
