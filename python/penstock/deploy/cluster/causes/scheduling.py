"""Pods that no node takes: which resource is short, and by how much."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from penstock.deploy.cluster.causes.cause import Cause, Stage
from penstock.deploy.cluster.quantity import quantity, shown
from penstock.deploy.cluster.readiness import condition
from penstock.deploy.cluster.snapshot import Object, Snapshot
from penstock.deploy.objects import mapping, mappings

Amounts = dict[str, Fraction]
ENDED = ("Succeeded", "Failed")
TROUBLES = {
    "node.kubernetes.io/not-ready": "is not ready",
    "node.kubernetes.io/unreachable": "does not answer",
    "node.kubernetes.io/disk-pressure": "has a full disk",
    "node.kubernetes.io/memory-pressure": "is short of memory",
    "node.kubernetes.io/pid-pressure": "is short of process ids",
    "node.kubernetes.io/unschedulable": "is cordoned",
}
"""Taints that a cluster sets by itself."""
CLAIM = re.compile(r'persistentvolumeclaim "([^"]+)" not found|unbound immediate Persistent')


def unscheduled(pod: Object, snapshot: Snapshot) -> Cause | None:
    """None for a pod that has a node, or that no scheduler has looked at."""
    found = condition(pod, "PodScheduled")
    if found.get("status") != "False" or found.get("reason") == "SchedulingGated":
        return None
    said = str(found.get("message", ""))
    name = f"pod {pod['metadata']['name']}"
    details = (f"scheduler: {said}",) if said else ()
    nodes = snapshot.nodes
    if nodes is None:
        return Cause(Stage.SCHEDULING, name, "no node takes it", details, lasting=False)
    if not nodes:
        return Cause(Stage.NODE, "the cluster", "has no nodes", details)
    if claim := CLAIM.search(said):
        words = f"the claim {claim[1]} does not exist" if claim[1] else "its claim has no volume"
        return Cause(Stage.CLAIM, name, words, details, lasting=bool(claim[1]))
    spec = mapping(pod.get("spec"))
    wanted = mapping(spec.get("nodeSelector"))
    chosen = [node for node in nodes if wanted.items() <= _labels(node).items()]
    if not chosen:
        words = _without_label(wanted, nodes)
        return Cause(Stage.SCHEDULING, name, words, details, lasting=False)
    open_to = [node for node in chosen if not _refusals(spec, node)]
    if not open_to:
        return _refused(name, spec, chosen, details)
    words = _short(requests(spec), open_to, used(snapshot.all_pods or ()))
    known = snapshot.all_pods is not None and words
    return Cause(Stage.SCHEDULING, name, known or "no node takes it", details, lasting=False)


def _refused(name: str, spec: Object, nodes: Sequence[Object], details: tuple[str, ...]) -> Cause:
    """A node's own trouble before a taint that people set."""
    for node in nodes:
        if words := _trouble(spec, node):
            subject = f"node {node['metadata']['name']}"
            return Cause(Stage.NODE, subject, words, details, lasting=False)
    taints = {str(taint.get("key")) for node in nodes for taint in _refusals(spec, node)}
    words = f"all {len(nodes)} nodes refuse it by taints: {', '.join(sorted(taints))}"
    return Cause(Stage.SCHEDULING, name, words, details, lasting=False)


def _labels(node: Object) -> Mapping[str, str]:
    return mapping(mapping(node.get("metadata")).get("labels"))


def _without_label(wanted: Mapping[str, str], nodes: Sequence[Object]) -> str:
    for key, value in wanted.items():
        has = Counter(_labels(node).get(key) for node in nodes)
        if not has[value]:
            others = sorted(str(each) for each in has if each is not None)
            return f"no node has the label {key}={value}" + (
                f" (there are {', '.join(others)})" if others else ""
            )
    return f"no node has all labels of {', '.join(f'{k}={v}' for k, v in wanted.items())}"


def _refusals(spec: Object, node: Object) -> list[Object]:
    """Taints of a node that the pod does not tolerate."""
    taints = mappings(mapping(node.get("spec")).get("taints"))
    return [
        taint
        for taint in taints
        if taint.get("effect") in ("NoSchedule", "NoExecute")
        and not any(_tolerates(one, taint) for one in mappings(spec.get("tolerations")))
    ]


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    same = toleration.get("key") == taint.get("key")
    return bool(same and toleration.get("value", "") == taint.get("value", ""))


def _trouble(spec: Object, node: Object) -> str:
    """What is wrong with the node itself; empty for taints that people set."""
    words = (TROUBLES.get(str(taint.get("key")), "") for taint in _refusals(spec, node))
    return next(filter(None, words), "")


def requests(spec: Object) -> Amounts:
    """What the scheduler reserves for a pod: its containers and sidecars together, or the largest
    container that runs before them, and its overhead.
    """
    total: Amounts = {"pods": Fraction(1)}
    before: Amounts = {}
    for container in mappings(spec.get("initContainers")):
        own = _requested(container)
        if container.get("restartPolicy") == "Always":
            _add(total, own)
            own = dict(total)
        else:
            own = {key: own.get(key, Fraction(0)) + total.get(key, 0) for key in own}
        before = {
            key: max(before.get(key, Fraction(0)), own.get(key, Fraction(0)))
            for key in before | own
        }
    for container in mappings(spec.get("containers")):
        _add(total, _requested(container))
    found = {
        key: max(total.get(key, Fraction(0)), before.get(key, Fraction(0)))
        for key in total | before
    }
    _add(found, {key: quantity(value) for key, value in mapping(spec.get("overhead")).items()})
    return found


def _requested(container: Object) -> Amounts:
    resources = mapping(container.get("resources"))
    asked = {**mapping(resources.get("limits")), **mapping(resources.get("requests"))}
    return {key: quantity(value) for key, value in asked.items()}


def _add(total: Amounts, more: Amounts) -> None:
    for key, amount in more.items():
        total[key] = total.get(key, Fraction(0)) + amount


def used(pods: Iterable[Object]) -> dict[str, Amounts]:
    """Requests of the pods that hold resources, by node."""
    found: dict[str, Amounts] = {}
    for pod in pods:
        node = mapping(pod.get("spec")).get("nodeName")
        if node and mapping(pod.get("status")).get("phase") not in ENDED:
            _add(found.setdefault(str(node), {}), requests(pod["spec"]))
    return found


def _short(wanted: Amounts, nodes: Iterable[Object], taken: Mapping[str, Amounts]) -> str:
    """The node with the least that is missing, compared by its largest missing part; empty where
    one has room for all.
    """
    best: tuple[Fraction, str] | None = None
    for node in nodes:
        name = str(node["metadata"]["name"])
        has = mapping(mapping(node.get("status")).get("allocatable"))
        gone = taken.get(name, {})
        missing: list[tuple[Fraction, str]] = []
        for key, amount in wanted.items():
            total = quantity(has.get(key, 0))
            free = total - gone.get(key, Fraction(0))
            if amount > free:
                missing.append(((amount - free) / amount, _missing(key, amount, free, total, name)))
        if not missing:
            return ""
        worst = max(missing)
        if best is None or worst[0] < best[0]:
            best = (worst[0], "; ".join(words for _, words in missing))
    return best[1] if best else ""


def _missing(key: str, amount: Fraction, free: Fraction, total: Fraction, node: str) -> str:
    if not total:
        return f"needs {shown(key, amount)} {key}, and {node} has none"
    return (
        f"{key} is short by {shown(key, amount - free)}: it needs {shown(key, amount)}, and "
        f"{node} has {shown(key, max(free, Fraction(0)))} free of {shown(key, total)}"
    )
