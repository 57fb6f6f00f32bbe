"""Lint rules for who reaches the pods: Services, policies, routes, and pools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock_ops.deploy.objects import Pod, mapping, mappings, pods_of, selected_by
from penstock_ops.deploy.rules import SECRET, Finding, words_of

Objects = Sequence[Mapping[str, Any]]
OPEN = ("LoadBalancer", "NodePort")
DUAL = ("PreferDualStack", "RequireDualStack")
ONE_FAMILY = ("0.0.0.0", "$(POD_IP)")
"""Addresses of servers that accept connections of one IP family."""


def service(data: Mapping[str, Any], every: Objects) -> Iterator[Finding]:
    """Finds a Service that anyone reaches without a key, or with families that no server has."""
    spec = mapping(data.get("spec"))
    pods = _chosen(data, every)
    kind = spec.get("type")
    if kind in OPEN and pods and not any(map(_has_key, pods)):
        text = f"{kind} of a server without an API key: everyone who reaches it is served"
        yield Finding("open", "warning", text)
    families = spec.get("ipFamilies")
    several = spec.get("ipFamilyPolicy") in DUAL
    several |= isinstance(families, list) and "IPv6" in families
    hosts = {host for pod in pods for host in _hosts(pod)}
    if several and (wrong := sorted(hosts & set(ONE_FAMILY))):
        text = f"several IP families, but the server listens at {wrong[0]}: it refuses the others"
        yield Finding("ip-family", "error", text)


def _has_key(pod: Pod) -> bool:
    names = [
        str(entry.get("name"))
        for container in pod.containers
        for entry in mappings(container.get("env"))
    ]
    return any(name.endswith("API_KEY") and SECRET.search(name) for name in names)


def _hosts(pod: Pod) -> Iterator[str]:
    for container in pod.containers:
        words = words_of(container)
        for word, following in zip(words, [*words[1:], ""], strict=True):
            name, equals, value = word.partition("=")
            if name == "--host":
                yield value if equals else following


def policy(data: Mapping[str, Any], every: Objects) -> Iterator[Finding]:
    """Finds a policy that lets clients past the gateway, to the pods behind it."""
    behind = [pod for pod in _chosen(data, every) if _serves(pod) and not _is_gateway(pod)]
    if not _has_gateway(every) or not behind:
        return
    spec = mapping(data.get("spec"))
    for rule in mappings(spec.get("ingress")):
        if not rule.get("from"):
            ports = ", ".join(str(port.get("port")) for port in mappings(rule.get("ports")))
            text = f"port {ports or 'any'} is open to all: clients pass the gateway by"
            yield Finding("policy", "warning", text)


def _has_gateway(every: Objects) -> bool:
    return any(_is_gateway(pod) for each in every for pod in pods_of(each))


def _serves(pod: Pod) -> bool:
    return any(container.get("ports") for container in pod.containers)


def _is_gateway(pod: Pod) -> bool:
    return any("gateway" in words_of(container)[:4] for container in pod.containers)


def _chosen(data: Mapping[str, Any], every: Objects) -> list[Pod]:
    """The pods of these files that an object selects."""
    wanted = selected_by(data)
    pods = [pod for each in every for pod in pods_of(each)]
    return [pod for pod in pods if wanted and wanted.items() <= pod.labels.items()]


def failure_mode(data: Mapping[str, Any], every: Objects) -> Iterator[Finding]:
    picker = mapping(mapping(data.get("spec")).get("endpointPickerRef"))
    if picker.get("failureMode") == "FailOpen":
        text = "FailOpen: while no picker answers, any pod gets requests, full or not"
        yield Finding("failure-mode", "warning", text)


def listeners(data: Mapping[str, Any], every: Objects) -> Iterator[Finding]:
    """Finds a route that serves all listeners of a Gateway that has several."""
    counts = {
        mapping(each.get("metadata")).get("name"): len(
            mappings(mapping(each.get("spec")).get("listeners"))
        )
        for each in every
        if each.get("kind") == "Gateway"
    }
    for parent in mappings(mapping(data.get("spec")).get("parentRefs")):
        count = counts.get(parent.get("name"), 0)
        if count > 1 and not (parent.get("sectionName") or parent.get("port")):
            text = f"no sectionName: the route serves all {count} listeners"
            yield Finding("listener", "warning", text)
