"""vLLM's dashboards: the forms of their queries, asked of a real Prometheus that scrapes a server.

The panels select by `job`, `model_name`, `instance` and `engine`, histograms also by the text of a
bound (`le="1.0"`), HTTP by a class of status; Status is Down without `vllm:engine_sleep_state`.
test_boards.py has Penstock's own boards.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.conftest import Serve
from tests.e2e.prometheus import Prometheus, program
from tests.e2e.server import eventually
from tests.limits import HANG

SELECT = 'job=~"vllm", model_name=~"smollm2", instance=~".*"'
HTTP = 'job=~"vllm", instance=~".*"'

COUNTERS = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_cached_total",
    "vllm:prefix_cache_queries_total",
    "vllm:request_success_total",
)
HISTOGRAMS = (
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:iteration_tokens_total",
)
GAUGES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    'vllm:num_requests_waiting_by_reason{reason="capacity"}',
    'vllm:num_requests_waiting_by_reason{reason="deferred"}',
    'vllm:engine_sleep_state{sleep_state="discard_all"}',
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_hits_total",
    "vllm:mm_cache_queries_total",
    "vllm:mm_cache_hits_total",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_open_fds",
)


@pytest.fixture(scope="module")
def prometheus(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    program()
    # A key is required of clients, not of scrapers.
    with serve("--served-model-name", "smollm2", "--api-key", "k") as server:
        directory = tmp_path_factory.mktemp("prometheus")
        made = Prometheus(directory, {"vllm": server.url.removeprefix("http://")})
        try:
            eventually(made.up, "a scraped server")
            with server.client(authorization="Bearer k") as client:
                load(client)
            yield made
        finally:
            made.stop()


def load(client: httpx.Client) -> None:
    """Requests over some scrapes: a rate needs two that differ."""
    for number in range(12):
        body = {"model": "smollm2", "prompt": "again " * 200, "max_tokens": 8, "n": 1 + number % 2}
        assert client.post("/v1/completions", json=body).status_code == 200
        assert client.post("/v1/completions", json={"prompt": ""}).status_code == 400
        time.sleep(0.3)


@pytest.mark.parametrize("name", COUNTERS)
def test_rates(prometheus: Prometheus, name: str) -> None:
    assert prometheus.value(f"sum(rate({name}{{{SELECT}}}[10m]))") > 0


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_quantiles(prometheus: Prometheus, name: str) -> None:
    rate = f"sum by (le) (rate({name}_bucket{{{SELECT}}}[10m]))"
    assert prometheus.value(f"histogram_quantile(0.95, {rate})") >= 0
    mean = f"rate({name}_sum{{{SELECT}}}[10m]) / rate({name}_count{{{SELECT}}}[10m])"
    assert prometheus.value(f"sum({mean})") >= 0


@pytest.mark.parametrize("name", GAUGES)
def test_gauges(prometheus: Prometheus, name: str) -> None:
    assert prometheus.value(f"sum({name})") >= 0


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("vllm:time_to_first_token_seconds", "1.0"),
        ("vllm:time_to_first_token_seconds", "0.25"),
        ("vllm:request_time_per_output_token_seconds", "0.1"),
        ("vllm:e2e_request_latency_seconds", "10.0"),
        ("vllm:request_prompt_tokens", "1e+06"),
    ],
)
def test_shares_within_a_bound(prometheus: Prometheus, name: str, bound: str) -> None:
    within = f'sum(rate({name}_bucket{{{SELECT}, le="{bound}"}}[10m]))'
    share = prometheus.value(f"{within} / (sum(rate({name}_count{{{SELECT}}}[10m])) > 0)")
    assert 0 <= share <= 1


def test_status_is_online(prometheus: Prometheus) -> None:
    awake = f'max(vllm:engine_sleep_state{{{SELECT}, sleep_state="awake"}})'
    assert prometheus.value(f"(2 - ({awake} == bool 0)) or vector(0)") == 2


def test_http_by_class_of_status(prometheus: Prometheus) -> None:
    total = f"sum(rate(http_requests_total{{{HTTP}}}[10m]))"
    failed = f'sum(rate(http_requests_total{{{HTTP}, status="5xx"}}[10m])) or vector(0)'
    assert prometheus.value(f"({failed}) / ({total} > 0)") == 0
    refused = f'sum(rate(http_requests_total{{{HTTP}, status="4xx"}}[10m])) / {total}'
    assert 0.3 < prometheus.value(refused) < 0.7
    by_handler = "sum by (handler) (http_requests_total)"
    assert len(prometheus.values(by_handler)) == 1, "probes and scrapes are left out"
    buckets = f"sum by (le) (rate(http_request_duration_seconds_bucket{{{HTTP}}}[10m]))"
    assert prometheus.value(f"histogram_quantile(0.99, {buckets})") > 0


def test_promtool_finds_nothing_but_naming(prometheus: Prometheus) -> None:
    target = prometheus.values('up{job="vllm"}')
    assert target == [1.0]
    metric = 'vllm:num_requests_running{job="vllm"}'
    query = {"query": metric}
    found = httpx.get(f"{prometheus.url}/api/v1/query", params=query, timeout=HANG).json()
    instance = found["data"]["result"][0]["metric"]["instance"]
    page = httpx.get(f"http://{instance}/metrics", timeout=HANG).text
    done = subprocess.run(
        [program("promtool"), "check", "metrics"],
        input=page,
        capture_output=True,
        text=True,
        check=False,
    )
    # Colons are vLLM's; other names keep the rules. Status 1 would be a page that does not parse.
    assert done.returncode in (0, 3), done.stderr
    complaints = [
        line
        for line in done.stderr.splitlines()
        if line.strip() and not line.startswith(("vllm:", "penstock:"))
    ]
    assert complaints == []
