"""Modelled replicas in the place of pods: one address of the loopback network each, one port."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e.gateway import Gateway
from tests.e2e.sim import Sim
from tests.e2e.test_gateway_reload import explained


@contextlib.contextmanager
def replicas(count: int) -> Iterator[int]:
    """Replicas at 127.0.0.1 and so on; their port."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(Sim())
        port = int(first.urls[0].rpartition(":")[2])
        for host in range(2, count + 1):
            stack.enter_context(Sim("--host", f"127.0.0.{host}", "--port", str(port)))
        yield port


def inference_pool(*ports: int, name: str = "llama") -> dict[str, Any]:
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": "llama"}},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
        },
    }


def objective(priority: int, pool: str = "llama") -> dict[str, Any]:
    return {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
        "kind": "InferenceObjective",
        "metadata": {"name": "batch"},
        "spec": {"priority": priority, "poolRef": {"name": pool}},
    }


def rewrite(model: str, target: str) -> dict[str, Any]:
    match = {"model": {"type": "Exact", "value": model}}
    rules = [{"matches": [match], "targets": [{"modelRewrite": target}]}]
    return {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
        "kind": "InferenceModelRewrite",
        "metadata": {"name": "rename"},
        "spec": {"poolRef": {"name": "llama"}, "rules": rules},
    }


def hosts(gateway: Gateway, folder: Path) -> list[int]:
    """Last part of the address of each replica that takes requests, few while it is new."""
    answer = explained(gateway, folder, "--json")
    if answer.returncode != 0:
        return []
    found = json.loads(answer.stdout)["replicas"]
    ready = ("ready", "warming")
    addresses = [one["address"] for one in found if one["condition"].startswith(ready)]
    return sorted(int(address.partition(":")[0].rpartition(".")[2]) for address in addresses)


def priority_of_batch(gateway: Gateway, folder: Path) -> int:
    header = ("--header", "x-gateway-inference-objective:batch")
    found: int = json.loads(explained(gateway, folder, *header, "--json").stdout)["priority"]
    return found
