"""Metrics of an engine in this process (gauges and counters), with vLLM's names and classes."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.outputs import EngineStats


@dataclass(frozen=True, slots=True)
class Gauge:
    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Counter:
    name: str
    labels: dict[str, str]
    value: int


Metric = Gauge | Counter


@dataclass(slots=True)
class Counted:
    """Number of ended requests, and of their tokens."""

    requests: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0


def metrics(stats: EngineStats, counted: Counted, model: str) -> list[Metric]:
    labels = {"model_name": model, "engine": "0"}
    used = stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0
    gauges = {
        "vllm:num_requests_running": stats.running,
        "vllm:num_requests_waiting": stats.waiting,
        "vllm:kv_cache_usage_perc": used,
    }
    counters = {
        "vllm:prefix_cache_queries": stats.prefix_query_tokens,
        "vllm:prefix_cache_hits": stats.prefix_hit_tokens,
        "vllm:num_preemptions": stats.preemptions,
        "vllm:prompt_tokens": counted.prompt_tokens,
        "vllm:generation_tokens": counted.generation_tokens,
        "vllm:request_success": counted.requests,
    }
    return [
        *(Gauge(name, labels, float(value)) for name, value in gauges.items()),
        *(Counter(name, labels, value) for name, value in counters.items()),
    ]
