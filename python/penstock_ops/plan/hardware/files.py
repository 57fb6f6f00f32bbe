"""Reads hardware files: those that ship with Penstock and those of users have the same format."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from string import ascii_letters, digits
from typing import Any, Literal

from penstock.config.documents import Tree, read_trees
from penstock.config.forms import Form, count, number, one_of, table, text, truth
from penstock.core import PenstockError, did_you_mean, shortened
from penstock_ops.plan.hardware.pci_form import PCI

Kind = Literal["accelerators", "nodes"]
MOST_DEVICES = 4096
"""Maximum number of devices in a node or in a domain."""
RATE = number(0.001, 1e6)
"""Schema of GB/s, and of TFLOP/s."""
TYPES = ("bf16", "fp4", "fp8", "int8")
"""Number types that `tflops` may have."""
RESOURCE = text(ascii_letters + digits + "-._/")


def _tflops(key: str, value: object) -> None:
    table(one_of(*TYPES), RATE)(key, value)
    if isinstance(value, dict) and "bf16" not in value:
        raise PenstockError(f"{key}.bf16 is missing")


def _date(key: str, value: object) -> None:
    if not isinstance(value, date):
        text()(key, value)


ABOUT: Mapping[str, Form] = {
    "name": text(),
    "title": text(),
    "verified": truth,
    "source": text(),
    "date": _date,
}
NEEDED: Mapping[Kind, Mapping[str, Form]] = {
    "accelerators": {
        "memory_mib": count(1, 1 << 30),
        "memory_gb_per_s": RATE,
        "tflops": _tflops,
        "link_gb_per_s": RATE,
        "linked": count(1, MOST_DEVICES),
        "per_node": count(1, MOST_DEVICES),
        "pcie_gb_per_s": RATE,
    },
    "nodes": {"accelerator": text(), "accelerators": count(1, MOST_DEVICES)},
}
POSSIBLE: Mapping[Kind, Mapping[str, Form]] = {
    "accelerators": {
        **ABOUT,
        "network_gb_per_s": RATE,
        "resource": RESOURCE,
        "bar_gib": count(1, 1 << 20),
    },
    "nodes": {
        **ABOUT,
        "vcpus": count(1),
        "memory_gib": count(1),
        "fabric": text(),
        "fabric_resources": table(RESOURCE, count(1, MOST_DEVICES)),
        "network_gb_per_s": RATE,
        "pci": PCI,
    },
}


def read_hardware(path: Path) -> tuple[Kind, dict[str, Any]]:
    """The kind and the members of a hardware file. A file with the member `accelerator` or
    `accelerators` is a node. PenstockError names file, line and member, and a similar member for an
    unknown one.
    """
    trees = read_trees(path)
    if len(trees) != 1 or not isinstance(trees[0].content, dict):
        raise PenstockError(f"{path}:1: a mapping is expected, as in the files of --list-hardware")
    tree, row = trees[0], trees[0].content
    kind: Kind = "nodes" if {"accelerator", "accelerators"} & set(row) else "accelerators"
    forms = {**NEEDED[kind], **POSSIBLE[kind]}
    for key, value in row.items():
        _checked(tree, key, value, forms)
    missing = [key for key in NEEDED[kind] if key not in row]
    if missing:
        what = "a node" if kind == "nodes" else "an accelerator"
        raise PenstockError(f"{path}: {missing[0]} is missing, which {what} needs")
    return kind, row


def _checked(tree: Tree, key: object, value: object, forms: Mapping[str, Form]) -> None:
    if not isinstance(key, str) or key not in forms:
        known = did_you_mean(str(key), forms) or f", none of {', '.join(forms)}"
        raise PenstockError(
            f"{tree.file}:{tree.lines.get((key,), 1) if isinstance(key, str) else 1}: unknown "
            f"member {shortened(ascii(key))}{known}"
        )
    try:
        forms[key](key, value)
    except PenstockError as error:
        raise PenstockError(f"{tree.place(key)}: {error}") from None
