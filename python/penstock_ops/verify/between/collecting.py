"""Evidence of a node's checks on its way to the coordinator: requests and snapshots as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from penstock.config.forms import count, members, one_of, rows, table, text
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.registry import named
from penstock_ops.verify.evidence import Absence, Evidence, Snapshot
from penstock_ops.verify.judging import sources_of
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import collect

NEEDS = members(
    {
        **dict.fromkeys(("plan", "model", "accelerator", "config"), text(empty=True)),
        **dict.fromkeys(("nodes", "devices", "ranks", "threads", "shared_memory"), count()),
        "reduced_bytes": count(1),
        "fabric_resources": table(text(), count()),
        "directories": table(text(), text()),
        "stores": rows(text()),
        "hosts": rows(text()),
    }
)
"""`Needs` without bounds: what the sources of checks may depend on."""
REQUEST = members({"checks": rows(text(), least=1), "needs": NEEDS})


def _any_text(key: str, value: object) -> None:
    if not isinstance(value, str):
        text()(key, value)


SNAPSHOT = table(
    text(),
    members(
        {
            "text": _any_text,
            "files": table(_any_text, _any_text),
            "detail": _any_text,
        },
        {"absence": one_of("", *Absence)},
    ),
)


def request(checks: Sequence[NodeCheck], needs: Needs) -> dict[str, Any]:
    return {"checks": [check.name for check in checks], "needs": asdict(replace(needs, bounds={}))}


def collected(node: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Read the sources of the checks that `arguments`, of the form REQUEST, name."""
    known = {each.name for each in fields(Needs)}
    values = {name: value for name, value in arguments["needs"].items() if name in known}
    needs = Needs(**{**values, "bounds": {}})
    snapshot = collect(node, sources_of(named(arguments["checks"]), needs))
    return {name: _row(evidence) for name, evidence in snapshot.evidence.items()}


def _row(evidence: Evidence) -> dict[str, Any]:
    return asdict(evidence) | {"absence": evidence.absence or ""}


def snapshot_of(node: str, document: object) -> Snapshot:
    """The snapshot that an agent sent. PenstockError for another form."""
    SNAPSHOT("", document)
    assert isinstance(document, dict)
    return Snapshot(
        node,
        {
            name: Evidence(
                row["text"],
                row["files"],
                Absence(row["absence"]) if row.get("absence") else None,
                row["detail"],
            )
            for name, row in document.items()
        },
    )
