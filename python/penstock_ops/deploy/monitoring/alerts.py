"""The alert rules, each with its line of the runbook (docs/alerts.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

RUNBOOK = "https://github.com/penstock/penstock/blob/main/docs/alerts.md"
INSTANCE = "{{ $labels.instance }}"
FIRST_TOKEN = "vllm:time_to_first_token_seconds"
TOKEN_TIME = "vllm:request_time_per_output_token_seconds"
RESPONSES = "penstock:http_responses_total"


@dataclass(frozen=True, slots=True)
class Bounds:
    """When a replica is overloaded, which a plan knows better."""

    requests_waiting: float = 32
    kv_use: float = 0.95

    @staticmethod
    def of_plan(plan: Mapping[str, Any]) -> Bounds:
        thresholds = plan["thresholds"]
        waiting, used = (thresholds[name]["needed"] for name in ("requests_waiting", "kv_use"))
        return Bounds(float(waiting), float(used))


@dataclass(frozen=True, slots=True)
class Alert:
    name: str
    expression: str
    lasts: str
    """How long it has to hold: Prometheus' `for`."""
    severity: Literal["critical", "warning"]
    summary: str
    description: str

    @property
    def runbook(self) -> str:
        return f"{RUNBOOK}#{self.name.lower()}"

    def rule(self) -> dict[str, object]:
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": self.lasts,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": self.runbook,
            },
        }


def alerts(bounds: Bounds) -> tuple[Alert, ...]:
    return (*health(), *service(), *pressure(bounds), *nodes())


def health() -> tuple[Alert, ...]:
    ours = '{__name__=~"penstock:engine_ready|penstock:gateway_requests_open"}'
    return (
        Alert(
            "PenstockDown",
            f"up == 0 and on (job) count by (job) (last_over_time({ours}[1d]))",
            "2m",
            "critical",
            f"{INSTANCE} does not answer",
            "Prometheus gets no metrics of this server or gateway.",
        ),
        Alert(
            "PenstockNotReady",
            "penstock:engine_ready == 0",
            "10m",
            "critical",
            f"{INSTANCE} has no engine that takes requests",
            "The API server answers, and its engine is loading, has failed, or drains.",
        ),
        Alert(
            "PenstockStalled",
            "vllm:num_requests_running > 0 and rate(vllm:iteration_tokens_total_count[2m]) == 0",
            "1m",
            "critical",
            f"{INSTANCE} computes nothing",
            "{{ $value }} requests run, and no step has ended for two minutes.",
        ),
        Alert(
            "PenstockEngineRestarted",
            "increase(penstock:engine_restarts_total[10m]) > 0",
            "0s",
            "warning",
            f"{INSTANCE} has lost its engine",
            "The engine ended and was started again. The requests that it had have failed.",
        ),
        Alert(
            "PenstockReplicaLost",
            "penstock:gateway_replica_ready == 0",
            "2m",
            "warning",
            "{{ $labels.replica }} takes no requests",
            f"The gateway {INSTANCE} sends it none: health check, circuit breaker, or drain.",
        ),
    )


def service() -> tuple[Alert, ...]:
    by = "sum by (job, instance)"
    failed = f'{by} (rate({RESPONSES}{{code=~"5.."}}[5m]))'
    return (
        Alert(
            "PenstockErrors",
            f"{failed} / {by} (rate({RESPONSES}[5m])) > 0.05 and {failed} > 1 / 60",
            "5m",
            "critical",
            f"{INSTANCE} fails requests",
            "{{ $value | humanizePercentage }} of the answers have a status of 500 and above.",
        ),
        Alert(
            "PenstockSlowFirstToken",
            slow(FIRST_TOKEN, "2.5"),
            "5m",
            "warning",
            "{{ $labels.model_name }} begins its answers slowly",
            "{{ $value | humanizePercentage }} of the requests wait more than 2.5 s for their "
            "first token.",
        ),
        Alert(
            "PenstockSlowTokens",
            slow(TOKEN_TIME, "0.1"),
            "5m",
            "warning",
            "{{ $labels.model_name }} writes slowly",
            "{{ $value | humanizePercentage }} of the requests take more than 100 ms for a token.",
        ),
    )


def slow(name: str, bound: str) -> str:
    """More than 5% of the observations are above a bound, which is one of the buckets': now, and
    over an hour, so that a single burst is none.
    """
    by = "sum by (job, model_name)"
    return " and ".join(
        f'1 - {by} (rate({name}_bucket{{le="{bound}"}}[{time}])) '
        f"/ {by} (rate({name}_count[{time}])) > 0.05"
        for time in ("5m", "1h")
    )


def pressure(bounds: Bounds) -> tuple[Alert, ...]:
    tier = "penstock:kv_tier_"
    return (
        Alert(
            "PenstockOverloaded",
            f"vllm:num_requests_waiting > {bounds.requests_waiting:g} "
            f"or (vllm:kv_cache_usage_perc > {bounds.kv_use:g} "
            "and rate(vllm:num_preemptions_total[5m]) > 0.1) "
            "or penstock:gateway_pool_saturated == 1",
            "10m",
            "warning",
            f"{INSTANCE} has more requests than it can serve",
            "Requests wait in the engine, are preempted for want of KV, or no replica of a pool "
            "has room.",
        ),
        Alert(
            "PenstockTierFails",
            f"increase({tier}errors_total[15m]) > 0 "
            f"or increase({tier}quarantined_chunks_total[15m]) > 0 or {tier}skipped == 1",
            "1m",
            "warning",
            f"KV tier {{{{ $labels.tier }}}} of {INSTANCE} fails",
            "Transfers failed, chunks were damaged, or the tier is left alone. Prefixes are "
            "computed again.",
        ),
    )


def nodes() -> tuple[Alert, ...]:
    """Of the gauges that `penstock verify --watch` leaves for node_exporter."""
    gauge = "penstock_verify_"
    return (
        Alert(
            "PenstockNodeFails",
            # Growth of error counters lasts for one pass only.
            f"max_over_time({gauge}status[10m]) == 3",
            "0s",
            "warning",
            f"check {{{{ $labels.check }}}} of {INSTANCE} fails",
            "penstock verify finds a fault in the layer {{ $labels.layer }}, device "
            '"{{ $labels.device }}".',
        ),
        Alert(
            "PenstockNodeUnchecked",
            f"time() - {gauge}last_run_timestamp_seconds > 3 * {gauge}interval_seconds",
            "5m",
            "warning",
            f"{INSTANCE} is no longer checked",
            "penstock verify --watch has ended or hangs: its other gauges are old.",
        ),
    )
