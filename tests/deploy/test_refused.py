"""Mutations that definitions of kinds refuse, and the count of all that are refused: errors of
`deploy lint` and of these. Warnings do not count.
"""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.conftest import Written
from tests.deploy.test_definitions import CASES, validators
from tests.deploy.test_lint import MUTATIONS, TOGETHER

GROUP = "leader-worker-set.yaml"
REMOVED = object()
REFUSED: dict[str, tuple[str, str, object]] = {
    "a group of an unknown policy": (GROUP, "spec.startupPolicy", "Eager"),
    "a group that restarts otherwise": (GROUP, "spec.leaderWorkerTemplate.restartPolicy", "Never"),
    "a number of groups that is a text": (GROUP, "spec.replicas", "two"),
    "a group without a worker": (GROUP, "spec.leaderWorkerTemplate.workerTemplate", REMOVED),
    "a group of another rollout": (GROUP, "spec.rolloutStrategy.type", "Recreate"),
    "a group with a selector": (GROUP, "spec.selector", {"matchLabels": {"app": "m"}}),
    "a pod of the group without containers": (
        GROUP,
        "spec.leaderWorkerTemplate.leaderTemplate.spec.containers",
        REMOVED,
    ),
    "a pool without a picker's name": (
        "inference-pool.yaml",
        "spec.endpointPickerRef.name",
        REMOVED,
    ),
    "a pool that fails otherwise": (
        "inference-pool.yaml",
        "spec.endpointPickerRef.failureMode",
        "FailSlow",
    ),
    "a pool without ports": ("inference-pool.yaml", "spec.targetPorts", []),
    "a pool of a port that is none": ("inference-pool.yaml", "spec.targetPorts.0.number", 70000),
    "a route of another path": (
        "http-route.yaml",
        "spec.rules.0.matches",
        [{"path": {"type": "Suffix", "value": "/"}}],
    ),
    "a route with a time that is none": ("http-route.yaml", "spec.rules.0.timeouts.request", "ten"),
    "a gateway without listeners": ("gateway.yaml", "spec.listeners", []),
    "a gateway without a class": ("gateway.yaml", "spec.gatewayClassName", REMOVED),
    "a monitor with an interval that is none": (
        "pod-monitor.yaml",
        "spec.podMetricsEndpoints.0.interval",
        "often",
    ),
    "a scaler of nothing": ("scaled-object.yaml", "spec.scaleTargetRef", REMOVED),
    "a scaler without triggers": ("scaled-object.yaml", "spec.triggers", REMOVED),
    "a policy of adapters with a field of none": (
        "nic-cluster-policy.yaml",
        "spec.rdmaSharedDevices",
        {},
    ),
}
"""File, path and the value put at it, by what is wrong."""


def changed(manifest: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    found = copy.deepcopy(manifest)
    *parents, last = path.split(".")
    at: Any = found
    for key in parents:
        at = at[int(key)] if isinstance(at, list) else at[key]
    if value is REMOVED:
        del at[last]
    elif isinstance(at, list):
        at[int(last)] = value
    else:
        at[last] = value
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize("wrong", REFUSED)
def test_definitions_refuse_a_mutation(written: Written, files: dict[str, Any], wrong: str) -> None:
    """What was not changed is accepted: the error is that of the mutation."""
    if not files:
        files |= written("sglang-two-nodes", *CASES["sglang-two-nodes"])
    name, path, value = REFUSED[wrong]
    validator: jsonschema.Draft7Validator = validators()[files[name]["kind"]]
    assert not list(validator.iter_errors(files[name]))
    assert list(validator.iter_errors(changed(files[name], path, value))), yaml.safe_dump(
        files[name]
    )


def test_fifty_mutations_are_refused() -> None:
    by_us = [each[2] for each in MUTATIONS.values()] + [each[3] for each in TOGETHER.values()]
    assert by_us.count("error") >= 39
    assert by_us.count("error") + len(REFUSED) >= 50
