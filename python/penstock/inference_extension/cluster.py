"""Resources of a Kubernetes cluster, as the gateway receives them from the cluster's API server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.inference_extension.documents import Document
from penstock.inference_extension.resources import Finding, Resource, checked
from penstock.inference_extension.rules import Labels, Rule, Rules, rules_of
from penstock.inference_extension.schema import STABLE


def cluster_rules(text: str, pools: Mapping[tuple[str, str], str]) -> Rules:
    """Rules and objectives of the resources in a JSON array. `pools` maps namespace and name of an
    InferencePool to the gateway's name of the pool.

    Resources for other pools belong to other gateways and are skipped. A wrong resource is skipped
    with a finding, because its owner may not be the gateway's owner.
    """
    resources, findings = checked([_document(content) for content in json.loads(text)])
    found = Rules(findings=findings)
    for namespace in sorted({namespace for namespace, _ in pools}):
        names = {name: pool for (space, name), pool in pools.items() if space == namespace}
        here = [one for one in resources if one.namespace == namespace]
        rules = rules_of(_for_pools(here, names), names, _labels(here, names))
        found.findings += rules.findings
        for model in rules.models:
            found.models.append(_with_targets(model, names))
        for objective in rules.objectives:
            pool = objective.get("pool")
            found.objectives.append({**objective, **({"pool": names[str(pool)]} if pool else {})})
    found.findings = [_without_line(one) for one in found.findings]
    return found


def _document(content: dict[str, object]) -> Document:
    metadata = content.get("metadata")
    namespace = metadata.get("namespace", "") if isinstance(metadata, dict) else ""
    return Document(f"namespace {namespace}", content, {(): 0}, ())


def _for_pools(resources: Sequence[Resource], names: Mapping[str, str]) -> list[Resource]:
    """The resources except InferencePools, which the gateway watches itself. References to pools
    other than `names` are removed.
    """
    found: list[Resource] = []
    for one in resources:
        if one.kind == "InferencePool":
            continue
        refs = [ref for ref in one.spec.get("poolRefs", []) if ref["name"] in names]
        spec = {**one.spec, **({"poolRefs": refs} if refs else {})}
        if not refs:
            spec.pop("poolRefs", None)
        ref = one.spec.get("poolRef")
        if ref is not None and ref["name"] not in names:
            del spec["poolRef"]
        if any(key in spec for key in ("poolRef", "poolRefs", "poolSelector")):
            found.append(replace(one, spec=spec))
    return found


def _labels(resources: Sequence[Resource], names: Mapping[str, str]) -> dict[str, Labels]:
    """Labels of the InferencePools in `names`, by pool. If a pool exists in two API versions, the
    stable version takes precedence.
    """
    pools = [one for one in resources if one.kind == "InferencePool" and one.name in names]
    return {one.name: one.labels for one in sorted(pools, key=lambda one: one.version == STABLE)}


def _with_targets(rule: Rule, names: Mapping[str, str]) -> Rule:
    targets = rule["targets"]
    assert isinstance(targets, list)
    return {**rule, "targets": [{**one, "pool": names[one["pool"]]} for one in targets]}


def _without_line(one: Finding) -> Finding:
    """The finding as a warning without a line, because a resource of a cluster has no file, and an
    invalid one was skipped.
    """
    return replace(one, line=0, wrong=False)
