"""RoCE ports: an address that routers forward, and the MTU of the interface below it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from penstock_ops.verify.checks import hca
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.parsing import fields, only_line, only_whole
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.evidence import Evidence, Snapshot
from penstock_ops.verify.expected import of_node
from penstock_ops.verify.finding import Finding, Layer, Status
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Files

TYPES = Files("gid-type", f"{hca.PORTS}/gid_attrs/types/*")
ADDRESSES = Files("gid", f"{hca.PORTS}/gids/*")
INTERFACES = Files("gid-interface", f"{hca.PORTS}/gid_attrs/ndevs/*")
MOST_MTU = 65536
"""The loopback interface's, which is the largest."""
MTU = Files("mtu", "/sys/class/net/*/mtu")
TYPE = re.compile(r"IB/RoCE v1|RoCE v2")
ADDRESS = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){7}")
INTERFACE = re.compile(r"[!-~]{1,15}")
MAPPED = "0000:0000:0000:0000:0000:ffff:"
"""Begin of an IPv4 address as IPv6."""
Entries = Mapping[tuple[str, str], str]


def entries(evidence: Evidence, form: re.Pattern[str], expected: str) -> Entries:
    """Lines by port and index of the GID. Unused indices cannot be read, and are left out."""
    found: dict[tuple[str, str], str] = {}
    for path, text in evidence.files.items():
        match = fields(only_line(text, path), 1, form, expected)
        found[hca.port_name(path), path.rpartition("/")[2]] = match[0]
    return found


def judge(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    if not node[hca.STATE.name].is_present:
        is_needed = bool(needs.fabric_resources)
        yield check.absent(node, node[hca.STATE.name], is_needed=is_needed)
        return
    routed = [
        port.name for port in hca.ports(node) if port.layer == "Ethernet" and port.state == "ACTIVE"
    ]
    if not routed:
        yield check.finding(node, Status.SKIPPED, "no active port on Ethernet")
        return
    types = entries(node[TYPES.name], TYPE, "IB/RoCE v1 or RoCE v2")
    addresses = entries(node[ADDRESSES.name], ADDRESS, "eight groups of hexadecimal digits")
    interfaces = entries(node[INTERFACES.name], INTERFACE, "the name of an interface")
    for port in routed:
        usable = [
            key
            for key, kind in types.items()
            if key[0] == port and kind == "RoCE v2" and addresses.get(key, "").startswith(MAPPED)
        ]
        if not usable:
            yield check.finding(
                node,
                Status.FAIL,
                "no GID of RoCE v2 with an IPv4 address",
                device=port,
                cause="the interface of this port has no address, or not in this container",
                remedy="give the interface an IPv4 address; in a pod, attach its network",
            )
            continue
        index = usable[0][1]
        summary = f"RoCE v2 with IPv4 at GID index {index}"
        yield check.finding(node, Status.PASS, summary, device=port)
        yield _mtu(check, node, port, interfaces.get(usable[0], ""))


def _mtu(check: NodeCheck, node: Snapshot, port: str, interface: str) -> Finding:
    path = f"/sys/class/net/{interface}/mtu"
    text = node[MTU.name].files.get(path)
    if not interface or text is None:
        raise ParseError(1, interface, f"an interface of the port {port} in /sys/class/net")
    mtu = only_whole(text, path)
    if mtu > MOST_MTU:
        raise ParseError(1, text.strip(), f"an MTU of at most {MOST_MTU} bytes", path)
    return check.measured(
        node,
        mtu,
        of_node("roce_mtu").bound(),
        f"MTU of {interface}",
        device=port,
        cause="RDMA packets have 1,024 bytes instead of 4,096",
        remedy=f"ip link set {interface} mtu 9000, and the same on its switch",
    )


CHECK = NodeCheck(
    "roce",
    "routable GID and MTU of RoCE ports",
    Layer.FABRIC,
    (
        hca.STATE,
        hca.PHYSICAL,
        hca.RATE,
        hca.LAYER,
        TYPES,
        ADDRESSES,
        INTERFACES,
        MTU,
    ),
    judge,
)
