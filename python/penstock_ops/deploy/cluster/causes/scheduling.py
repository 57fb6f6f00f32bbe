"""Unschedulable pods: which resource is short and by how much, or what keeps the pods off nodes
that have room.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock_ops.deploy.cluster.causes.amounts import Shortage, requests, shortages, used
from penstock_ops.deploy.cluster.causes.cause import Cause, Stage
from penstock_ops.deploy.cluster.causes.nodes import not_ready
from penstock_ops.deploy.cluster.causes.taints import refusals, shown_taint, trouble
from penstock_ops.deploy.cluster.quantity import shown
from penstock_ops.deploy.cluster.readiness import condition, is_true
from penstock_ops.deploy.cluster.snapshot import Object, Snapshot
from penstock_ops.deploy.objects import mapping

CLAIM = re.compile(r'persistentvolumeclaim "([^"]+)" not found|unbound immediate Persistent')
NAMED = 3
"""Maximum number of nodes or resources listed in a line of a cause."""


def unscheduled(pod: Object, snapshot: Snapshot) -> Cause | None:
    """The cause if the scheduler found no node for a pod. None if the pod has a node, or if no
    scheduler has processed it yet.
    """
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
    wanted = mapping(mapping(pod.get("spec")).get("nodeSelector"))
    chosen = [node for node in nodes if wanted.items() <= _labels(node).items()]
    if not chosen:
        words = _without_label(wanted, nodes)
        return Cause(Stage.SCHEDULING, name, words, details, lasting=False)
    return _search(pod, chosen, snapshot, details).cause()


def _search(
    pod: Object, nodes: Sequence[Object], snapshot: Snapshot, details: tuple[str, ...]
) -> _Search:
    spec = mapping(pod.get("spec"))
    wanted = requests(spec)
    lost = {_name(node) for node in nodes if not is_true(node, "Ready")}
    taken = used(snapshot.all_pods or (), lost)
    lacks = {_name(node): shortages(wanted, node, taken) for node in nodes}
    return _Search(str(pod["metadata"]["name"]), spec, nodes, lacks, snapshot, details)


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


@dataclass(frozen=True, slots=True)
class _Search:
    """Finds the reason why none of `nodes` takes a pod. `nodes` have the labels that it selects."""

    pod: str
    spec: Object
    nodes: Sequence[Object]
    lacks: Mapping[str, Sequence[Shortage]]
    """Shortages by node name; an empty list if the pod fits on the node."""
    snapshot: Snapshot
    details: tuple[str, ...]

    def cause(self) -> Cause:
        """The cause: a fault of a node with room, else a shortage on nodes that the pod tolerates,
        else taints.
        """
        closed = [node for node in self.nodes if refusals(self.spec, node)]
        open_to = [node for node in self.nodes if node not in closed]
        able = [node for node in closed if self._could_hold(node)]
        known = self.snapshot.all_pods is not None
        roomy = [node for node in able if known and not self.lacks[_name(node)]]
        if found := self._trouble(roomy):
            return found
        if any(map(self._could_hold, open_to)):
            return self._short(open_to, roomy)
        if able:
            return self._trouble(able) or self._refused(able)
        return self._short(self.nodes, ())

    def _could_hold(self, node: Object) -> bool:
        """Whether the pod would fit on the node if nothing else ran there."""
        return all(one.total >= one.wanted for one in self.lacks[_name(node)])

    def _trouble(self, nodes: Iterable[Object]) -> Cause | None:
        """The cause on the first of `nodes` that does not accept pods because of a fault or
        maintenance.
        """
        for node in nodes:
            if words := trouble(self.spec, node):
                known = not_ready(node, self.snapshot)
                if known is not None:
                    return replace(known, details=(*known.details, *self.details))
                subject = f"node {_name(node)}"
                return Cause(Stage.NODE, subject, words, self.details, lasting=False)
        return None

    def _refused(self, nodes: Sequence[Object]) -> Cause:
        words = f"taints keep it off all nodes that could hold it: {self._taints(nodes)}"
        return self._cause(words, "give its pods a toleration, or take the taint off the nodes")

    def _taints(self, nodes: Sequence[Object]) -> str:
        found = {shown_taint(taint) for node in nodes for taint in refusals(self.spec, node)}
        return f"{', '.join(sorted(found))} ({_listed([_name(node) for node in nodes])})"

    def _short(self, nodes: Sequence[Object], refusing: Sequence[Object]) -> Cause:
        """The shortage on the node where the smallest share of the request is missing. The nodes
        `refusing` have room, but taints that the pod does not tolerate.
        """
        lacks = [self.lacks[_name(node)] for node in nodes]
        if self.snapshot.all_pods is None or not all(lacks):
            return self._cause("no node takes it")
        first, *others = min(lacks, key=lambda found: (found[0].size, not found[0].total))
        evidence = []
        if others:
            listed = _listed([one.resource for one in others])
            evidence.append(f"also short on {first.node}: {listed}")
        if refusing:
            evidence.append(f"room behind taints: {self._taints(refusing)}")
        words, remedy = first.words, ""
        if first.unhealthy:
            has = shown(first.resource, first.total + first.unhealthy)
            offered = shown(first.resource, first.total)
            evidence.append(f"{first.node} has {has}, of which the device plugin offers {offered}")
            remedy = "see the device plugin's log for what is not healthy"
        elif "/" in first.resource and not any(map(first.is_offered_by, self.nodes)):
            wanted = shown(first.resource, first.wanted)
            words = f"needs {wanted} {first.resource}, and no node has any"
            remedy = "see the device plugin, which tells kubelets what a node has"
        return self._cause(words, remedy, *evidence)

    def _cause(self, words: str, remedy: str = "", *evidence: str) -> Cause:
        details = (*evidence, *self.details)
        return Cause(Stage.SCHEDULING, f"pod {self.pod}", words, details, remedy, lasting=False)


def _name(node: Object) -> str:
    return str(node["metadata"]["name"])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
