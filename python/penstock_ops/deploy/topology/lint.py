"""Checks a topology file: first as NCCL reads it, then what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock_ops.deploy.topology.faults import ERROR, RULES, WARNING, Fault, Rule
from penstock_ops.deploy.topology.grammar import Element, TopologyError, printable
from penstock_ops.deploy.topology.reader import read_topology
from penstock_ops.deploy.topology.recovery import recover

ORDER = (ERROR, WARNING, "note")


def lint_topology(data: bytes, rules: Sequence[Rule] = ()) -> list[Fault]:
    """All faults of a file, errors first; `rules` are further ones, such as those of a machine. A
    file that NCCL cannot read gets the place where NCCL ends, and the faults of what was meant.
    """
    try:
        topology = read_topology(data)
    except TopologyError as error:
        found = _refused(data, error, rules)
    else:
        found = [Fault(WARNING, notice.line, notice.text) for notice in topology.notices]
        found += _of_tree(topology.system, rules)
    return sorted({replace(fault, text=printable(fault.text)) for fault in found}, key=_place)


def _place(fault: Fault) -> tuple[int, int, int, str]:
    return ORDER.index(fault.severity), fault.rank, fault.line, fault.text


def _refused(data: bytes, error: TopologyError, rules: Sequence[Rule]) -> list[Fault]:
    found = [Fault(ERROR, error.line, f"NCCL ends reading at column {error.column}: {error.text}")]
    system, notices = recover(data.decode("utf-8", "replace"))
    found += [Fault(ERROR, notice.line, notice.text) for notice in notices]
    return found + (_of_tree(system, rules) if system else [])


def _of_tree(system: Element, rules: Sequence[Rule]) -> list[Fault]:
    return [fault for rule in (*RULES, *rules) for fault in rule(system)]
