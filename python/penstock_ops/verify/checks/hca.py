"""RDMA adapters: state and rate of ports, device files, and errors during the run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.parsing import decimal, fields, only_line, only_whole
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.evidence import Evidence, Snapshot
from penstock_ops.verify.expected import of_node
from penstock_ops.verify.finding import Bound, Finding, Layer, Status
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Files, Growth, Links

PORTS = "/sys/class/infiniband/*/ports/*"
STATE = Files("hca-state", f"{PORTS}/state")
PHYSICAL = Files("hca-physical-state", f"{PORTS}/phys_state")
RATE = Files("hca-rate", f"{PORTS}/rate")
LAYER = Files("hca-link-layer", f"{PORTS}/link_layer")
VERBS = Links("uverbs", "/dev/infiniband/uverbs*")
COUNTERS = Growth("hca-counters", f"{PORTS}/counters/*")
HARDWARE_COUNTERS = Growth("hca-hardware-counters", f"{PORTS}/hw_counters/*")
STATES = re.compile(r"([0-5]): (NOP|DOWN|INIT|ARMED|ACTIVE|ACTIVE_DEFER)")
PHYSICAL_STATES = re.compile(
    r"([1-7]): (Sleep|Polling|Disabled|PortConfigurationTraining|LinkUp|LinkErrorRecovery|"
    r"Phy Test)"
)
RATES = re.compile(r"(\d{1,4}(?:\.\d)?) Gb/sec \((1|2|4|8|12)X(?: [A-Z0-9]+)?\)")
FATAL_COUNTERS = (
    "link_downed",
    "excessive_buffer_overrun_errors",
    "local_link_integrity_errors",
    "rnr_nak_retry_err",
)
"""Any growth while the check runs means lost or repeated packets (NVIDIA/NVSentinel v1.18)."""
CABLE = "clean or replace cable and transceiver; look at the switch's port"


@dataclass(frozen=True, slots=True)
class Port:
    name: str
    """As in mlx5_0/1."""
    state: str
    physical: str
    rate: float
    """Gb per second."""
    layer: str


def port_name(path: str) -> str:
    parts = path.split("/")
    return f"{parts[4]}/{parts[6]}"


def ports(node: Snapshot) -> list[Port]:
    """All ports. ParseError if one lacks a file that another one has."""
    texts = {
        source: {port_name(path): text for path, text in node[source.name].files.items()}
        for source in (STATE, PHYSICAL, RATE, LAYER)
    }
    found: list[Port] = []
    for name in texts[STATE]:
        lines: dict[str, str] = {}
        for source in texts:
            if name not in texts[source]:
                raise ParseError(1, "", f"{source.pattern} of {name}")
            lines[source.name] = only_line(texts[source][name], f"{source.name} of {name}")
        state = fields(lines[STATE.name], 1, STATES, "a state such as 4: ACTIVE")
        physical = fields(lines[PHYSICAL.name], 1, PHYSICAL_STATES, "a state such as 5: LinkUp")
        rate = fields(lines[RATE.name], 1, RATES, "a rate such as 400 Gb/sec (4X NDR)")
        layer = lines[LAYER.name]
        if layer not in ("InfiniBand", "Ethernet", "Unknown"):
            raise ParseError(1, layer, "InfiniBand, Ethernet or Unknown")
        found.append(Port(name, state[2], physical[2], float(rate[1]), layer))
    return found


def judge(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    wanted = sum(needs.fabric_resources.values())
    if not node[STATE.name].is_present:
        yield check.absent(node, node[STATE.name], is_needed=wanted > 0)
        return
    found = ports(node)
    active = [port for port in found if port.state == "ACTIVE"]
    yield check.measured(
        node,
        len(active),
        Bound(wanted or None, None, "ports", formula="fabric_resources"),
        "active ports of RDMA adapters",
        cause="a port is down, or its adapter is not granted",
        remedy=f"{CABLE}; on InfiniBand, see that a subnet manager runs",
    )
    for port in found:
        if port not in active:
            yield _down(check, node, port, is_spare=0 < wanted <= len(active))
    yield from _rates(check, node, active, needs)
    yield _device_files(check, node, found, wanted)


def _down(check: NodeCheck, node: Snapshot, port: Port, *, is_spare: bool) -> Finding:
    summary = f"{port.state}, {port.physical}"
    if is_spare:
        summary += "; the plan does not need this port"
        return check.finding(node, Status.SKIPPED, summary, device=port.name)
    cause = {
        "LinkUp": "the link is up, but no subnet manager has configured it",
        "Disabled": "the port is switched off",
    }.get(port.physical, "no partner at the other end of the cable, or a spare port")
    return check.finding(
        node,
        Status.WARN,
        summary,
        device=port.name,
        cause=cause,
        remedy=f"{CABLE}; on InfiniBand, start the subnet manager",
    )


def _rates(check: NodeCheck, node: Snapshot, active: list[Port], needs: Needs) -> Iterator[Finding]:
    """A port at half its rate is still active: each is compared with the plan's node, or with the
    fastest port beside it.
    """
    if not active:
        return
    planned = needs.bound("rail_gbit_per_s", "Gb/s").expected
    fastest = max(port.rate for port in active)
    formula = "network of the plan's node" if planned else "fastest port of this node"
    for port in active:
        yield check.measured(
            node,
            port.rate,
            Bound(None, planned or fastest, "Gb/s", formula=formula),
            "rate of the port",
            device=port.name,
            cause="the link was trained with fewer lanes or a lower speed",
            remedy=CABLE,
        )


def _device_files(check: NodeCheck, node: Snapshot, found: list[Port], wanted: int) -> Finding:
    """sysfs shows the adapters of the host in every container; /dev those that it may use."""
    adapters = len({port.name.partition("/")[0] for port in found})
    granted = len(node[VERBS.name].files)
    if granted >= (wanted or adapters):
        return check.finding(node, Status.PASS, f"{granted} device files of adapters")
    return check.finding(
        node,
        Status.FAIL if wanted else Status.WARN,
        f"{granted} device files in /dev/infiniband, {adapters} adapters",
        cause="the adapters are not granted to this container, or ib_uverbs is not loaded",
        remedy="request the plan's fabric resources in the pod; modprobe ib_uverbs on a host",
    )


def judge_errors(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    """Growth of error counters between begin and end of collecting."""
    begin = node[COUNTERS.name]
    end = node[f"{COUNTERS.name}.end"]
    if not begin.is_present or not end.is_present:
        is_needed = bool(needs.fabric_resources)
        yield check.absent(node, end if begin.is_present else begin, is_needed=is_needed)
        return
    seconds = max(decimal(end.text, 1, "seconds between readings"), 1e-3)
    grown = growth(begin, end)
    if node[HARDWARE_COUNTERS.name].is_present:
        grown |= growth(node[HARDWARE_COUNTERS.name], node[f"{HARDWARE_COUNTERS.name}.end"])
    harmful = 0
    for finding in _errors(check, node, grown, seconds):
        harmful += 1
        yield finding
    if not harmful:
        yield check.finding(node, Status.PASS, f"no errors of links in {seconds:.0f} s")


def growth(begin: Evidence, end: Evidence) -> dict[tuple[str, str], int]:
    """Difference of each counter, by port and name. A counter that was reset, or has gone, is a
    ParseError.
    """
    found: dict[tuple[str, str], int] = {}
    for path, text in begin.files.items():
        before = only_whole(text, path)
        after = only_whole(end.files.get(path, ""), path)
        if after < before:
            raise ParseError(1, str(after), f"at least {before}, its first value", path)
        found[port_name(path), path.rpartition("/")[2]] = after - before
    return found


def _errors(
    check: NodeCheck, node: Snapshot, grown: Mapping[tuple[str, str], int], seconds: float
) -> Iterator[Finding]:
    limits = {
        "symbol_error": (of_node("symbol_errors_per_hour").limit(is_ceiling=True), 3600),
        "link_error_recovery": (of_node("link_recoveries_per_minute").bound(is_ceiling=True), 60),
    }
    for (port, name), count in grown.items():
        if count and name in FATAL_COUNTERS:
            yield check.finding(
                node,
                Status.FAIL,
                f"{name} grew by {count} in {seconds:.0f} s",
                device=port,
                cause="the link loses packets",
                remedy=CABLE,
            )
        elif count and name in limits:
            bound, period = limits[name]
            yield check.measured(
                node,
                count / seconds * period,
                bound,
                name,
                device=port,
                cause="the link is noisy",
                remedy=CABLE,
            )


CHECK = NodeCheck(
    "hca",
    "state, rate and device files of RDMA adapters",
    Layer.FABRIC,
    (STATE, PHYSICAL, RATE, LAYER, VERBS),
    judge,
)
ERRORS = NodeCheck(
    "hca-errors",
    "growth of the error counters of RDMA adapters",
    Layer.FABRIC,
    (COUNTERS, HARDWARE_COUNTERS),
    judge_errors,
)
