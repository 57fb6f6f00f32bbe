"""ACS of bridges and ATS of NICs, which decide whether GPUs and NICs reach each other directly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock_ops.verify.checks import pci, pcie
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.parsing import fields, numbered
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.evidence import Absence, Evidence, Snapshot
from penstock_ops.verify.finding import Finding, Layer, Status
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Command

LSPCI = Command("lspci", ("lspci", "-D", "-vvv"), 60.0)
HEAD = re.compile(r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (\S.*)")
CONTROLS = {
    "ACSCtl": re.compile(r"\s+ACSCtl:\s+((?:[A-Za-z]+[+-] ?)+)"),
    "ATSCtl": re.compile(r"\s+ATSCtl:\s+(Enable[+-]), Smallest Translation Unit: [0-9a-f]{2}"),
}
FLAG = re.compile(r"([A-Za-z]+)([+-])")
ACS_FLAGS = (
    "SrcValid",
    "TransBlk",
    "ReqRedir",
    "CmpltRedir",
    "UpstreamFwd",
    "EgressCtrl",
    "DirectTrans",
)
REDIRECTING = ("ReqRedir", "CmpltRedir", "UpstreamFwd")
"""With one of them, a bridge sends packets between devices below it up to the CPU."""
DENIED = "<access denied>"


@dataclass(slots=True)
class Device:
    line: int
    controls: dict[str, dict[str, bool]] = field(default_factory=dict)
    has_acs: bool = False
    is_denied: bool = False


def parse(text: str) -> dict[str, Device]:
    """Control flags of the devices that `lspci -D -vvv` shows, by bus id."""
    found: dict[str, Device] = {}
    device = None
    for number, line in numbered(text):
        if match := HEAD.fullmatch(line):
            if match[1] in found:
                raise ParseError(number, line, "each device once")
            device = found[match[1]] = Device(number)
        elif device is None or not line[0].isspace():
            raise ParseError(number, line, "a device with its domain")
        else:
            _property(device, number, line)
    for device in found.values():
        if device.has_acs and "ACSCtl" not in device.controls:
            raise ParseError(device.line, "ACS", "its ACSCtl")
    return found


def _property(device: Device, number: int, line: str) -> None:
    device.is_denied = device.is_denied or DENIED in line
    device.has_acs = device.has_acs or "Access Control Services" in line or "ACSCap" in line
    for name, form in CONTROLS.items():
        if name not in line:
            continue
        match = fields(line, number, form, f"{name}: with flags")
        flags = {flag[1]: flag[2] == "+" for flag in FLAG.finditer(match[1])}
        wanted = set(ACS_FLAGS) if name == "ACSCtl" else {"Enable"}
        if name in device.controls or set(flags) != wanted:
            raise ParseError(number, line, f"{name} once, with {', '.join(sorted(wanted))}")
        device.controls[name] = flags


def judge(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    endpoints = pcie.examined(node)
    if not endpoints:
        yield check.finding(node, Status.SKIPPED, "no accelerator and no RDMA NIC on the PCI bus")
        return
    source = node[LSPCI.name]
    if not source.is_present:
        yield check.absent(node, source, is_needed=False)
        return
    devices = parse(source.text)
    for endpoint in endpoints:
        if endpoint not in devices:
            raise ParseError(1, source.text.strip(), f"the device {endpoint}")
    if any(device.is_denied for device in devices.values()):
        denied = Evidence(absence=Absence.DENIED, detail="lspci shows capabilities to root only")
        yield check.absent(node, denied, is_needed=False)
    elif pci.is_virtual(node):
        yield from _virtual(check, node, devices, endpoints)
    else:
        yield from _bare(check, node, devices, endpoints)


def _virtual(
    check: NodeCheck, node: Snapshot, devices: dict[str, Device], endpoints: list[str]
) -> Iterator[Finding]:
    """In a VM, ACS stays on for isolation, and ATS lets devices reach each other directly."""
    for endpoint in endpoints:
        controls = devices[endpoint].controls.get("ATSCtl")
        if controls is None:
            yield check.finding(
                node, Status.SKIPPED, "no ATS capability is passed to this VM", device=endpoint
            )
        elif controls["Enable"]:
            yield check.finding(node, Status.PASS, "ATS is on", device=endpoint)
        else:
            yield check.finding(
                node,
                Status.WARN,
                "ATS is off",
                device=endpoint,
                cause="with ACS on in the host, copies between GPU and NIC go through the CPU",
                remedy="mlxconfig -d DEVICE set ATS_ENABLED=true on the host, then reboot it",
            )


def _bare(
    check: NodeCheck, node: Snapshot, devices: dict[str, Device], endpoints: list[str]
) -> Iterator[Finding]:
    paths = node[pci.PATHS.name].files
    bridges = {bridge for each in endpoints for bridge in pci.ancestors(paths, each)}
    if missing := sorted(bridges - set(devices)):
        raise ParseError(1, "lspci", f"the bridge {missing[0]}")
    redirecting = 0
    for bridge in sorted(bridges):
        flags = devices[bridge].controls.get("ACSCtl", {})
        active = [name for name in REDIRECTING if flags.get(name)]
        if active:
            redirecting += 1
            yield check.finding(
                node,
                Status.WARN,
                f"ACS redirects to the CPU: {', '.join(active)}",
                device=bridge,
                cause="copies between GPU and NIC below this bridge go through the CPU",
                remedy="switch ACS off in the BIOS, or at each boot: setpci -s "
                f"{bridge} ECAP_ACS+0x6.w=0000",
            )
    if not redirecting:
        yield check.finding(node, Status.PASS, f"no ACS redirection in {len(bridges)} bridges")


CHECK = NodeCheck(
    "acs",
    "PCIe redirection (ACS) of bridges; ATS in a virtual machine",
    Layer.FABRIC,
    (pci.CLASSES, pci.VENDORS, pci.PATHS, pci.CPUS, LSPCI),
    judge,
)
