"""Xid and SXid errors of NVIDIA devices in the kernel's log since it booted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from penstock_ops.verify.checks import pci
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.parsing import numbered
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.evidence import Snapshot
from penstock_ops.verify.finding import Finding, Layer, Status
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Files

KERNEL_LOG = Files("kernel-log", "/dev/kmsg")
RECORD = re.compile(r"\d+,(\d+),(\d+),[^;,]*(?:,[^;]*)?;(.*)")
XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d{1,4}), (.*\S.*)")
SXID = re.compile(r"nvidia-nvswitch\d+: SXid \(PCI:([0-9a-fA-F:.]+)\): (\d{5}), (\S.*)")
FALLEN = re.compile(
    r"NVRM: (?:The NVIDIA )?GPU (?:at PCI:)?([0-9a-fA-F:.]+).*has fallen off the bus"
)
MENTION = re.compile(r"NVRM: Xid|: SXid|fallen off the bus")
PROCESS = re.compile(r"\bname=([^,]+)")

RESET, REBOOT, RESTART = "reset the GPU", "reboot the node", "restart the process"
REPLACE = "drain the node; run the field diagnostic"
FATAL = {
    48: ("uncorrectable memory error", RESET),
    62: ("halt of the GPU's microcontroller", RESET),
    64: ("a memory row could not be remapped", REPLACE),
    74: ("NVLink error", "check nvlink; reset all GPUs of the node"),
    79: ("the GPU has fallen off the bus", REBOOT),
    95: ("uncontained memory error", RESET),
    119: ("the GPU's firmware does not answer", RESET),
    120: ("error of the GPU's firmware", RESET),
    136: ("link training failed", RESET),
    140: ("uncorrectable memory error, not recovered", RESET),
    143: ("initialisation of the GPU failed", RESET),
    165: ("PCIe fatal time-out", REBOOT),
    167: ("PCIe fatal time-out", REBOOT),
}
"""Codes after which a device does not serve, with cause and remedy: NVIDIA's catalogue of October
2025 (docs.nvidia.com/deploy/xid-errors), where it agrees with operators of large clusters.
"""
LINK_CODES = range(144, 151)
"""NVLink 5: fatal only if the text contains this word."""
ACTION_CODE = 154
"""Carries the driver's recommended action in its text."""
APPLICATION = {13, 31, 43, 45}
"""Mostly faults of a program, or the trace of its end."""
INFORMATIONAL = {37, 38, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161}
"""Codes that the catalogue says to ignore."""
NEEDS_RESET = {46, 109, 110, 155, 156, 158}
"""Codes for which the catalogue names a reset, and operators do not agree that they are fatal."""


@dataclass(frozen=True, slots=True)
class Event:
    device: str
    code: int
    text: str
    line: str

    @property
    def process(self) -> str:
        match = PROCESS.search(self.text)
        return match[1].strip() if match else ""


def parse(text: str) -> list[Event]:
    """All Xid and SXid events of a log in the format of /dev/kmsg. ParseError if the log has gaps,
    or a line names an Xid in an unknown form.
    """
    found: list[Event] = []
    last: int | None = None
    for number, line in numbered(text):
        if line.startswith(" "):  # properties of the record above
            continue
        record = RECORD.fullmatch(line)
        if record is None:
            raise ParseError(number, line, "PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT")
        if last is not None and int(record[1]) != last + 1:
            raise ParseError(number, line, f"record {last + 1}: records are missing")
        last = int(record[1])
        if MENTION.search(record[3]):
            found.append(_event(record[3], number))
    return found


def _event(text: str, number: int) -> Event:
    for pattern in (XID, SXID):
        if match := pattern.fullmatch(text):
            return Event(match[1].lower(), int(match[2]), match[3], text)
    if match := FALLEN.search(text):
        return Event(match[1].lower().rstrip(":"), 79, "fallen off the bus", text)
    raise ParseError(number, text, "NVRM: Xid (PCI:...): NUMBER, TEXT")


def severity(event: Event) -> tuple[Status, str, str]:
    """Status, cause and remedy of an event."""
    if event.code > 9999:
        status = Status.FAIL if _is_fatal(event.text) else Status.WARN
        return status, "error of an NVSwitch", "restart Fabric Manager, reset all GPUs of the node"
    if event.code == ACTION_CODE:
        action = event.text.rpartition("(")[2].rstrip(")") if "(" in event.text else event.text
        is_none = "none" in action.lower()
        status = Status.PASS if is_none else Status.FAIL
        return status, "a fault after which the driver recommends an action", action
    if event.code in LINK_CODES:
        status = Status.FAIL if _is_fatal(event.text) else Status.WARN
        return status, "NVLink error", "check nvlink; reset all GPUs of the node"
    if event.code in FATAL:
        return Status.FAIL, *FATAL[event.code]
    if event.code in APPLICATION | INFORMATIONAL:
        return Status.PASS, "", ""
    remedy = RESET if event.code in NEEDS_RESET else RESTART
    return Status.WARN, "see NVIDIA's catalogue of Xid errors", remedy


def _is_fatal(text: str) -> bool:
    words = text.lower().replace("non-fatal", "").replace("nonfatal", "")
    return "fatal" in words


def judge(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    source = node[KERNEL_LOG.name]
    has_devices = bool(pci.accelerators_on_bus(node)) or needs.devices > 0
    if not has_devices:
        yield check.finding(node, Status.SKIPPED, "no NVIDIA device on the PCI bus")
        return
    if not source.is_present:
        yield check.absent(node, source, is_needed=False)
        return
    events = parse(next(iter(source.files.values())))
    counts = Counter((event.device, event.code) for event in events)
    harmful = 0
    for (device, code), count in counts.items():
        of_code = [event for event in events if (event.device, event.code) == (device, code)]
        event = max(of_code, key=lambda each: severity(each)[0] is Status.FAIL)
        status, cause, remedy = severity(event)
        if status is Status.PASS:
            continue
        harmful += 1
        name = "SXid" if code > 9999 else "Xid"
        times = f", {count} times" if count > 1 else ""
        process = f" in {event.process}" if event.process else ""
        yield check.finding(
            node,
            status,
            f"{name} {code} since boot{times}{process}",
            device=device,
            cause=cause,
            remedy=remedy,
            evidence=event.line,
        )
    if not harmful:
        summary = f"{len(events)} events of programs" if events else "no Xid since boot"
        yield check.finding(node, Status.PASS, summary)


CHECK = NodeCheck(
    "xid",
    "errors of NVIDIA devices and switches in the kernel's log",
    Layer.DEVICE,
    (KERNEL_LOG, pci.CLASSES, pci.VENDORS),
    judge,
)
