"""Validated resources as plain data, and findings (errors and warnings) about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.config.documents import Steps
from penstock.inference_extension.documents import Document, read_documents
from penstock.inference_extension.schema import CRITICALITIES, KINDS, MOST_WEIGHT, complaints


@dataclass(frozen=True, slots=True)
class Finding:
    """An error or warning for the owner of a file."""

    file: str
    line: int
    """Line number from 1; 0 for resources without a file."""
    text: str
    wrong: bool = True
    """False for a warning: the resource is usable, but perhaps not as intended."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {'error' if self.wrong else 'warning'}: {self.text}"


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource whose members have valid types."""

    kind: str
    version: str
    name: str
    namespace: str
    created: str
    """Time of creation in ISO 8601; empty if unknown."""
    spec: Mapping[str, Any]
    document: Document

    def at(self, *steps: str | int) -> tuple[str, int]:
        """File and line of a member of the spec."""
        return self.document.file, self.document.line("spec", *steps)

    @property
    def labels(self) -> Mapping[str, str]:
        metadata = self.document.content["metadata"]
        return metadata.get("labels") or {} if isinstance(metadata, dict) else {}

    @property
    def pools(self) -> list[str]:
        """Names of the pools that the resource references by name. Excludes pools that a selector
        matches.
        """
        refs = [self.spec.get("poolRef"), *self.spec.get("poolRefs", [])]
        return [ref["name"] for ref in refs if ref]


def read(paths: Sequence[Path]) -> tuple[list[Resource], list[Finding]]:
    """Resources of files, oldest first: resources with a creation time, then the others in file
    order. Raises PenstockError if a file is not valid YAML.
    """
    return checked([document for path in paths for document in read_documents(path)])


def checked(documents: Sequence[Document]) -> tuple[list[Resource], list[Finding]]:
    """The valid resources, in the order of `read`, and findings about the others."""
    found: list[Resource] = []
    findings: list[Finding] = []
    for document in documents:
        resource = _resource(document, findings)
        if resource is not None:
            found.append(resource)
    return sorted(found, key=lambda one: (not one.created, one.created)), findings


def _resource(document: Document, findings: list[Finding]) -> Resource | None:
    def note(path: Steps, text: str, wrong: bool = True) -> None:
        findings.append(Finding(document.file, document.line(*path), text, wrong))

    kind, version = document.content.get("kind"), document.content.get("apiVersion")
    versions = KINDS.get(str(kind))
    if versions is None:
        text = f"kind {kind!r} is not looked at"
        if kind is None:
            text = "no resource, because it has no kind; a gateway.yaml is checked by --config FILE"
        note(("kind",), text, wrong=False)
        return None
    if version not in versions:
        text = f"{kind} has no apiVersion {version!r}; there are {', '.join(versions)}"
        note(("apiVersion",), text)
        return None
    before = len(findings)
    for path, text in complaints(document, versions[str(version)]):
        note(path, f"{kind}: {text}")
    if any("has no member" not in one.text for one in findings[before:]):
        return None
    metadata = document.content["metadata"]
    assert isinstance(metadata, dict)
    resource = Resource(
        kind=str(kind),
        version=str(version),
        name=metadata["name"],
        namespace=str(metadata.get("namespace", "default")),
        created=_time(metadata.get("creationTimestamp")),
        spec=document.content["spec"],  # type: ignore[arg-type]
        document=document,
    )
    for path, text, wrong in _values(resource):
        note(("spec", *path), f"{resource.kind} {resource.name}: {text}", wrong)
    return resource


def _time(value: object) -> str:
    """ISO 8601 text of a time. YAML parses times with or without a zone."""
    return str(value).replace(" ", "T") if value else ""


def _values(one: Resource) -> list[tuple[Steps, str, bool]]:
    """Findings about values that have a valid type: path, text, and whether it is an error or a
    warning.
    """
    found: list[tuple[Steps, str, bool]] = []
    if one.kind == "InferenceModel":
        criticality = one.spec.get("criticality", "Standard")
        if criticality not in CRITICALITIES:
            text = f"criticality is {criticality!r}; {', '.join(CRITICALITIES)} are possible"
            found.append((("criticality",), text, True))
        found += _weights(("targetModels",), one.spec.get("targetModels", []))
    if one.kind == "InferenceModelRewrite":
        for at, rule in enumerate(one.spec["rules"]):
            found += _weights(("rules", at, "targets"), rule["targets"])
            for number, match in enumerate(rule.get("matches", [])):
                if match.get("model", {}).get("type", "Exact") != "Exact":
                    path = ("rules", at, "matches", number, "model", "type")
                    found.append((path, "the type of a match is Exact", True))
    if one.kind == "InferenceObjective" and not one.pools and "poolSelector" not in one.spec:
        found.append(((), "poolRef, poolRefs or poolSelector is needed", True))
    if one.kind == "InferencePool" and one.spec.get("appProtocol", "http") != "http":
        text = "the gateway speaks HTTP/1.1 to replicas, whatever appProtocol says"
        found.append((("appProtocol",), text, False))
    return found


def _weights(path: Steps, targets: Sequence[Mapping[str, Any]]) -> list[tuple[Steps, str, bool]]:
    found: list[tuple[Steps, str, bool]] = []
    weights = [target.get("weight") for target in targets]
    if None in weights and any(weight is not None for weight in weights):
        found.append((path, "either all targets have a weight or none has", True))
    for at, weight in enumerate(weights):
        if weight is not None and not 0 <= weight <= MOST_WEIGHT:
            text = f"a weight is {weight}; 1 to {MOST_WEIGHT} are possible"
            found.append(((*path, at, "weight"), text, True))
        elif weight == 0:
            text = "a weight of 0: no request goes there"
            found.append(((*path, at, "weight"), text, any(weights) is False))
    return found
