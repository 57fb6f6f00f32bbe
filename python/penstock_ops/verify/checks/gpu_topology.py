"""Paths between GPUs, and from GPUs to NICs, as the driver's matrices show them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from penstock_ops.verify.checks import nvidia
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.parsing import numbered
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.evidence import Snapshot
from penstock_ops.verify.finding import Finding, Layer, Status
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Command

MATRIX = Command("topology-matrix", ("nvidia-smi", "topo", "-m"), 60.0)
READS = Command("peer-reads", ("nvidia-smi", "topo", "-p2p", "r"), 60.0)
DEVICE = re.compile(r"GPU\d+|NIC\d+|mlx5_(?:bond_)?\d+")
PATH = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|NV\d+")
PEER = re.compile(r"X|OK|CNS|TNS|GNS|NS|DR|U")
NEAR = ("PIX", "PXB")
"""Paths on which NCCL lets a NIC read GPU memory by default (NCCL_NET_GDR_LEVEL)."""
REASONS = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "NS": "not supported",
    "DR": "disabled by a registry key of the driver",
    "U": "unknown to the driver",
}
Cells = Mapping[tuple[str, str], str]


def parse(text: str, cell: re.Pattern[str]) -> Cells:
    """Cells by row and column. Columns are found by their heads, since newer drivers add some."""
    found: dict[tuple[str, str], str] = {}
    heads: list[str] = []
    for number, line in numbered(text):
        words = [word.strip() for word in line.split("\t") if word.strip()]
        if not words:
            continue
        if not heads:
            heads = _heads(words, number, line)
        elif DEVICE.fullmatch(words[0]):
            _row(found, heads, words, number, line, cell)
        else:
            break
    rows = [row for row, head in found if row == head]
    gpus = [head for head in heads if head.startswith("GPU")]
    if not gpus or [row for row in rows if row.startswith("GPU")] != gpus:
        raise ParseError(1, text.strip(), "a matrix with a row for each GPU")
    for row, head in found:
        if found.get((head, row), found[row, head]) != found[row, head] and cell is PATH:
            raise ParseError(1, text.strip(), f"the same path from {row} to {head} and back")
    return found


def _heads(words: list[str], number: int, line: str) -> list[str]:
    """Names of devices at the head; what follows them describes CPUs."""
    names = [word for word in words if DEVICE.fullmatch(word)]
    if not names or words[: len(names)] != names or len(set(names)) != len(names):
        raise ParseError(number, line, "GPU0 and other devices as heads of columns")
    return names


def _row(
    found: dict[tuple[str, str], str],
    heads: list[str],
    words: list[str],
    number: int,
    line: str,
    cell: re.Pattern[str],
) -> None:
    row, cells = words[0], words[1 : len(heads) + 1]
    if (row, heads[0]) in found or row not in heads or len(cells) != len(heads):
        raise ParseError(number, line, f"{len(heads)} cells, each device once")
    for head, value in zip(heads, cells, strict=True):
        if not cell.fullmatch(value) or (value == "X") != (row == head):
            raise ParseError(number, line, "names of paths, X for a device itself")
        found[row, head] = value


def judge_paths(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    inventory, findings = nvidia.gpus(check, node, needs)
    if findings:
        yield from findings
        return
    source = node[MATRIX.name]
    if not source.is_present:
        yield check.absent(node, source, is_needed=needs.devices > 0)
        return
    cells = parse(source.text, PATH)
    names = sorted({row for row, _ in cells if row.startswith("GPU")}, key=lambda n: int(n[3:]))
    if len(names) != len(inventory.gpus):
        raise ParseError(1, source.text.strip(), f"{len(inventory.gpus)} GPUs")
    yield from _pairs(check, node, cells, names, needs)
    yield from _nics(check, node, cells, names, needs)


def _pairs(
    check: NodeCheck, node: Snapshot, cells: Cells, names: list[str], needs: Needs
) -> Iterator[Finding]:
    far = [
        f"{a}-{b} {path}"
        for (a, b), path in cells.items()
        if a in names and b in names and path in ("SYS", "NODE", "PHB")
    ]
    if len(names) < 2:
        yield check.finding(node, Status.SKIPPED, "one GPU has no path to another")
    elif not far:
        yield check.finding(node, Status.PASS, f"{len(names)} GPUs linked by NVLink or switches")
    else:
        yield check.finding(
            node,
            Status.WARN,
            f"{len(far)} paths between GPUs cross a host bridge or CPUs",
            cause="copies between them go through the CPUs",
            remedy="choose devices of one switch; in a VM, give NCCL a topology file",
            evidence=", ".join(far[:4]),
        )


def _nics(
    check: NodeCheck, node: Snapshot, cells: Cells, names: list[str], needs: Needs
) -> Iterator[Finding]:
    """Each GPU needs one NIC near it, if the plan spans nodes."""
    nics = {column for _, column in cells if not column.startswith("GPU")}
    if needs.nodes < 2:
        return
    if not nics:
        yield check.finding(
            node,
            Status.UNKNOWN,
            "the matrix has no NIC",
            remedy="load the drivers of the NICs, or grant them to the pod",
        )
        return
    for name in names:
        paths = {cells[name, nic] for nic in nics}
        if paths & set(NEAR):
            yield check.finding(node, Status.PASS, "a NIC below its bridge", device=name)
            continue
        yield check.finding(
            node,
            Status.WARN,
            f"no NIC near: {', '.join(sorted(paths))}",
            device=name,
            cause="NCCL copies through host memory instead of GPUDirect RDMA",
            remedy="pair GPU and NIC below one switch; in a VM, give NCCL a topology file",
        )


def judge_peers(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    inventory, findings = nvidia.gpus(check, node, needs)
    if findings:
        yield from findings
        return
    source = node[READS.name]
    if not source.is_present:
        yield check.absent(node, source, is_needed=needs.ranks > 1)
        return
    if len(inventory.gpus) < 2:
        yield check.finding(node, Status.SKIPPED, "one GPU has no peer")
        return
    cells = parse(source.text, PEER)
    if len({row for row, _ in cells}) != len(inventory.gpus):
        raise ParseError(1, source.text.strip(), f"{len(inventory.gpus)} GPUs")
    refused = {pair: cell for pair, cell in cells.items() if cell not in ("X", "OK")}
    if not refused:
        yield check.finding(node, Status.PASS, "GPUs read each other's memory")
        return
    (a, b), reason = next(iter(refused.items()))
    yield check.finding(
        node,
        Status.FAIL if needs.ranks > 1 else Status.WARN,
        f"{len(refused)} pairs of GPUs cannot read each other's memory",
        device=f"{a}-{b}",
        cause=f"{reason}: {REASONS[reason]}; ACS, IOMMU or the driver's settings",
        remedy="see the checks acs and iommu; without peer reads, NCCL copies through the host",
    )


PATHS_CHECK = NodeCheck(
    "gpu-paths",
    "paths between GPUs, and from GPUs to NICs",
    Layer.FABRIC,
    (*nvidia.SOURCES, MATRIX),
    judge_paths,
)
PEERS_CHECK = NodeCheck(
    "peer-reads",
    "whether GPUs read each other's memory",
    Layer.FABRIC,
    (*nvidia.SOURCES, READS),
    judge_peers,
)
