"""Lint rules for objects that refer to other objects. Each rule is one function."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from penstock_ops.deploy.objects import mapping, mappings, pods_of, selected_by
from penstock_ops.deploy.placement_rules import spread
from penstock_ops.deploy.rules import Finding, Severity, words_of
from penstock_ops.deploy.service_rules import failure_mode, listeners, policy, service
from penstock_ops.deploy.storage_rules import claim, volume, waits

Objects = Sequence[Mapping[str, Any]]


def objects_rules(data: Mapping[str, Any], every: Objects) -> Iterator[Finding]:
    """Findings about the object `data`. `every` has all objects that are applied together
    with it.
    """
    yield from _twice(data, every)
    for rule in RULES.get(str(data.get("kind")), ()):
        yield from rule(data, every)


def _group(data: Mapping[str, Any], every: Objects) -> Iterator[Finding]:
    spec = mapping(data.get("spec"))
    group = mapping(spec.get("leaderWorkerTemplate"))
    size = group.get("size", 1)
    if not isinstance(size, int) or size < 1:
        yield Finding("group", "error", f"size: {size!r} has no leader")
    strategy = mapping(spec.get("rolloutStrategy"))
    update = mapping(strategy.get("rollingUpdateConfiguration"))
    if update and all(
        str(update.get(key, 0)) in ("0", "0%") for key in ("maxUnavailable", "maxSurge")
    ):
        yield Finding("group", "error", "maxUnavailable and maxSurge are 0: no rollout begins")
    words = " ".join(word for pod in ("leader", "worker") for word in _group_words(group, pod))
    if spec.get("startupPolicy") == "LeaderReady" and "--nnodes" in words:
        yield Finding(
            "group", "error", "LeaderReady with --nnodes: leader and workers wait for one another"
        )


def _group_words(group: Mapping[str, Any], role: str) -> list[str]:
    spec = mapping(mapping(group.get(f"{role}Template")).get("spec"))
    return [word for container in mappings(spec.get("containers")) for word in words_of(container)]


def _network(data: Mapping[str, Any], every: Objects) -> Iterator[Finding]:
    if mapping(data.get("metadata")).get("namespace"):
        yield Finding("network", "error", "NicClusterPolicy belongs to no namespace")
    plugin = mapping(mapping(data.get("spec")).get("rdmaSharedDevicePlugin"))
    if "config" not in plugin:
        return
    try:
        config = json.loads(plugin["config"])
        listed = config["configList"]
        if not listed or not all(each["resourceName"] for each in listed):
            raise ValueError("configList names no resources")
    except (TypeError, ValueError, KeyError) as error:
        text = f"rdmaSharedDevicePlugin.config, which the API server does not read: {error!r}"
        yield Finding("network", "error", text)


def _selector(data: Mapping[str, Any], every: Objects) -> Iterator[Finding]:
    wanted = selected_by(data)
    pods = [pod for each in every for pod in pods_of(each)]
    if pods and wanted and not any(wanted.items() <= pod.labels.items() for pod in pods):
        text = ", ".join(f"{key}={value}" for key, value in wanted.items())
        yield Finding("selector", "error", f"no pod of these files has {text}")


def _ports(data: Mapping[str, Any], every: Objects) -> Iterator[Finding]:
    """Findings about ports that an object names but that the pods it selects do not have."""
    spec, wanted = mapping(data.get("spec")), selected_by(data)
    asked = [port.get("targetPort") for port in mappings(spec.get("ports"))]
    asked += [point.get("port") for point in mappings(spec.get("podMetricsEndpoints"))]
    pods = [pod for each in every for pod in pods_of(each)]
    chosen = [pod for pod in pods if wanted and wanted.items() <= pod.labels.items()]
    names = {
        port.get("name")
        for pod in chosen
        for container in pod.containers
        for port in mappings(container.get("ports"))
    }
    for port in asked:
        if chosen and isinstance(port, str) and port not in names:
            yield Finding("port", "error", f"its pods have no port {port!r}")


def _budget(data: Mapping[str, Any], every: Objects) -> Iterator[Finding]:
    spec = mapping(data.get("spec"))
    if str(spec.get("maxUnavailable")) in ("0", "0%") or spec.get("minAvailable") == "100%":
        yield Finding("budget", "error", "no pod may ever go: no drain of a node ends")


def _scaler(data: Mapping[str, Any], every: Objects) -> Iterator[Finding]:
    spec = mapping(data.get("spec"))
    target = mapping(spec.get("scaleTargetRef"))
    kind = str(target.get("kind", "Deployment"))
    found = _named(every, kind, target.get("name"))
    if found is None:
        yield Finding("scaler", "error", f"no {kind} {target.get('name')} in these files")
    elif "replicas" in mapping(found.get("spec")):
        text = f"{kind} {target.get('name')} has replicas: each apply undoes the autoscaler's"
        yield Finding("scaler", "error", text)
    least, most = (spec.get(key) for key in ("minReplicaCount", "maxReplicaCount"))
    if isinstance(least, int) and isinstance(most, int) and least > most:
        yield Finding("scaler", "error", f"minReplicaCount {least} is above {most}")
    for metric in mappings(spec.get("metrics")):
        if mapping(metric.get("resource")).get("name") == "cpu":
            text = "by processor time: a server that waits for its accelerator has none"
            yield Finding("scaler", "warning", text)


def _pool(data: Mapping[str, Any], every: Objects) -> Iterator[Finding]:
    picker = mapping(mapping(data.get("spec")).get("endpointPickerRef"))
    name, number = picker.get("name"), mapping(picker.get("port")).get("number")
    service = _named(every, "Service", name)
    if service is None:
        yield Finding("picker", "error", f"no Service {name} in these files")
        return
    ports = {port.get("port") for port in mappings(mapping(service.get("spec")).get("ports"))}
    if ports and number not in ports:
        yield Finding("picker", "error", f"Service {name} has no port {number}")


def _route(data: Mapping[str, Any], every: Objects) -> Iterator[Finding]:
    for rule in mappings(mapping(data.get("spec")).get("rules")):
        backends = [
            (str(each.get("kind", "Service")), each.get("name"))
            for each in mappings(rule.get("backendRefs"))
        ]
        missing = [each for each in backends if _named(every, *each) is None]
        for kind, name in missing:
            # A canary is another deployment, whose objects are in other files.
            severity: Severity = "error" if len(missing) == len(backends) else "warning"
            yield Finding("route", severity, f"no {kind} {name} in these files")
        if "request" not in mapping(rule.get("timeouts")):
            text = "no timeouts.request: a Gateway's default may end streams, 0s is no limit"
            yield Finding("route", "warning", text)


def _binding(data: Mapping[str, Any], every: Objects) -> Iterator[Finding]:
    wanted = [mapping(data.get("roleRef"))]
    wanted += [each for each in mappings(data.get("subjects")) if not each.get("namespace")]
    for each in wanted:
        kind, name = str(each.get("kind")), each.get("name")
        if _named(every, kind, name) is None:
            yield Finding("binding", "error", f"no {kind} {name} in these files")


def _spread(data: Mapping[str, Any], every: Objects) -> Iterator[Finding]:
    yield from spread(data, list(pods_of(data)))


def _twice(data: Mapping[str, Any], every: Objects) -> Iterator[Finding]:
    """A finding if another object has the same kind and name: one would overwrite the other."""
    if sum(_identity(each) == _identity(data) for each in every) > 1:
        yield Finding("twice", "error", "another object of these files has its kind and name")


def _identity(data: Mapping[str, Any]) -> tuple[object, ...]:
    metadata = mapping(data.get("metadata"))
    name = metadata.get("name")
    own = name if isinstance(name, str) else id(data)
    return data.get("apiVersion"), data.get("kind"), own, str(metadata.get("namespace"))


def _named(every: Objects, kind: str, name: object) -> Mapping[str, Any] | None:
    """The object of this kind and name; None if there are only others of this kind. An empty object
    if there are none of this kind, because it may exist in the cluster already.
    """
    found = [each for each in every if each.get("kind") == kind]
    named = [each for each in found if mapping(each.get("metadata")).get("name") == name]
    return named[0] if named else None if found else {}


Rule = Callable[[Mapping[str, Any], Objects], Iterator[Finding]]
RULES: Mapping[str, tuple[Rule, ...]] = {
    "Deployment": (_spread, waits),
    "HTTPRoute": (_route, listeners),
    "HorizontalPodAutoscaler": (_scaler,),
    "InferencePool": (_selector, _pool, failure_mode),
    "LeaderWorkerSet": (_group, _spread, waits),
    "NetworkPolicy": (_selector, policy),
    "NicClusterPolicy": (_network,),
    "PersistentVolume": (volume,),
    "PersistentVolumeClaim": (claim,),
    "PodDisruptionBudget": (_selector, _budget),
    "PodMonitor": (_selector, _ports),
    "RoleBinding": (_binding,),
    "ScaledObject": (_scaler,),
    "Service": (_selector, _ports, service),
    "StatefulSet": (_spread, waits),
}
