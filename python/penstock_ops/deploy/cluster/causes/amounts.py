"""Computes which resources pods request and nodes have free, as the Kubernetes scheduler does."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from penstock_ops.deploy.cluster.quantity import quantity, shown
from penstock_ops.deploy.cluster.snapshot import Object
from penstock_ops.deploy.objects import mapping, mappings

Amounts = dict[str, Fraction]
ENDED = ("Succeeded", "Failed")
NONE = Fraction(0)


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource of which a node has less free than a pod requests."""

    resource: str
    node: str
    wanted: Fraction
    free: Fraction
    total: Fraction
    unhealthy: Fraction
    """Amount of the node's capacity that its device plugin does not offer, for example
    broken GPUs.
    """

    @property
    def size(self) -> tuple[Fraction, Fraction]:
        """(missing share of the request from 0 to 1, missing amount), to sort by."""
        missing = self.wanted - self.free
        return missing / self.wanted, missing

    def is_offered_by(self, node: Object) -> bool:
        status = mapping(node.get("status"))
        return any(
            quantity(mapping(status.get(key)).get(self.resource, 0))
            for key in ("allocatable", "capacity")
        )

    @property
    def words(self) -> str:
        wanted = shown(self.resource, self.wanted)
        if not self.total and not self.unhealthy:
            return f"needs {wanted} {self.resource}, and {self.node} has none"
        return (
            f"{self.resource} is short by {shown(self.resource, self.size[1])}: it needs {wanted}, "
            f"and {self.node} has {shown(self.resource, self.free)} free of "
            f"{shown(self.resource, self.total)}"
        )


def shortages(wanted: Amounts, node: Object, taken: Mapping[str, Amounts]) -> list[Shortage]:
    """Resources of which a node has too little for a pod, the largest missing share first; empty if
    the pod fits. `wanted` has the pod's requests, `taken` the requests on each node.
    """
    name = str(node["metadata"]["name"])
    status = mapping(node.get("status"))
    offered, has = mapping(status.get("allocatable")), mapping(status.get("capacity"))
    found = []
    for key, amount in wanted.items():
        total = quantity(offered.get(key, 0))
        free = max(total - taken.get(name, {}).get(key, NONE), NONE)
        if amount > free:
            hidden = max(quantity(has.get(key, 0)) - total, NONE) if "/" in key else NONE
            found.append(Shortage(key, name, amount, free, total, hidden))
    return sorted(found, key=lambda one: one.size, reverse=True)


def requests(spec: Object) -> Amounts:
    """Resource requests of a pod, as the scheduler counts them: the sum over all containers and
    sidecars, or the largest init container if it needs more, plus the pod's overhead.
    """
    total: Amounts = {"pods": Fraction(1)}
    before: Amounts = {}
    for container in mappings(spec.get("initContainers")):
        own = _requested(container)
        if container.get("restartPolicy") == "Always":
            _add(total, own)
            own = dict(total)
        else:
            own = {key: own[key] + total.get(key, NONE) for key in own}
        before = {key: max(before.get(key, NONE), own.get(key, NONE)) for key in before | own}
    for container in mappings(spec.get("containers")):
        _add(total, _requested(container))
    found = {key: max(total.get(key, NONE), before.get(key, NONE)) for key in total | before}
    _add(found, {key: quantity(value) for key, value in mapping(spec.get("overhead")).items()})
    return found


def used(pods: Iterable[Object], lost: Container[str] = ()) -> dict[str, Amounts]:
    """Total requests of the running pods on each node, by node name. Terminating pods on a node in
    `lost` count as gone, because no kubelet will report their end.
    """
    found: dict[str, Amounts] = {}
    for pod in pods:
        node = str(mapping(pod.get("spec")).get("nodeName") or "")
        ending = mapping(pod.get("metadata")).get("deletionTimestamp") and node in lost
        ended = mapping(pod.get("status")).get("phase") in ENDED
        if node and not ended and not ending:
            _add(found.setdefault(node, {}), requests(pod["spec"]))
    return found


def _requested(container: Object) -> Amounts:
    resources = mapping(container.get("resources"))
    asked = {**mapping(resources.get("limits")), **mapping(resources.get("requests"))}
    return {key: quantity(value) for key, value in asked.items()}


def _add(total: Amounts, more: Amounts) -> None:
    for key, amount in more.items():
        total[key] = total.get(key, NONE) + amount
