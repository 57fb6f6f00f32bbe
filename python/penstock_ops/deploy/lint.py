"""`penstock deploy lint`: finds faults in manifests that an API server accepts but that keep pods
from serving.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.core import PenstockError
from penstock_ops.deploy.object_rules import objects_rules
from penstock_ops.deploy.objects import Located, pods_of, read
from penstock_ops.deploy.placement_rules import (
    device_nodes,
    direct_storage,
    host_paths,
    pull_secrets,
    references,
    requests,
    scrape_annotations,
)
from penstock_ops.deploy.rules import Finding, pod_rules

PLACEMENT = (
    requests,
    device_nodes,
    scrape_annotations,
    pull_secrets,
    references,
    host_paths,
    direct_storage,
)
"""Rules of placement_rules for pods."""


def lint(paths: Sequence[Path]) -> list[tuple[Located, Finding]]:
    """All findings about the objects in `paths`, file by file. PenstockError for invalid YAML, or
    if there are no objects.
    """
    found = [located for path in paths for located in read(path)]
    if not found:
        raise PenstockError("no objects of Kubernetes in these files")
    every = [located.data for located in found]
    return [
        (located, finding)
        for located in found
        for finding in (*_pods(located.data), *objects_rules(located.data, every))
    ]


def _pods(data: Mapping[str, Any]) -> Iterator[Finding]:
    for pod in pods_of(data):
        for rule in (*pod_rules(), *PLACEMENT):
            yield from rule(pod)
