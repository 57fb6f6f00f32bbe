"""Each alert fires and does not, by `promtool test rules`: series, time, expected alert."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock_ops.deploy.monitoring.alerts import RUNBOOK, Bounds, alerts
from penstock_ops.deploy.monitoring.files import rules
from tests.e2e.prometheus import program

SERVER = 'instance="s:1",job="a",model_name="m"'
GATEWAY = 'instance="g:1",job="g",pool="p"'
READY = f"penstock:engine_ready{{{SERVER}}}"
RUNNING = f"vllm:num_requests_running{{{SERVER}}}"
WAITING = f"vllm:num_requests_waiting{{{SERVER}}}"
STEPS = f"vllm:iteration_tokens_total_count{{{SERVER}}}"
USE = f"vllm:kv_cache_usage_perc{{{SERVER}}}"
PREEMPTIONS = f"vllm:num_preemptions_total{{{SERVER}}}"
RESTARTS = f"penstock:engine_restarts_total{{{SERVER}}}"
REPLICA = f'penstock:gateway_replica_ready{{{GATEWAY},replica="r:1"}}'
SATURATED = f"penstock:gateway_pool_saturated{{{GATEWAY}}}"
FAILED = 'penstock:http_responses_total{instance="s:1",job="a",code="503"}'
TIER = f'{SERVER},tier="ram"'
NODE = 'instance="n:9100",job="node"'
CHECKED = f'{NODE},check="hca-errors",device="mlx5_0/1",layer="fabric"'
STEP = 30
"""Seconds between two values of a series."""

Series = Mapping[str, str]


def up(value: int) -> dict[str, str]:
    return {'up{instance="s:1",job="a"}': f"{value}x200"}


def responses(good: int, bad: int) -> dict[str, str]:
    """Answers in each step, by status."""
    return {FAILED.replace("503", "200"): f"0+{good}x200", FAILED: f"0+{bad}x200"}


def times(name: str, bound: str, within: int, every: int) -> dict[str, str]:
    """A histogram of `every` observations in each step."""
    return {
        f'{name}_bucket{{{SERVER},le="{bound}"}}': f"0+{within}x200",
        f"{name}_count{{{SERVER}}}": f"0+{every}x200",
    }


def passes(ended: str) -> dict[str, str]:
    """Ends of the passes of `penstock verify --watch 60`."""
    return {
        f"penstock_verify_last_run_timestamp_seconds{{{NODE}}}": ended,
        f"penstock_verify_interval_seconds{{{NODE}}}": "60x200",
    }


@dataclass(frozen=True)
class Case:
    """Series with which an alert fires `minutes` after their beginning, and others with which it
    never does.
    """

    fires: Series
    minutes: int
    labels: Mapping[str, str]
    summary: str
    description: str
    quiet: tuple[Series, ...] = ()
    labels_of: str = field(default=SERVER)

    def expected(self, name: str, severity: str) -> dict[str, Any]:
        own = dict(re.findall(r'(\w+)="([^"]*)"', self.labels_of))
        annotations = {
            "summary": self.summary,
            "description": self.description,
            "runbook_url": f"{RUNBOOK}#{name.lower()}",
        }
        labels = {**own, **self.labels, "severity": severity}
        return {"exp_labels": labels, "exp_annotations": annotations}


FIRST = "vllm:time_to_first_token_seconds"
TOKEN = "vllm:request_time_per_output_token_seconds"
CASES: dict[str, Case] = {
    "PenstockDown": Case(
        # It was there, and is gone: its job had a server's metrics within a day.
        {**up(0), READY: "1x20 stale"},
        3,
        {},
        "s:1 does not answer",
        "Prometheus gets no metrics of this server or gateway.",
        quiet=({**up(1), READY: "1x200"}, up(0)),
        labels_of='instance="s:1",job="a"',
    ),
    "PenstockNotReady": Case(
        {READY: "0x200"},
        11,
        {},
        "s:1 has no engine that takes requests",
        "The API server answers, and its engine is loading, has failed, or drains.",
        # A load of eight minutes.
        quiet=({READY: "0x16 1x180"},),
    ),
    "PenstockStalled": Case(
        {RUNNING: "2x200", STEPS: "50x200"},
        4,
        {},
        "s:1 computes nothing",
        "2 requests run, and no step has ended for two minutes.",
        quiet=({RUNNING: "2x200", STEPS: "0+30x200"}, {RUNNING: "0x200", STEPS: "50x200"}),
    ),
    "PenstockEngineRestarted": Case(
        {RESTARTS: "0x10 1x190"},
        6,
        {},
        "s:1 has lost its engine",
        "The engine ended and was started again. The requests that it had have failed.",
        quiet=({RESTARTS: "3x200"},),
    ),
    "PenstockReplicaLost": Case(
        {REPLICA: "0x200"},
        3,
        {"replica": "r:1"},
        "r:1 takes no requests",
        "The gateway g:1 sends it none: health check, circuit breaker, or drain.",
        quiet=({REPLICA: "1x10 0 0 1x188"},),
        labels_of=GATEWAY,
    ),
    "PenstockErrors": Case(
        responses(good=18, bad=2),
        11,
        {},
        "s:1 fails requests",
        "10% of the answers have a status of 500 and above.",
        # One in a hundred; and one every ten minutes, of the only request.
        quiet=(
            responses(good=99, bad=1),
            {FAILED: "0x18 1x20 2x99"},
        ),
        labels_of='instance="s:1",job="a"',
    ),
    "PenstockSlowFirstToken": Case(
        times(FIRST, "2.5", 9, 10),
        90,
        {},
        "m begins its answers slowly",
        "10% of the requests wait more than 2.5 s for their first token.",
        quiet=(times(FIRST, "2.5", 99, 100), times(FIRST, "2.5", 0, 0)),
        labels_of='job="a",model_name="m"',
    ),
    "PenstockSlowTokens": Case(
        times(TOKEN, "0.1", 5, 10),
        90,
        {},
        "m writes slowly",
        "50% of the requests take more than 100 ms for a token.",
        quiet=(times(TOKEN, "0.1", 99, 100),),
        labels_of='job="a",model_name="m"',
    ),
    "PenstockOverloaded": Case(
        {WAITING: "33x200"},
        11,
        {},
        "s:1 has more requests than it can serve",
        "Requests wait in the engine, are preempted for want of KV, or no replica of a pool "
        "has room.",
        quiet=(
            {WAITING: "32x200", USE: "0.99x200", PREEMPTIONS: "7x200"},
            {WAITING: "90x15 0x5 90x15 0x5"},
            {SATURATED: "0x200"},
        ),
    ),
    "PenstockTierFails": Case(
        {f"penstock:kv_tier_skipped{{{TIER}}}": "1x200"},
        2,
        {"tier": "ram"},
        "KV tier ram of s:1 fails",
        "Transfers failed, chunks were damaged, or the tier is left alone. Prefixes are computed "
        "again.",
        quiet=(
            {
                f"penstock:kv_tier_skipped{{{TIER}}}": "0x200",
                f"penstock:kv_tier_errors_total{{{TIER}}}": "5x200",
                f"penstock:kv_tier_quarantined_chunks_total{{{TIER}}}": "1x200",
            },
        ),
    ),
    "PenstockNodeFails": Case(
        # In one pass only.
        {f"penstock_verify_status{{{CHECKED}}}": "0x10 3 0x189"},
        6,
        {},
        "check hca-errors of n:9100 fails",
        'penstock verify finds a fault in the layer fabric, device "mlx5_0/1".',
        quiet=({f"penstock_verify_status{{{CHECKED}}}": "2x200"},),
        labels_of=CHECKED,
    ),
    "PenstockNodeUnchecked": Case(
        passes("0+30x10 300x190"),
        14,
        {},
        "n:9100 is no longer checked",
        "penstock verify --watch has ended or hangs: its other gauges are old.",
        # A pass in which tools reach their time limits.
        quiet=(passes("0+30x200"), passes("0+30x10 300x8 570+30x181")),
        labels_of=NODE,
    ),
}
ALSO: list[tuple[str, Series, int]] = [
    ("PenstockOverloaded", {USE: "0.97x200", PREEMPTIONS: "0+6x200"}, 16),
    ("PenstockOverloaded", {SATURATED: "1x200"}, 11),
    ("PenstockTierFails", {f"penstock:kv_tier_errors_total{{{TIER}}}": "0x10 1x190"}, 8),
    ("PenstockTierFails", {f"penstock:kv_tier_quarantined_chunks_total{{{TIER}}}": "0x10 1x9"}, 8),
    ("PenstockDown", {**up(0), 'penstock:gateway_requests_open{job="a"}': "0x20 stale"}, 3),
]
"""Other series with which an alert fires."""
BY_NAME = {alert.name: alert for alert in alerts(Bounds())}


def checked(folder: Path, tests: list[dict[str, Any]], bounds: Bounds | None = None) -> str:
    """What `promtool test rules` says about the tests; empty if they hold."""
    written = folder / "rules.yaml"
    written.write_text(json.dumps(rules(bounds or Bounds())))
    path = folder / "tests.yaml"
    path.write_text(json.dumps({"rule_files": [str(written)], "tests": tests}))
    command = [program("promtool"), "test", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def one(series: Series, name: str, expected: list[dict[str, Any]], *minutes: int) -> dict[str, Any]:
    """A test that expects these alerts of one name at each of the times."""
    return {
        "interval": f"{STEP}s",
        "input_series": [{"series": key, "values": value} for key, value in series.items()],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": expected}
            for minute in minutes
        ],
    }


def test_there_is_a_case_for_each_alert() -> None:
    assert list(CASES) == [*BY_NAME]
    assert len(BY_NAME) == 12


@pytest.mark.parametrize("name", CASES)
def test_it_fires(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    expected = case.expected(name, BY_NAME[name].severity)
    assert checked(tmp_path, [one(case.fires, name, [expected], case.minutes)]) == ""


@pytest.mark.parametrize("name", CASES)
def test_it_does_not_fire_at_once_or_without_cause(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    tests = [one(case.fires, name, [], 0)]
    tests += [one(series, name, [], 3, 5, 11, 14, 20, 60, 90) for series in case.quiet]
    assert checked(tmp_path, tests) == ""


@pytest.mark.parametrize(("name", "series", "minutes"), ALSO)
def test_it_fires_for_other_causes_too(
    tmp_path: Path, name: str, series: Series, minutes: int
) -> None:
    quiet = checked(tmp_path, [one(series, name, [], minutes)])
    assert f'alertname="{name}"' in quiet.replace(" ", ""), quiet


def test_bounds_are_those_of_a_plan(tmp_path: Path) -> None:
    plan = {"thresholds": {"requests_waiting": {"needed": 4}, "kv_use": {"needed": 0.5}}}
    bounds = Bounds.of_plan(plan)
    assert bounds == Bounds(4, 0.5)
    case = CASES["PenstockOverloaded"]
    expected = [case.expected("PenstockOverloaded", "warning")]
    test = one({WAITING: "5x200"}, "PenstockOverloaded", expected, 11)
    assert checked(tmp_path, [test], bounds) == ""
    assert checked(tmp_path, [test]) != "", "5 are few for the default"


def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(json.dumps(rules(Bounds())))
    command = [program("promtool"), "check", "rules", "--lint=all", "--lint-fatal", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_runbook_has_each_alert(repository: Path) -> None:
    text = (repository / "docs/alerts.md").read_text()
    sections = re.findall(r"^## (Penstock\w+)$", text, re.MULTILINE)
    assert sections == [*BY_NAME]
