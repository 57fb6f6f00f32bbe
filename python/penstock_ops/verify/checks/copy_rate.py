"""Copies between host and GPU memory, measured by nvbandwidth where it is installed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from penstock_ops.verify.checks import nvidia
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.parsing import decimal
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.evidence import Snapshot
from penstock_ops.verify.expected import of_accelerator
from penstock_ops.verify.finding import Bound, Finding, Layer, Status
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Command

TESTS = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce")
COPIES = Command("copy-rate", ("nvbandwidth", "-j", "-t", *TESTS), 120.0)
WAIVED = "Waived"


def parse(text: str) -> dict[str, list[float]]:
    """GB per second of each GPU by name of the test. A waived test is left out."""
    try:
        cases = json.loads(text)["nvbandwidth"]["testcases"]
        return {case["name"]: _row(case) for case in cases if case["status"] != WAIVED}
    except ParseError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ParseError(1, text.strip(), "JSON of nvbandwidth -j") from error


def _row(case: Any) -> list[float]:
    """The one row of a test between host and devices. Cells are texts."""
    name, status, matrix = case["name"], case["status"], case["bandwidth_matrix"]
    if name not in TESTS or status != "Passed" or len(matrix) != 1:
        raise ParseError(1, f"{name}: {status}", "a row of a test that passed")
    return [decimal(cell, 1) for cell in matrix[0]]


def judge(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    inventory, findings = nvidia.gpus(check, node, needs)
    if findings:
        yield from findings
        return
    source = node[COPIES.name]
    if not source.is_present:
        yield check.absent(node, source, is_needed=False)
        return
    rates = parse(source.text)
    for test in TESTS:
        row = rates.get(test)
        if row is None:
            yield check.finding(node, Status.SKIPPED, f"nvbandwidth waived {test}")
            continue
        if len(row) != len(inventory.gpus):
            raise ParseError(1, test, f"{len(inventory.gpus)} GPUs")
        for gpu, rate in zip(inventory.gpus, row, strict=True):
            yield check.measured(
                node,
                rate,
                _bound(gpu.accelerator, needs),
                test.replace("_memcpy_ce", "").replace("_", " "),
                device=gpu.bus_id,
                cause="a slower link, memory of another NUMA node, or an IOMMU that translates",
                remedy="see the checks pcie, acs, iommu; pin the process to the GPU's NUMA node",
            )


def _bound(accelerator: str, needs: Needs) -> Bound:
    """Expected of the accelerator; needed for a RAM tier, which copies at the planned rate."""
    expected = of_accelerator(accelerator).get("host_copy_gb_per_s")
    planned = needs.bound("tier_ram_gb_per_s", "GB/s").expected
    limit = expected.value if expected else planned
    source = expected.source if expected else "rate of the RAM tier in the plan"
    return Bound(None, limit, "GB/s", formula=source)


CHECK = NodeCheck(
    "copy-rate",
    "copies between host and GPU memory, by nvbandwidth",
    Layer.FABRIC,
    (*nvidia.SOURCES, COPIES),
    judge,
    runs_beside_server=False,
)
