"""What each ESX host needs before GPUs are passed through: each line with the command that checks
it, and the command that sets it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock_ops.deploy.vmware.host import Machines
from penstock_ops.deploy.vmware.vm_class import devices

MFT = "/opt/mellanox/bin"
KERNEL = (("disableACSCheck", "FALSE"), ("atsSupport", "TRUE"), ("enableACSDTP2P", "TRUE"))
"""Kernel settings with the values that GPUDirect RDMA needs (source 002, 8.2)."""


@dataclass(frozen=True, slots=True)
class Item:
    what: str
    check: str
    """Command of the ESX host, or of the server's management, that shows it."""
    right: str
    """What the command prints where it is right."""
    mend: str = ""


def checklist(machines: Machines) -> str:
    """The text for a host, in the order in which to go through it."""
    lines = [
        f"Each of the {machines.count} ESX hosts, in this order; reboot the host where it says so.",
        "",
    ]
    for number, item in enumerate(items(machines), start=1):
        lines += [f"{number}. {item.what}", f"   check: {item.check}", f"   right: {item.right}"]
        if item.mend:
            lines.append(f"   set:   {item.mend}")
    return "\n".join(lines) + "\n"


def items(machines: Machines) -> Iterator[Item]:
    yield from _bios()
    for name, value in KERNEL:
        yield Item(
            f"Kernel setting {name}" + (" (ESX 9 only)" if name == "enableACSDTP2P" else ""),
            f"esxcli system settings kernel list -o {name}",
            f"Runtime is {value}",
            f"esxcli system settings kernel set -s {name} -v {value.lower()}; then reboot",
        )
    yield Item(
        "Tools of the adapters (NMST and MFT)",
        "esxcli software vib list | grep -i -e mft -e nmst",
        "a line for each",
        "esxcli software vib install -v FILE.vib; then reboot",
    )
    for number in range(machines.node.pairs):
        device = f"mt{int(machines.node.nic.device, 16)}_pciconf{number}"
        yield Item(
            f"Address translation services of adapter {number}",
            f"{MFT}/mlxconfig -d {device} query ATS_ENABLED",
            "True(1)",
            f"{MFT}/mlxconfig -d {device} -y set ATS_ENABLED=true; then reboot",
        )
    yield Item(
        "Reset of NVIDIA devices by flr, which Ampere and Hopper need",
        "grep '^10de' /etc/vmware/passthru.map",
        "10de ffff flr false",
        "sed -i 's/^10de *ffff *bridge/10de ffff flr/' /etc/vmware/passthru.map; then reboot",
    )
    yield from _passed(machines)


def _bios() -> Iterator[Item]:
    """ESX does not show the BIOS. The commands are Dell's, on whose server source 002 ran."""
    for what, name, right in (
        ("Virtualisation (VT-d, with ACS)", "ProcSettings.ProcVirtualization", "Enabled"),
        ("SR-IOV", "IntegratedDevices.SriovGlobalEnable", "Enabled"),
        ("Decoding above 4 GB", "IntegratedDevices.MmioAbove4Gb", "Enabled"),
        ("Power by the OS", "SysProfileSettings.SysProfile", "PerfPerWattOptimizedOs"),
        (
            "Sub-NUMA clusters: off where the last-level cache is the limit, else on",
            "ProcSettings.SubNumaCluster",
            "as chosen, the same on all hosts",
        ),
    ):
        mend = "" if "chosen" in right else f"racadm set BIOS.{name} {right}; then a BIOS job"
        yield Item(f"BIOS: {what}", f"racadm get BIOS.{name}", right, mend)


def _passed(machines: Machines) -> Iterator[Item]:
    labels = [str(device["customLabel"]) for device in devices(machines)]
    yield Item(
        f"Passthrough of {len(labels)} devices",
        "esxcli hardware pci pcipassthru list",
        "true, with no reboot pending, for each of them",
        "esxcli hardware pci pcipassthru set -d ADDRESS -e true",
    )
    yield Item(
        "Hardware labels, one for each device in the order of the VM class",
        "Host Client: Manage, Hardware, PCI Devices, column Hardware Label",
        ", ".join(labels),
    )
    yield Item(
        "Service VM: 2 vCPU, 4 GB, the NVSwitches, hardware version above 20; on before any VM "
        "with GPUs",
        "systemctl is-active nvidia-fabricmanager    # in the service VM",
        "active",
        "service-vm-user-data.yaml, in base64, as the encoded user-data of the template",
    )
