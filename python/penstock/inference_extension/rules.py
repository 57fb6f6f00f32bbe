"""Translation of resources to the gateway's rules for models and its objectives (named
priorities).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.inference_extension.resources import Finding, Resource
from penstock.inference_extension.schema import CRITICALITIES

Labels = Mapping[str, str]
Rule = dict[str, object]
"""A rule for a model, or an objective, in the format that `crates/gateway/gateway` reads."""


@dataclass(slots=True)
class Rules:
    models: list[Rule] = field(default_factory=list)
    objectives: list[Rule] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)
    """Target port of each InferencePool; the first if there are several."""
    findings: list[Finding] = field(default_factory=list)


def rules_of(
    resources: Sequence[Resource],
    pools: Collection[str],
    labels: Mapping[str, Labels] | None = None,
) -> Rules:
    """Rules and objectives of resources, which are given oldest first. If two conflict, the older
    one wins. `pools` has the names of further pools that exist, `labels` the labels of pools, by
    name.
    """
    found = Rules()
    kept = _one_of_each(resources, found)
    own = [one for one in kept if one.kind == "InferencePool"]
    for pool in own:
        found.ports[pool.name] = _ports(pool)[0]
        if len(_ports(pool)) > 1:
            text = f"InferencePool {pool.name}: only the first target port counts without a cluster"
            found.findings.append(Finding(*pool.at("targetPorts"), text, wrong=False))
    known = {*pools, *found.ports}
    by_labels = {**(labels or {}), **{pool.name: pool.labels for pool in own}}
    by_model: dict[str, Resource] = {}
    for one in kept:
        for name in one.pools:
            if name not in known:
                there = ", ".join(sorted(known)) or "none"
                text = f"{one.kind} {one.name}: there is no pool {name!r}; there are: {there}"
                found.findings.append(Finding(*one.at("poolRef"), text))
        if not known.issuperset(one.pools):
            continue
        if one.kind == "InferenceObjective":
            found.objectives += _objectives(one, by_labels)
        elif one.kind != "InferencePool":
            _add(one, by_model, found)
    return found


def _one_of_each(resources: Sequence[Resource], found: Rules) -> list[Resource]:
    """The resources without duplicates of kind and name, because a gateway has no namespaces. The
    oldest resource remains; the others become findings.
    """
    first: dict[tuple[str, str], Resource] = {}
    for one in resources:
        other = first.setdefault((one.kind, one.name), one)
        if other is not one:
            file, line = other.at()
            text = f"{one.kind} {one.name}: the one at {file}:{line} is older and has this name"
            found.findings.append(Finding(*one.at(), text))
    return list(first.values())


def _ports(pool: Resource) -> list[int]:
    ports = [port["number"] for port in pool.spec.get("targetPorts", [])]
    return ports or [pool.spec.get("targetPortNumber", 8000)]


def _objectives(one: Resource, pools: Mapping[str, Labels]) -> list[Rule]:
    priority = one.spec.get("priority", 0)
    names = list(one.pools)
    if "poolSelector" in one.spec:
        wanted = one.spec["poolSelector"].get("matchLabels", {})
        if not wanted:
            return [{"name": one.name, "priority": priority}]
        names += [pool for pool, labels in pools.items() if wanted.items() <= labels.items()]
    return [{"name": one.name, "pool": name, "priority": priority} for name in names]


def _add(one: Resource, by_model: dict[str, Resource], found: Rules) -> None:
    """Add the rules of an InferenceModel or an InferenceModelRewrite."""
    seen: set[str] = set()
    for name, path, rule in _of(one):
        older = by_model.setdefault(name, one)
        if name in seen:
            text = f"{one.kind} {one.name}: an earlier rule of it has {_said(name)} already"
            found.findings.append(Finding(*one.at(*path), text, wrong=False))
        elif older is not one:
            text = (
                f"{one.kind} {one.name}: {older.kind} {older.name} is older and has "
                f"{_said(name)} already"
            )
            found.findings.append(Finding(*one.at(*path), text, wrong=False))
        else:
            found.models.append(rule)
            if name == "*":
                text = (
                    f"{one.kind} {one.name}: a rule without matches is for models that no replica "
                    "lists"
                )
                found.findings.append(Finding(*one.at(*path), text, wrong=False))
        seen.add(name)


def _said(name: str) -> str:
    return "a rule without matches" if name == "*" else f"model {name!r}"


def _of(one: Resource) -> list[tuple[str, tuple[str | int, ...], Rule]]:
    pool = one.pools[0]
    if one.kind == "InferenceModel":
        targets = [
            _target(pool, target["name"], target) for target in one.spec.get("targetModels", [])
        ]
        rule: Rule = {
            "name": one.spec["modelName"],
            "targets": targets or [{"pool": pool}],
            "priority": CRITICALITIES.get(one.spec.get("criticality", "Standard"), 0),
        }
        return [(one.spec["modelName"], ("modelName",), rule)]
    found: list[tuple[str, tuple[str | int, ...], Rule]] = []
    for at, given in enumerate(one.spec["rules"]):
        targets = [_target(pool, target["modelRewrite"], target) for target in given["targets"]]
        matches = given.get("matches", [])
        names = [match["model"]["value"] for match in matches if "model" in match]
        found += [
            (name, ("rules", at), {"name": name, "targets": targets}) for name in names or ["*"]
        ]
    return found


def _target(pool: str, model: str, target: dict[str, Any]) -> Rule:
    return {"pool": pool, "model": model, "weight": target.get("weight", 1)}
