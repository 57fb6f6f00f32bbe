"""Reads the objects of a directory in the order to apply them, and finds their API paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core import PenstockError
from penstock_ops.deploy.cluster.api import NOT_FOUND, Api, ApiError
from penstock_ops.deploy.objects import Located, mapping, read

NO_OBJECTS = ("kustomize.config.k8s.io/",)
"""API groups of files that are not Kubernetes objects but input for other tools."""
FIRST = (
    "Namespace",
    "CustomResourceDefinition",
    "ServiceAccount",
    "Secret",
    "ConfigMap",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Role",
    "RoleBinding",
    "Service",
)
"""Kinds that are applied before all others, because others depend on them."""
CONTROLLERS = {
    "leaderworkerset.x-k8s.io": "the LeaderWorkerSet controller",
    "monitoring.coreos.com": "the Prometheus operator",
    "gateway.networking.k8s.io": "the Gateway API",
    "inference.networking.k8s.io": "the Gateway API inference extension",
    "keda.sh": "KEDA",
    "mellanox.com": "NVIDIA's network operator",
    "ray.io": "the KubeRay operator",
}


class MissingKindError(PenstockError):
    """The cluster does not have this kind."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One object: its manifest, and its API path."""

    manifest: Mapping[str, Any]
    namespace: str
    """Namespace of the object; empty for a cluster-wide one."""
    collection: str
    """API path of the objects of this kind in this namespace."""

    @property
    def kind(self) -> str:
        return str(self.manifest["kind"])

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def path(self) -> str:
        return f"{self.collection}/{self.name}"


def objects(directory: Path) -> list[Located]:
    """Objects in the directory's files. PenstockError if there are none, or one has no name."""
    found = [
        located
        for located in read(directory)
        if not str(located.data["apiVersion"]).startswith(NO_OBJECTS)
    ]
    if not found:
        raise PenstockError(f"{directory}: no objects of Kubernetes")
    for located in found:
        if not mapping(located.data.get("metadata")).get("name"):
            raise PenstockError(f"{located.file}: {located.data['kind']} without a name")
    return sorted(found, key=_rank)


def _rank(located: Located) -> int:
    kind = located.data["kind"]
    return FIRST.index(kind) if kind in FIRST else len(FIRST)


class Resolver:
    """Finds the API path of each kind by asking the API server, once for each API group and
    version.
    """

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._known: dict[str, dict[str, tuple[str, bool]]] = {}

    def reference(self, located: Located) -> Reference:
        """The reference of an object. MissingKindError if the cluster does not have its kind."""
        version, kind = str(located.data["apiVersion"]), str(located.data["kind"])
        try:
            plural, namespaced = self._kinds(version)[kind]
        except KeyError:
            raise MissingKindError(f"{located.file}: {_missing(version, kind)}") from None
        base = _base(version)
        if not namespaced:
            return Reference(located.data, "", f"{base}/{plural}")
        own = located.data["metadata"].get("namespace") or self._namespace
        return Reference(located.data, own, f"{base}/namespaces/{own}/{plural}")

    def _kinds(self, version: str) -> dict[str, tuple[str, bool]]:
        if version not in self._known:
            try:
                listed = self._api.call("GET", _base(version)).get("resources") or []
            except ApiError as error:
                if error.status != NOT_FOUND:
                    raise
                listed = []
            self._known[version] = {
                one["kind"]: (one["name"], one["namespaced"])
                for one in listed
                if "/" not in one["name"]
            }
        return self._known[version]


def _base(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def _missing(version: str, kind: str) -> str:
    group = version.partition("/")[0]
    needed = next(
        (
            words
            for part, words in CONTROLLERS.items()
            if group == part or group.endswith("." + part)
        ),
        "its custom resource definition",
    )
    return f"the cluster has no {kind} of {version}: it needs {needed}"
