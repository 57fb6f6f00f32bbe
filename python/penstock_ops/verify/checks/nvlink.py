"""NVLinks of GPUs, and their registration with the NVSwitch fabric."""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock_ops.verify.checks import nvidia
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.nvidia import Gpu
from penstock_ops.verify.checks.parsing import decimal, fields, numbered
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.evidence import Snapshot
from penstock_ops.verify.expected import of_accelerator
from penstock_ops.verify.finding import Bound, Finding, Layer, Status
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Command

LINKS = Command("nvlink", ("nvidia-smi", "nvlink", "-s"), 60.0)
GPU_LINE = re.compile(r"GPU (\d+): (\S.*) \(UUID: (GPU-[0-9a-f-]+)\)")
LINK_LINE = re.compile(r"\s+Link (\d+): (?:(\d+(?:\.\d+)?) GB/s|<inactive>)")
ALL_DOWN = "Unable to retrieve NVLink information as all links are inactive"
FABRIC_STATES = ("Not Started", "In Progress", "Completed")
RESEAT = "restart Fabric Manager, reset all GPUs of the node; reseat or replace the GPU"


def parse_links(text: str) -> dict[str, list[float]]:
    """GB per second of each link by UUID of the GPU; 0 for a link that is inactive. A GPU without
    NVLink has none.
    """
    found: dict[str, list[float]] = {}
    uuid = ""
    for number, line in numbered(text):
        if match := GPU_LINE.fullmatch(line):
            uuid = match[3]
            if uuid in found:
                raise ParseError(number, line, "each GPU once")
            found[uuid] = []
        elif line.strip().startswith(ALL_DOWN) and uuid:
            found[uuid] = [0.0]
        else:
            match = fields(line, number, LINK_LINE, "a GPU, or its Link N: RATE GB/s")
            if uuid not in found or int(match[1]) != len(found[uuid]):
                raise ParseError(number, line, "links in the order of their numbers")
            found[uuid].append(decimal(match[2], number) if match[2] else 0.0)
    return found


def judge_links(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    inventory, findings = nvidia.gpus(check, node, needs)
    if findings:
        yield from findings
        return
    if not any(map(_has_links, inventory.gpus)):
        yield check.finding(node, Status.SKIPPED, "no GPU here is known to have NVLinks")
        return
    if len(inventory.gpus) < 2:
        # In a virtual machine with one GPU, its links are down on purpose.
        yield check.finding(node, Status.SKIPPED, "one GPU uses no NVLink")
        return
    source = node[LINKS.name]
    if not source.is_present:
        yield check.absent(node, source, is_needed=True)
        return
    links = parse_links(source.text)
    for gpu in inventory.gpus:
        if not _has_links(gpu):
            yield check.finding(
                node,
                Status.UNKNOWN,
                f"{gpu.product!r} is not in the table of expected values",
                device=gpu.bus_id,
                remedy="compare nvidia-smi nvlink -s with the other GPUs of the node",
            )
            continue
        uuid = gpu.element.get("uuid")
        if uuid.text not in links:
            raise ParseError(1, source.text.strip(), f"links of the GPU {uuid.text}")
        yield from _links(check, node, gpu, links[uuid.text], needs)


def _has_links(gpu: Gpu) -> bool:
    return "nvlinks" in of_accelerator(gpu.accelerator)


def _links(
    check: NodeCheck, node: Snapshot, gpu: Gpu, rates: list[float], needs: Needs
) -> Iterator[Finding]:
    """Number of active links, and the rate of the slowest. A missing link fails if ranks of a node
    exchange data, since the slowest pair sets the pace of all.
    """
    expected = of_accelerator(gpu.accelerator)
    number, rate = expected["nvlinks"], expected["nvlink_gb_per_s"]
    active = [each for each in rates if each]
    needed = number.value if needs.ranks > 1 or not needs.is_planned else None
    yield check.measured(
        node,
        len(active),
        Bound(needed, number.value, number.unit, formula=number.source),
        "active NVLinks",
        device=gpu.bus_id,
        cause="a link is down: the pairs that use it are slower, or the fabric excludes the GPU",
        remedy=RESEAT,
    )
    if active:
        # The driver prints three digits.
        bound = Bound(None, rate.value - 0.001, rate.unit, formula=rate.source)
        yield check.measured(
            node,
            min(active),
            bound,
            "slowest NVLink",
            device=gpu.bus_id,
            cause="a link was trained at a lower rate",
            remedy=RESEAT,
        )


def judge_fabric(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    for gpu in nvidia.each(check, node, needs):
        yield gpu if isinstance(gpu, Finding) else _fabric(check, node, gpu)


def _fabric(check: NodeCheck, node: Snapshot, gpu: Gpu) -> Finding:
    fabric = gpu.element.find("fabric")
    state = fabric.get("state") if fabric else None
    if fabric is None or state is None or state.text == nvidia.ABSENT:
        summary = "the driver reports no fabric for this GPU"
        return check.finding(node, Status.SKIPPED, summary, device=gpu.bus_id)
    if state.text not in FABRIC_STATES:
        raise ParseError(state.line, state.text, f"one of {', '.join(FABRIC_STATES)}")
    status = fabric.get("status").text
    if state.text == "Completed" and status == "Success":
        return check.finding(node, Status.PASS, "registered with the fabric", device=gpu.bus_id)
    return check.finding(
        node,
        Status.FAIL,
        f"fabric {state.text}, {status}",
        device=gpu.bus_id,
        cause="the GPU is not registered with the NVSwitches: CUDA does not start",
        remedy="start Fabric Manager on the host or in the driver pod; wait 3 minutes after boot",
    )


LINK_CHECK = NodeCheck(
    "nvlink",
    "number and rate of NVLinks",
    Layer.FABRIC,
    (*nvidia.SOURCES, LINKS),
    judge_links,
)
FABRIC_CHECK = NodeCheck(
    "nvlink-fabric",
    "registration of GPUs with the NVSwitch fabric",
    Layer.FABRIC,
    nvidia.SOURCES,
    judge_fabric,
)
