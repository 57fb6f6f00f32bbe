"""`penstock plan --list-models` and `--list-hardware`: models and hardware that have names."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from penstock.model.sharding import plan_grid
from penstock.model.sizing import active_parameters, kv_spec, parameters
from penstock.model.spec import DecoderSpec
from penstock_ops.plan.catalogue import entries
from penstock_ops.plan.hardware import HERE, ROOT, accelerator, names, node
from penstock_ops.plan.lines import columns, human
from penstock_ops.plan.subject import of_catalogue


class ListAction(argparse.Action):
    """A flag that prints lines and ends the program, so that MODEL can stay required."""

    def __init__(
        self,
        option_strings: Sequence[str],
        dest: str,
        *,
        lines: Callable[[], list[str]],
        **kept: Any,
    ) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **kept)
        self._lines = lines

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print("\n".join(self._lines()))
        parser.exit()


def model_lines() -> list[str]:
    """A line for each model of the catalogue. KV is in bf16, for all layers including those with a
    window.
    """
    rows = [("model", "billions", "active", "weights", "size", "KV a token", "context", "type")]
    for entry in entries().values():
        subject = of_catalogue(entry)
        spec = subject.spec
        rows.append(
            (
                entry.name,
                f"{parameters(spec) / 1e9:.2f}",
                f"{active_parameters(spec) / 1e9:.2f}",
                subject.weights.name,
                human(subject.weights.model_bytes(spec)),
                f"{_kv_bytes(spec) / 1024:,.1f} KiB",
                f"{spec.max_position:,}",
                _kind(entry.config),
            )
        )
    return columns(rows, left=(0, 3, 7))


def hardware_lines() -> list[str]:
    """A line for each accelerator, then for each node, with the memory of a device."""
    rows = [("accelerator", "memory", "in a node", "title")]
    for name in names("accelerators"):
        device = accelerator(name)
        rows.append((name, human(device.memory), str(device.per_node), device.title))
    nodes = [("node", "devices", "accelerator", "title")]
    for name in names("nodes"):
        found = node(name)
        nodes.append((name, str(found.count), found.device.name, found.title))
    return [
        f"{HERE}: the CPUs and the memory of this machine",
        "",
        *columns(rows, left=(0, 3)),
        "",
        *columns(nodes, left=(0, 2, 3)),
        "",
        "other hardware: --on FILE.yaml, in the format of the files in accelerators and nodes of",
        f"  {ROOT}",
    ]


def _kv_bytes(spec: DecoderSpec) -> int:
    """Bytes of KV of a token in bf16."""
    groups = kv_spec(spec, plan_grid(spec, 1, 1), 0, block_size=1, number_bytes=2).groups
    return sum(group.block_bytes for group in groups)


def _kind(config: Any) -> str:
    listed = config.get("architectures") or [config.get("model_type", "")]
    return str(listed[0])
