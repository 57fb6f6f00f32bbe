"""Host memory: shared memory of ranks, huge pages, and the rate at which all cores read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock_ops.verify.checks import cpu, pci
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.parsing import measurement, only_line
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.evidence import Snapshot
from penstock_ops.verify.expected import of_processor
from penstock_ops.verify.finding import Bound, Finding, Layer, Status
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Files, Measurement

RATE = Measurement("memory-rate", ("memory-rate",), 60.0)
THP = Files("huge-pages", "/sys/kernel/mm/transparent_hugepage/enabled")
MODES = re.compile(r"(?:always|\[always\]) (?:madvise|\[madvise\]) (?:never|\[never\])")
RANK_SHARED = 2**30
"""Bytes of /dev/shm for each rank with a device: NCCL's buffers and queues between processes."""


def judge_shared(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    source = node[cpu.HOST.name]
    if not source.is_present:
        yield check.absent(node, source, is_needed=needs.shared_memory > 0)
        return
    found = measurement(source.text, "shared_memory_bytes", "shared_memory_free_bytes")
    size, free = found["shared_memory_bytes"], found["shared_memory_free_bytes"]
    if not size:
        yield check.finding(
            node,
            Status.UNKNOWN if needs.ranks > 1 else Status.SKIPPED,
            "no /dev/shm",
            remedy="mount a tmpfs there",
        )
        return
    expected = needs.ranks * RANK_SHARED if needs.devices else None
    yield check.measured(
        node,
        free,
        Bound(needs.shared_memory or None, expected, "bytes", formula="of all ranks"),
        "free in /dev/shm",
        cause="the container's default is 64 MiB, or other programs fill it",
        remedy="an emptyDir of medium Memory in the pod; docker run --shm-size; remount the tmpfs",
    )


def judge_pages(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    source = node[THP.name]
    if not source.is_present:
        yield check.absent(node, source, is_needed=False)
        return
    path, text = next(iter(source.files.items()))
    line = only_line(text, path)
    if not MODES.fullmatch(line) or line.count("[") != 1:
        raise ParseError(1, line, "always madvise never, with one of them in brackets", path)
    if "[never]" not in line:
        yield check.finding(node, Status.PASS, f"transparent huge pages: {line}")
        return
    yield check.finding(
        node,
        Status.WARN,
        "transparent huge pages are off",
        cause="each page of 4 KiB costs an entry of the TLB: weights and KV are read slower",
        remedy=f"echo madvise > {path}",
    )


def judge_rate(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    source = node[RATE.name]
    if not source.is_present:
        yield check.absent(node, source, is_needed=not needs.devices and needs.is_planned)
        return
    found = measurement(source.text, "gb_per_s", "threads")
    yield check.measured(
        node,
        found["gb_per_s"],
        _rate_bound(node, needs),
        f"{found['threads']:.0f} threads read",
        cause="fewer memory channels, other programs, a CPU quota, or memory of another NUMA node",
        remedy="fill all channels; stop other programs; widen quota and cpuset",
    )


def _rate_bound(node: Snapshot, needs: Needs) -> Bound:
    """The plan's bound if it is for CPUs. On hardware, also what the sockets should give; a virtual
    machine has an unknown share of them.
    """
    planned = needs.bound("memory_gb_per_s", "GB/s")
    if needs.is_planned and not needs.devices and planned.needed is not None:
        return planned
    text = "\n".join(node[pci.CPUS.name].files.values())
    name = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    expected = None if pci.is_virtual(node) or not name else of_processor(name[1])
    if expected is None:
        return Bound(None, None, "GB/s")
    sockets = len(set(re.findall(r"^physical id\s*: (\d+)$", text, re.MULTILINE))) or 1
    return Bound(None, expected.value * sockets, "GB/s", formula=expected.source)


SHARED = NodeCheck(
    "shared-memory",
    "free space of /dev/shm",
    Layer.MEMORY,
    (cpu.HOST,),
    judge_shared,
    runs_beside_server=False,
)
PAGES = NodeCheck("huge-pages", "transparent huge pages", Layer.MEMORY, (THP,), judge_pages)
RATE_CHECK = NodeCheck(
    "memory-rate",
    "rate at which all cores read memory, measured",
    Layer.MEMORY,
    (RATE, pci.CPUS),
    judge_rate,
    runs_beside_server=False,
)
