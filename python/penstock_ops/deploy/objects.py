"""Reads Kubernetes objects from files, whatever tool wrote them, and finds the pods that they
create.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.config.documents import read_trees

ENDINGS = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Located:
    """An object, and the file that contains it."""

    file: Path
    data: Mapping[str, Any]

    @property
    def name(self) -> str:
        named = mapping(self.data.get("metadata")).get("name")
        return f"{self.data.get('kind')} {named or '?'}"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as an object's manifest describes it."""

    spec: Mapping[str, Any]
    labels: Mapping[str, str]
    size: int = 1
    """Number of pods in its group; 1 without a group."""
    role: str = ""
    """`leader` or `worker` of a group; empty without a group."""
    annotations: Mapping[str, Any] = field(default_factory=dict)
    claims: frozenset[str] = frozenset()
    """Names of the volumes that each pod gets as claims of its own."""

    @property
    def containers(self) -> list[Mapping[str, Any]]:
        return mappings(self.spec.get("containers"))


def mapping(value: object) -> Mapping[str, Any]:
    """`value` if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Mapping[str, Any]]:
    """The mappings in the list `value`; empty if it is not a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def pods_of(data: Mapping[str, Any]) -> Iterator[Pod]:
    """The different pods that an object creates, each with the size of its group."""
    spec = mapping(data.get("spec"))
    if data.get("kind") == "Pod":
        yield Pod(spec, _labels(data))
    elif data.get("kind") == "CronJob":
        inner = mapping(mapping(spec.get("jobTemplate")).get("spec"))
        yield _template(inner.get("template"))
    elif data.get("kind") == "RayCluster":
        head = mapping(spec.get("headGroupSpec"))
        groups = mappings(spec.get("workerGroupSpecs"))
        size = 1 + sum(_count(group.get("replicas", 1)) for group in groups)
        yield _template(head.get("template"), size, "leader")
        for group in groups:
            yield _template(group.get("template"), size, "worker")
    elif data.get("kind") == "LeaderWorkerSet":
        group = mapping(spec.get("leaderWorkerTemplate"))
        size, claims = _count(group.get("size", 1)), _templates(group)
        worker = _template(group.get("workerTemplate"), size, "worker", claims)
        if group.get("leaderTemplate") is not None:
            yield _template(group.get("leaderTemplate"), size, "leader", claims)
        yield worker
    elif "template" in spec:
        # The pods of an indexed Job run together, each with a number.
        is_group = spec.get("completionMode") == "Indexed"
        size = _count(spec.get("completions")) if is_group else 1
        yield _template(spec.get("template"), size, claims=_templates(spec))


def _count(value: object) -> int:
    return value if isinstance(value, int) else 1


def _template(
    value: object, size: int = 1, role: str = "", claims: frozenset[str] = frozenset()
) -> Pod:
    template = mapping(value)
    annotations = mapping(mapping(template.get("metadata")).get("annotations"))
    spec = mapping(template.get("spec"))
    return Pod(spec, _labels(template), size, role, annotations, claims)


def _templates(spec: Mapping[str, Any]) -> frozenset[str]:
    """Names of volumeClaimTemplates."""
    listed = mappings(spec.get("volumeClaimTemplates"))
    return frozenset(str(mapping(each.get("metadata")).get("name")) for each in listed)


def selected_by(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Labels that an object selects pods by, without those that only a controller adds to pods."""
    spec = mapping(data.get("spec"))
    selector = mapping(spec.get("podSelector") or spec.get("selector"))
    wanted = mapping(selector.get("matchLabels")) or selector
    return {
        key: value
        for key, value in wanted.items()
        if "leaderworkerset" not in key and isinstance(value, str)
    }


def _labels(value: Mapping[str, Any]) -> Mapping[str, str]:
    return mapping(mapping(value.get("metadata")).get("labels"))


def read(path: Path) -> list[Located]:
    """Objects in a file, or in all files of a directory. An object of kind List gives its items."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in ENDINGS)
        return [located for file in files for located in read(file)]
    items = (item for tree in read_trees(path) for item in _items(tree.content))
    return [Located(path, item) for item in items if "kind" in item and "apiVersion" in item]


def _items(document: object) -> list[Mapping[str, Any]]:
    data = mapping(document)
    if data.get("kind") == "List":
        return [mapping(item) for item in data.get("items") or []]
    return [data]
